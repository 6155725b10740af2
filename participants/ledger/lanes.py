"""Group commit: many callers share one batch in a worker thread.

A caller that finds its lane idle leads: it takes everything that waits there, its own work first, into one batch, and
when that is done hands the lane on to the first caller that came meanwhile. So there is no task beside the callers,
and a batch grows with the number of those who wait.

Work that was handed in is carried out: cancellation waits for it, so that its outcome is known.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Waiting(Generic[T]):
    """One caller."""

    work: T
    called: anyio.Event = field(default_factory=anyio.Event)
    """Set when its work is done, or when it is to lead."""
    leads: bool = False
    done: bool = False
    error: BaseException | None = None


class Lane(Generic[T]):
    """One batch at a time."""

    def __init__(
        self, carry_out: Callable[[Sequence[T]], None], threads: anyio.CapacityLimiter, max_batch: int
    ) -> None:
        """`carry_out` runs in a thread; what it raises, everybody in the batch gets."""
        self._carry_out = carry_out
        self._threads = threads
        self._max_batch = max_batch
        self._queue: deque[Waiting[T]] = deque()
        self._busy = False

    async def run(self, work: T) -> None:
        """Return when the work has been carried out."""
        waiting = Waiting(work)
        self._queue.append(waiting)
        with anyio.CancelScope(shield=True):
            if self._busy:
                await self._wait(waiting)
            if not waiting.done:
                self._busy = True
                await self._lead()
        if waiting.error is not None:
            raise waiting.error

    async def _wait(self, waiting: Waiting[T]) -> None:
        try:
            await waiting.called.wait()
        except BaseException:
            if waiting.leads and not waiting.done:
                self._hand_on(waiting)
            raise

    async def _lead(self) -> None:
        """Carry out one batch."""
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._max_batch))]
        error: BaseException | None = None
        try:
            await anyio.to_thread.run_sync(self._carry_out, [each.work for each in batch], limiter=self._threads)
        except BaseException as caught:
            error = caught
            if not isinstance(caught, Exception):
                raise
        finally:
            for each in batch:
                each.done, each.error = True, error
                each.called.set()
            self._hand_on(None)

    def _hand_on(self, leaver: Waiting[T] | None) -> None:
        """Let the next one lead; whoever comes next, where nobody waits."""
        heir = next((each for each in self._queue if each is not leaver), None)
        self._busy = heir is not None
        if heir is not None:
            heir.leads = True
            heir.called.set()
