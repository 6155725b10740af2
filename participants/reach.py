"""Connections to other hosts, which may vanish without a word: how long it takes until that is noticed.

What a process does may take as long as it takes, and has deadlines of its own. But the kernel of a host that is there
takes connections and acknowledges bytes at once, whatever its processes do; where it does not, the host has gone, or
the network between. Nobody waits for it then: a call fails as over a broken connection.

    a connection is not taken                      within REACH_S
    what was sent is not acknowledged              within GONE_S
    nothing was sent, and an answer is waited for  within GONE_S: the kernels ask each other meanwhile

A channel asks by itself (`channels.server.PING_S`), and needs the first alone.
"""

import socket
from collections.abc import Sequence
from typing import Any

import httpx

REACH_S = 10.0
"""For a connection to be taken; a lost packet is sent again after 1, 3 and 7 s."""
GONE_S = 30.0
"""A host that acknowledges nothing for so long has gone."""
_IDLE_S, _PROBE_S = 10, 5
"""After so long without a byte the other kernel is asked, and again each so many seconds."""
Option = tuple[int, int, int]

KEPT_ALIVE: Sequence[Option] = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, int(GONE_S - _IDLE_S) // _PROBE_S),
)
"""For a socket that listens: those of its connections have them, too."""
WATCHED: Sequence[Option] = (*KEPT_ALIVE, (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(GONE_S * 1000)))
"""For a socket that calls."""


def timeout_of(read_s: float | None = None) -> httpx.Timeout:
    """No limit but for making the connection, and of `read_s` without a byte: the caller has its own for the whole."""
    return httpx.Timeout(None, connect=REACH_S, read=read_s)


def transport(limits: httpx.Limits) -> httpx.AsyncHTTPTransport:
    """Of a client for other hosts; no proxy that the environment names stands between them."""
    return httpx.AsyncHTTPTransport(limits=limits, socket_options=WATCHED)


def watched_socket(place: tuple[Any, ...]) -> socket.socket:
    """A socket for an address as `getaddrinfo` gives it, not connected yet."""
    family, kind, protocol = place[:3]
    made = socket.socket(family, kind, protocol)
    for option in WATCHED:
        made.setsockopt(*option)
    return made
