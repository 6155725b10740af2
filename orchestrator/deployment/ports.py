"""Ports that are a server's own before it listens there, and while it is down.

All servers need the addresses of others, so all ports are decided before any server starts: then all can start at once.
A port is kept by a socket that is bound and does not listen. The kernel gives such a port to nobody who asks for any
port, neither to a listener nor to a caller; the server itself binds it by number, which SO_REUSEADDR on both sides
allows as long as no other socket listens there. Callers are refused meanwhile: none waits for a server that is down.
A port that somebody listens on already cannot be kept: that is seen before anything is started.
"""

import errno
import os
import socket
import time

import anyio
import anyio.to_thread

from participants.serving.addresses import is_loopback, join_address, split_address

from .failures import NotThisHost, PortTaken

PATIENCE_S = 2.0
"""How long a port may be in use: a process that was killed lets go of its sockets a little later."""
_POLL_S = 0.02


class Ports:
    """The ports of a fleet, each kept until it is let go."""

    def __init__(self, patience_s: float = PATIENCE_S, *, host: str | None = None) -> None:
        """`host` of several is this one."""
        self._patience_s, self._host = patience_s, host
        self._kept: dict[str, socket.socket] = {}

    async def keep(self, role: str, listen: str) -> str:
        """Keep a port for a role, a free one for port 0; gives `host:port`. Raises PortTaken, NotThisHost."""
        host, port = split_address(listen)
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                kept = await anyio.to_thread.run_sync(_bind, host, port)
                self._check_reached(role, listen, host, kept)
            except OSError as error:
                if self._host is not None and error.errno == errno.EADDRNOTAVAIL:
                    raise NotThisHost(role, listen, self._host) from error
                if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                    raise PortTaken(role, listen, error.strerror or str(error), host=self._host) from error
                await anyio.sleep(_POLL_S)
            else:
                self.release(role)
                self._kept[role] = kept
                return join_address(host, kept.getsockname()[1])

    def _check_reached(self, role: str, listen: str, host: str, kept: socket.socket) -> None:
        """Many a machine calls its own name 127.0.1.1. Raises NotThisHost."""
        found = kept.getsockname()[0]
        if self._host is not None and is_loopback(found) and not is_loopback(host):
            kept.close()
            raise NotThisHost(role, listen, self._host, loopback=found)

    def release(self, role: str) -> None:
        """Keep the port of a role no longer."""
        if (kept := self._kept.pop(role, None)) is not None:
            kept.close()

    def close(self) -> None:
        """Keep none any more."""
        for role in list(self._kept):
            self.release(role)


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    kept = socket.socket(family, kind, protocol)
    try:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(place)
    except OSError as error:
        kept.close()
        raise OSError(error.errno, os.strerror(error.errno or 0)) from error
    return kept
