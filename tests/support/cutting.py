"""A proxy in front of a server that cuts everything off once, after so many bytes have passed one way.

What has passed before has arrived; connections that are made after the cut pass untouched.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketAttribute, SocketStream

Way = Literal["up", "down"]
"""To the server, or to the client."""
NEVER = 2**60


@dataclass(eq=False)
class Cutter:
    """Where the proxy is, and what has passed."""

    way: Way
    after: int
    url: str = ""
    passed: dict[Way, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    cuts: int = 0
    accepted: int = 0
    _open: list[SocketStream] = field(default_factory=list)

    async def cut(self) -> None:
        """Cut off all connections that there are now."""
        self.cuts += 1
        self.after = NEVER
        for stream in self._open:
            await anyio.aclose_forcefully(stream)
        self._open = []

    async def _pass(self, way: Way, source: SocketStream, target: SocketStream) -> None:
        try:
            while True:
                chunk = await source.receive()
                left = self.after - self.passed[way] if way == self.way else NEVER
                self.passed[way] += min(left, len(chunk))
                await target.send(chunk[:left])
                if len(chunk) >= left:
                    await self.cut()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            await anyio.aclose_forcefully(source)
            await anyio.aclose_forcefully(target)


@asynccontextmanager
async def cutting(url: str, way: Way = "up", after: int = NEVER) -> AsyncIterator[Cutter]:
    """Pass connections on to the URL while the block runs."""
    cutter, to = Cutter(way, after), urlsplit(url)

    async def serve(client: SocketStream) -> None:
        cutter.accepted += 1
        server = await anyio.connect_tcp(str(to.hostname), int(to.port or 0))
        async with client, server, anyio.create_task_group() as group:
            cutter._open += [client, server]
            group.start_soon(cutter._pass, "up", client, server)
            group.start_soon(cutter._pass, "down", server, client)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
        cutter.url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        group.start_soon(listener.serve, serve)
        yield cutter
        group.cancel_scope.cancel()
