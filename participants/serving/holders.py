"""The participant of a worker process, made as its spec says, with peers in other processes."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio

from ..agent import Agent
from ..data import Peer
from ..environment import EnvironmentServer
from ..model import ModelServer
from ..resources import ResourcesServer
from ..simple_agent import SimpleAgent
from ..telemetry.starting import MissingExtra, import_exporters
from .endpoint import Endpoint
from .loading import find_class, make, make_agent, make_resources
from .logs import tell
from .model_settings import ModelSettings, make_model_server
from .settings import ConfigError, secret
from .spec import ServerSpec

Participant = EnvironmentServer | Agent | ModelServer | ResourcesServer
_Class = type[EnvironmentServer | Agent | ResourcesServer]
_BASES: Mapping[str, type[EnvironmentServer] | type[Agent] | type[ResourcesServer]] = {
    "environment": EnvironmentServer,
    "agent": Agent,
    "resources": ResourcesServer,
}
_SHIPPED: Mapping[str, _Class] = {"environment": EnvironmentServer, "agent": SimpleAgent}


def check_spec(spec: ServerSpec) -> None:
    """Import all that the server needs, and look for its secrets. Raises ConfigError."""
    _class_of(spec)
    try:
        import_exporters(spec.otlp, prometheus=spec.prometheus)
    except MissingExtra as error:
        raise ConfigError(f"{spec.role}: {error}") from error
    secret(spec.token_env)
    if spec.model is not None:
        secret(spec.model.api_key_env)


def _class_of(spec: ServerSpec) -> _Class | None:
    """None for a model server, which is not made of a class of somebody's."""
    if spec.kind == "model":
        return None
    return find_class(spec.role, spec.server, _BASES[spec.kind]) if spec.server else _SHIPPED[spec.kind]


@asynccontextmanager
async def open_holder(spec: ServerSpec, peers: Mapping[str, Peer]) -> AsyncIterator[Participant]:
    """Make the participant and let it run; at the end its sessions are closed. Raises ConfigError."""
    async with AsyncExitStack() as stack:
        if spec.model is not None:
            holder: Participant = await stack.enter_async_context(_open_model(spec, spec.model))
        else:
            holder = _make(spec, peers)
        if isinstance(holder, ResourcesServer):
            stack.push_async_callback(holder.aclose)
        if isinstance(holder, EnvironmentServer | Agent):
            await stack.enter_async_context(holder.run())
        yield holder


def _make(spec: ServerSpec, peers: Mapping[str, Peer]) -> Participant:
    found = _class_of(spec)
    assert found is not None
    target = spec.server or "the one that ships"
    if issubclass(found, ResourcesServer):
        return make_resources(spec.role, target, found, spec.options, spec.name, peers)
    one = peers[spec.one_peer]
    resources = {role: peer for role, peer in peers.items() if role != spec.one_peer}
    if issubclass(found, Agent):
        about: dict[str, Any] = {"options": spec.options, "dialect": spec.dialect, "name": spec.name}
        return make_agent(spec.role, spec.server, one, resources, **about)
    called: Callable[..., Participant] = found
    return make(spec.role, target, called, one, resources, options=spec.options, name=spec.name)


@asynccontextmanager
async def _open_model(spec: ServerSpec, settings: ModelSettings) -> AsyncIterator[ModelServer]:
    def tell_trouble(message: str) -> None:
        tell("endpoint", base_url=settings.base_url, message=message)

    cuts = settings.cuts and spec.store is not None
    async with Endpoint(settings, tell_trouble) as endpoint, anyio.create_task_group() as group:
        group.start_soon(endpoint.watch)
        yield make_model_server(settings, endpoint, name=spec.name, ledger_folder=spec.capture, cuts=cuts)
        group.cancel_scope.cancel()
