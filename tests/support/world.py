"""A whole embedded fleet: real participants of all four kinds, their control planes, and a store in memory.

A world dies when its context is left: every task is cancelled and every object dropped, as in a kill; nothing of it but
the store and the journal goes on. `world(...)` again claims the next epoch and restores the head.

`points` name the moments before and after each call between participants, as `before /verify` or `after /seed_session`;
a pause under one of these names holds the caller there.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import anyio

from orchestrator.coordination import restore, resume
from orchestrator.coordination import retire as retire_everywhere
from orchestrator.fleet import Fleet, adopt, discover
from orchestrator.links import LocalLink
from orchestrator.rounds import Round, RoundLimits, checkpoint
from participants import (
    Agent,
    ControlPlane,
    EnvironmentServer,
    Floor,
    Holder,
    LocalPeer,
    ModelServer,
    Peer,
    Reply,
    Request,
    ResourcesServer,
    ResourcesSession,
    Result,
    SimpleAgent,
)
from participants.servers import CounterServer
from store import Controller, Life, Store, claim, open_checkpoint
from tests.support.checkpoints import memory_store
from tests.support.journal import Journal
from tests.support.owners import Pause, settle
from tests.support.scripted import ScriptedUpstream

LIMITS = RoundLimits(prepare_timeout_s=5, more_time_s=0, commit_timeout_s=20, publish_timeout_s=10, lease_s=60)


class Journaled(ResourcesServer):
    """In front of a server's class: writes down what it runs; `holds` hold an event in the middle."""

    def __init__(self, journal: Journal, **options: Any) -> None:
        super().__init__(**options)
        self.journal = journal
        self.holds: dict[str, Pause] = {}

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> Any:
        await self._run(f"seed {session.session_id}")
        return await super().seed(session, row)

    async def call_tool(self, session: ResourcesSession, name: str, arguments: Any) -> Any:
        await self._run(f"tool {session.session_id} {name} {session.revision}")
        return await super().call_tool(session, name, arguments)

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> Any:
        await self._run(f"verify {session.session_id}")
        return await super().verify(session, row)

    async def _run(self, event: str) -> None:
        self.journal.begin(event)
        if event in self.holds:
            await self.holds[event]()
        self.journal.end(event)


class JournalCounter(Journaled, CounterServer):
    """A counter that writes down what it runs."""


class WaitingCounter(JournalCounter):
    """A counter whose verify a checkpoint waits for."""

    checkpoint_verify: ClassVar[Any] = "wait"


@dataclass
class Tapped:
    """A peer whose callers can be held before and after each call."""

    inner: Peer
    points: dict[str, Pause]
    passed: Counter[str] = field(default_factory=Counter)

    @property
    def role(self) -> str:
        return self.inner.role

    async def call(self, request: Request) -> Reply:
        await self._pass(f"before {request.route}")
        reply = await self.inner.call(request)
        await self._pass(f"after {request.route}")
        return reply

    async def _pass(self, point: str) -> None:
        numbered = f"{point} {self.passed[point]}"
        self.passed[point] += 1
        for name in (point, numbered):
            if name in self.points:
                await self.points.pop(name)()


@dataclass
class World:
    """One life of everything."""

    store: Store
    journal: Journal
    controller: Controller
    upstream: ScriptedUpstream
    model: ModelServer
    resources: ResourcesServer
    agent: Agent
    environment: EnvironmentServer
    points: dict[str, Pause]
    fleet: Fleet
    group: anyio.abc.TaskGroup
    restored: Sequence[Life] = ()
    """Lives, as the checkpoint has them, that wait for their next dispatch."""
    dispatched: int = 0
    open: list[Life] = field(default_factory=list)
    """Dispatched and not delivered."""
    standing: anyio.Event = field(default_factory=anyio.Event)
    """Set while a checkpoint finds everything at a standstill."""

    @property
    def holders(self) -> list[Holder[Any]]:
        return [self.environment, self.model, self.agent, self.resources]

    def next_life(self, rollout_id: str) -> Life:
        """The next dispatch of a rollout: a first attempt, or the continuation of what was restored."""
        before = next((life for life in self.restored if life.rollout_id == rollout_id), None)
        life = Life(rollout_id, self.controller.epoch, before.attempt + 1 if before else 0, self.dispatched)
        self.dispatched += 1
        self.open.append(life)
        return life

    async def start(self, rows: Mapping[str, Mapping[str, Any]]) -> list[Life]:
        """Dispatch each row under its rollout id."""
        lives = [self.next_life(rollout_id) for rollout_id in rows]
        for life in lives:
            await self.environment.dispatch(life, rows[life.rollout_id])
        return lives

    async def results(self, count: int) -> dict[str, Result]:
        """The next so many results, released as they come."""
        found: dict[str, Result] = {}
        async for result in self.environment.results():
            assert result.life.rollout_id not in found
            found[result.life.rollout_id] = result
            self.release(result.life)
            if len(found) == count:
                break
        return found

    def release(self, life: Life) -> None:
        """A result is durable."""
        self.open.remove(life)
        for holder in self.holders:
            holder.finish(life)

    async def checkpoint(self, *, restarts: Sequence[Life] = ()) -> Round:
        """One checkpoint of everything that is open."""
        async with checkpoint(self.fleet, self.controller, LIMITS) as opened:
            self.journal.checkpoint()
            self.standing.set()
            found = opened.standstill.restarts
            waiting = [one for one in self.restored if one.rollout_id not in {life.rollout_id for life in self.open}]
            scope = [life for life in (*self.open, *waiting) if life not in found]
            opened.take(scope=scope, restarts=sorted(found, key=str))
        return opened

    def hold(self, point: str) -> Pause:
        """Hold a moment between participants, a model call, or what a tool, seed or verify does."""
        holds = self.resources.holds if isinstance(self.resources, Journaled) else {}
        kind, pause = point.partition(" ")[0], Pause()
        places = {"before": self.points, "after": self.points, "model": self.upstream.holds}
        places.get(kind, holds)[point] = pause
        return pause

    async def checkpoint_at(self, pause: Pause, *, go_on: bool = True) -> Round:
        """One checkpoint while somebody is held; he goes on once it is taken, or at once where it waits for him."""
        await pause.reached.wait()
        self.standing = anyio.Event()
        taken: list[Round] = []

        async def take() -> None:
            taken.append(await self.checkpoint())

        async with anyio.create_task_group() as group:
            group.start_soon(take)
            await settle(300)
            if not self.standing.is_set():
                pause.released.set()
        if go_on:
            pause.released.set()
        return taken[0]

    def kill(self) -> None:
        """All work of every life ends here and now, in the middle of whatever it does."""
        self.group.cancel_scope.cancel()
        for holder in self.holders:
            for held in holder.held():
                held.stop()

    async def retire(self, *lives: Life, timeout_s: float = 5.0) -> frozenset[Life]:
        """Retire lives everywhere."""
        left = await retire_everywhere(self.fleet, lives, timeout_s=timeout_s)
        self.open = [life for life in self.open if life not in lives]
        return left

    def raise_floor(self, floor: Floor) -> None:
        """Everywhere."""
        for holder in self.holders:
            holder.raise_floor(floor)

    def left(self) -> dict[str, dict[str, int]]:
        """What each participant still holds, where that is anything."""
        counts = {holder.role: holder.counts() for holder in self.holders}
        told = ("refused", "fenced")  # Not of lives that go on.
        kept = {role: {k: v for k, v in each.items() if v and k not in told} for role, each in counts.items()}
        return {role: each for role, each in kept.items() if each}


Make = Any


@asynccontextmanager
async def world(
    store: Store | None = None,
    journal: Journal | None = None,
    *,
    counter: type[Journaled] = JournalCounter,
    upstream: Any = None,
    make_agent: Make = SimpleAgent,
    scope: Sequence[str] | None = None,
    max_wall_s: float = 0.0,
    **agent_options: Any,
) -> AsyncIterator[World]:
    """A world over a store: the first one, or one that continues from the head. Leaving it kills it."""
    store, journal = store or memory_store(), journal or Journal()
    journal.new_world()
    points: dict[str, Pause] = {}
    passed = Counter[str]()
    async with AsyncExitStack() as stack:
        controller = await stack.enter_async_context(claim(store, take_over=True))
        upstream = upstream or ScriptedUpstream(journal)
        model, resources = ModelServer(upstream), counter(journal)
        served: dict[str, Peer] = {resources.role: Tapped(LocalPeer(resources), points, passed)}
        agent = make_agent(Tapped(LocalPeer(model), points, passed), served, **agent_options)
        environment = EnvironmentServer(Tapped(LocalPeer(agent), points, passed), served, max_wall_s=max_wall_s)
        group = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(group.cancel_scope.cancel)
        await stack.enter_async_context(environment.run())
        holders: list[Holder[Any]] = [environment, model, agent, resources]
        planes = [await stack.enter_async_context(ControlPlane(holder, store).run()) for holder in holders]
        fleet = await discover([LocalLink(plane) for plane in planes], store.run_id)
        fleet, _ = await adopt(fleet, controller.epoch)
        made = World(store, journal, controller, upstream, model, resources, agent, environment, points, fleet, group)
        await _restore_head(made, scope)
        try:
            yield made
        finally:
            made.kill()
    assert not journal.violations, journal.violations


async def _restore_head(made: World, wanted: Sequence[str] | None) -> None:
    head = made.controller.head
    if head is None:
        return
    manifest = (await open_checkpoint(made.store, head)).manifest
    scope = [life for life in manifest.scope if wanted is None or life.rollout_id in wanted]
    round_ = made.controller.next_round()
    await restore(made.fleet, round_, head, scope, timeout_s=20)
    await resume(made.fleet, round_)
    made.restored = scope
