"""Serving a backend on a socket: inside a program that has an event loop, or as a program of its own."""

import contextlib
import signal
from collections.abc import AsyncIterator, Callable

import anyio

from ..serving.sockets import bind, server_of, url_of
from .server import Backend

SHUTDOWN_S = 1


@contextlib.asynccontextmanager
async def serving(backend: Backend, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve in this event loop while the block runs; gives the URL."""
    listener = bind(host, port)
    server = server_of(backend.app, shutdown_s=SHUTDOWN_S, calls_others=False)
    # The socket listens already: who connects before the server is up waits for it.
    with contextlib.closing(listener):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            try:
                yield url_of(listener)
            finally:
                backend.board.reset()
                server.should_exit = True


def serve_forever(backend: Backend, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve as the whole program, until SIGINT or SIGTERM. `ready` is told the URL: who connects is served."""
    anyio.run(_until_signal, backend, host, port, ready, backend_options={"use_uvloop": True})


async def _until_signal(backend: Backend, host: str, port: int, ready: Callable[[str], None]) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with serving(backend, host=host, port=port) as url:
            ready(url)
            await anext(signals)
    backend.close()
