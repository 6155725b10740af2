"""A resources server under a real control plane and a real store: checkpoint, crash, restore."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from participants.book import Book
from participants.plane import ControlPlane
from participants.resources import ResourcesServer
from participants.servers import CounterServer
from participants.wire import Activate, Adopt, Commit, Prepare, Renew, Resume, Retire, Stage
from store import CheckpointId, Controller, Draft, Life, Ref, Store, claim, open_checkpoint
from tests.support.checkpoints import memory_store

from .harness import LIFE, NEXT, Caller, Drawer

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

ROUND = CheckpointId(1, 1)


@asynccontextmanager
async def controlled(server: ResourcesServer, store: Store, epoch: int) -> AsyncIterator[tuple[ControlPlane, dict]]:  # type: ignore[type-arg]
    """Its control plane, adopted, and what every call of the epoch carries."""
    async with ControlPlane(server, store).run() as plane:
        book: Book = plane.book
        await plane.adopt(Adopt(run=store.run_id, epoch=epoch))
        yield plane, {"run": store.run_id, "epoch": epoch, "incarnation": book.incarnation}


async def checkpointed(server: ResourcesServer, store: Store, controller: Controller, life: Life) -> Ref:
    """Prepare, commit, renew, publish, resume."""
    async with controlled(server, store, controller.epoch) as (plane, call):
        round_ = controller.next_round()
        in_round = {**call, "round": round_}
        assert (await plane.prepare(Prepare(**in_round, timeout_s=1, lease_s=30))).prepared
        committed = await plane.commit(Commit(**in_round, scope=(life,), parent=None))
        await plane.renew(Renew(**in_round, lease_s=30))
        draft = Draft(checkpoint=round_, parent=None, participants=[committed.manifest], scope=[life])
        ref = await controller.publish(draft, timeout_s=30)
        await plane.resume(Resume(**in_round))
        return ref


@pytest.mark.parametrize("kind", [CounterServer, Drawer])
async def test_a_session_survives_its_process(kind: type[ResourcesServer]) -> None:
    """Committed and published by one process, staged and activated by another: the next life goes on."""
    store = memory_store()
    step = ("/increment_counter", {"count": 2}) if kind is CounterServer else ("/put", {"thing": "x"})
    old = kind()
    async with claim(store) as controller:
        call = Caller(old)
        await call("/seed_session", {"initial_count": 1})
        await call(*step)
        ref = await checkpointed(old, store, controller, LIFE)
    assert (await open_checkpoint(store, ref)).manifest.scope == (LIFE,)
    new = kind()
    async with claim(store) as controller, controlled(new, store, controller.epoch) as (plane, base):
        in_round = {**base, "round": controller.next_round()}
        await plane.stage(Stage(**in_round, checkpoint=ref, scope=(LIFE,)))
        await plane.activate(Activate(**in_round))
        await plane.resume(Resume(**in_round))
        continued = Caller(new, NEXT, boundary=call.boundary)
        await continued(*step)
        session = (await new.enter(NEXT)).state.open["s"]
        assert session.state in ({"count": 5}, {"x"})
        assert session.revision == 2
        await plane.retire(Retire(**base, lives=(NEXT,), timeout_s=1))
        assert new.counts()["sessions"] == 0
