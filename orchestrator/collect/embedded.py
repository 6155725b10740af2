"""The embedded participants of a run: all four kinds in the controller's own process, which share its fate."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
from anyio.streams.memory import MemoryObjectSendStream

from participants import (
    Agent,
    ControlPlane,
    EnvironmentServer,
    Floor,
    Holder,
    LocalPeer,
    ModelServer,
    ParticipantError,
    Peer,
    Reply,
    Request,
    ResourcesServer,
    Result,
    Upstream,
)
from participants.serving import Endpoint, find_class, make_agent, make_model_server, make_resources
from participants.work import joined
from store import Life, Store, StoreError

from ..deployment.config import MAIN_MODEL
from ..errors import CoordinationError
from ..fleet import Fleet, discover
from ..links import LocalLink
from .config import Config, ResourcesTable
from .saved import Work
from .world import Lost, failure_of_dispatch, never_lost

TellOf = Callable[[str, str], None]
"""Is told of an endpoint: its base URL, and what there is to say."""


@dataclass(slots=True)
class EmbeddedWorld:
    """All four kinds of participants in the controller's own process; see `World` for what each method is for."""

    environment: EnvironmentServer
    model: ModelServer
    agent: Agent
    resources: dict[str, ResourcesServer]
    fleet: Fleet | None
    further: Sequence[ModelServer] = ()
    """The model servers of `[models]`, which resources servers ask."""

    def notice_s(self, error: CoordinationError) -> float:
        """Nothing is lost alone here."""
        return 0.0

    @property
    def holders(self) -> list[Holder[Any]]:
        """All of them."""
        return [self.environment, self.agent, self.model, *self.further, *self.resources.values()]

    async def dispatch(self, rows: Mapping[Life, Mapping[str, Any]]) -> dict[Life, dict[str, Any]]:
        """One after the other."""
        refused = {}
        for life, row in rows.items():
            try:
                await self.environment.dispatch(life, row)
            except (ParticipantError, StoreError) as error:
                refused[life] = failure_of_dispatch(error)
        return refused

    async def read_results(self, send: MemoryObjectSendStream[Result]) -> None:
        """Each once."""
        async for result in self.environment.results():
            await send.send(result)

    async def check(self, results: Sequence[Result]) -> None:
        """Nobody is lost."""

    async def release(self, lives: Sequence[Life]) -> None:
        """At all of them."""
        for life in lives:
            for holder in self.holders:
                holder.finish(life)

    async def end(self, lives: Sequence[Life], timeout_s: float) -> None:
        """Without asking anybody."""
        for holder in self.holders:
            await holder.retire(lives, timeout_s)

    async def saved(self, rollout_ids: Sequence[str]) -> dict[str, Work]:
        """From the records."""
        return {rollout_id: await self._saved(rollout_id) for rollout_id in rollout_ids}

    async def _saved(self, rollout_id: str) -> Work:
        try:
            answers = [(h.kind, await h.work([rollout_id])) for h in (self.environment, self.agent, self.model)]
        except (ParticipantError, StoreError, AttributeError, KeyError, TypeError, ValueError):
            return Work()  # A malformed record saves nothing; its dispatch says what is wrong with it.
        return Work(*joined(answers).get(rollout_id, (0, 0)))

    async def work(self) -> dict[str, Work]:
        """Of the agent."""
        return {
            held.life.rollout_id: Work(*self.agent.work_of(held)[0])
            for held in self.agent.held()
            if held.state.activation is not None
        }

    async def blocking(self) -> list[Life]:
        """Of every gate."""
        steps = (step for holder in self.holders for step in holder.gate.in_flight(sys.maxsize)[0])
        return list(dict.fromkeys(step.life for step in steps))

    def undeclared(self) -> list[str]:
        """Those whose class does not say it."""
        return [role for role, server in self.resources.items() if not _declares_mode(type(server))]

    def raise_floor(self, floor: Floor) -> None:
        """Now."""
        for holder in self.holders:
            holder.raise_floor(floor)

    async def watch(self) -> Lost:
        """For ever."""
        return await never_lost()


@dataclass(slots=True)
class ModelToCome:
    """A model as the peer of an agent and of resources servers, which are made before it."""

    role: str
    server: ModelServer | None = None

    async def call(self, request: Request) -> Reply:
        """Make one call; nobody does before everything runs."""
        assert self.server is not None
        return await self.server.handle(request)


@dataclass(slots=True)
class Parts:
    """Participants that are made and do not run: whatever a configuration has wrong has shown by now."""

    upstreams: dict[str, Upstream]
    """Of each model server, by its role."""
    models: dict[str, ModelToCome]
    resources: dict[str, ResourcesServer]
    unclosed: list[ResourcesServer]
    agent: Agent = field(init=False)

    async def aclose(self) -> None:
        """Close the servers, all at once; those that are closed stay so."""
        async with anyio.create_task_group() as group:
            while self.unclosed:
                group.start_soon(self.unclosed.pop().aclose)


@asynccontextmanager
async def make_parts(
    config: Config, upstream: Upstream | None = None, tell: TellOf = lambda base_url, message: None
) -> AsyncIterator[Parts]:
    """Make the participants that a configuration names; `upstream` is the policy's. Raises ConfigError."""
    async with AsyncExitStack() as stack:
        upstreams: dict[str, Upstream] = {MAIN_MODEL: upstream} if upstream is not None else {}
        for role, settings in config.endpoints.items():
            if role not in upstreams:
                endpoint = Endpoint(settings, partial(tell, settings.base_url))
                upstreams[role] = await stack.enter_async_context(endpoint)
        models = {role: ModelToCome(role) for role in config.endpoints}
        resources = await anyio.to_thread.run_sync(_load_all, config, models)  # importing reads files
        parts = Parts(upstreams, models, resources, list(resources.values()))
        stack.push_async_callback(parts.aclose)
        parts.agent = await anyio.to_thread.run_sync(_load_agent, config, models[MAIN_MODEL], resources)
        yield parts


@asynccontextmanager
async def run_world(config: Config, parts: Parts, store: Store | None) -> AsyncIterator[EmbeddedWorld]:
    """Run the participants; at the end their servers are closed."""
    model, *further = _run_models(config, parts, store)
    peers, agent = _peers(parts.resources), parts.agent
    environment = EnvironmentServer(LocalPeer(agent), peers)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(parts.aclose)
        await stack.enter_async_context(agent.run())
        await stack.enter_async_context(environment.run())
        world = EmbeddedWorld(environment, model, agent, parts.resources, None, further)
        world.fleet = await _control(stack, world.holders, store) if store else None
        yield world


def _run_models(config: Config, parts: Parts, store: Store | None) -> Iterator[ModelServer]:
    """The policy first. It alone is captured: what a judge says is no training data of the policy."""
    for role, settings in config.endpoints.items():
        captured = config.capture if role == MAIN_MODEL else None
        server = make_model_server(
            settings,
            parts.upstreams[role],
            name=role.partition(".")[2],
            ledger_folder=captured.folder if captured else None,
            cuts=settings.cuts and store is not None,
        )
        parts.models[role].server = server
        yield server


class EmbeddedWorlds:
    """The one world of a run whose participants are in its own process."""

    def __init__(self, config: Config, parts: Parts) -> None:
        """The parts are made already."""
        self._config = config
        self._parts = parts
        self._world: EmbeddedWorld | None = None

    @asynccontextmanager
    async def open(self, store: Store | None) -> AsyncIterator[None]:
        """Run them."""
        async with run_world(self._config, self._parts, store) as self._world:
            yield

    async def look(self) -> None:
        """There is nothing to look at."""

    async def world(self) -> EmbeddedWorld:
        """Always the same."""
        assert self._world is not None
        return self._world

    async def recover(self, lost: Lost, rows: int) -> None:
        """Nobody is lost."""

    def die(self) -> None:
        """They end with the process."""

    async def watch_endpoint(self) -> None:
        """Each that is the configuration's own."""
        async with anyio.create_task_group() as group:
            for upstream in self._parts.upstreams.values():
                if isinstance(upstream, Endpoint):
                    group.start_soon(upstream.watch)


@asynccontextmanager
async def open_world(
    config: Config, store: Store | None, upstream: Upstream | None = None
) -> AsyncIterator[EmbeddedWorld]:
    """Make and run the participants that a configuration names. Raises ConfigError."""
    async with make_parts(config, upstream) as parts, run_world(config, parts, store) as world:
        yield world


async def _control(stack: AsyncExitStack, holders: Sequence[Holder[Any]], store: Store) -> Fleet:
    planes = [await stack.enter_async_context(ControlPlane(holder, store).run()) for holder in holders]
    return await discover([LocalLink(plane) for plane in planes], store.run_id)


def _declares_mode(server: type[ResourcesServer]) -> bool:
    own = server.__mro__[: server.__mro__.index(ResourcesServer)]
    return any("checkpoint_mode" in vars(one) for one in own) or server.checkpoint_mode != "restart"


def _load_all(config: Config, models: Mapping[str, Peer]) -> dict[str, ResourcesServer]:
    return {f"resources.{name}": _load(name, table, models) for name, table in config.resources.items()}


def _load_agent(config: Config, model: Peer, resources: Mapping[str, ResourcesServer]) -> Agent:
    table = config.agent
    about: dict[str, Any] = {"options": table.arguments, "dialect": config.model.dialect}
    return make_agent("agent.main", table.server, model, _peers(resources), **about)


def _peers(resources: Mapping[str, ResourcesServer]) -> dict[str, Peer]:
    return {role: LocalPeer(server) for role, server in resources.items()}


def _load(name: str, table: ResourcesTable, models: Mapping[str, Peer]) -> ResourcesServer:
    role = f"resources.{name}"
    found = find_class(role, table.server, ResourcesServer)
    return make_resources(role, table.server, found, table.options, name, models)
