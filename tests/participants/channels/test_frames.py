"""The form of what goes over a channel."""

import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants.channels import frames
from participants.channels.frames import Call, Cancel, MalformedFrame
from participants.data import CallId, Reply, Request
from participants.errors import ParticipantError
from store import Life

pytestmark = pytest.mark.unit

LIFE, CALL = Life("r0", 1, 0, 3), CallId("agent.main", 2, 0)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, st.text(), st.dictionaries(st.from_regex(r"[a-z-]{1,9}", fullmatch=True), st.text(), max_size=3))
def test_a_call_arrives_as_it_was_made(body: Any, route: str, headers: dict[str, str]) -> None:
    """Route, body, headers, life and id; also where texts have line breaks, which end a frame."""
    request = Request(route=route, body=body, life=LIFE, call=CALL, headers=headers)
    (frame,) = frames.frames_of(frames.numbered(7, frames.call_rest(request)))
    assert frames.read_call(frame) == Call(7, route, body, str(LIFE), str(CALL), headers)


@given(st.lists(st.tuples(st.integers(0, 10**18 - 1), st.integers(100, 599), JSON), min_size=1, max_size=5))
def test_many_replies_go_in_one_message(replies: list[tuple[int, int, Any]]) -> None:
    """Each is found again with its number."""
    message = b"\n".join([frames.reply_frame(number, Reply(status, body)) for number, status, body in replies])
    read = [frames.read_reply(frame) for frame in frames.frames_of(message)]
    assert [(number, reply.status, reply.body) for number, reply in read] == replies


def test_a_call_given_up_is_a_frame_too() -> None:
    """It names the number alone."""
    (frame,) = frames.frames_of(frames.cancel_frame(3))
    assert frames.read_call(frame) == Cancel(3)


@pytest.mark.parametrize(
    "message",
    [b"", b"{", b"7", b"[]", b"{}", b'{"i":"1"}', b'{"i":1}', b'{"i":1,"route":2}', b'{"i":1,"route":"/","life":3}',
     b'{"i":1,"route":"/","headers":{"a":1}}', b'{"i":1,"route":"/","headers":[]}', b"\xff", b'{"i":1,"route":"\xff"}',
     b'{"route":"/","i":1}', b'{"i":-1,"route":"/"}', b'{"i":1,"route":"/","i":"x"}', b'{"i":1,"route":"/"}{"a":1}',
     b"[" * 1000 + b"]" * 1000, b'{"i":1,"route":5,"body":' + b"[" * 1000 + b"]" * 1000 + b"}",
     b'{"i":1,"route":5,"body":' + b"[" * 5000 + b"]" * 5000 + b"}"],
    ids=range(20),
)  # fmt: skip
def test_what_is_no_call_is_refused(message: bytes) -> None:
    """Text that is not JSON, JSON that is no frame, fields of another type, and what is too deep to be shown."""
    with pytest.raises(MalformedFrame):
        [frames.read_call(frame) for frame in frames.frames_of(message)]


@pytest.mark.parametrize(
    "frame",
    [b'{"i":1,"route":5,"headers":{"authorization":"Bearer sesame"}}', b'{"authorization":"Bearer sesame"}',
     b'{"i":1,"route":"/","headers":{"authorization":"Bearer sesame"', b'{"i":1,"status":"sesame"}', b'{"i":"sesame"}'],
)  # fmt: skip
def test_what_is_wrong_with_a_frame_is_told_without_it(frame: bytes) -> None:
    """It may hold a secret, and the problem goes into logs and to others."""
    for read in (frames.read_call, frames.read_reply):
        with pytest.raises(MalformedFrame, match=f"{len(frame)} bytes") as caught:
            read(frame)
        assert "sesame" not in str(caught.value)


def test_what_does_not_begin_as_a_frame_is_not_parsed() -> None:
    """A list of a million lists costs nothing beyond what it is."""
    message = b"[" + b"[]," * 2**18 + b"[]]"
    tracemalloc.start()
    try:
        for read in (frames.read_call, frames.read_reply):
            with pytest.raises(MalformedFrame, match="does not begin"):
                [read(frame) for frame in frames.frames_of(message)]
        _, height = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert height < 2**16


@pytest.mark.parametrize("frame", [[], {}, {"i": 1}, {"i": 1, "status": "200"}, {"i": 1, "status": 200, "headers": 1}])
def test_what_is_no_reply_is_refused(frame: Any) -> None:
    """A client trusts nothing that comes after it."""
    with pytest.raises(MalformedFrame):
        frames.read_reply(orjson.dumps(frame))


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other side would cut the connection, with all other calls on it."""
    monkeypatch.setattr(frames, "MAX_BODY_BYTES", 100)
    with pytest.raises(ParticipantError, match="larger than 100 bytes"):
        frames.call_rest(Request(route="/x", body="y" * 100))


def test_headers_of_replies_are_lower_case() -> None:
    """As they are over HTTP."""
    frame = orjson.loads(frames.reply_frame(1, Reply(200, None, {"Set-Cookie": "A=B"})))
    assert frame["headers"] == {"set-cookie": "A=B"}
