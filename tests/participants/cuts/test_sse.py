"""Server-sent events, however they are written and wherever their bytes are divided."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants.cuts.sse import Parser, events
from participants.errors import Code, ParticipantError

pytestmark = pytest.mark.unit

ENDS = st.sampled_from(["\n", "\r\n", "\r"])
PAYLOADS = st.lists(st.text("aé字\U0001f600{}:[] ,", min_size=1, max_size=8).map(lambda text: "x" + text), max_size=6)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream written in one of many ways, and its payloads."""
    end = draw(ENDS)
    written = draw(st.sampled_from(["", "\ufeff"]))
    wanted = []
    for payload in draw(PAYLOADS):
        lines = [payload, *draw(st.lists(st.sampled_from(["", "y", " z"]), max_size=2))]
        colon = draw(st.sampled_from(["data: ", "data:"]))
        noise = draw(st.lists(st.sampled_from([": ping", "event: e", "id: 7", "retry: 9", ""]), max_size=2))
        written += "".join(line + end for line in noise)
        written += "".join(colon + line + end for line in lines) + end
        wanted.append("\n".join(line.removeprefix(" ") if colon == "data:" else line for line in lines).encode())
    return written.encode(), wanted


@given(streams())
def test_the_payloads_of_a_whole_stream_are_found(stream: tuple[bytes, list[bytes]]) -> None:
    """Line ends, comments, other fields, several lines and a byte order mark make no difference."""
    data, wanted = stream
    assert list(events(data)) == wanted


@given(streams(), st.data())
def test_borders_of_chunks_make_no_difference(stream: tuple[bytes, list[bytes]], data: st.DataObject) -> None:
    """Also inside a character, inside CRLF and inside an empty line."""
    whole, wanted = stream
    borders = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    parser, found = Parser(), list[bytes]()
    for start, end in zip([0, *borders], [*borders, len(whole)], strict=True):
        found += parser.feed(whole[start:end])
    assert found == wanted


@given(streams())
def test_a_stream_byte_by_byte_is_the_same(stream: tuple[bytes, list[bytes]]) -> None:
    """The finest division."""
    data, wanted = stream
    parser = Parser()
    assert [payload for byte in data for payload in parser.feed(bytes([byte]))] == wanted


def test_what_has_no_empty_line_after_it_is_no_event() -> None:
    """The backend may still be writing it."""
    assert list(events(b"data: a\n\ndata: b\n")) == [b"a"]


@pytest.mark.parametrize(
    ("stream", "wanted"),
    [
        (b'error: {"message":"m"}\n\n', b'{"error":{"message":"m"}}'),
        (b'event: error\ndata: {"message":"m"}\n\n', b'{"error":{"message":"m"}}'),
        (b'event: error\ndata: {"error":{"message":"m"}}\n\n', b'{"error":{"message":"m"}}'),
    ],
)
def test_errors_have_one_form(stream: bytes, wanted: bytes) -> None:
    """Those in a field of their own, and those that are named so."""
    assert list(events(stream)) == [wanted]


def test_an_endless_event_is_a_failure() -> None:
    """Past the limit of bytes, and not before."""
    parser = Parser(max_event_bytes=100)
    assert parser.feed(b"data: " + b"x" * 94) == []
    with pytest.raises(ParticipantError, match="max_event_bytes") as caught:
        parser.feed(b"x")
    assert caught.value.code is Code.MODEL_FAILED
