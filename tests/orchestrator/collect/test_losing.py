"""A run whose servers are lost one by one, by enumeration of who and when, all of them in this process.

Every row is there once, with the right reward; nothing before the last checkpoint is done again, and what was done
after it at most once more.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import pytest
from pydantic import BaseModel

from orchestrator.collect import Options, checkpoints, losses, open_segments, plan_rollouts
from orchestrator.collect.epoch import Run, run_epochs
from orchestrator.collect.served import ServedWorld
from orchestrator.collect.world import Lost
from orchestrator.fleet import Fleet, discover
from orchestrator.links import LocalLink
from participants import Capabilities, Finished, Floor, Message, Status
from store import Life, MemoryBackend, Store, claim, verify_store
from tests.support.checkpoints import memory_store
from tests.support.owners import KINDS, Pause, PausedBackend, lives, party, settle
from tests.support.replaceable import ROLES, Server, Servers, servers
from tests.support.scripted import counter_row

from .test_in_process import Events, configured, named

pytestmark = [pytest.mark.unit, pytest.mark.anyio, pytest.mark.usefixtures("hurried")]

Answer = TypeVar("Answer", bound=BaseModel)
PATIENCE_S = 60.0
NAMES = ("A", "D")
"""Whose rollouts are those of worker 0 and of worker 1, where there are two."""


class Following:
    """The link to whatever process is a worker of a server now."""

    def __init__(self, server: Server, number: int) -> None:
        self._server = server
        self._number = number

    def __repr__(self) -> str:
        return f"<Following {self._server.role}/w{self._number}>"

    @property
    def _link(self) -> LocalLink:
        return LocalLink(self._server.workers[self._number].plane)

    async def capabilities(self) -> Capabilities:
        return await self._link.capabilities()

    async def status(self, blockers: int = 20) -> Status:
        return await self._link.status(blockers)

    async def results(self, envelope: Mapping[str, Any], after: int) -> AsyncGenerator[Finished]:
        async for finished in self._link.results(envelope, after):
            yield finished

    def at(self, url: str) -> "Following":
        raise ConnectionError(url)

    async def send(self, message: Message, answer: type[Answer]) -> Answer:
        return await self._link.send(message, answer)


class Releasing(ServedWorld):
    """Releases when the test lets it."""

    def __init__(self, fleet: Fleet, worlds: "Losable") -> None:
        super().__init__(fleet)
        self._worlds = worlds

    async def release(self, lives: Sequence[Life]) -> None:
        releasing, self._worlds.releasing = self._worlds.releasing, None
        if releasing is not None:
            await releasing()
        await super().release(lives)


class Losable:
    """The worlds of servers that are started again by the test."""

    def __init__(self, made: Servers) -> None:
        self.made = made
        self.lost: list[Lost] = []
        self.found: Pause | None = None
        """Holds once when the servers have been found for an epoch, before that is adopted."""
        self.releasing: Pause | None = None
        """Holds the release of what has been written."""

    @asynccontextmanager
    async def open(self, store: Store | None) -> AsyncIterator[None]:
        yield

    async def look(self) -> None:
        pass

    def die(self) -> None:
        pass

    async def watch_endpoint(self) -> None:
        pass

    async def world(self) -> ServedWorld:
        every = [Following(s, n) for s in self.made.by_role.values() for n in range(len(s.workers))]
        fleet = await discover(every, self.made.store.run_id)
        found, self.found = self.found, None
        if found is not None:
            await found()
        return Releasing(fleet, self)

    async def recover(self, lost: Lost, rows: int) -> None:
        self.lost.append(dict(lost))


class Going:
    """A run that goes on beside the test."""

    def __init__(self, run: Run, worlds: Losable, events: Events) -> None:
        self.run = run
        self.worlds = worlds
        self.events = events
        self.over = anyio.Event()

    async def collect(self) -> None:
        await run_epochs(self.run)
        self.over.set()

    async def checkpoint(self) -> None:
        """While every rollout is held."""
        assert self.run.checkpoints is not None
        assert await self.run.checkpoints.take(), self.events
        self.worlds.made.journal.checkpoint()

    def check(self) -> None:
        """Each row once, right, and as little as may be done again."""
        journal = self.worlds.made.journal
        # What is broken goes on until it is ended, so two lives may do one thing after the checkpoint.
        assert not [said for said in journal.violations if "before the checkpoint" in said], journal.violations
        assert self.run.summary.failures == 0, self.events
        assert [row["reward"] for row in named(self.events, "row")] == [1.0] * len(NAMES)
        assert set(journal.repeated().values()) <= {2}, journal.repeated()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for the pauses of a real fleet."""
    for name in ("LOOK_S", "AGAIN_S"):
        monkeypatch.setattr(losses, name, 0.02)


@asynccontextmanager
async def going(
    folder: Path, workers: int = 1, interval_s: float = 0.0, backend: MemoryBackend | None = None
) -> AsyncIterator[Going]:
    """Two rollouts, collected in epoch 2 on; each adds twice, looks, and is verified."""
    config = await anyio.to_thread.run_sync(configured, folder)
    table = config.checkpoint.model_copy(update={"interval_s": interval_s})
    config = config.model_copy(update={"checkpoint": table})
    store, events = memory_store(backend), Events()
    async with claim(store):
        segments = await open_segments(config.run.output, store.run_id)
    rollouts = plan_rollouts([counter_row(name, 2, 3) for name in NAMES], 1)

    def emit(name: str, facts: dict[str, Any]) -> None:
        events.append((name, facts))

    with anyio.fail_after(PATIENCE_S):
        async with (
            anyio.create_task_group() as group,
            claim(store) as controller,
            servers(store, workers=workers) as made,  # The last one, for a restart opens contexts inside it.
        ):
            worlds = Losable(made)
            run = Run(config, Options(), emit, rollouts, {}, segments, worlds, store, controller)
            found = Going(run, worlds, events)
            group.start_soon(found.collect)
            yield found
            await found.over.wait()
    await segments.aclose()
    found.check()


POINTS = (
    "",
    "before /increment_counter",
    "after /increment_counter",
    "model A 2",
    "before /get_counter_value",
    "before /verify",
    "after /verify",
)
"""Where rollout A is, past the checkpoint, when somebody is lost; the first one is right at it."""


@pytest.mark.enumerated(4)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("role", ROLES)
async def test_whoever_is_lost_and_wherever_a_rollout_is_every_row_is_there_once(
    tmp_path: Path, role: str, point: str
) -> None:
    """The lost server is told of once, and both rollouts are delivered."""
    async with going(tmp_path) as at:
        made = at.worlds.made
        first = [made.hold(f"model {name} 1") for name in NAMES]
        for pause in first:
            await pause.reached.wait()
        await at.checkpoint()
        if point:
            held = made.hold(point)
            first[0].released.set()
            await held.reached.wait()
            await made.restart(role)
            held.released.set()
        else:
            await made.restart(role)
        for pause in first:
            pause.released.set()
    assert [list(lost) for lost in at.worlds.lost] == [[f"{role}/w0"]]
    assert at.run.summary.servers_lost == 1


@pytest.mark.enumerated(4)
@pytest.mark.parametrize("second", ROLES)
@pytest.mark.parametrize("first", ROLES)
async def test_a_server_that_is_lost_while_another_one_is_made_good_for_ends_that_epoch_too(
    tmp_path: Path, first: str, second: str
) -> None:
    """After the servers were found for the epoch, and before they are adopted: it is seen, and begun again."""
    async with going(tmp_path) as at:
        made = at.worlds.made
        holds = [made.hold(f"model {name} 1") for name in NAMES]
        for pause in holds:
            await pause.reached.wait()
        await at.checkpoint()
        found = at.worlds.found = Pause()
        await made.restart(first)
        await found.reached.wait()
        await made.restart(second)
        found.released.set()
        for pause in holds:
            pause.released.set()
    assert [list(lost) for lost in at.worlds.lost] == [[f"{first}/w0"], [f"{second}/w0"]]


@pytest.mark.parametrize("role", ROLES)
async def test_a_worker_that_is_lost_costs_no_rollout_of_another_worker_anything(tmp_path: Path, role: str) -> None:
    """What lives on the other worker is adopted, and nothing of it runs twice, although no checkpoint has it."""
    async with going(tmp_path, workers=2) as at:
        made = at.worlds.made
        holds = [made.hold(f"model {name} 1") for name in NAMES]
        for pause in holds:
            await pause.reached.wait()
        await made.restart(role, 0)
        while not named(at.events, "adopted"):
            await anyio.lowlevel.checkpoint()
        for pause in holds:
            pause.released.set()
    assert named(at.events, "adopted") == [{"lives": 1, "retired": 1}]
    assert (at.run.summary.adopted, at.run.summary.restarted) == (1, 1)
    begun = at.worlds.made.journal.begun
    assert [begun[f"model {name} 0"] for name in NAMES] == [2, 1]


async def test_a_result_that_was_written_and_not_released_is_not_written_again(tmp_path: Path) -> None:
    """Where its servers have it still when a worker of the other rollout is lost: it is released, and that is all."""
    async with going(tmp_path, workers=2) as at:
        made = at.worlds.made
        holds = [made.hold(f"model {name} 1") for name in NAMES]
        for pause in holds:
            await pause.reached.wait()
        releasing = at.worlds.releasing = Pause()
        holds[0].released.set()
        await releasing.reached.wait()
        await made.restart("model.main", 1)
        holds[1].released.set()
    assert named(at.events, "adopted") == [{"lives": 0, "retired": 1}]
    assert len(named(at.events, "row")) == len(NAMES)
    assert made.by_role["environment.main"].workers[0].holder.counts()["lives"] == 0


@pytest.mark.parametrize("role", ROLES)
async def test_a_checkpoint_that_is_open_when_a_server_is_lost_ends_with_its_epoch(tmp_path: Path, role: str) -> None:
    """While it waits for a tool call: the run goes on, and every row is there."""
    async with going(tmp_path, interval_s=0.05) as at:
        made = at.worlds.made
        tool = made.hold("before /increment_counter")
        await tool.reached.wait()
        while not any(worker.holder.gate.closed for server in made.by_role.values() for worker in server.workers):
            await anyio.lowlevel.checkpoint()
        await made.restart(role)
        tool.released.set()
    assert [list(lost) for lost in at.worlds.lost] == [[f"{role}/w0"]]


@pytest.mark.parametrize("role", ROLES)
async def test_nothing_is_left_of_a_checkpoint_that_was_being_written_when_a_server_was_lost(
    tmp_path: Path, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was never published, and the end of the same run sweeps what it has written."""
    monkeypatch.setattr(checkpoints, "CLOCK_STEP_S", 0.0)
    backend = PausedBackend()
    backend.after["checkpoints/2."] = writing = Pause()
    async with going(tmp_path, interval_s=0.05, backend=backend) as at:
        last = at.worlds.made.hold("model D 1")
        await writing.reached.wait()
        await at.worlds.made.restart(role)
        writing.released.set()
        last.released.set()
    assert [list(lost) for lost in at.worlds.lost] == [[f"{role}/w0"]]
    assert (await verify_store(at.worlds.made.store)).findings == ()


async def test_that_nobody_is_to_be_ended_is_told_to_everybody() -> None:
    """A server that was started anew holds calls of older lives back until then."""
    [life] = lives(1)
    async with party() as made:
        for server in made.servers:
            await made.restart(server)
            server.owner.needs_adoption = True
        await made.adopt(2, Floor())
        async with anyio.create_task_group() as group:
            for server in made.servers:
                group.start_soon(partial(server.owner.write, life, "a", creates=True))
            await settle()
            assert made.notes(life.rollout_id) == [None] * len(KINDS)
            await ServedWorld(made.fleet).end([], 1.0)
        assert made.notes(life.rollout_id) == [["a"]] * len(KINDS)
