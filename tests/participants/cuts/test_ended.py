"""A generation that had said its end when it was cut: nothing is asked for any more."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest

from participants.backends import Capabilities, declared
from participants.cuts import Anew, Continue, Prefix, Reason, combined, plan, read
from participants.cuts.joining import joined
from participants.cuts.reading import finished
from participants.cuts.stored import dump_prefix, load_prefix

from .test_every_cut import CASES
from .uncut import CAPABILITIES, CHAT, COMPLETIONS, RESPONSES, streamed, text_of, whole

pytestmark = pytest.mark.unit

VLLM = declared("vllm")
SILENT = replace(VLLM, detokenize=False)
"""A server that says the text of no ids."""
BODY: Mapping[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "q"}], "max_tokens": 100}
HEAD = {"id": "x", "created": 1, "model": "m"}


def chunk(delta: Mapping[str, Any], ids: list[int], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "token_ids": ids, **more}
    event = {**HEAD, "object": "chat.completion.chunk", "choices": [choice], "prompt_token_ids": [9, 9]}
    return b"data: " + orjson.dumps(event) + b"\n\n"


def rest_of(planned: Continue | Anew, prefix: Prefix, raw: str | None = None) -> dict[str, Any]:
    """The reply where nothing is asked for but text."""
    assert isinstance(planned, Continue), planned
    assert planned.body is None
    rest = finished(planned.finish or "", says_stop_reason=True, extras=prefix.extras)
    return joined(CHAT, BODY, prefix, rest, raw_text=raw).reply


@pytest.mark.parametrize("capabilities", [VLLM, SILENT])
@pytest.mark.parametrize(
    ("finish", "stop_reason"), [("stop", None), ("stop", "END"), ("length", None), ("content_filter", None)]
)
def test_nothing_is_left_to_ask_once_the_reason_has_come(
    capabilities: Capabilities, finish: str, stop_reason: str | None
) -> None:
    """The stream's own text is whole then, though nobody has named the id that ends a generation."""
    events = [chunk({"content": "a"}, [1]), chunk({"content": "b"}, [5, 2], finish, stop_reason=stop_reason)]
    prefix = load_prefix(orjson.loads(orjson.dumps(dump_prefix(read(CHAT, events).prefix))))
    choice = rest_of(plan(CHAT, BODY, prefix, capabilities), prefix)
    uncut = read(CHAT, [*events, b"data: [DONE]\n\n"]).reply
    assert uncut is not None
    assert choice["choices"][0]["message"]["content"] == "ab"
    for name in ("finish_reason", "stop_reason"):
        assert choice["choices"][0][name] == uncut["choices"][0][name]
    assert choice["usage"] == uncut["usage"]


def test_text_that_comes_with_the_end_belongs_to_it() -> None:
    """What a server had held back comes after the last ids."""
    late = {"choices": [{"index": 0, "delta": {"content": "c"}, "finish_reason": "stop"}]}
    events = [chunk({"content": "a"}, [1]), b"data: " + orjson.dumps(late) + b"\n\n"]
    prefix = read(CHAT, events).prefix
    assert rest_of(plan(CHAT, BODY, prefix, SILENT), prefix)["choices"][0]["message"]["content"] == "ac"


@pytest.mark.parametrize("feature", [{"seed": 1}, {"response_format": {"type": "json_object"}}, {"tools": [{}]}])
def test_what_decides_the_next_token_matters_no_more(feature: dict[str, Any]) -> None:
    """A grammar, a seed, or tools that were not called: the text is here."""
    body = {**BODY, "temperature": 1, **feature}
    going, over = chunk({"content": "{"}, [1]), chunk({"content": "}"}, [2], "stop")
    assert isinstance(plan(CHAT, body, read(CHAT, [going]).prefix, VLLM), Anew)
    assert isinstance(plan(CHAT, body, read(CHAT, [going, over]).prefix, VLLM), Continue)


@pytest.mark.parametrize(
    ("delta", "reason"),
    [
        ({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]}, Reason.TOOL_FORMAT),
        ({"refusal": "no"}, Reason.UNDECLARED_FEATURE),
        ({"reasoning_content": "hm"}, Reason.REASONING),
    ],
)
def test_what_the_prefix_does_not_have_is_generated_anew(delta: dict[str, Any], reason: Reason) -> None:
    """Calls in a format that nobody knows, a refusal, reasoning."""
    body = {**BODY, "tools": [{"type": "function", "function": {"name": "f"}}]}
    prefix = read(CHAT, [chunk(delta, [1]), chunk({}, [2], "stop")]).prefix
    planned = plan(CHAT, body, prefix, replace(VLLM, declared=CAPABILITIES.declared))
    assert isinstance(planned, Anew)
    assert planned.reason is reason


@pytest.mark.parametrize(
    ("tail", "raw", "content"),
    [
        ("c", "abc<eos>", "abc"),
        ("<eos>", "ab<eos><eos>", "ab<eos>"),
        ("b", "ab<|im_end|>", "ab"),
        ("c", "abc", "abc"),
    ],
)
def test_of_several_streams_the_text_is_asked_for(tail: str, raw: str, content: str) -> None:
    """The first may have been behind its ids; the name of the id that ended the last is no text."""
    first, last = read(CHAT, [chunk({"content": "a"}, [1])]), read(CHAT, [chunk({"content": tail}, [5, 2], "stop")])
    prefix = combined(first.prefix, last.prefix)
    planned = plan(CHAT, BODY, prefix, VLLM)
    assert isinstance(planned, Continue)
    assert planned.needs_raw_text
    assert rest_of(planned, prefix, raw)["choices"][0]["message"]["content"] == content
    assert isinstance(plan(CHAT, BODY, prefix, SILENT), Anew)


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_call_is_whole_at_its_end(name: str) -> None:
    """Cut right before `[DONE]`, or after the last event of a response, the reply is the uncut one."""
    route, body = CASES[name]
    events = streamed(route, body)
    prefix = read(route, events[:-1] if route != RESPONSES else events).prefix
    assert prefix.finish
    planned = plan(route, body, prefix, CAPABILITIES)
    assert isinstance(planned, Continue)
    assert planned.body is None
    raw = text_of(planned.raw_ids) if planned.needs_raw_text else None
    made = joined(route, body, prefix, finished(planned.finish or ""), raw_text=raw, tool_format="marks")
    uncut = whole(route, body)
    for key in ("choices", "output", "status", "usage"):
        assert _bare(made.reply.get(key)) == _bare(uncut.get(key))
    assert made.finish == (read(route, events).finish or "")
    if route == COMPLETIONS:
        assert not planned.needs_raw_text


def _bare(value: Any) -> Any:
    """Without the ids that only some ask for."""
    if isinstance(value, dict):
        return {key: _bare(each) for key, each in value.items() if "token_ids" not in key}
    return [_bare(each) for each in value] if isinstance(value, list) else value


def test_checkpoints_of_before_have_no_end() -> None:
    """A prefix without these fields is one that may go on."""
    stored = dump_prefix(Prefix(prompt=(1,), ids=(), text="t"))
    for name in ("finish", "extras", "beside", "gaps"):
        del stored[name]
    assert load_prefix(stored) == Prefix(prompt=(1,), ids=(), text="t")
