"""Streams as each kind of server sends them, whole, broken off and out of order."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants.cuts import Reading, Segment, read
from participants.cuts.sse import DONE
from participants.errors import Code

from .test_every_cut import CASES
from .uncut import CHAT, COMPLETIONS, RESPONSES, streamed

pytestmark = pytest.mark.unit


def stream(*chunks: Any, done: bool = True) -> list[bytes]:
    """Chunks as events."""
    events = [b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks]
    return [*events, b"data: " + DONE + b"\n\n"] if done else events


def chunk(delta: Any = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk of chat; `more` goes into the choice."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish, **more}
    return {"id": "c", "object": "chat.completion.chunk", "created": 5, "model": "m", "choices": [choice]}


def reply_of(reading: Reading) -> dict[str, Any]:
    assert reading.ended
    assert reading.reply is not None
    return reading.reply


def test_vllm_with_tools_and_ids() -> None:
    """Ids with each chunk, calls by index, an empty `stop_reason`, and the usage in a chunk without choices."""
    usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8, "prompt_tokens_details": None}
    calls = [
        {"index": 0, "id": "t0", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"a":'}},
        {"index": 1, "id": "t1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        {"index": 0, "function": {"arguments": "1}"}},
    ]
    chunks = [
        {**chunk({"role": "assistant", "content": ""}, logprobs=None), "prompt_token_ids": [1, 2, 3]},
        chunk({"content": "so"}, token_ids=[7], stop_reason=None),
        *(chunk({"tool_calls": [call]}, token_ids=[8 + n]) for n, call in enumerate(calls[:3])),
        chunk({"tool_calls": [calls[3]]}, "tool_calls", token_ids=[11], stop_reason=None),
        {"id": "c", "object": "chat.completion.chunk", "created": 5, "model": "m", "choices": [], "usage": usage},
    ]
    reading = read(CHAT, stream(*chunks))
    reply = reply_of(reading)
    assert reply["usage"] == usage
    assert reply["prompt_token_ids"] == [1, 2, 3]
    choice = reply["choices"][0]
    assert choice["stop_reason"] is None
    assert choice["finish_reason"] == "tool_calls"
    assert [(call["id"], call["function"]) for call in choice["message"]["tool_calls"]] == [
        ("t0", {"name": "f", "arguments": '{"a":1}'}),
        ("t1", {"name": "g", "arguments": "{}"}),
    ]
    assert reading.prefix.ids == (7, 8, 9, 10, 11)
    assert reading.prefix.calls
    assert reading.prefix.head["call_ids"] == ["t0", "t1"]
    assert reading.prefix.segments == (Segment(0, 5, ""),)


def test_sglang_with_reasoning_and_weights_in_its_metadata() -> None:
    """Reasoning beside the content, nulls for what is not there, the reason in a chunk of its own, no ids."""
    chunks = [
        chunk({"role": "assistant", "content": "", "reasoning_content": None, "tool_calls": None}, matched_stop=None),
        chunk({"content": None, "reasoning_content": "hm"}),
        chunk({"content": None, "reasoning_content": " well"}),
        chunk({"content": "yes", "reasoning_content": None}),
        {**chunk({}, "stop", matched_stop=2), "metadata": {"weight_version": "w3"}},
    ]
    reading = read(CHAT, stream(*chunks))
    choice = reply_of(reading)["choices"][0]
    assert choice["message"]["reasoning_content"] == "hm well"
    assert choice["message"]["content"] == "yes"
    assert choice["matched_stop"] == 2
    assert reading.prefix.reasoning
    assert reading.prefix.ids is None


def test_llama_cpp_with_timings() -> None:
    """Content null at first, log probabilities with ids, timings in the last chunk."""
    score = {"id": 9, "token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": []}
    chunks = [
        {**chunk({"role": "assistant", "content": None}), "system_fingerprint": "b1"},
        {**chunk({"content": "a"}, logprobs={"content": [score]}), "system_fingerprint": "b1"},
        {**chunk({}, "length"), "system_fingerprint": "b1", "timings": {"predicted_n": 1}},
    ]
    reply = reply_of(read(CHAT, stream(*chunks)))
    assert reply["system_fingerprint"] == "b1"
    assert reply["timings"] == {"predicted_n": 1}
    assert reply["choices"][0]["logprobs"] == {"content": [score]}
    assert "usage" not in reply


def test_openai_with_a_refusal_and_several_choices() -> None:
    """Each choice has its own message; the stream has ended when all of them have."""

    def of(index: int, delta: Any, finish: str | None = None) -> dict[str, Any]:
        made = chunk(delta, finish)
        made["choices"][0]["index"] = index
        return made

    chunks = [
        of(1, {"role": "assistant", "content": "one"}),
        of(0, {"role": "assistant", "refusal": "I "}),
        of(1, {}, "stop"),
        of(0, {"refusal": "will not"}),
        of(0, {}, "stop"),
    ]
    assert not read(CHAT, stream(*chunks[:-1])).ended
    first, second = reply_of(read(CHAT, stream(*chunks)))["choices"]
    assert first["message"] == {"role": "assistant", "content": None, "refusal": "I will not"}
    assert second["message"]["content"] == "one"


def test_completions_with_ids_and_columns() -> None:
    """The ids of the prompt come with the first choice, and log probabilities as lists."""
    scores = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0}], "text_offset": [0]}
    more = {"tokens": ["b"], "token_logprobs": [-2.0], "top_logprobs": [None], "text_offset": [1]}
    first = {"index": 0, "text": "a", "logprobs": scores, "finish_reason": None, "token_ids": [5]}
    chunks = [
        {"id": "c", "created": 1, "model": "m", "choices": [{**first, "prompt_token_ids": [1]}]},
        {"id": "c", "choices": [{**first, "text": "b", "logprobs": more, "token_ids": [6], "finish_reason": "length"}]},
    ]
    reading = read(COMPLETIONS, stream(*chunks))
    choice = reply_of(reading)["choices"][0]
    assert choice["text"] == "ab"
    assert choice["logprobs"]["tokens"] == ["a", "b"]
    assert choice["logprobs"]["top_logprobs"] == [{"a": -1.0}, None]
    assert choice["prompt_token_ids"] == [1]
    assert reading.prefix.prompt == (1,)
    assert [entry["token"] for entry in reading.prefix.logprobs] == ["a", "b"]
    assert reply_of(reading)["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def test_segments_follow_the_weights() -> None:
    """From the chunk that names another version on; what nobody named comes first."""
    versions = [None, "7", "7", 8, "9"]
    chunks = [
        {**chunk({"content": "x"}, token_ids=[n, n]), **({"weight_version": version} if version else {})}
        for n, version in enumerate(versions)
    ]
    reading = read(CHAT, stream(*chunks))
    assert reading.prefix.segments == (Segment(0, 2, ""), Segment(2, 4, "7"), Segment(6, 2, "8"), Segment(8, 2, "9"))


def test_text_after_the_last_ids_is_no_part_of_the_prefix() -> None:
    """A server that sends the text of a token in two chunks names its id with the second."""
    reading = read(CHAT, stream(chunk({"content": "a"}, token_ids=[1]), chunk({"content": "b"}), done=False))
    assert reading.prefix.text == "a"


FAILURES: dict[str, tuple[str, list[bytes]]] = {
    "an error event": (CHAT, stream(chunk({"content": "a"}), {"error": {"message": "out of memory"}})),
    "an error as text": (CHAT, stream(chunk({"content": "a"}), {"error": "out of memory"})),
    "llama.cpp's error": (CHAT, [*stream(chunk({"content": "a"}), done=False), b'error: {"message": "x"}\n\n']),
    "no JSON": (CHAT, [*stream(chunk({"content": "a"}), done=False), b"data: <html>\n\n"]),
    "no object": (CHAT, stream(chunk({"content": "a"}), [1])),
    "two in one": (CHAT, [*stream(chunk({"content": "a"}), done=False), b"data: {},{}\n\n", b"data: 1\n\n"]),
    "another shape": (CHAT, stream(chunk({"content": "a"}), {"choices": [5]})),
    "text of another type": (CHAT, stream(chunk({"content": "a"}), chunk({"content": 5}))),
    "a failed response": (RESPONSES, stream({"type": "response.failed", "response": {"error": {"message": "x"}}})),
    "an error of responses": (RESPONSES, stream({"type": "error", "code": "c", "message": "x"})),
    "a response of another shape": (RESPONSES, stream({"type": "response.created", "response": 5})),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_is_no_generation_is_a_failure(name: str) -> None:
    """It raises nothing, has a type, and what came before is there."""
    route, chunks = FAILURES[name]
    reading = read(route, chunks)
    assert reading.failure is not None
    assert reading.failure.code is Code.MODEL_FAILED
    said_so = "error" in name or name == "a failed response"
    assert reading.failure.details["reason"] == ("error_event" if said_so else "bad_event")
    assert not reading.ended
    assert reading.reply is None
    assert route == RESPONSES or reading.prefix.text == "a"


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["tokens", "name", "id"]), inner),
    max_leaves=4,
)


@given(st.sampled_from(sorted(CASES)), st.data())
def test_reading_raises_nothing(name: str, data: st.DataObject) -> None:
    """Any value in place of any part of an event gives a reading, with or without a failure."""
    route, body = CASES[name]
    events = [orjson.loads(event.split(b"data: ")[1]) for event in streamed(route, body)[:8] if b"[DONE]" not in event]
    within: Any = data.draw(st.sampled_from(events))
    while within and isinstance(within, dict | list):
        key: Any = data.draw(st.sampled_from(sorted(within) if isinstance(within, dict) else range(len(within))))
        if not within[key] or not isinstance(within[key], dict | list) or data.draw(st.booleans()):
            within[key] = data.draw(ANYTHING)
            break
        within = within[key]
    reading = read(route, stream(*events))
    assert reading.failure is None or reading.failure.code is Code.MODEL_FAILED


def test_a_stream_without_a_reason_has_not_ended() -> None:
    """Though it says that it is over."""
    reading = read(CHAT, stream(chunk({"content": "a"})))
    assert not reading.ended
    assert reading.failure is None


@given(st.sampled_from(sorted(CASES)), st.data())
def test_borders_of_chunks_make_no_difference(name: str, data: st.DataObject) -> None:
    """A stream in pieces of any size is read like the whole; part of an event at the end does not count."""
    route, body = CASES[name]
    events = streamed(route, body)
    count = data.draw(st.integers(0, len(events)))
    whole = b"".join(events[:count])
    half = b"".join(events[count : count + 1])[:-1]
    borders = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    pieces = [whole[a:b] for a, b in zip([0, *borders], [*borders, len(whole)], strict=True)]
    assert read(route, [*pieces, half]).prefix == read(route, events[:count]).prefix
