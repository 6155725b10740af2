"""A backend in this process that says what the task asks for, records every call, and holds the ones it is told to.

The task stands in the user message as a list of turns: `[["add", 2], ["add", 3], ["get"], "text"]`; a turn may also be
a whole list of output items. The reply to a conversation with k turns of the assistant is turn k, in both dialects.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from participants import Code, ParticipantError, Reply
from participants.data import CallId
from store import Life
from tests.support.journal import Journal
from tests.support.owners import Pause

TOOLS = [
    {"type": "function", "name": "increment_counter", "parameters": {"type": "object"}},
    {"type": "function", "name": "get_counter_value", "parameters": {"type": "object"}},
]
USAGE = {"input_tokens": 10, "output_tokens": 3, "total_tokens": 13}


def counter_row(name: str, *amounts: int, start: int = 1) -> dict[str, Any]:
    """A row that adds the amounts, reads the counter and says so."""
    turns: list[Any] = [*(["add", amount] for amount in amounts), ["get"], "done"]
    return scripted_row(name, turns, start=start, expected=start + sum(amounts))


def scripted_row(name: str, turns: list[Any], *, start: int = 1, expected: int = 1, **more: Any) -> dict[str, Any]:
    """A row whose task is a list of turns."""
    content = f"{name} {json.dumps(turns)}"
    parameters = {"input": [{"role": "user", "content": content}], "tools": TOOLS, "model": "scripted", **more}
    return {"responses_create_params": parameters, "initial_count": start, "expected_count": expected}


@dataclass
class ScriptedUpstream:
    """Implements `Upstream`; events are `model <name of the task> <turn>`."""

    journal: Journal
    holds: dict[str, Pause] = field(default_factory=dict)
    """By event: holds it before its reply is made."""
    failures: dict[str, Exception | Reply] = field(default_factory=dict)
    """By event: what happens instead, once."""
    lives: list[Life | None] = field(default_factory=list)
    """Of each call."""
    bodies: list[Mapping[str, Any]] = field(default_factory=list)

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        name, turns = task_of(body)
        turn = turn_of(body)
        event = f"model {name} {turn}"
        self.lives.append(life)
        self.bodies.append(body)
        self.journal.begin(event)
        if event in self.holds:
            await self.holds[event]()
        failure = self.failures.pop(event, None)
        if isinstance(failure, Exception):
            raise failure
        self.journal.end(event)
        return failure or Reply(200, _chat(turns, turn) if "messages" in body else _response(turns, turn))

    @asynccontextmanager
    async def stream(
        self, route: str, body: Mapping[str, Any], life: Life | None = None, *, call: CallId | None = None
    ) -> AsyncIterator["Pieces"]:
        """Four pieces; the third is held as the call would be."""
        name, _ = task_of(body)
        event = f"model {name} {turn_of(body)}"
        self.lives.append(life)
        self.journal.begin(event)
        pieces = Pieces(self, event)
        try:
            yield pieces
        finally:
            pieces.open = False

    async def models(self) -> Reply:
        return Reply(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]})


STREAM = (
    b'data: {"type":"response.created","response":{"id":"r0","status":"in_progress"}}\n\n',
    b'data: {"type":"response.output_text.delta","delta":"1"}\n\n',
    b'data: {"type":"response.output_text.delta","delta":"2"}\n\n',
    b'data: {"type":"response.completed","response":{"id":"r0","status":"completed","output":[]}}\n\n',
)
"""What it streams."""


class Pieces:
    """A stream of the scripted backend."""

    def __init__(self, upstream: ScriptedUpstream, event: str) -> None:
        self.status = 200
        self.open = True
        self.closed = False
        self._upstream, self._event = upstream, event
        self._left = list(STREAM)

    def __aiter__(self) -> "Pieces":
        return self

    async def __anext__(self) -> bytes:
        if self.closed:
            raise ParticipantError(Code.MODEL_FAILED, "closed")
        if not self._left:
            self._upstream.journal.end(self._event)
            raise StopAsyncIteration
        if len(self._left) == 2 and self._event in self._upstream.holds:
            await self._upstream.holds[self._event]()
        return self._left.pop(0)

    def close(self) -> None:
        self.closed = True


def task_of(body: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The name and the turns of the task that a request is about."""
    messages = body.get("messages") or body["input"]
    text = next(item["content"] for item in messages if item.get("role") == "user")
    name, _, turns = text.partition(" ")
    return name, json.loads(turns)


def turn_of(body: Mapping[str, Any]) -> int:
    """How many turns the assistant has had."""
    if "messages" in body:
        return sum(message["role"] == "assistant" for message in body["messages"])
    return len({str(item["id"]).split(".")[0] for item in body["input"] if "id" in item})


def _items(turn: Any, number: int) -> list[dict[str, Any]]:
    if isinstance(turn, str):
        content = [{"type": "output_text", "text": turn, "annotations": []}] if turn else []
        return [{"type": "message", "id": f"t{number}.0", "role": "assistant", "content": content}]
    if turn and isinstance(turn[0], dict):
        return [{"id": f"t{number}.{place}", **item} for place, item in enumerate(turn)]
    if not turn:
        return []
    calls = turn if isinstance(turn[0], list) else [turn]
    return [_call(call, number, place) for place, call in enumerate(calls)]


def _call(call: list[Any], number: int, place: int) -> dict[str, Any]:
    known = {"add": "increment_counter", "get": "get_counter_value"}
    arguments = json.dumps({"count": call[1]} if call[0] == "add" else call[1] if len(call) > 1 else {})
    if call[0] == "raw":
        known, arguments = {"raw": call[1]}, call[2]
    ids = {"id": f"t{number}.{place}", "call_id": f"call-{number}-{place}"}
    return {"type": "function_call", **ids, "name": known.get(call[0], call[0]), "arguments": arguments}


def _response(turns: list[Any], number: int) -> dict[str, Any]:
    output = _items(turns[number], number)
    return {"id": f"r{number}", "object": "response", "status": "completed", "output": output, "usage": USAGE}


def _chat(turns: list[Any], number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for item in _items(turns[number], number):
        if item["type"] == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            message.setdefault("tool_calls", []).append(call)
        elif item["type"] == "message":
            message["content"] = "".join(part["text"] for part in item["content"])
        else:
            message["reasoning_content"] = item["content"][0]["text"]
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
