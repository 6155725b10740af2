"""A participant in a process of its own, with its control plane on a real socket.

    python -m tests.support.served <kind> <port>

It is a notebook without a store: it can be adopted, prepared, resumed, aborted and stopped.
"""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from participants import CONTROL_PREFIX, ControlPlane, control_app

from .owners import Notebook
from .processes import free_port, running

TOKEN = "a-token"


@dataclass(frozen=True, slots=True)
class Served:
    """Where a participant's process is."""

    pid: int
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def pause(self) -> None:
        """It is not scheduled any more; its sockets stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """It runs again."""
        os.kill(self.pid, signal.SIGCONT)


@contextmanager
def served(kind: str, folder: Path) -> Iterator[Served]:
    """Run a participant of this kind until the block ends."""
    port = free_port()
    command = [sys.executable, "-m", "tests.support.served", kind, str(port)]
    with running(command, folder / f"{kind}.log", lambda: _answers(port)) as process:
        at = Served(process.pid, port)
        try:
            yield at
        finally:
            at.go_on()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def _serve(kind: str, port: int) -> None:
    async with ControlPlane(Notebook(kind), None).run() as plane:
        app = Starlette(routes=[Mount(CONTROL_PREFIX, control_app(plane, TOKEN))])
        await uvicorn.Server(uvicorn.Config(app, "127.0.0.1", port, log_level="warning")).serve()


if __name__ == "__main__":
    anyio.run(_serve, sys.argv[1], int(sys.argv[2]))
