"""What a controller shows of itself at any time: the head, and what a crash now would lose."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from participants.telemetry import Readings, gauge, names
from store import Controller

Read = Callable[[], float | None]
"""A value as it is now, or None where there is none; called from any thread."""


def _unknown() -> None:
    """What nobody says."""


@contextmanager
def watching_head(
    controller: Controller, *, age_s: Read, at_risk: Read = _unknown, blocked: Read = _unknown
) -> Iterator[None]:
    """While the context is open, gauges tell of the head and what is behind it.

    `age_s` is since the last checkpoint, `at_risk` the tokens that none has, `blocked` how many in a row were blocked.
    """

    def epoch() -> float:
        return controller.head.checkpoint.epoch if controller.head else 0

    def k() -> float:
        return controller.head.checkpoint.k if controller.head else 0

    reads: dict[str, Read] = {
        names.HEAD_EPOCH: epoch,
        names.HEAD_ROUND: k,
        names.CHECKPOINT_AGE: age_s,
        names.TOKENS_AT_RISK: at_risk,
        names.CHECKPOINTS_BLOCKED: blocked,
    }
    with ExitStack() as stack:
        for name, read in reads.items():
            stack.enter_context(gauge(name, partial(_reading, read)))
        yield


def _reading(read: Read) -> Readings:
    value = read()
    return [] if value is None else [({}, value)]
