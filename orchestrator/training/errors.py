"""What a training run raises, beside what coordination and the store raise.

TrainingError
├── InsideCheckpoint    dispatch, next, retire or another checkpoint inside the block of one
├── NoState             the block was left without a state; nothing was written
├── UnusableState       a state, cursor or row that JSON does not hold exactly; nothing was written
├── UnusableFile        a file of the trainer that is none, or not where it was said to be
├── CursorDiffers       the trainer reads from elsewhere than the run stands
├── UnknownRollout      a rollout that is not there to be retired, or dispatched twice
├── NothingDispatched   nothing is there to wait for
├── RunLeft             the context of the run was left
└── ForeignHead         the head is of another controller
ServersLost             a CoordinationError: names the servers that are lost
"""

from collections.abc import Collection
from typing import Any

from ..errors import CoordinationError


class TrainingError(Exception):
    """A training run was used in a way that would break what it promises."""


class InsideCheckpoint(TrainingError):
    """Something was asked for inside the block of a checkpoint, where everything stands still."""

    def __init__(self, operation: str) -> None:
        super().__init__(
            f"{operation} inside the block of a checkpoint: what it changes would be in the rollouts and not in the "
            "state, or the other way round. Leave the block first"
        )


class NoState(TrainingError):
    """The block of a checkpoint was left without a state."""

    def __init__(self) -> None:
        super().__init__(
            "the block of a checkpoint was left without save.state: nothing was written, and work goes on. Set it to "
            "what the trainer needs to go on, with every result of next() that it has not trained on"
        )


class UnusableState(TrainingError):
    """A value that would not be read back as it was."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(
            f"{where} {why}, so that it would not be read back as it is: give JSON (str keys, 64-bit integers, finite "
            "floats, text that UTF-8 can write), and in a state also bytes"
        )


class UnusableFile(TrainingError):
    """A file that a checkpoint cannot name."""

    def __init__(self, name: str, path: str, why: str) -> None:
        super().__init__(
            f"file {name!r}, {path!r:.200}, {why}: write the whole file under a name of its own, then name it"
        )


class CursorDiffers(TrainingError):
    """The trainer has read rows from elsewhere than where the run stands."""

    def __init__(self, given: Any, known: Any) -> None:
        super().__init__(
            f"these rows were read from cursor {given!r:.200}, and the run stands at {known!r:.200}: rows between "
            "would be skipped or run twice. Read on from run.cursor; nothing was dispatched"
        )


class UnknownRollout(TrainingError):
    """Rollouts that the run has not, or has already."""

    def __init__(self, rollout_ids: Collection[str], why: str) -> None:
        super().__init__(f"{len(rollout_ids)} rollouts {why}, such as {min(rollout_ids)}; nothing was changed")


class NothingDispatched(TrainingError):
    """No rollout is dispatched and not given, so that nothing would ever come."""

    def __init__(self) -> None:
        super().__init__(
            "next() has nothing to wait for: every rollout that was dispatched is given. Dispatch some first"
        )


class RunLeft(TrainingError):
    """Something was asked of a run whose context was left."""

    def __init__(self) -> None:
        super().__init__(
            "the context of this training run was left, and nothing was done. Enter training_run again: it goes on "
            "from the head"
        )


class ForeignHead(TrainingError):
    """The head of the store has no state of a training run."""

    def __init__(self, url: str, checkpoint: str, why: str) -> None:
        super().__init__(f"{url}: checkpoint {checkpoint}, the head, {why}. Name another store; nothing was changed")


class ServersLost(CoordinationError):
    """Servers were lost while the run went on; what is not in the head is lost with them."""

    what = "servers are lost"
    hint = "Have them run again, and enter training_run again: it continues from the head"
