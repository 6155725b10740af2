"""A whole reply as the server-sent events that its client would have had.

For a client that streams and whose generation was continued: what it gets is made of the joined reply, in few large
deltas. Reading these events gives the reply again.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from ..generations import CHAT, RESPONSES
from .sse import DONE

Body = Mapping[str, Any]
_OF_ENVELOPE = frozenset({"choices", "usage", "object", "prompt_token_ids"})
_OF_CHOICE = frozenset({"index", "message", "text", "logprobs", "finish_reason", "token_ids", "prompt_token_ids"})
_OF_MESSAGE = frozenset({"role", "content", "refusal", "tool_calls"})
KEEP_ALIVE = b": the generation goes on\n\n"
"""A comment: sent now and then, it keeps a connection that waits for the whole."""


def as_stream(route: str, reply: Body, body: Body) -> list[bytes]:
    """The events of one reply with status 200 to a request with `body`."""
    if route == RESPONSES:
        return list(_ResponseEvents(reply).all())
    kind = "chat.completion.chunk" if route == CHAT else "text_completion"
    envelope = {key: value for key, value in reply.items() if key not in _OF_ENVELOPE} | {"object": kind}
    chunks = _chat(reply) if route == CHAT else _completion(reply)
    events = [_event({**envelope, **chunk}) for chunk in chunks]
    options = body.get("stream_options") or {}
    if options.get("include_usage") and reply.get("usage"):
        events.append(_event({**envelope, "choices": [], "usage": reply["usage"]}))
    return [*events, b"data: " + DONE + b"\n\n"]


def _event(data: Body, name: str = "") -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + orjson.dumps(data) + b"\n\n"


def _chat(reply: Body) -> Iterator[dict[str, Any]]:
    prompt = {key: reply[key] for key in ("prompt_token_ids",) if key in reply}
    for choice in reply["choices"]:
        message = choice["message"]
        at = {"index": choice.get("index", 0), "finish_reason": None}
        yield {"choices": [{**at, "delta": {"role": "assistant", "content": ""}}], **prompt}
        for key in message.keys() - _OF_MESSAGE:
            if message[key]:
                yield {"choices": [{**at, "delta": {key: message[key]}}]}
        said = {"content": message["content"]} if message.get("content") else {}
        scored = {key: choice[key] for key in ("logprobs", "token_ids") if choice.get(key) is not None}
        if said or scored:
            yield {"choices": [{**at, "delta": said, **scored}]}
        if message.get("refusal"):
            yield {"choices": [{**at, "delta": {"refusal": message["refusal"]}}]}
        for index, call in enumerate(message.get("tool_calls") or ()):
            yield {"choices": [{**at, "delta": {"tool_calls": [{"index": index, **call}]}}]}
        yield {"choices": [{**at, "delta": {}, **_ending(choice)}]}


def _completion(reply: Body) -> Iterator[dict[str, Any]]:
    for choice in reply["choices"]:
        at = {"index": choice.get("index", 0), "finish_reason": None}
        given = {key: choice[key] for key in ("token_ids", "prompt_token_ids") if choice.get(key) is not None}
        yield {"choices": [{**at, "text": choice["text"], "logprobs": choice.get("logprobs"), **given}]}
        yield {"choices": [{**at, "text": "", "logprobs": None, **_ending(choice)}]}


def _ending(choice: Body) -> dict[str, Any]:
    extras = {key: value for key, value in choice.items() if key not in _OF_CHOICE}
    return {"finish_reason": choice.get("finish_reason"), **extras}


class _ResponseEvents:
    """A response built up item by item."""

    def __init__(self, reply: Body) -> None:
        self._reply = reply
        self._sequence = 0

    def all(self) -> Iterator[bytes]:
        """Every event."""
        hidden = ("token_ids",)
        begun = {key: value for key, value in self._reply.items() if key not in hidden}
        begun |= {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
        yield self._say("response.created", response=begun)
        yield self._say("response.in_progress", response=begun)
        for index, item in enumerate(self._reply.get("output") or ()):
            yield from self._item(index, item)
        status = self._reply.get("status") or "completed"
        yield self._say(f"response.{status}", response=self._reply)

    def _item(self, index: int, item: Body) -> Iterator[bytes]:
        begun = {**item, "status": "in_progress"}
        if item["type"] == "message":
            begun["content"] = []
        elif item["type"] == "function_call":
            begun["arguments"] = ""
        yield self._say("response.output_item.added", output_index=index, item=begun)
        at = {"output_index": index, "item_id": item.get("id")}
        if item["type"] == "message":
            for number, part in enumerate(item["content"]):
                yield from self._part({**at, "content_index": number}, part)
        elif item["type"] == "function_call":
            arguments = item["arguments"]
            yield self._say("response.function_call_arguments.delta", **at, delta=arguments)
            yield self._say("response.function_call_arguments.done", **at, name=item["name"], arguments=arguments)
        yield self._say("response.output_item.done", output_index=index, item=item)

    def _part(self, at: Body, part: Body) -> Iterator[bytes]:
        refuses = part["type"] == "refusal"
        key, kind = ("refusal", "refusal") if refuses else ("text", "output_text")
        scores: dict[str, Sequence[Any]] = {} if refuses else {"logprobs": part.get("logprobs") or []}
        empty = {**part, key: "", **({"logprobs": []} if scores else {})}
        yield self._say("response.content_part.added", **at, part=empty)
        yield self._say(f"response.{kind}.delta", **at, delta=part[key], **scores)
        yield self._say(f"response.{kind}.done", **at, **{key: part[key]}, **scores)
        yield self._say("response.content_part.done", **at, part=part)

    def _say(self, event: str, **fields: Any) -> bytes:
        number, self._sequence = self._sequence, self._sequence + 1
        return _event({"type": event, "sequence_number": number, **fields}, event)
