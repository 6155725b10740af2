"""Two worker processes of one model server: they share the backend's token store and the folder of the ledger."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.coordination import restore, resume
from orchestrator.fleet import Fleet, adopt, discover
from orchestrator.links import LocalLink
from orchestrator.rounds import RoundLimits, checkpoint
from participants import ControlPlane, ModelServer
from participants.backends import LazyCapabilities
from participants.data import CallId
from participants.inference.control import HoldOrder
from participants.ledger import Ledger, check
from participants.routing import worker_of
from store import Controller, Life, Store, claim
from tests.support.checkpoints import memory_store
from tests.support.placed_model import Place, comparable, placed, until_heard

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

FIRST, SECOND = CallId("agent.main", 1, 0), CallId("agent.main", 2, 0)
CUT = 3
LIMITS = RoundLimits(prepare_timeout_s=5, more_time_s=0, commit_timeout_s=20, publish_timeout_s=10, lease_s=60)


def rollout_of(worker: int, workers: int = 2) -> str:
    """The first rollout that belongs to a worker."""
    return next(name for name in map("r{}".format, range(100)) if worker_of(name, workers) == worker)


LIVES = [Life(rollout_of(worker), 1, 0, worker) for worker in (0, 1)]


@dataclass
class Pair:
    """Two workers, and their controller."""

    place: Place
    workers: list[ModelServer]
    fleet: Fleet
    controller: Controller

    def of(self, life: Life) -> ModelServer:
        return self.workers[worker_of(life.rollout_id, len(self.workers))]

    async def ask(self, life: Life, call: CallId = FIRST, name: str = "chat") -> Any:
        """One call of a life at its worker."""
        return (await self.of(life).handle(self.place.request(name, life, call))).body

    async def save(self, *lives: Life) -> Any:
        """A whole checkpoint; its round."""
        async with checkpoint(self.fleet, self.controller, LIMITS) as standing:
            standing.take(scope=list(lives))
        assert standing.published is not None
        return standing.published

    async def pinned(self) -> list[str]:
        """Checkpoints with pins, as the backend says."""
        reply = await self.place.endpoint.get(f"/midflight/v1/staging/status?run={self.fleet.run}")
        found: list[str] = reply.body["pinned"]
        return found


@asynccontextmanager
async def workers_of(place: Place, store: Store, make: Callable[[], ModelServer], count: int) -> AsyncIterator[Pair]:
    """So many workers of one server, adopted by a controller of their own."""
    async with AsyncExitStack() as stack:
        controller = await stack.enter_async_context(claim(store, take_over=True))
        servers = [make() for _ in range(count)]
        planes = [
            await stack.enter_async_context(
                ControlPlane(server, store, process=f"w{number}", worker=number, workers=count).run()
            )
            for number, server in enumerate(servers)
        ]
        found = await discover([LocalLink(plane) for plane in planes], store.run_id)
        fleet, _ = await adopt(found, controller.epoch)
        yield Pair(place, servers, fleet, controller)


async def bring(pair: Pair) -> None:
    """Restore the head."""
    head, round_ = pair.controller.head, pair.controller.next_round()
    assert head is not None
    await restore(pair.fleet, round_, head, LIVES, timeout_s=20)
    await resume(pair.fleet, round_)


@asynccontextmanager
async def in_flight(pair: Pair) -> AsyncIterator[None]:
    """A call of each life that stops after some tokens; given up at the end."""
    pair.place.backend.board.hold(HoldOrder(after_tokens=CUT))
    async with anyio.create_task_group() as group:
        for life in LIVES:
            group.start_soon(pair.ask, life)
        await pair.place.backend.calls.wait(lambda: pair.place.backend.calls.counts()["held"] == len(LIVES))
        for life in LIVES:
            await until_heard(pair.of(life), CUT)
        yield
        group.cancel_scope.cancel()
    await pair.place.let_go()


async def test_the_pins_of_one_worker_outlive_every_commit_of_the_other(tmp_path: Path) -> None:
    """Each lets go of checkpoints that are gone; what the head needs stands, whoever pinned it, and goes on."""
    store = memory_store()
    async with placed(tmp_path) as place:
        uncut = await place.server.handle(place.request("chat", Life("other", 1, 0, 0)))
        async with workers_of(place, store, place.fresh, 2) as pair, in_flight(pair):
            first = await pair.save(*LIVES)
            assert await pair.pinned() == [str(first.checkpoint)]
            for server in pair.workers:  # A commit of each, that the other has no part in.
                await server.release(store.run_id, {first.checkpoint}, pair.controller.next_round())
            assert await pair.pinned() == [str(first.checkpoint)]
            second = await pair.save(*LIVES)
            assert {str(first.checkpoint), str(second.checkpoint)} >= set(await pair.pinned())
            assert str(second.checkpoint) in await pair.pinned()
            await place.endpoint.post("/midflight/v1/staging/sweep", {"older_than_s": 0})
        async with workers_of(place, store, place.fresh, 1) as pair:
            await bring(pair)
            for life in LIVES:
                body = await pair.ask(Life(life.rollout_id, pair.controller.epoch, 1, life.n))
                assert comparable(body) == comparable(uncut.body)
            assert pair.workers[0].counts()["tokens_continued"] == CUT * len(LIVES)


async def test_one_folder_holds_the_ledgers_of_every_worker(tmp_path: Path) -> None:
    """Their rows are durable side by side; a rollout that another process continues has one chain over both."""
    store = memory_store()
    async with placed() as place:

        def make() -> ModelServer:
            cuts = LazyCapabilities(place.endpoint, place.backend.settings.model, known=place.known)
            return ModelServer(place.endpoint, cuts=cuts, ledger=Ledger(str(tmp_path)))

        async with workers_of(place, store, make, 2) as pair:
            async with anyio.create_task_group() as group:
                for life in LIVES:
                    group.start_soon(pair.ask, life)
            await pair.save(*LIVES)
        async with workers_of(place, store, make, 1) as pair:
            await bring(pair)
            for life in LIVES:
                await pair.ask(Life(life.rollout_id, pair.controller.epoch, 1, life.n), SECOND, "completions")
        ledger = Ledger(str(tmp_path))
        for life in LIVES:
            key = f"{life.rollout_id}-a1"
            rows = await ledger.rows(key)
            assert [(row.call, row.life.attempt) for row in rows] == [(str(FIRST), 0), (str(SECOND), 1)]
            manifest = await ledger.manifest(key)
            origins = [*manifest.origins, manifest.life]
            found = check([row.to_json() for row in rows], last=manifest.last, count=manifest.rows, lives=origins)
            assert list(found) == []
            assert (await ledger.manifest(life.rollout_id)).end
