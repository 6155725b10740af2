"""One worker process of a server: its participant, served on the shared public socket and on a private one.

It begins forked from the supervisor, which has imported everything. SIGTERM ends it: it is not ready any more, takes no
more connections, leaves calls in flight a part of `shutdown_s`, cancels them, and closes its sessions in what is left.
Whoever still runs after all of `shutdown_s` is killed by the supervisor.
"""

import gc
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import aiohttp
import anyio
from starlette.types import ASGIApp

from store import Store, open_store

from ..channels import UVICORN_OPTIONS, Channels
from ..data_http import Served
from ..forwarding import Forwarding
from ..mcp_http import MCP_PATH, McpTools, mcp_installed
from ..model import ModelServer
from ..plane import ControlPlane
from ..resources import ResourcesServer
from ..telemetry.collected import Collected
from ..telemetry.otel import Identity
from ..telemetry.prometheus import Metrics
from ..telemetry.starting import telemetry
from .app import about_of, worker_app
from .board import Board, Stage
from .holders import Participant, open_holder
from .logs import start_logs
from .settings import GC_THRESHOLD, secret
from .sockets import server_of
from .spec import ServerSpec

CALLS_SHARE = 0.5
"""Of `shutdown_s`: for calls in flight."""


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of one worker, which a replacement takes over as it is."""

    number: int
    """Among the workers of the role, on whichever hosts they are."""
    urls: tuple[str, ...]
    """The private URL of each worker of the role."""
    public: socket.socket
    private: socket.socket

    @property
    def process(self) -> str:
        """The name of the process, which no other one of the role has."""
        return f"w{self.number}"


def work(spec: ServerSpec, seat: Seat, board: Board, ready: Callable[[str], None]) -> None:
    """Be the worker until SIGTERM; `ready` is told the incarnation once it serves. Raises ConfigError, StoreError."""
    gc.set_threshold(*GC_THRESHOLD)
    start_logs({"kind": spec.kind, "name": spec.name, "process": seat.process})
    anyio.run(run_worker, spec, seat, board, ready, backend_options={"use_uvloop": True})


async def run_worker(spec: ServerSpec, seat: Seat, board: Board, ready: Callable[[str], None]) -> None:
    """As `work`, in an event loop."""
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async with _opened(spec, seat, board) as (app, incarnation), anyio.create_task_group() as group:

            def serves() -> None:
                board.put(seat.number, Stage.READY)
                ready(incarnation)

            calls_s = spec.shutdown_s * CALLS_SHARE
            server = server_of(app, shutdown_s=calls_s, started=serves, **UVICORN_OPTIONS)

            async def stop_when_told() -> None:
                await anext(signals)
                board.put(seat.number, Stage.CLOSING)
                server.should_exit = True

            group.start_soon(stop_when_told)
            await server.serve([seat.public, seat.private])
            group.cancel_scope.cancel()


@asynccontextmanager
async def _opened(spec: ServerSpec, seat: Seat, board: Board) -> AsyncIterator[tuple[ASGIApp, str]]:
    """The app, with all that it needs running, and the incarnation."""
    token = secret(spec.token_env)
    async with AsyncExitStack() as stack:
        identity = Identity(spec.role, seat.process)
        collected = await stack.enter_async_context(telemetry(spec.otlp, spec.prometheus, identity))
        channels = await stack.enter_async_context(Channels())
        peers = {role: channels.peer(url, role) for role, url in spec.peers.items()}
        store = await _open_store(stack, spec) if token else None
        holder = await stack.enter_async_context(open_holder(spec, peers))
        control, incarnation = None, secrets.token_hex(16)
        if token:
            holder.needs_adoption = True
            plane = await stack.enter_async_context(_plane(spec, seat, holder, store).run())
            control, incarnation = (plane, token), plane.book.incarnation
        served: Served = Forwarding(holder, seat.number, seat.urls, channels) if len(seat.urls) > 1 else holder
        about = about_of(spec, seat.process, os.getpid(), incarnation)
        ledger = holder.capture.ledger if isinstance(holder, ModelServer) else None
        mcp = await stack.enter_async_context(_mcp(holder, served))
        app = worker_app(
            served,
            about=about,
            urls=seat.urls,
            board=board,
            number=seat.number,
            control=control,
            ledger=ledger,
            mcp=mcp,
            metrics=await _metrics(stack, spec, seat, collected),
        )
        yield app, incarnation


async def _metrics(stack: AsyncExitStack, spec: ServerSpec, seat: Seat, collected: Collected | None) -> Metrics | None:
    """The pages of metrics, where there are any; they show all workers of this server, and none of another host's."""
    if collected is None or not spec.prometheus:
        return None
    own = range(spec.first_worker, spec.first_worker + spec.workers)
    others = {f"w{number}": seat.urls[number] for number in own if number != seat.number}
    session = await stack.enter_async_context(aiohttp.ClientSession()) if others else None
    return Metrics(spec.role, seat.process, collected.snapshot, others, session)


@asynccontextmanager
async def _mcp(holder: Participant, served: Served) -> AsyncIterator[McpTools | None]:
    """The tools of a resources server over MCP."""
    if not isinstance(holder, ResourcesServer):
        yield None
        return
    if mcp_installed():
        holder.mcp_path = MCP_PATH
    async with anyio.create_task_group() as group:
        yield McpTools(served, holder.tool_schemas, group)
        group.cancel_scope.cancel()


def _plane(spec: ServerSpec, seat: Seat, holder: Participant, store: Store | None) -> ControlPlane:
    workers = len(seat.urls)
    return ControlPlane(holder, store, process=seat.process, worker=seat.number, workers=workers, urls=seat.urls)


async def _open_store(stack: AsyncExitStack, spec: ServerSpec) -> Store | None:
    if spec.store is None:
        return None
    return await stack.enter_async_context(open_store(spec.store, "write", single_writer=spec.single_writer))
