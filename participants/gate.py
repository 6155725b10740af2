"""The gate: admission, parking and the clock that stands still while work is parked.

Every step of an episode or session runs inside `step`. While the gate is closed no step begins: it parks at the
boundary before it. A step of mode `wait` that has begun holds a prepare back until it ends; one of mode `replay` does
not. A step that was begun inside another one of mode `wait` is always admitted, because that one cannot end without it.

`park_time` is the part of the monotonic clock that limits must not count: the time for which the gate was closed.
"""

import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import anyio

from store import Life

from .errors import Code, ParticipantError

StepMode = Literal["wait", "replay"]


@dataclass(frozen=True, slots=True)
class Step:
    """A step in flight."""

    life: Life
    what: str
    reason: str
    since: float


class Gate:
    """Admission of one participant process."""

    def __init__(self, *, max_parked: int = 1_000_000, clock: Callable[[], float] = time.monotonic) -> None:
        """At most `max_parked` calls are held open while closed; more are refused with `admission_closed`."""
        self._clock = clock
        self._max_parked = max_parked
        self._opened = anyio.Event()
        self._opened.set()
        self._quiet = anyio.Event()
        self._quiet.set()
        self._waiting_steps: dict[int, Step] = {}
        self._next = 0
        self._closed_at: float | None = None
        self._closed_for = 0.0
        self.parked = 0
        """Steps held before their boundary right now."""

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Gate {state}, {len(self._waiting_steps)} waited for, {self.parked} parked>"

    @property
    def closed(self) -> bool:
        """Whether admission is closed."""
        return self._closed_at is not None

    @property
    def waited_for(self) -> int:
        """How many steps of mode `wait` are in flight."""
        return len(self._waiting_steps)

    def close(self) -> None:
        """Close admission; closing twice is closing once."""
        if self._closed_at is None:
            self._closed_at = self._clock()
            self._opened = anyio.Event()

    def reopen(self) -> None:
        """Open admission and let parked steps begin."""
        if self._closed_at is not None:
            self._closed_for += self._clock() - self._closed_at
            self._closed_at = None
            self._opened.set()

    def active_time(self) -> float:
        """A monotonic clock, in seconds, that stands still while the gate is closed."""
        now = self._clock() if self._closed_at is None else self._closed_at
        return now - self._closed_for

    async def wait_open(self) -> None:
        """Park until admission is open. Raises `admission_closed` where too many are parked already."""
        if not self.closed:
            return
        if self.parked >= self._max_parked:
            raise ParticipantError(Code.ADMISSION_CLOSED, f"{self.parked} calls are held already", {"retry_after_s": 1})
        self.parked += 1
        try:
            await self._until_open()
        finally:
            self.parked -= 1

    async def _until_open(self) -> None:
        while self.closed:
            await self._opened.wait()

    @asynccontextmanager
    async def step(
        self, life: Life, what: str, mode: StepMode, *, reason: str = "", inside_wait: bool = False
    ) -> AsyncIterator[None]:
        """Park until admission is open, then run a step; `inside_wait` says that a waited-for step made it."""
        if not inside_wait:
            await self.wait_open()
        if mode == "replay":
            yield
            return
        self._next += 1
        key = self._next
        self._waiting_steps[key] = Step(life, what, reason or "it runs to its end", self._clock())
        self._quiet = self._quiet if not self._quiet.is_set() else anyio.Event()
        try:
            yield
        finally:
            self._waiting_steps.pop(key, None)
            self._look_quiet()

    def forget(self, lives: Collection[Life]) -> None:
        """Wait no more for lives that did not stop in time: they are fenced, and nothing of them is used again."""
        self._waiting_steps = {key: step for key, step in self._waiting_steps.items() if step.life not in lives}
        self._look_quiet()

    def _look_quiet(self) -> None:
        if not self._waiting_steps:
            self._quiet.set()

    @asynccontextmanager
    async def time_limit(self, left_s: float | None, what: str) -> AsyncIterator[None]:
        """Raise `deadline_exceeded` once the block has used `left_s` of active time; None for no limit."""
        if left_s is None:
            yield
            return
        ends = self.active_time() + left_s
        with anyio.CancelScope() as scope:
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._cancel_at, ends, scope)
                    yield
                    group.cancel_scope.cancel()
            except BaseExceptionGroup as error:  # Only the block can fail, and its error is the caller's.
                raise error.exceptions[0] from error.exceptions[0].__cause__
        if scope.cancelled_caught:
            raise ParticipantError(Code.DEADLINE_EXCEEDED, f"{what} took longer than its limit of active time")

    async def _cancel_at(self, ends: float, scope: anyio.CancelScope) -> None:
        while (left := ends - self.active_time()) > 0:
            await self._until_open()
            await anyio.sleep(left)
        scope.cancel()

    async def wait_quiet(self) -> None:
        """Until no step of mode `wait` is in flight."""
        while self._waiting_steps:
            await self._quiet.wait()

    def in_flight(self, limit: int) -> tuple[list[Step], int]:
        """The oldest `limit` steps of mode `wait` in flight, and the number of all."""
        steps = [step for step, _ in zip(self._waiting_steps.values(), range(limit), strict=False)]
        return steps, len(self._waiting_steps)
