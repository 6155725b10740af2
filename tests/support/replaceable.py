"""Servers whose processes are replaced one by one, in this process: each role has workers, and each worker a life.

What a worker does for somebody ends with it. Its callers send a call that has an id again, to whoever answers in its
place; one without an id cannot be reached, as over a channel that broke. A worker that comes after the first adopt has
been adopted by nobody, and answers for no life.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from orchestrator.adoption import Standing, standing
from orchestrator.fleet import Fleet, adopt, discover
from orchestrator.links import LocalLink
from participants import (
    Code,
    ControlPlane,
    EnvironmentServer,
    Floor,
    Holder,
    ModelServer,
    ParticipantError,
    Peer,
    Reply,
    Request,
    SimpleAgent,
)
from participants.routing import Place, worker_of
from store import Life, Store
from tests.support.checkpoints import memory_store
from tests.support.journal import Journal
from tests.support.owners import Pause, settle
from tests.support.scripted import ScriptedUpstream
from tests.support.world import JournalCounter, Tapped

ROLES = ("environment.main", "agent.main", "model.main", "resources.main")


@dataclass(eq=False)
class Worker:
    """One process of a server."""

    holder: Holder[Any]
    plane: ControlPlane
    calls: set[anyio.CancelScope] = field(default_factory=set)

    async def serve(self, request: Request) -> Reply:
        """One data call."""
        handler: Any = self.holder
        reply: Reply = await handler.handle(request)
        return reply

    def die(self) -> None:
        """All of its work ends here and now."""
        for held in self.holder.held():
            held.stop()
        for scope in list(self.calls):
            scope.cancel()


@dataclass(eq=False)
class Server:
    """A role, as its callers reach it."""

    role: str
    make: Callable[[], Holder[Any]]
    workers: list[Worker] = field(default_factory=list)

    async def call(self, request: Request) -> Reply:
        while True:
            worker = self.owner(request.life)
            scope = anyio.CancelScope()
            worker.calls.add(scope)
            try:
                with scope:
                    return await worker.serve(request)
            finally:
                worker.calls.discard(scope)
            if request.call is None:
                raise ParticipantError(Code.UNREACHABLE, f"{self.role} has gone")

    def owner(self, life: Life | None) -> Worker:
        """The worker that a life belongs to."""
        return self.workers[worker_of(life.rollout_id, len(self.workers)) if life else 0]


@dataclass
class Servers:
    """All of a run."""

    store: Store
    stack: AsyncExitStack
    journal: Journal = field(default_factory=Journal)
    by_role: dict[str, Server] = field(default_factory=dict)
    points: dict[str, Pause] = field(default_factory=dict)
    upstream: ScriptedUpstream = field(init=False)
    holds: dict[str, Pause] = field(default_factory=dict)
    """Of the counter's events."""
    fleet: Fleet = field(init=False)
    epoch: int = 0

    async def start(self, role: str, number: int, workers: int) -> Worker:
        """A new process, with nothing in memory."""
        holder = self.by_role[role].make()
        holder.place, holder.needs_adoption = Place(number, workers), True
        if isinstance(holder, EnvironmentServer):
            await self.stack.enter_async_context(holder.run())
        plane = ControlPlane(holder, self.store, process=f"w{number}", worker=number, workers=workers)
        return Worker(holder, await self.stack.enter_async_context(plane.run()))

    async def restart(self, role: str, number: int = 0) -> None:
        """A process dies, and another one comes up in its place."""
        server = self.by_role[role]
        old, workers = server.workers[number], len(server.workers)
        server.workers[number] = await self.start(role, number, workers)
        self.journal.new_world()
        old.die()
        await settle(200)

    async def adopt(self, epoch: int = 0) -> Standing:
        """A new controller comes, in an epoch of its own; what goes on is not ended."""
        self.epoch = epoch or self.epoch + 1
        every = [worker for server in self.by_role.values() for worker in server.workers]
        found = await discover([LocalLink(worker.plane) for worker in every], self.store.run_id)
        self.fleet, answers = await adopt(found, self.epoch, Floor())
        return standing(self.fleet, answers)

    def environment(self, life: Life) -> EnvironmentServer:
        """Where the episode of a life is."""
        holder = self.by_role["environment.main"].owner(life).holder
        assert isinstance(holder, EnvironmentServer)
        return holder

    def hold(self, event: str) -> Pause:
        """Hold whoever comes by: an event of the model or the counter, or a point between servers."""
        holds = self.upstream.holds if event.startswith("model") else self.holds
        pause = Pause()
        (self.points if event.startswith(("before", "after")) else holds)[event] = pause
        return pause


@asynccontextmanager
async def servers(store: Store | None = None, *, workers: int = 1, epoch: int = 1) -> AsyncIterator[Servers]:
    """Four servers with so many workers each, adopted in an epoch."""
    async with AsyncExitStack() as stack:
        made = Servers(store or memory_store(), stack)
        made.upstream = ScriptedUpstream(made.journal)
        passed = Counter[str]()

        def tapped(role: str) -> Peer:
            return Tapped(made.by_role[role], made.points, passed)

        def counter() -> JournalCounter:
            server = JournalCounter(made.journal)
            server.holds = made.holds
            return server

        def tools() -> dict[str, Peer]:
            return {"resources.main": tapped("resources.main")}

        makers: dict[str, Callable[[], Holder[Any]]] = {
            "environment.main": lambda: EnvironmentServer(tapped("agent.main"), tools()),
            "agent.main": lambda: SimpleAgent(tapped("model.main"), tools()),
            "model.main": lambda: ModelServer(made.upstream),
            "resources.main": counter,
        }
        made.by_role = {role: Server(role, make) for role, make in makers.items()}
        for role, server in made.by_role.items():
            server.workers = [await made.start(role, number, workers) for number in range(workers)]
        await made.adopt(epoch)
        yield made
        for server in made.by_role.values():
            for worker in server.workers:
                worker.die()
