"""What rollouts do here: add to a counter a few times, read it, and say that they are done.

A task with `adds` additions makes adds + 2 model calls and adds + 1 tool calls. Its tool calls are `amount(1)`, ...,
`amount(adds)`, "get"; no two tasks add the same amounts, so the ledgers tell whose is what.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from participants.servers.counter import CounterServer
from participants.tools import tools_of
from store import Life

TOOLS = [found.schema for found in tools_of(CounterServer).values()]
STEP = 1000
"""Between the amounts of two tasks."""


@dataclass(frozen=True, slots=True)
class Task:
    """One rollout."""

    number: int
    adds: int = 2
    filler: int = 0
    """Words that the model says in each turn before anything else: what a cut cuts."""
    alias: str = ""
    """Another rollout id for the same prompt."""

    @property
    def rollout_id(self) -> str:
        """As the run names it."""
        return self.alias or f"r{self.number}"

    @property
    def calls(self) -> list[int]:
        """The model calls of a whole run, numbered from 1."""
        return list(range(1, self.adds + 3))

    @property
    def tools(self) -> list[Any]:
        """The tool calls of a whole run, as the counter's log names them."""
        return [*(self.amount(k) for k in range(1, self.adds + 1)), "get"]

    def amount(self, k: int) -> int:
        """What its k-th tool call adds, from 1."""
        return STEP * (self.number + 1) + k

    @property
    def row(self) -> dict[str, Any]:
        """As a dataset has it."""
        calls = [{"name": "increment_counter", "arguments": {"count": self.amount(k)}} for k in range(1, self.adds + 1)]
        calls.append({"name": "get_counter_value", "arguments": {}})
        turns: list[dict[str, Any]] = [{"filler": self.filler, "call": call} for call in calls]
        turns.append({"filler": self.filler, "text": "Done."})
        content = f"Task {self.number}: <script>{json.dumps(turns)}</script>"
        return {
            "responses_create_params": {"input": [{"role": "user", "content": content}], "tools": TOOLS},
            "initial_count": self.number,
            "expected_count": self.number + sum(self.amount(k) for k in range(1, self.adds + 1)),
        }

    def prompt_of(self, call: int) -> str:
        """Text that stands in the prompts of its k-th model call and all later ones, and in no earlier one."""
        if call == 1:
            return f"Task {self.number}: "
        done = call - 1
        return f'increment_counter\n{{"count":{self.amount(done)}}}' if done <= self.adds else "get_counter_value\n{}"


def tasks(count: int, **options: Any) -> list[Task]:
    """So many tasks, numbered from 0."""
    return [Task(number, **options) for number in range(count)]


def each(lives: Sequence[Life], of: Sequence[Any] | Mapping[str, Any]) -> dict[Life, Any]:
    """The same expectation for every life; where it depends on the rollout, a mapping by its id."""
    return {life: of[life.rollout_id] if isinstance(of, Mapping) else list(of) for life in lives}
