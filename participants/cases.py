"""What an author says of a server so that it can be tried without a model: cases, each of them one whole rollout.

A case is the task's row, the tool calls that a model would make, and what it would say at last. It stands for one
episode of the conformance kit, and `response_of` makes of it what verify is given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from .data import Peer


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a tool."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One rollout."""

    row: Mapping[str, Any]
    """The task's flat row, as `seed` gets it; `responses_create_params` need not be there."""
    calls: Sequence[ToolCall] = ()
    """In order; those after the first few matter most, for a checkpoint is taken between any two."""
    said: str = ""
    """The model's last message."""
    cohort: str = ""
    """Cases with the same name here are verified at the same time, because each waits for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conformance:
    """How a server is tried."""

    cases: Sequence[Case]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the class."""
    peers: Mapping[str, Peer] = field(default_factory=dict)
    """By role, for a server that calls others: stand-ins that answer the same call the same way."""


def response_of(case: Case, outputs: Sequence[Any] = ()) -> dict[str, Any]:
    """The Responses object of the case; `outputs` are what its tool calls gave."""
    items: list[dict[str, Any]] = []
    for number, call in enumerate(case.calls):
        call_id, arguments = f"call_{number}", orjson.dumps(dict(call.arguments)).decode()
        items.append({"type": "function_call", "call_id": call_id, "name": call.name, "arguments": arguments})
        if number < len(outputs):
            output = outputs[number]
            text = output if isinstance(output, str) else orjson.dumps(output).decode()
            items.append({"type": "function_call_output", "call_id": call_id, "output": text})
    content = [{"type": "output_text", "text": case.said, "annotations": []}]
    items.append({"type": "message", "role": "assistant", "status": "completed", "content": content})
    return {"id": "resp_case", "object": "response", "status": "completed", "output": items}
