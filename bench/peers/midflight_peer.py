"""midflight, all participants in one process.

In a standing world they are what `midflight collect` has in its process, before an upstream that asks the world, and
one checkpoint is taken once all are held. In a live world it is `midflight collect` itself with its ordinary interval.
"""

import gc
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import Any

import anyio
import anyio.lowlevel

from orchestrator import Fleet, adopt, commit, prepare, renew, restore, resume
from orchestrator.collect import Config, EmbeddedWorld, Options, collect, open_world
from participants import Chunks, Floor, Reply
from participants.data import CallId
from participants.inference import DEFAULT_MODEL
from participants.serving.settings import GC_THRESHOLD
from store import DEFAULT_LIMITS, Controller, Draft, Life, claim, open_checkpoint, open_store

from ..endpoint import TOOLS
from .protocol import Place, Saves, World

TIMEOUT_S, LEASE_S = 600.0, 900.0
BEAT_S = 0.5
"""How often a live run says that it lives: a new start waits some of them after a kill."""


class WorldUpstream:
    """Asks the world for each reply."""

    def __init__(self, world: World) -> None:
        """The episode of a call is its index in the run."""
        self._world = world

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        """One reply of the chat API."""
        assert life is not None
        said = await self._world.model(int(life.rollout_id.removeprefix("r")), body["messages"])
        reason = "tool_calls" if said.get("tool_calls") else "stop"
        usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
        choice = {"index": 0, "message": said, "finish_reason": reason}
        return Reply(200, {"object": "chat.completion", "choices": [choice], "usage": usage})

    def stream(
        self, route: str, body: Mapping[str, Any], life: Life | None = None, *, call: CallId | None = None
    ) -> AbstractAsyncContextManager[Chunks]:
        """Never asked for."""
        raise NotImplementedError


class Midflight:
    """A checkpoint of everything, now and then."""

    title = "midflight, embedded"
    database = False
    by_checkpoint = True
    saves = Saves(
        restorable="as of the last checkpoint",
        tokens="the server's own, where it names them",
        prefix="continued from the checkpoint, where the server can",
        effects="on a tool server's own state: as of the checkpoint; elsewhere: again, those since the checkpoint",
        processes="yes, as of one moment",
        whole="yes",
    )

    def __init__(self) -> None:
        """Nothing runs."""
        self._fleet: Fleet | None = None
        self._controller: Controller | None = None
        self._lives: list[Life] = []

    def versions(self) -> Mapping[str, str]:
        """Its own."""
        return {"midflight": version("midflight")}

    async def run(self, place: Place, world: World) -> None:
        """Restore what there is, and go on."""
        gc.set_threshold(*GC_THRESHOLD)
        if world.base_url:
            await collect(_live(place, world), Options(), lambda name, facts: None)
            return
        async with self._opened(place, world) as (embedded, epoch):
            world.begin()
            self._lives = []
            await world.each(
                lambda number: self._dispatch(embedded, world, Life(f"r{number}", epoch, int(place.again), number))
            )
            await anyio.sleep_forever()

    @asynccontextmanager
    async def _opened(self, place: Place, world: World) -> AsyncIterator[tuple[EmbeddedWorld, int]]:
        """The participants, restored if there is something, and the epoch that they are in."""
        config, upstream = _standing(place), WorldUpstream(world)
        if not place.durable:
            async with open_world(config, None, upstream) as embedded:
                yield embedded, 1
            return
        async with (
            open_store(str(place.folder / "store"), "write", limits=DEFAULT_LIMITS) as store,
            claim(store, take_over=True) as self._controller,
            open_world(config, store, upstream) as embedded,
        ):
            assert embedded.fleet is not None
            epoch = self._controller.epoch
            self._fleet = (await adopt(embedded.fleet, epoch, Floor(epoch, 0)))[0]
            if place.again:
                head, round_id = await open_checkpoint(store), self._controller.next_round()
                await restore(self._fleet, round_id, head.ref, head.manifest.scope, timeout_s=TIMEOUT_S)
                await resume(self._fleet, round_id)
            yield embedded, epoch

    async def _dispatch(self, embedded: EmbeddedWorld, world: World, life: Life) -> None:
        self._lives.append(life)
        row = {"responses_create_params": {"input": world.start(life.n), "tools": TOOLS}}
        refused = await embedded.dispatch({life: {**row, "initial_count": 0, "expected_count": 0}})
        assert not refused, refused
        await anyio.lowlevel.checkpoint()

    async def settle(self) -> None:
        """Prepare, commit, renew, resume, publish."""
        fleet, controller = self._fleet, self._controller
        assert fleet is not None
        assert controller is not None
        round_id = controller.next_round()
        standstill = await prepare(fleet, round_id, timeout_s=TIMEOUT_S, lease_s=LEASE_S)
        assert standstill.prepared, standstill.blockers
        answers = await commit(fleet, round_id, self._lives, None, timeout_s=TIMEOUT_S)
        await renew(fleet, round_id, lease_s=LEASE_S)
        await resume(fleet, round_id)
        manifests = [answer.manifest for answer in answers]
        draft = Draft(checkpoint=round_id, parent=None, participants=manifests, scope=self._lives)
        await controller.publish(draft, timeout_s=TIMEOUT_S)


COUNTER = {"counter": {"server": "participants.servers.counter:CounterServer"}}


def _standing(place: Place) -> Config:
    run = {"input": "none", "output": str(place.folder / "out.jsonl")}
    model = {"base_url": "http://localhost/v1", "model": "held", "dialect": "chat", "cuts": False}
    return Config.model_validate({"run": run, "model": model, "resources": COUNTER})


def _live(place: Place, world: World) -> Config:
    return Config.model_validate(
        {
            "run": {
                "input": str(place.folder / "rows.jsonl"),
                "output": str(place.folder / "out.jsonl"),
                "concurrency": world.at_once,
            },
            "model": {"base_url": world.base_url, "model": DEFAULT_MODEL},
            "resources": COUNTER,
            "checkpoint": {
                "enabled": True,
                "url": str(place.folder / "store"),
                "interval_s": world.interval_s,
                "liveness_beat_s": BEAT_S,
            },
        }
    )
