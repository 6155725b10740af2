"""The rows of the soak, what verify must say of each, and whether an output is that of an undisturbed run."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..endpoint import TOOLS

WRONG_EVERY = 7
"""One row in so many expects a sum that is not reached, so that a reward of 1.0 for everybody is found."""
_OF_A_LIFE = frozenset({"_midflight_life", "_ng_attempt_index"})
MOST_TOLD = 5
_CALL_TOKENS = 32
"""Of one call of the tool, at least."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How long one rollout is."""

    turns: int
    """Tool calls; there is one model call more."""
    filler: int
    """Tokens of plain words in each reply."""
    tokens_per_s: float

    def shortest_s(self) -> float:
        """What a rollout takes at least."""
        return ((self.turns + 1) * self.filler + self.turns * _CALL_TOKENS) / self.tokens_per_s


def amounts(number: int, turns: int) -> list[int]:
    """What the rollout of a row adds, call by call."""
    return [1 + (number + turn) % 9 for turn in range(turns)]


def reward(number: int) -> float:
    """What verify has to say of a row."""
    return 0.0 if number % WRONG_EVERY == WRONG_EVERY - 1 else 1.0


def row(number: int, shape: Shape) -> dict[str, Any]:
    """A task of the counter that is like no other."""
    adds = amounts(number, shape.turns)
    calls = [{"name": "increment_counter", "arguments": {"count": amount}} for amount in adds]
    script = [{"filler": shape.filler, "call": call} for call in calls]
    content = f"Task {number}. <script>{json.dumps([*script, {'filler': shape.filler, 'text': 'done'}])}</script>"
    return {
        "responses_create_params": {"input": [{"role": "user", "content": content}], "tools": TOOLS},
        "initial_count": number,
        "expected_count": number + sum(adds) + (reward(number) == 0.0),
    }


def write_rows(path: Path, count: int, shape: Shape) -> None:
    """So many of them, a line each."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row(number, shape)) + "\n" for number in range(count))


def read_output(path: Path) -> list[dict[str, Any]]:
    """The rows of an output."""
    with path.open("rb") as file:
        return [json.loads(line) for line in file]


def faults(found: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]], shape: Shape) -> list[str]:
    """What is wrong with an output, in words; `wanted` is that of an undisturbed run of the same rows."""
    told: list[str] = []
    times = Counter(str(row["_ng_rollout_id"]) for row in found)
    told += [f"{name} has {count} rows" for name, count in times.items() if count > 1]
    by_id = {str(row["_ng_rollout_id"]): row for row in found}
    expected = {str(row["_ng_rollout_id"]): row for row in wanted}
    told += [f"{name} has no row" for name in expected if name not in by_id]
    told += [f"{name} is no rollout of the input" for name in by_id if name not in expected]
    for name, one in by_id.items():
        told += [f"{name}: {fault}" for fault in _faults_of_row(one, shape)]
        if name in expected and _bare(one) != _bare(expected[name]):
            told.append(f"{name} is not as in an undisturbed run")
    return told if len(told) <= MOST_TOLD else [*told[:MOST_TOLD], f"and {len(told) - MOST_TOLD} more"]


def _faults_of_row(found: Mapping[str, Any], shape: Shape) -> list[str]:
    """By arithmetic on its number alone."""
    number = int(found["initial_count"])
    told = []
    if found["reward"] != reward(number):
        told.append(f"its reward is {found['reward']} and should be {reward(number)}")
    called = [item for item in found["response"]["output"] if item.get("type") == "function_call"]
    added = [json.loads(item["arguments"]).get("count") for item in called]
    if added != amounts(number, shape.turns):
        told.append(f"it added {added} and should have added {amounts(number, shape.turns)}")
    return told


def _bare(found: Mapping[str, Any]) -> dict[str, Any]:
    """A row without what differs between two runs: lives, and the time."""
    kept = {key: value for key, value in found.items() if key not in _OF_A_LIFE}
    kept["response"] = {key: value for key, value in found["response"].items() if key != "created_at"}
    return kept
