"""Groups: the repeats of one row, which a verifier may score together as a cohort. Pure.

Each repeat is told in its row which group it is of, which member it is, and which attempt of the group it belongs to. A
new attempt begins once a member has failed with its whole group: all who start after that start in the next one. A
member that fails by itself starts again in the same attempt, for the others may be waiting for it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from .rows import Rollout

ENDS_GROUP = frozenset({"cohort_failed", "judge_failed"})
"""Classes of failures that a member does not have alone."""


def group_of(rollout_id: str) -> str:
    """The group of a rollout: its row and copy."""
    return rollout_id.rpartition(".")[0] or rollout_id


def named_row(row: Mapping[str, Any], rollout: Rollout, attempt: int) -> dict[str, Any]:
    """The row with its place, in the keys of NeMo Gym; where it has one of them itself, that stands."""
    names = {
        "_ng_task_index": rollout.task,
        "_ng_rollout_index": rollout.repeat,
        "_ng_group_id": group_of(rollout.rollout_id),
        "_ng_group_attempt": attempt,
    }
    typed = row.get("task_input") if "task_id" in row else None
    if isinstance(typed, Mapping):
        data = typed.get("task_data") or {}
        return {**row, "task_input": {**typed, "task_data": {**names, **data}}}
    return {**names, **row}


class Attempts:
    """The attempt in which the members of each group start."""

    def __init__(self, failed: Iterable[str] = ()) -> None:
        """`failed` has each rollout as often as it has failed with its group."""
        self._failures: dict[str, int] = {}
        self._attempts: dict[str, int] = {}
        for rollout_id in failed:
            self.failed(rollout_id)

    def failed(self, rollout_id: str) -> None:
        """A member has failed with its group. All of an attempt do: the next one is that of whoever did most often."""
        count = self._failures[rollout_id] = self._failures.get(rollout_id, 0) + 1
        group = group_of(rollout_id)
        self._attempts[group] = max(count, self._attempts.get(group, 0))

    def of(self, rollout_id: str) -> int:
        """From 0."""
        return self._attempts.get(group_of(rollout_id), 0)
