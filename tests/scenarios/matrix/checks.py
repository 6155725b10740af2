"""What must hold at the end of a cell, and which work was done again: pure, from what the witnesses saw."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.errors import ControlFailed, CoordinationError
from participants import ParticipantError
from participants.wire import Finished
from store import Life
from tests.support.backend import Call

from ..seen import Seen
from ..tasks import Task


@dataclass(frozen=True, slots=True)
class Again:
    """Work that was done more than once."""

    calls: int
    """Model calls that had ended."""
    tools: int
    verified: int
    tokens: int
    """Generated beyond those of the replies that count."""

    def __str__(self) -> str:
        return f"{self.calls}/{self.tools}/{self.verified}/{self.tokens}"


def again(seen: Seen) -> Again:
    """From all that the backends and the counter saw, until the last rollout ended."""
    made: dict[tuple[str, int], list[Call]] = {}
    for life, numbers in seen.calls.items():
        for number, call in zip(numbers, seen.made[life], strict=True):
            made.setdefault((life.rollout_id, number), []).append(call)
    ended = {key: [call for call in calls if call.state == "finished"] for key, calls in made.items()}
    tools = Counter((life.rollout_id, what) for life, whats in seen.tools.items() for what in whats)
    verified = Counter(life.rollout_id for life in seen.verified)
    needed = sum(calls[-1].continued + calls[-1].generated for calls in ended.values() if calls)
    return Again(
        calls=sum(len(calls) - 1 for calls in ended.values() if calls),
        tools=sum(count - 1 for count in tools.values()),
        verified=sum(count - 1 for count in verified.values()),
        tokens=sum(call.generated for calls in made.values() for call in calls) - needed,
    )


def problems(tasks: Sequence[Task], results: Sequence[Finished], seen: Seen) -> list[str]:
    """What is wrong with the results that were delivered, and with what was seen."""
    ends = Counter(result.life.rollout_id for result in results)
    found = [f"{task.rollout_id} was lost" for task in tasks if not ends[task.rollout_id]]
    found += [f"{rollout_id} was delivered {count} times" for rollout_id, count in ends.items() if count > 1]
    for result in results:
        reward = result.row["reward"] if result.row is not None else None
        if reward != 1.0:
            found.append(f"{result.life} has the reward {reward}: {result.failure}")
    for task in tasks:
        lives = [life for life in seen.calls if life.rollout_id == task.rollout_id]
        calls = {number for life in lives for number in seen.calls[life]}
        tools = {what for life in lives for what in seen.tools[life]}
        if calls != set(task.calls) or tools != set(task.tools):
            found.append(f"{task.rollout_id} made the calls {sorted(calls)} and used {tools}")
        found += [f"{life} did work twice" for life in lives if _repeats(seen, life)]
    return found


def _repeats(seen: Seen, life: Life) -> bool:
    """Whether one life did a step again that had ended."""
    ended = [n for n, call in zip(seen.calls[life], seen.made[life], strict=True) if call.state == "finished"]
    return len(ended) > len(set(ended)) or len(seen.tools[life]) > len(set(seen.tools[life]))


def told(error: Exception) -> str:
    """An operation's outcome in a few words: what failed, where, and with which code."""
    if not isinstance(error, CoordinationError):
        return type(error).__name__
    named = _grouped({name: _reason(failure) for name, failure in error.failures.items()})
    what = (
        "resume failed" if isinstance(error, ControlFailed) else error.what
    )  # The only one of the phases' that raises it.
    return f"{what}: {named}"


def _grouped(reasons: Mapping[str, str]) -> str:
    names: dict[str, list[str]] = {}
    for name, reason in sorted(reasons.items()):
        names.setdefault(reason, []).append(name)
    return ", ".join(f"{' '.join(those)} {reason}" for reason, those in names.items())


def _reason(failure: BaseException | str) -> str:
    if isinstance(failure, ParticipantError):
        return failure.code
    if isinstance(failure, ConnectionError):
        return "gone"
    return failure if isinstance(failure, str) else type(failure).__name__
