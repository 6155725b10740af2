"""A process that stands still for a minute, by SIGSTOP or a pause of its memory: its lease has run out unnoticed.

The clock goes on and the event loop does not, so that nobody could reopen yet: whatever comes next must see it itself.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import pytest

from participants import Code, ControlPlane
from store import Store
from tests.support.checkpoints import memory_store
from tests.support.desk import LIFE, Desk, beside, desk, refused
from tests.support.owners import Pause, PausedBackend, notebook

pytestmark = [pytest.mark.unit, pytest.mark.anyio, pytest.mark.fault(50)]


@dataclass
class Clock:
    """The monotonic clock of a process that was not scheduled for a while."""

    stood_still: float = 0.0

    def __call__(self) -> float:
        return anyio.current_time() + self.stood_still


@asynccontextmanager
async def stoppable(store: Store) -> AsyncIterator[tuple[Desk, Clock]]:
    """A plane whose process can stand still, with one note, in epoch 1."""
    owner, clock = notebook(), Clock()
    async with ControlPlane(owner, store, clock=clock).run() as plane:
        at = Desk(owner, plane, store)
        await at.adopt(1)
        await owner.write(LIFE, "a", creates=True)
        yield at, clock


@pytest.mark.parametrize(
    ("where", "key"), [("before", ".jsonl"), ("after", ".jsonl"), ("after", "agent.main/w0/manifest")]
)
async def test_a_commit_in_which_the_process_stood_still_is_no_commit(where: str, key: str) -> None:
    """The lease is looked at before and after each write: no manifest is begun, and one that stands is not answered."""
    backend = PausedBackend()
    pause = getattr(backend, where)[key] = Pause()
    async with stoppable(memory_store(backend)) as (at, clock):
        await at.prepare(lease_s=30)
        async with beside(at.commit()) as [commit]:
            await pause.reached.wait()
            clock.stood_still = 60.0
            pause.released.set()
        assert commit.code is Code.LEASE_EXPIRED
        assert any("manifest" in name for name in backend.space.objects) is ("manifest" in key)
        await refused(at.renew(), Code.LEASE_EXPIRED)
        assert (at.phase, at.owner.gate.closed) == ("idle", False)


async def test_a_renew_after_the_process_stood_still_is_refused_and_reopens() -> None:
    """What was committed before is not published: there is no proof that all stood still together."""
    async with stoppable(memory_store()) as (at, clock):
        await at.prepare(lease_s=30)
        await at.commit()
        clock.stood_still = 29.0
        await at.renew(lease_s=30)
        clock.stood_still = 60.0
        await refused(at.renew(), Code.LEASE_EXPIRED)
        assert (at.phase, at.owner.gate.closed) == ("idle", False)


async def test_a_commit_asked_after_the_process_stood_still_writes_nothing() -> None:
    """The request waited in a socket meanwhile."""
    async with stoppable(memory_store()) as (at, clock):
        await at.prepare(lease_s=30)
        clock.stood_still = 60.0
        await refused(at.commit(), Code.LEASE_EXPIRED)
        assert not any("checkpoints/" in key for key in at.store.backend.space.objects)  # type: ignore[attr-defined]


async def test_without_standing_still_the_same_commit_succeeds() -> None:
    """The pauses of these tests are not what refuses it."""
    backend = PausedBackend()
    pause = backend.before[".jsonl"] = Pause()
    async with desk(memory_store(backend)) as at:
        await at.owner.write(LIFE, "a", creates=True)
        await at.prepare(lease_s=30)
        async with beside(at.commit()) as [commit]:
            await pause.reached.wait()
            pause.released.set()
        assert commit.answer.manifest.records == 1
