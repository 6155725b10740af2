"""A counter for each session: the smallest server whose state a crash must not lose.

A row has `initial_count` and `expected_count`; the reward is 1.0 if the counter stands there at the end.
"""

import random
from collections.abc import Iterator
from typing import Any

from ..cases import Case, Conformance, ToolCall
from ..errors import Code, ParticipantError
from ..resources import ResourcesServer
from ..sessions import ResourcesSession
from ..tools import tool


class CounterServer(ResourcesServer):
    """Counts."""

    checkpoint_mode = "exported"
    checkpoint_verify = "replay"

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> None:
        """Set the counter to `initial_count`."""
        session.state["count"] = _whole(row, "initial_count")

    @tool
    async def increment_counter(self, session: ResourcesSession, count: int) -> dict[str, Any]:
        """Add a number to the counter."""
        session.state["count"] += count
        return {"success": True}

    @tool
    async def get_counter_value(self, session: ResourcesSession) -> dict[str, Any]:
        """The counter's value."""
        return {"count": session.state["count"]}

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """1.0 if the counter stands at `expected_count`."""
        return {"reward": float(session.state["count"] == _whole(row, "expected_count"))}

    @classmethod
    def conformance(cls) -> Conformance:
        """Sums; every third is not what the row expects."""
        return Conformance(cases=list(_cases(random.Random(0))))


def _cases(chance: random.Random) -> Iterator[Case]:
    for number in range(60):
        amounts = [chance.randint(-9, 9) for _ in range(chance.randint(1, 5))]
        start = chance.randint(0, 99)
        expected = start + sum(amounts) + (number % 3 == 2)
        calls = [ToolCall(name="increment_counter", arguments={"count": amount}) for amount in amounts]
        row = {"initial_count": start, "expected_count": expected}
        yield Case(row=row, calls=[*calls, ToolCall(name="get_counter_value")], said=f"It is {expected}.")


def _whole(row: dict[str, Any], name: str) -> int:
    value = row.get(name)
    if type(value) is not int:
        raise ParticipantError(Code.INVALID_REQUEST, f"the row's {name} is {value!r:.80}, not a whole number")
    return value
