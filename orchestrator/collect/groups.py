"""Groups: the repeats of one row, which a verifier may score together as a cohort. Pure.

Each repeat is told in its row which group it is of, which member it is, and which attempt of the group it belongs to. A
new attempt begins once a member has failed with its whole group: all who start after that start in the next one. A
member that fails by itself starts again in the same attempt, for the others may be waiting for it.

The rows of a cohort become durable together. Were some of them durable when everything dies, the others would be
restored to before the cohort was decided, and wait for members that never come again. So a row is held until all of its
group are held or done; where the group fails meanwhile, members that are held start again with the others.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from participants import Result

from .rows import Rollout

SIZE = "midflight_group_size"
WAITED = "cohort_failed"
"""The class of failure of a member that has waited for others in vain. Once one of them has failed for good, another
try would be in vain as well."""
ENDS_GROUP = frozenset({WAITED, "judge_failed"})
"""Classes of failures that a member does not have alone."""


def group_of(rollout_id: str) -> str:
    """The group of a rollout: its row and copy."""
    return rollout_id.rpartition(".")[0] or rollout_id


def named_row(row: Mapping[str, Any], rollout: Rollout, attempt: int, size: int) -> dict[str, Any]:
    """The row with its place, in the keys of NeMo Gym, and the size of its group; what it has itself stands."""
    typed = row.get("task_input") if "task_id" in row else None
    own = (typed.get("task_data") or {}) if isinstance(typed, Mapping) else row
    names = {
        "_ng_task_index": rollout.task,
        "_ng_rollout_index": rollout.repeat,
        "_ng_group_id": group_of(rollout.rollout_id),
        "_ng_group_attempt": attempt,
    }
    if "_ng_group_id" not in own:  # Of a group of its own making nobody here knows the size.
        names[SIZE] = size
    if isinstance(typed, Mapping):
        return {**row, "task_input": {**typed, "task_data": {**names, **own}}}
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


class Held:
    """Results of cohorts that are not complete."""

    def __init__(self, rollouts: Iterable[str]) -> None:
        """`rollouts` are all of the run."""
        self._members: dict[str, list[str]] = {}
        for rollout_id in rollouts:
            self._members.setdefault(group_of(rollout_id), []).append(rollout_id)
        self._held: dict[str, dict[str, Result]] = {}

    def take(self, results: Iterable[Result], attempts: Attempts) -> tuple[list[Result], list[Result]]:
        """Which of these are not held, and which are to start again: they are of an attempt that has failed meanwhile.

        Counts failures of whole groups in `attempts`.
        """
        passed, again = list[Result](), list[Result]()
        for result in results:
            rollout_id = result.life.rollout_id
            group = group_of(rollout_id)
            if _attempt_in(result) is not None and len(self._members.get(group, ())) > 1:
                self._held.setdefault(group, {})[rollout_id] = result
                continue
            passed.append(result)
            if result.failure is not None and result.failure.get("class") in ENDS_GROUP:
                attempts.failed(rollout_id)
        for held in self._held.values():
            over = [name for name, result in held.items() if (_attempt_in(result) or 0) < attempts.of(name)]
            again.extend(held.pop(name) for name in over)
        return passed, again

    def complete(self, done: Collection[str]) -> list[Result]:
        """Those whose groups have no other member to come; they are held no more."""
        found = list[Result]()
        for group, held in list(self._held.items()):
            if not held:
                del self._held[group]
            elif all(member in held or member in done for member in self._members[group]):
                found.extend(self._held.pop(group).values())
        return found


def _attempt_in(result: Result) -> int | None:
    """The attempt of the cohort that has decided a row; None for one that none has."""
    attempt = (result.row or {}).get("group_attempt")
    return attempt if isinstance(attempt, int) else None
