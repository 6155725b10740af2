"""Serving a backend on a socket: inside a program that has an event loop, or as a program of its own."""

import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import anyio
import uvicorn

from .server import Backend

BACKLOG = 16_384
KEEP_ALIVE_S = 600
"""Longer than any client keeps an idle connection: none finds that it was closed just when it used it."""
SHUTDOWN_S = 1


class _Server(uvicorn.Server):
    """A server that leaves signals to the program around it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing."""
        yield


class _Intended(logging.Filter):
    """Drops the complaint about replies that break off: they do so when ordered, or when calls are aborted."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is worth showing."""
        return not record.getMessage().startswith("ASGI callable returned without completing")


def config_of(backend: Backend) -> uvicorn.Config:
    """How a backend is served."""
    config = uvicorn.Config(
        backend.app,
        http="httptools",
        loop="none",
        ws="none",
        lifespan="off",
        backlog=BACKLOG,
        log_config=None,
        log_level="error",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    logging.getLogger("uvicorn.error").addFilter(_Intended())
    return config


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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


@contextlib.asynccontextmanager
async def serving(backend: Backend, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve in this event loop while the block runs; gives the URL."""
    listener = bind(host, port)
    server = _Server(config_of(backend))
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
