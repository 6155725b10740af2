"""Joining, cut more than once, as text, and what the client is shown of it."""

from dataclasses import replace
from typing import Any

import pytest

from participants.cuts import (
    Anew,
    Continue,
    Prefix,
    Reading,
    Segment,
    combined,
    for_client,
    join,
    joined,
    plan,
    read,
    watch,
)
from participants.errors import Code, ParticipantError

from .test_every_cut import CASES, same
from .uncut import CAPABILITIES, CHAT, COMPLETIONS, RESPONSES, continued, streamed, text_of, whole

pytestmark = pytest.mark.unit


def rest_events(route: str, body: dict[str, Any], prefix: Prefix) -> list[bytes]:
    """The events of the rest after a prefix; none where nothing is left."""
    planned = plan(route, body, prefix, CAPABILITIES)
    assert isinstance(planned, Continue)
    if watch(body, prefix, route=route, raw_text=text_of(planned.raw_ids), tool_format="marks").stop is not None:
        return []
    return streamed(planned.route, planned.body) if planned.body is not None else []


@pytest.mark.parametrize("name", ["chat-scored-one", "chat-calls", "chat-stop", "completion-scored", "response-mixed"])
def test_a_continued_generation_can_be_cut_again(name: str) -> None:
    """At every pair of places: prefix and the beginning of the rest are a prefix, and its reply is the uncut one."""
    route, body = CASES[name]
    events = streamed(route, body)
    wanted = whole(route, body)
    for k in range(0, len(events), 3):
        first = read(route, events[:k]).prefix
        if not first.ids:
            continue
        rest = rest_events(route, body, first)
        for j in range(0, len(rest), 4):
            again = combined(first, read(COMPLETIONS, rest[:j]))
            assert again.ids is not None
            assert sum(segment.count for segment in again.segments) == len(again.ids)
            outcome = continued(route, body, again)
            assert not isinstance(outcome, Anew)
            same(outcome.reply, dict(wanted))


def test_segments_of_a_second_cut_go_on() -> None:
    """Counted from the beginning of the output, and one segment where the weights are the same."""
    first = Prefix(prompt=(1,), ids=(2, 3), segments=(Segment(0, 2, "a"),))
    same_weights = Prefix(ids=(4,), segments=(Segment(0, 1, "a"),))
    others = Prefix(ids=(4, 5), segments=(Segment(0, 1, "a"), Segment(1, 1, "b")))
    assert combined(first, same_weights).segments == (Segment(0, 3, "a"),)
    assert combined(first, others).segments == (Segment(0, 3, "a"), Segment(3, 1, "b"))


TEXT_CASES = {
    name: CASES[name]
    for name in ("chat", "chat-scored", "chat-min", "chat-continued", "completion", "completion-default")
}


@pytest.mark.parametrize("name", TEXT_CASES)
def test_as_text_the_reply_is_the_uncut_one_too(name: str) -> None:
    """Where the backend takes no ids: the check's ids are asked for, and the rest comes in the caller's dialect."""
    route, body = TEXT_CASES[name]
    capabilities = replace(CAPABILITIES, token_ids_in=False, tool_format="")
    events = streamed(route, body)
    wanted = whole(route, body)
    count = 0
    for k in range(len(events)):
        prefix = read(route, events[:k]).prefix
        planned = plan(route, body, prefix, capabilities)
        if isinstance(planned, Anew) or planned.body is None:
            continue
        assert planned.check is not None
        raw = text_of(planned.raw_ids)
        rest = read(planned.route, streamed(planned.route, planned.body))
        assert rest.prefix.prompt == planned.check.expected
        same(join(route, body, prefix, rest, raw_text=raw), dict(wanted))
        count += 1
    assert count > 5


def test_a_rest_without_an_end_is_a_failure() -> None:
    """It is never taken for a whole reply."""
    prefix = Prefix(prompt=(1,), ids=(2,), text="a")
    with pytest.raises(ParticipantError, match="has no end") as caught:
        join(CHAT, {"messages": []}, prefix, Reading(prefix=Prefix(ids=(3,), text="b")))
    assert (caught.value.code, caught.value.details["reason"]) == (Code.MODEL_FAILED, "broke_off")


def test_a_stop_string_ends_a_rest_that_was_broken_off() -> None:
    """The caller broke it off for that."""
    prefix = Prefix(prompt=(1,), ids=(2,), text="a st")
    rest = Reading(prefix=Prefix(ids=(3, 4), text="op more"), steps=((1, 2), (2, 7)), extras={"stop_reason": None})
    made = joined(CHAT, {"messages": [], "stop": "stop"}, prefix, rest)
    assert made.whole.ids == (2, 3)
    assert made.reply["choices"][0]["message"]["content"] == "a "
    assert made.reply["choices"][0]["stop_reason"] == "stop"


@pytest.mark.parametrize(
    ("kind", "more", "content"),
    [
        ("vllm", {}, "a "),
        ("vllm", {"include_stop_str_in_output": True}, "a stop"),
        ("vllm", {"no_stop_trim": True}, "a "),
        ("sglang", {"no_stop_trim": True}, "a stop"),
        ("sglang", {"include_stop_str_in_output": True}, "a "),
        ("openai", {"no_stop_trim": True}, "a stop"),
        ("llama.cpp", {"include_stop_str_in_output": True}, "a "),
        ("midflight", {"include_stop_str_in_output": True, "no_stop_trim": True}, "a "),
    ],
)
def test_a_stop_string_stays_where_the_backend_lets_it(kind: str, more: dict[str, Any], content: str) -> None:
    """vLLM's and SGLang's field for it; elsewhere it has no effect after a cut either."""
    prefix = Prefix(prompt=(1,), ids=(2,), text="a st")
    rest = Reading(prefix=Prefix(ids=(3,), text="op more"), steps=((1, 7),))
    reply = join(CHAT, {"messages": [], "stop": "stop", **more}, prefix, rest, kind=kind)
    assert reply["choices"][0]["message"]["content"] == content


@pytest.mark.parametrize(("scored", "ids"), [(True, (2, 3, 4)), (False, (2, 3, 4, 5))])
def test_several_tokens_in_one_chunk_are_told_apart_by_log_probabilities(scored: bool, ids: tuple[int, ...]) -> None:
    """A stop string ends at its own token; without log probabilities the whole chunk counts, and the text is right."""
    scores: tuple[dict[str, Any], ...] = tuple(
        {"token": each, "logprob": -1.0, "bytes": None, "top_logprobs": []} for each in ("o", "p ", "more")
    )
    part = Prefix(ids=(3, 4, 5), text="op more", logprobs=scores if scored else (), segments=(Segment(0, 3, "w"),))
    first = Prefix(prompt=(1,), ids=(2,), text="a st", segments=(Segment(0, 1, "v"),))
    body = {"messages": [], "stop": "stop", "logprobs": True}
    made = joined(CHAT, body, first, Reading(prefix=part, steps=((3, 7),)))
    assert made.whole.ids == ids
    assert made.whole.segments == (Segment(0, 1, "v"), Segment(1, len(ids) - 1, "w"))
    assert made.reply["choices"][0]["message"]["content"] == "a "


def test_text_without_marks_that_nobody_knows_is_kept_as_it_was_shown() -> None:
    """A special token that the stream left out does not come back with the text of the ids."""
    prefix = Prefix(prompt=(1,), ids=(2, 3), text="shown")
    rest = Reading(prefix=Prefix(ids=(4,), text=" on"), ended=True, finish="stop")
    reply = join(CHAT, {"messages": []}, prefix, rest, raw_text="<special>shown")
    assert reply["choices"][0]["message"]["content"] == "shown on"


@pytest.mark.parametrize("name", ["chat-scored", "completion", "response"])
def test_ids_are_shown_only_to_who_asked(name: str) -> None:
    """A reply that was read with ids loses them on its way to a client that did not ask, and is not changed itself."""
    route, body = CASES[name]
    reply = whole(route, body)
    kept = repr(reply)
    assert for_client(route, body, reply) == reply
    plain = {key: value for key, value in body.items() if key != "return_token_ids"}
    same(for_client(route, plain, reply), whole(route, plain))
    assert repr(reply) == kept


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS, RESPONSES])
def test_usage_has_what_else_the_backend_says(route: str) -> None:
    """Counts of the whole; other fields of the rest's usage stay."""
    prefix = Prefix(prompt=(1, 2, 3), ids=(4, 5), text="a")
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6, "prompt_tokens_details": None}
    rest = Reading(prefix=Prefix(ids=(6,), text="b"), ended=True, finish="length", usage=usage)
    found = join(route, {}, prefix, rest)["usage"]
    if route == RESPONSES:
        assert (found["input_tokens"], found["output_tokens"], found["total_tokens"]) == (3, 3, 6)
    else:
        counts = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6, "prompt_tokens_details": None}
        assert found == counts
