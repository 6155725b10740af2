"""Listening sockets, and an HTTP server on them that leaves signals to the program around it."""

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Collection, Iterator
from typing import Any

import anyio
import anyio.to_thread
import uvicorn
from starlette.types import ASGIApp

from ..reach import KEPT_ALIVE
from .bounded import BoundedHttp
from .crowd import Crowd, open_descriptors

BACKLOG = 16_384
KEEP_ALIVE_S = 600
"""Longer than any client keeps an idle connection: none finds that it was closed just when it used it."""

TICKS_A_SECOND = 10
"""As uvicorn counts them; it renews the date of its replies every so many."""


class QuietServer(uvicorn.Server):
    """A server that leaves signals to the program around it, and says when it serves."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None], *, calls_others: bool) -> None:
        """`started` is told once."""
        self._leaving = anyio.Event()
        super().__init__(config)
        self._crowd = self.server_state = Crowd(calls_others=calls_others)
        self._tell_started = started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing."""
        yield

    @property
    def should_exit(self) -> bool:
        """Whether it has been told to end."""
        return self._leaving.is_set()

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        if value:
            self._leaving.set()

    async def main_loop(self) -> None:
        """Ends at once when it is told to: uvicorn's own looks every tenth of a second."""
        counter = 0
        while not await self.on_tick(counter):
            counter += TICKS_A_SECOND
            if self._crowd.many:
                self._crowd.counted(await anyio.to_thread.run_sync(open_descriptors))
            with anyio.move_on_after(1.0):
                await self._leaving.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As any server."""
        await super().startup(sockets)
        self._tell_started()


class _Intended(logging.Filter):
    """Drops the complaint about replies that break off: they do so when ordered, or when calls are aborted."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is worth showing."""
        return not record.getMessage().startswith("ASGI callable returned without completing")


def server_of(
    app: ASGIApp,
    *,
    shutdown_s: float,
    started: Callable[[], None] = lambda: None,
    calls_others: bool = True,
    **options: Any,
) -> QuietServer:
    """A server of an app; once told to end, it waits `shutdown_s` for the calls in flight, and cancels them then.

    One that `calls_others` keeps descriptors free for that, so it takes fewer calls at once.

    `options` are uvicorn's; without any it serves no WebSockets.
    """
    config = uvicorn.Config(
        app,
        http=BoundedHttp,
        loop="none",
        lifespan="off",
        backlog=BACKLOG,
        log_config=None,
        log_level="error",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=shutdown_s,  # type: ignore[arg-type]  # It is the timeout of a wait_for.
        **{"ws": "none", **options},
    )
    logging.getLogger("uvicorn.error").addFilter(_Intended())
    return QuietServer(config, started, calls_others=calls_others)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for option in KEPT_ALIVE:
        listener.setsockopt(*option)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a listening socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def let_go(ports: Collection[int]) -> None:
    """Give up all sockets of a server, listening or connected, in a process that a hook of it has just forked.

    Else the child would listen beside the server, and when a worker dies no client of it would be told. Their numbers
    stay taken: an object that still closes its own in the child closes nothing that the child has opened since.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        if _is_on(int(name), ports):
            os.dup2(nothing, int(name), inheritable=False)
    os.close(nothing)


def _is_on(descriptor: int, ports: Collection[int]) -> bool:
    """Whether it is a TCP socket at one of these ports of this machine."""
    try:
        found = socket.socket(fileno=descriptor)
    except OSError:
        return False
    try:
        return found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockname()[1] in ports
    finally:
        found.detach()
