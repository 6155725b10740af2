"""The embedded participants of a run: all four kinds in the controller's own process."""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread

from participants import (
    ControlPlane,
    EnvironmentServer,
    Floor,
    Holder,
    LocalPeer,
    ModelServer,
    Peer,
    ResourcesServer,
    SimpleAgent,
    Upstream,
)
from participants.serving import Endpoint, Tell, find_class, make, make_model_server
from store import Life, Store, StoreError

from ..fleet import Fleet, discover
from ..links import LocalLink
from .config import Config, ResourcesTable
from .saved import Work, saved_by


@dataclass(frozen=True, slots=True)
class World:
    """The participants, and the fleet through which they are controlled; None without a store."""

    environment: EnvironmentServer
    model: ModelServer
    agent: SimpleAgent
    resources: dict[str, ResourcesServer]
    fleet: Fleet | None

    @property
    def _others(self) -> list[Holder[Any]]:
        return [self.agent, self.model, *self.resources.values()]

    def release(self, life: Life) -> None:
        """A result is durable: nobody needs anything of its life any more."""
        self.environment.acknowledge(life)
        for holder in self._others:
            holder.finish(life)

    def saved(self, rollout_id: str) -> Work:
        """What a restored rollout that is about to be dispatched need not do again."""
        holders = (self.environment, self.agent, self.model)
        try:
            return saved_by(*(holder.brought(rollout_id) for holder in holders))
        except (StoreError, AttributeError, KeyError, TypeError, ValueError):
            return Work()  # A malformed record saves nothing; its dispatch says what is wrong with it.

    def blocking(self) -> list[Life]:
        """Every life with a step in flight that a checkpoint waits for."""
        steps = (step for holder in (self.environment, *self._others) for step in holder.gate.in_flight(sys.maxsize)[0])
        return list(dict.fromkeys(step.life for step in steps))

    async def end(self, life: Life, timeout_s: float) -> None:
        """End a life here, without asking anybody."""
        for holder in (self.environment, *self._others):
            await holder.retire([life], timeout_s)

    def undeclared(self) -> list[str]:
        """The resources servers whose class does not say what a checkpoint may do with their sessions."""
        return [role for role, server in self.resources.items() if not _declares_mode(type(server))]

    def raise_floor(self, floor: Floor) -> None:
        """Forget the fences below the floor."""
        for holder in (self.environment, *self._others):
            holder.raise_floor(floor)


@dataclass(slots=True)
class Parts:
    """Participants that are made and do not run: whatever a configuration has wrong has shown by now."""

    upstream: Upstream
    resources: dict[str, ResourcesServer]
    unclosed: list[ResourcesServer]

    async def aclose(self) -> None:
        """Close the servers, all at once; those that are closed stay so."""
        async with anyio.create_task_group() as group:
            while self.unclosed:
                group.start_soon(self.unclosed.pop().aclose)


@asynccontextmanager
async def make_parts(
    config: Config, upstream: Upstream | None = None, tell: Tell = lambda message: None
) -> AsyncIterator[Parts]:
    """Make the participants that a configuration names. Raises ConfigError."""
    async with AsyncExitStack() as stack:
        if upstream is None:
            upstream = await stack.enter_async_context(Endpoint(config.model, tell))
        resources = await anyio.to_thread.run_sync(_load_all, config)  # importing reads files
        parts = Parts(upstream, resources, list(resources.values()))
        stack.push_async_callback(parts.aclose)
        yield parts


@asynccontextmanager
async def run_world(config: Config, parts: Parts, store: Store | None) -> AsyncIterator[World]:
    """Run the participants; at the end their servers are closed."""
    folder = config.capture.folder if config.capture else None
    cuts = config.model.cuts and store is not None
    model = make_model_server(config.model, parts.upstream, ledger_folder=folder, cuts=cuts)
    peers: dict[str, Peer] = {role: LocalPeer(server) for role, server in parts.resources.items()}
    agent = SimpleAgent(
        LocalPeer(model),
        peers,
        dialect=config.model.dialect,
        max_steps=config.agent.max_steps,
        max_wall_s=config.agent.max_wall_s,
    )
    environment = EnvironmentServer(LocalPeer(agent), peers)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(parts.aclose)
        await stack.enter_async_context(environment.run())
        holders: list[Holder[Any]] = [environment, model, agent, *parts.resources.values()]
        fleet = await _control(stack, holders, store) if store else None
        yield World(environment, model, agent, parts.resources, fleet)


@asynccontextmanager
async def open_world(config: Config, store: Store | None, upstream: Upstream | None = None) -> AsyncIterator[World]:
    """Make and run the participants that a configuration names. Raises ConfigError."""
    async with make_parts(config, upstream) as parts, run_world(config, parts, store) as world:
        yield world


async def _control(stack: AsyncExitStack, holders: Sequence[Holder[Any]], store: Store) -> Fleet:
    planes = [await stack.enter_async_context(ControlPlane(holder, store).run()) for holder in holders]
    return await discover([LocalLink(plane) for plane in planes], store.run_id)


def _declares_mode(server: type[ResourcesServer]) -> bool:
    own = server.__mro__[: server.__mro__.index(ResourcesServer)]
    return any("checkpoint_mode" in vars(one) for one in own) or server.checkpoint_mode != "restart"


def _load_all(config: Config) -> dict[str, ResourcesServer]:
    return {f"resources.{name}": _load(name, table) for name, table in config.resources.items()}


def _load(name: str, table: ResourcesTable) -> ResourcesServer:
    role = f"resources.{name}"
    found = find_class(role, table.server, ResourcesServer)
    return make(role, table.server, found, options=table.options, name=name)
