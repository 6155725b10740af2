"""The event loop of the simulation: no input or output, a virtual clock, and an order that a seed draws.

Each simulated process is a lane: what is ready in it waits in a queue of its own, as in an event loop of its own. Which
lane goes on is drawn for every single callback, so processes interleave at every await. In a loose seed two steps of
different tasks in one lane change places too. A lane that is paused keeps its callbacks, as a stopped process does; one
that is dead never runs anything again, and keeps what it has so that no `finally` runs in it.

To which lane a callback belongs stands in its context, which tasks and timers inherit.
"""

import asyncio
import heapq
import random
from collections import deque
from contextvars import Context, ContextVar
from itertools import count
from typing import Any

LANE: ContextVar["Lane | None"] = ContextVar("lane", default=None)
SWAPPED = 0.25
"""How often two tasks of one lane change places in a loose seed."""
TICK_S = 1e-9


class Lane:
    """The queue of one simulated process."""

    __slots__ = ("active", "dead", "kept", "name", "paused", "ready")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[asyncio.Handle] = deque()
        self.active = False
        """Whether the loop knows that something is ready here."""
        self.paused = False
        self.dead = False
        self.kept: list[asyncio.Handle] = []
        """What a dead lane will never run."""


class StuckError(AssertionError):
    """Nothing can happen any more, or too much does: what was awaited will never come."""


class SimTask(asyncio.Task[Any]):
    """A task whose place in sets does not depend on its address."""

    number: int
    numbers = count(1)
    """Begins anew with every loop: where a number stands in a set depends on the number itself."""

    def __new__(cls, *args: Any, **options: Any) -> "SimTask":
        task = super().__new__(cls)
        task.number = next(cls.numbers)
        return task

    def __hash__(self) -> int:
        return self.number


class SimLoop(asyncio.BaseEventLoop):
    """One thread, one clock, one seed."""

    def __init__(self, chance: random.Random, *, loose: bool, max_steps: int, horizon_s: float) -> None:
        """After `max_steps` callbacks or `horizon_s` of its own time it gives up with StuckError."""
        super().__init__()
        SimTask.numbers = count(1)
        self._chance = chance
        self._loose = loose
        self._now = 0.0
        self._left = max_steps
        self._horizon_s = horizon_s
        self._active: list[Lane] = []
        self._nobody = Lane("")
        """Of the network, the store and the clock of faults."""
        self.tasks: list[SimTask] = []
        """All there ever were, so that none is taken apart while the simulation runs."""
        self.swaps = 0
        self.steps = 0

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Time passes whatever is done: who sleeps for less than it can tell would never wake up."""
        return super().call_at(max(when, self._now + TICK_S), callback, *args, context=context)

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def create_task(self, coro: Any, *, name: Any = None, context: Context | None = None) -> Any:
        return self.own(coro, name=name, context=context)

    def own(self, coro: Any, *, name: Any = None, context: Context | None = None) -> SimTask:
        """A task of this loop; it is ended with the loop at the latest."""
        task = SimTask(coro, loop=self, name=name, context=context)
        self.tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Of a task that was dropped; what matters ends its process, which tells of it."""

    # Lanes

    def pause(self, lane: Lane) -> None:
        """Nothing of it runs until `go_on`."""
        lane.paused = True

    def go_on(self, lane: Lane) -> None:
        lane.paused = False
        self._wake(lane)

    def kill(self, lane: Lane) -> None:
        """Nothing of it ever runs again."""
        lane.dead = True
        lane.kept.extend(lane.ready)
        lane.ready.clear()

    def _enqueue(self, handle: asyncio.Handle) -> None:
        lane = handle._context.get(LANE) or self._nobody  # type: ignore[attr-defined]
        if lane.dead:
            lane.kept.append(handle)
            return
        lane.ready.append(handle)
        self._wake(lane)

    def _wake(self, lane: Lane) -> None:
        if not lane.active and not lane.paused and lane.ready:
            lane.active = True
            self._active.append(lane)

    # One callback after the other

    def _run_once(self) -> None:
        active = self._active
        while not active:
            self._advance()
        position = int(self._chance.random() * len(active)) if len(active) > 1 else 0
        lane = active[position]
        if lane.paused or not lane.ready:
            lane.active = False
            active.pop(position)
            return
        if self._loose and len(lane.ready) > 1 and self._chance.random() < SWAPPED:
            self._swap(lane.ready)
        handle = lane.ready.popleft()
        self.steps += 1
        if self.steps > self._left:
            raise StuckError(f"more than {self._left} steps by {self._now:.1f} s")
        if not handle._cancelled:
            handle._run()

    def _advance(self) -> None:
        """Let the clock jump to the next timer."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False  # type: ignore[attr-defined]
        if not timers:
            raise StuckError(f"nothing can happen any more at {self._now:.1f} s")
        self._now = max(self._now, timers[0].when())
        if self._now > self._horizon_s:
            raise StuckError(f"not at its end after {self._horizon_s:g} s")
        while timers and timers[0].when() <= self._now:
            handle = heapq.heappop(timers)
            handle._scheduled = False  # type: ignore[attr-defined]
            if not handle._cancelled:
                self._enqueue(handle)

    def _swap(self, ready: deque[asyncio.Handle]) -> None:
        """Only steps of two tasks: what else is queued may be meant to run in order."""
        first, second = (getattr(handle._callback, "__self__", None) for handle in (ready[0], ready[1]))  # type: ignore[attr-defined]
        if isinstance(first, SimTask) and isinstance(second, SimTask) and first is not second:
            ready[0], ready[1] = ready[1], ready[0]
            self.swaps += 1

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is dropped when its time comes."""

    def _process_events(self, event_list: Any) -> None:
        """There is no input."""

    def dispose(self) -> None:
        """Close the loop, and take apart what dead processes have left, while no loop runs."""
        for task in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if not task.done():
                close_quietly(task)
        self.tasks.clear()
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        self._active.clear()
        self.close()


def close_quietly(task: asyncio.Task[Any]) -> None:
    """Whatever its coroutine still wants to do is nobody's business any more."""
    coroutine = task.get_coro()
    for _ in range(3):
        try:
            coroutine.close()
            return
        except BaseException:  # It awaits in a finally, or leaves a scope in another task than it came from.
            continue


async def elapse(seconds: float) -> None:
    """Let virtual time pass."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    timer = loop.call_later(seconds, _settle, over)
    try:
        await over
    finally:
        timer.cancel()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
