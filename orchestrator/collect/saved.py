"""What a continuation saves: the model calls, and their tokens, that a rollout need not make again. Pure.

`participants.work` counts them, from what participants hold of a rollout.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any

from participants.work import of_response


@dataclass(frozen=True, slots=True)
class Work:
    """Some work at the model."""

    calls: int = 0
    tokens: int = 0
    """Generated ones."""

    def __add__(self, other: "Work") -> "Work":
        return Work(self.calls + other.calls, self.tokens + other.tokens)


@dataclass(frozen=True, slots=True)
class Totals:
    """What continuing has come to in some starts of a run; each checkpoint carries those of the starts so far."""

    continued: int = 0
    restarted: int = 0
    saved_calls: int = 0
    saved_tokens: int = 0

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    @classmethod
    def of(cls, state: Any) -> "Totals":
        """From the controller's state in a checkpoint; zeros where that has none."""
        found = state.get("totals") if isinstance(state, Mapping) else None
        counts = [found.get(each.name) for each in fields(cls)] if isinstance(found, Mapping) else []
        return cls(*(count if isinstance(count, int) else 0 for count in counts))


def work_of_row(row: Mapping[str, Any]) -> Work:
    """Of a finished rollout."""
    return Work(*(of_response(row.get("response")) or (0, 0)))
