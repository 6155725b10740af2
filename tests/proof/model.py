"""The inference backend of the simulation: scripted, in the process of its model server; every generation has a tag.

The task stands in the user message as `<name> [[add, 2], ..., [get], "done"]`. The id of each item that is generated is
`<life>|<turn>|<number>`, unique for ever, so that a lineage says of each token by which life it was generated.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson

from participants import Chunks, Code, ParticipantError, Reply
from participants.data import CallId
from store import Life

from .loop import elapse
from .machine import CALL, Process
from .scenario import Scenario

TOOLS = [
    {"type": "function", "name": "increment_counter", "parameters": {"type": "object"}},
    {"type": "function", "name": "get_counter_value", "parameters": {"type": "object"}},
]
NAMES = {"add": "increment_counter", "get": "get_counter_value"}
USAGE = {"input_tokens": 10, "output_tokens": 3, "total_tokens": 13}


def row_of(name: str, start: int, amounts: list[int]) -> dict[str, Any]:
    """A task: add the amounts, read the counter, say so."""
    turns: list[Any] = [*(["add", amount] for amount in amounts), ["get"], "done"]
    content = f"{name} {orjson.dumps(turns).decode()}"
    parameters = {"input": [{"role": "user", "content": content}], "tools": TOOLS, "model": "scripted"}
    return {
        "responses_create_params": parameters,
        "initial_count": start,
        "expected_count": start + sum(amounts),
        "turns": len(turns),
    }


class SimUpstream:
    """Implements `Upstream`."""

    def __init__(self, process: Process, scenario: Scenario) -> None:
        self._process = process
        self._scenario = scenario
        self._made = 0

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        chance = self._process.site.chance
        await elapse(self._scenario.work_s(chance, "generate"))
        if chance.random() < self._scenario.model_failures:
            self._process.site.history.reached["model: failed"] += 1
            raise ParticipantError(Code.MODEL_FAILED, "the backend fell over", {"status": 503})
        items = body["input"]
        _, _, turns = items[0]["content"].partition(" ")
        turn = sum(item.get("type") == "function_call_output" for item in items)
        self._made += 1
        tag = f"{life}|{turn}|{self._process.number}.{self._made}"
        request = CALL.get()
        call = str(request.call) if request and request.call else ""
        self._process.note("did", role="model.main", effect="generate", life=str(life), call=call, turn=turn, tag=tag)
        return Reply(200, _response(orjson.loads(turns)[turn], tag, turn))

    def stream(
        self, route: str, body: Mapping[str, Any], life: Life | None = None, *, call: CallId | None = None
    ) -> AbstractAsyncContextManager[Chunks]:
        raise NotImplementedError("nothing here asks for a stream")


def _response(said: Any, tag: str, turn: int) -> dict[str, Any]:
    if isinstance(said, str):
        content = [{"type": "output_text", "text": said, "annotations": []}]
        output: dict[str, Any] = {"type": "message", "id": tag, "role": "assistant", "content": content}
    else:
        arguments = orjson.dumps({"count": said[1]} if said[0] == "add" else {}).decode()
        output = {"type": "function_call", "id": tag, "call_id": f"c{turn}", "name": NAMES[said[0]],
                  "arguments": arguments}  # fmt: skip
    return {"id": tag, "object": "response", "status": "completed", "output": [output], "usage": USAGE}
