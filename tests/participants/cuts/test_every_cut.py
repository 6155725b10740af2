"""A generation cut after each event and continued is the uncut one, in every dialect and with every feature."""

from typing import Any

import pytest

from participants.cuts import Anew, Reason, Segment, read
from participants.inference.tokens import VOCABULARY_SIZE

from .uncut import CHAT, COMPLETIONS, RESPONSES, InProcess, continued, streamed, whole

pytestmark = pytest.mark.unit

IDS = {"return_token_ids": True}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
CALL = '<script>[{"filler": 6, "call": {"name": "get_weather", "arguments": {"city": "Rome, Zürich"}}}]</script>'
CALLS = (
    '<script>[{"filler": 2, "calls": [{"name": "a", "arguments": "{broken"}, {"name": "b"}, '
    '{"name": "get_weather", "arguments": {"city": "x y"}}]}]</script>'
)
REFUSAL = '<script>[{"filler": 3, "refusal": "I will not say where the water is"}]</script>'
MIXED = '<script>[{"text": "Zürich\\n né 字", "refusal": "no", "calls": [{"name": "a", "arguments": "{}"}]}]</script>'
EMPTY = "<script>[{}]</script>"


def chat(text: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, {"messages": [{"role": "user", "content": text}], **IDS, **more}


def responses(text: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return RESPONSES, {"input": text, "instructions": "be short", **IDS, **more}


def completion(prompt: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    return COMPLETIONS, {"prompt": prompt, **IDS, **more}


SCORED_RESPONSE = {"include": ["message.output_text.logprobs"], "top_logprobs": 3}
CASES = {
    "chat": chat("hello", max_tokens=20),
    "chat-to-its-end": chat("a long story", max_completion_tokens=200),
    "chat-scored": chat("hello", max_tokens=12, logprobs=True, top_logprobs=4),
    "chat-scored-plain": chat("hello", max_tokens=12, logprobs=True),
    "chat-scored-one": chat(MIXED, logprobs=True, top_logprobs=1),
    "chat-min": chat("hi", max_tokens=80, min_tokens=70),
    "chat-on": chat("hi", max_tokens=80, ignore_eos=True),
    "chat-call": chat(CALL, tools=TOOLS, logprobs=True),
    "chat-calls": chat(CALLS, tools=TOOLS),
    "chat-call-limited": chat(CALL, tools=TOOLS, max_tokens=22),
    "chat-call-without-tools": chat(CALL),
    "chat-refusal": chat(REFUSAL),
    "chat-mixed": chat(MIXED, tools=TOOLS),
    "chat-empty": chat(EMPTY),
    "chat-stop": chat('<script>[{"text": "one two three four"}]</script>', stop=["two th", "four"]),
    "chat-stop-call": chat(CALL, tools=TOOLS, stop="Zür"),
    "chat-stop-id": chat("hello", max_tokens=40, stop_token_ids=list(range(264, VOCABULARY_SIZE, 20))),
    "chat-continued": (
        CHAT,
        {
            "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "well"}],
            "continue_final_message": True,
            "max_tokens": 9,
            **IDS,
        },
    ),
    "completion": completion("once upon a time", max_tokens=24),
    "completion-default": completion("once upon"),
    "completion-ids": completion([72, 105, 300], max_tokens=10),
    "completion-scored": completion("once", max_tokens=10, logprobs=3),
    "completion-scored-zero": completion("once", max_tokens=10, logprobs=0),
    "completion-turn": completion(f"<|user|>{MIXED}<|end|><|assistant|>", max_tokens=60, logprobs=2),
    "completion-unlimited": completion(f"<|user|>{CALL}<|end|><|assistant|>", max_tokens=None),
    "response": responses("hello", max_output_tokens=15),
    "response-to-its-end": responses("a long tale"),
    "response-scored": responses("hello", max_output_tokens=9, **SCORED_RESPONSE),
    "response-call": responses(CALL, tools=[TOOLS[0]["function"]], **SCORED_RESPONSE),
    "response-calls": responses(CALLS),
    "response-mixed": responses(MIXED, **SCORED_RESPONSE),
    "response-refusal": responses(REFUSAL),
    "response-empty": responses(EMPTY),
    "response-limited": responses(CALLS, max_output_tokens=30),
}


def same(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Equal but for the time of creation."""
    for each in (got, wanted):
        for key in ("created", "created_at"):
            each.pop(key, None)
    assert got == wanted


@pytest.mark.parametrize("name", CASES)
def test_every_cut_ends_as_the_uncut_reply(name: str) -> None:
    """Cut after each event: the joined reply is the whole one, and only a cut before any token is made anew."""
    route, body = CASES[name]
    events = streamed(route, body)
    wanted = whole(route, body)
    anew = 0
    for k in range(len(events) + 1):
        prefix = read(route, events[:k]).prefix
        outcome = continued(route, body, prefix)
        if isinstance(outcome, Anew):
            assert outcome.reason is Reason.NOTHING_GENERATED, (k, outcome)
            assert not prefix.ids
            anew += 1
            continue
        same(outcome.reply, dict(wanted))
        ids = wanted.get("token_ids") or wanted["choices"][0]["token_ids"]
        assert list(outcome.whole.ids or ()) == ids
    assert anew < 6


@pytest.mark.parametrize("name", CASES)
def test_a_stream_read_to_its_end_is_the_whole_reply(name: str) -> None:
    """What is made of all events is what a client without a stream gets."""
    route, body = CASES[name]
    options = {} if route == RESPONSES else {"stream_options": {"include_usage": True}}
    reading = read(route, streamed(route, {**body, **options}))
    assert reading.ended
    assert reading.failure is None
    same(dict(reading.reply or {}), whole(route, body))


@pytest.mark.parametrize("name", ["chat-scored", "chat-calls", "completion-scored", "response-mixed", "response-empty"])
def test_replies_name_the_weights_as_uncut_ones_do(name: str) -> None:
    """With a version of the weights: it is in the joined reply and in one segment, wherever the cut was."""
    route, body = CASES[name]
    backend = InProcess(weights="7")
    events = backend.streamed(route, body)
    wanted = backend.whole(route, body)
    assert wanted["weight_version"] == "7"
    same(dict(read(route, events).reply or {}), dict(wanted))
    for k in range(len(events)):
        outcome = backend.continued(route, body, read(route, events[:k]).prefix)
        if isinstance(outcome, Anew):
            continue
        same(outcome.reply, dict(wanted))
        assert outcome.whole.segments == (Segment(0, len(outcome.whole.ids or ()), "7"),)
