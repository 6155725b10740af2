"""Stop strings, half characters and text that lags behind its ids: cut anywhere, the reply is the uncut one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants.cuts import Anew, StopWatch, combined, read
from participants.cuts.stopping import find_stop

from .lagging import PROMPT, Lagging
from .uncut import CHAT, COMPLETIONS

pytestmark = pytest.mark.unit

WORDS = Lagging([b"one", b" two", b" th", b"ree", b" fo", b"u", b"r", b" five", b"!"])
HALVES = Lagging([b"Z", b"\xc3", b"\xbc", b"ri", b"ch \xe5", b"\xad", b"\x97", b"\xe5\xad", b"\x97", b"."])
TEXT = "one two three four five!"
STOPS = [TEXT[a : a + n] for n in (1, 2, 3, 5, 8) for a in range(len(TEXT) - n + 1)]


def every_cut_is_the_whole(model: Lagging, route: str, body: dict[str, Any]) -> None:
    """Cut after each token."""
    body = {"messages": [], "prompt": list(PROMPT), "max_tokens": 50, "return_token_ids": True, **body}
    events = model.stream(route, body)
    wanted = read(route, events).reply
    assert wanted is not None
    for k in range(1, len(events) - 1):
        prefix = read(route, events[:k]).prefix
        assert len(prefix.ids or ()) == k
        outcome = model.continued(route, body, prefix)
        assert not isinstance(outcome, Anew)
        got = dict(outcome.reply)
        assert got.pop("usage") == wanted["usage"]
        assert {"usage": wanted["usage"], **got} == wanted, k


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stop", [*STOPS, "absent", ["r f", "three"], ["five", "zzzzzzzzzzzzzzzz"]], ids=repr)
def test_a_stop_string_is_found_wherever_the_cut_is(route: str, stop: Any) -> None:
    """Text, ids, reason and usage are the uncut ones, also where it begins in the prefix and ends in the rest."""
    every_cut_is_the_whole(WORDS, route, {"stop": stop})


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("most", range(1, 12))
@pytest.mark.parametrize("stop", [None, "zz", "h", "."])
def test_a_cut_inside_a_character_loses_nothing(route: str, most: int, stop: str | None) -> None:
    """The character whose bytes are in both parts is whole in the joined text; one that stays half is not shown."""
    every_cut_is_the_whole(HALVES, route, {"max_tokens": most, "stop": stop})


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
def test_bytes_of_half_characters_are_told_by_the_text(route: str) -> None:
    """Completions names no bytes; where each token is one byte, the joined log probabilities have them."""
    model = Lagging([b"Z", b"\xc3", b"\xbc", b"ri", b"ch ", b"\xe5", b"\xad", b"\x97", b"."])
    every_cut_is_the_whole(model, route, {"logprobs": 1})


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
def test_a_stop_string_with_half_a_character_in_the_prefix_is_found(route: str) -> None:
    """The text is cut there, though no stream showed that character."""
    body = {"messages": [], "prompt": list(PROMPT), "stop": "字字", "max_tokens": 50}
    events = HALVES.stream(route, body)
    wanted = read(route, events).reply
    assert wanted is not None
    for k in range(1, len(events) - 1):
        outcome = HALVES.continued(route, body, read(route, events[:k]).prefix)
        assert not isinstance(outcome, Anew)
        for key in ("message", "text", "finish_reason", "stop_reason"):
            assert outcome.reply["choices"][0].get(key) == wanted["choices"][0].get(key), k


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("model", [WORDS, HALVES], ids=["words", "halves"])
@pytest.mark.parametrize("stop", [None, "e two t", "ree", "r f", "five!", "ri", "h", "zzz"])
def test_two_cuts_find_the_same_end(route: str, model: Lagging, stop: str | None) -> None:
    """Cut after each token, and again after each token of the rest: text, ids and reason are the uncut ones."""
    body = {"messages": [], "prompt": list(PROMPT), "max_tokens": 50, "return_token_ids": True, "stop": stop}
    events = model.stream(route, body)
    wanted = read(route, events).reply
    assert wanted is not None
    for k in range(1, len(events) - 1):
        first = read(route, events[:k]).prefix
        for j in range(1, len(events) - k - 1):
            rest = model.rest(route, body, first, j)
            assert not isinstance(rest, Anew)
            if rest.ended:
                continue
            outcome = model.continued(route, body, combined(first, rest))
            assert not isinstance(outcome, Anew)
            got = outcome.reply["choices"][0]
            for key in ("message", "text", "finish_reason", "stop_reason", "token_ids"):
                assert got.get(key) == wanted["choices"][0].get(key), (k, j)


def test_a_watch_has_nothing_to_do_where_no_stop_string_has_begun() -> None:
    """Then the backend keeps its stop strings, and the watch costs nothing."""
    watching = StopWatch(["stop"], "nothing here", 12)
    assert watching.over
    assert watching.asked({"stop": ["stop"], "top_k": 1}) == {"stop": ["stop"], "top_k": 1}


def test_a_watch_alone_ends_what_has_begun() -> None:
    """The backend is asked without stop strings, and each chunk is searched, whatever the borders of its bytes."""
    watching = StopWatch(["stop", "x"], "a st", 4)
    assert not watching.over
    assert watching.asked({"stop": ["stop"], "top_k": 1}) == {"top_k": 1}
    stream = b"".join(b'data: {"choices":[{"text":"%s"}]}\n\n' % text for text in (b"art", b"a" * 200, b"sto", b"p!"))
    fed = [watching.feed(stream[at : at + 1]) for at in range(len(stream))]
    assert fed.index(True) == len(stream) - 1


def test_a_watch_leaves_the_least_number_of_tokens_to_the_backend() -> None:
    """Only the backend knows which stop strings it passes over before `min_tokens`."""
    assert "stop" in StopWatch(["stop"], "a st", 4).asked({"stop": "stop", "min_tokens": 3})


@given(st.text("abc", max_size=12), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3), st.integers(0, 12))
def test_the_first_stop_string_after_what_was_passed_is_found(text: str, stops: list[str], passed: int) -> None:
    """As by looking at every place."""
    passed = min(passed, len(text))
    found = find_stop(text, stops, passed=passed)
    places = [
        (at, stop) for at in range(len(text)) for stop in stops if text.startswith(stop, at) and at + len(stop) > passed
    ]
    assert (found is None) == (not places)
    if found is not None:
        assert found.at == min(at for at, _ in places)
