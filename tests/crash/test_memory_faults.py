"""Each call to a store fails once, in each way that a call can: the work ends in a typed error, and can be repeated."""

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
import pytest

from store import IOFailed, MemoryBackend, NoSpace, OutcomeUnknown, StoreError, TransientError
from store.backends import MemorySpace, Retrying
from tests.support.interrupting import Act, Interrupted, cancelling, hanging, raising
from tests.support.rounds import on_backend

from .conftest import Tally
from .works import WORKS, Work, publish_cursors, survives

pytestmark = pytest.mark.anyio
each_or_every_third = pytest.mark.parametrize(
    "step", [pytest.param(3, marks=pytest.mark.unit), pytest.param(1, marks=pytest.mark.scale)], ids=["third", "each"]
)
"""Every third call, where other kinds of fault begin at other calls; each call with more time."""

RUN_ID = "0" * 32
BEAT_S = 1.0
"""Long enough that no heartbeat comes in between; a hung one costs no more than this."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What one call does wrong."""

    act: Act
    after: bool = False
    """Once it took effect."""
    mended: bool = False
    """The retry layer makes up for it, so that nobody notices."""


FAULTS = {
    "no space": Fault(raising(lambda: NoSpace("call", "it", "injected"))),
    "failed": Fault(raising(lambda: IOFailed("call", "it", "injected"))),
    "not now": Fault(raising(lambda: TransientError("call", "it")), mended=True),
    "lost before": Fault(raising(lambda: TransientError("call", "it", applied=None)), mended=True),
    "lost after": Fault(raising(lambda: TransientError("call", "it", applied=None)), mended=True, after=True),
    "unknown before": Fault(raising(lambda: OutcomeUnknown("call", "it", "injected"))),
    "unknown after": Fault(raising(lambda: OutcomeUnknown("call", "it", "injected")), after=True),
}


STOPS = {"cancelled": cancelling, "hung": hanging}


async def space_of(cursors: tuple[int, ...]) -> MemorySpace:
    """A store with these checkpoints."""
    space = MemorySpace()
    await publish_cursors(on_backend(MemoryBackend(space=space), RUN_ID), cursors)
    return space


async def each_call(attempt: Callable[[int], Awaitable[bool]], start: int, step: int) -> int:
    """Call with `start`, `start + step`, ... until nothing was struck; how often something was."""
    for tried, nth in enumerate(itertools.count(start, step)):
        if not await attempt(nth):
            return tried
    raise AssertionError


async def struck_by(
    work: Work, base: MemorySpace, arm: Callable[[Interrupted, anyio.CancelScope], None]
) -> tuple[str, StoreError | str | None]:
    """Do the work on a copy of `base`; the call that was struck, if any, and how the work ended."""
    backend = Interrupted(MemoryBackend(space=MemorySpace(dict(base.objects))))
    ended = await survives(
        work,
        on_backend(Retrying(backend), RUN_ID, liveness_beat_s=BEAT_S),
        on_backend(backend.inner, RUN_ID),
        lambda scope: arm(backend, scope),
        backend.disarm,
    )
    return backend.struck, ended


@pytest.mark.enumerated(4)
@each_or_every_third
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("name", WORKS)
async def test_whichever_call_fails_nothing_is_lost_and_the_work_can_be_repeated(
    name: str, kind: str, step: int, tally: Tally
) -> None:
    """Success, a typed error or the caller's deadline; the older checkpoint verifies; the same work then succeeds."""
    work, fault, endings = WORKS[name], FAULTS[kind], Counter[str]()
    base = await space_of(work.cursors)

    async def attempt(nth: int) -> bool:
        struck, ended = await struck_by(
            work, base, lambda backend, scope: backend.arm(nth, fault.act, after=fault.after)
        )
        assert ended is None or not fault.mended, struck
        endings[type(ended).__name__ if isinstance(ended, StoreError) else str(ended or "success")] += 1
        return bool(struck)

    points = await each_call(attempt, 1 + list(FAULTS).index(kind) % step, step)
    assert points * step > 5
    tally(f"{name}, {kind}", f"{points} calls, {dict(endings)}")


@pytest.mark.enumerated(4)
@each_or_every_third
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", WORKS)
@pytest.mark.parametrize("how", STOPS)
async def test_work_stopped_at_any_call_leaves_nothing_behind(
    name: str, how: str, after: bool, step: int, tally: Tally
) -> None:
    """Cancelled, or hung until its caller's deadline, before a call or once it took effect: no task is left, nothing
    is half visible, and it can be repeated.
    """
    work, endings = WORKS[name], Counter[str]()
    base = await space_of(work.cursors)

    async def attempt(nth: int) -> bool:
        struck, ended = await struck_by(
            work, base, lambda backend, scope: backend.arm(nth, STOPS[how](scope), after=after)
        )
        assert struck or ended is None
        endings[str(ended or "success")] += 1
        return bool(struck)

    points = await each_call(attempt, 1 + (list(STOPS).index(how) + 2 * after) % step, step)
    tally(f"{name}, {how} {'after' if after else 'before'}", f"{points} calls, {dict(endings)}")
