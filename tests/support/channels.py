"""Servers with channels on real sockets in this process, and handlers that say what they were asked.

Each worker has a socket of its own, which stays when it is started anew: its address does not change, as under a
supervisor that hands the socket on.
"""

import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import anyio
from starlette.applications import Starlette
from starlette.types import ASGIApp

from participants import data_app
from participants.channels import UVICORN_OPTIONS, Channels, channel_route, workers_route
from participants.data import Reply, Request
from participants.data_http import Served
from participants.forwarding import Forwarding
from participants.serving.sockets import bind, server_of, url_of

STOP_S = 5


@dataclass(eq=False)
class Recorder:
    """Counts what it was asked, by call id and by route, and answers as its routes say."""

    name: str = "0"
    role: str = "resources.main"
    epoch: int = 0
    ends_with_client: bool = False
    runs: Counter[str] = field(default_factory=Counter)
    asked: list[Request] = field(default_factory=list)
    cancelled: int = 0
    holding: int = 0
    """Calls of `/hold` that are being served."""
    held: anyio.Event = field(default_factory=anyio.Event)
    """Set by every call of `/hold` that has come."""
    release: anyio.Event = field(default_factory=anyio.Event)
    """Lets calls of `/hold` end."""
    answers: dict[str, Callable[[Request], Reply]] = field(default_factory=dict)

    async def handle(self, request: Request) -> Reply:
        self.asked.append(request)
        self.runs[str(request.call or request.route)] += 1
        if request.route == "/hold":
            await self._hold()
        answer = self.answers.get(request.route)
        return answer(request) if answer else Reply(200, {"worker": self.name, "body": request.body})

    async def _hold(self) -> None:
        self.holding += 1
        self.held.set()
        try:
            await self.release.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        finally:
            self.holding -= 1


async def until_held(recorder: Recorder, count: int) -> None:
    """Return once so many calls of `/hold` are being served."""
    while recorder.holding < count:
        recorder.held = anyio.Event()
        await recorder.held.wait()


async def settled(count: Callable[[], int], still_s: float = 0.5) -> int:
    """A count once it has not changed for so long: sockets have no event for having nothing more to say."""
    last, since = count(), time.monotonic()
    while time.monotonic() - since < still_s:
        await anyio.sleep(0.01)
        if count() != last:
            last, since = count(), time.monotonic()
    return last


class Worker:
    """One worker, to be started, stopped and started again at its address."""

    def __init__(self) -> None:
        self.socket = bind("127.0.0.1", 0)
        self.url = url_of(self.socket)

    @asynccontextmanager
    async def serving(self, app: ASGIApp, *, stop_s: int = STOP_S) -> AsyncIterator[None]:
        """Serve while the block runs; then the connections are closed, and calls have `stop_s` to end."""
        server = server_of(app, shutdown_s=stop_s, **UVICORN_OPTIONS)
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [socket.socket(fileno=self.socket.dup().detach())])
            try:
                yield
            finally:
                server.should_exit = True


def app_of(handler: Served, urls: Sequence[str]) -> Starlette:
    """The app of a worker, with what clients of ours look for."""
    app = data_app(handler)
    app.router.routes[:0] = [channel_route(handler), workers_route(handler.role, urls)]
    return app


@asynccontextmanager
async def served(*handlers: Served, forwarding: bool = True) -> AsyncIterator[tuple[Channels, list[str]]]:
    """A server with a worker for each handler, and the channels of a client."""
    workers = [Worker() for _ in handlers]
    urls = [worker.url for worker in workers]
    async with AsyncExitStack() as stack:
        for number, (handler, worker) in enumerate(zip(handlers, workers, strict=True)):
            stack.callback(worker.socket.close)
            between = await stack.enter_async_context(Channels())
            front = Forwarding(handler, number, urls, between) if forwarding else handler
            await stack.enter_async_context(worker.serving(app_of(front, urls)))
        yield await stack.enter_async_context(Channels()), urls
