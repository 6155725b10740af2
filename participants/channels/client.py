"""The client's side of channels: peers whose calls share one connection to each worker of a server.

A peer asks its server for the addresses of the workers when it is first called, and calls the owner of each rollout or
session there. After anything broke it asks again, because a restart may have changed them.

    the connection breaks, or cannot be made     a call with an id is sent again, MAX_TRIES in all, as over HTTP; one
                                                 without fails: it may have been carried out. Code `unreachable`
    the caller gives up                          the server is told
    the server has no channel (404 and such)     calls go over HTTP: to the owner where workers are named, else to the
                                                 URL of the peer
    a stream is asked for                        over HTTP, to the owner

All tasks belong to the task group of `Channels`. There are no time limits here: a caller has its own.
"""

import itertools
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
import anyio
import httpx
import orjson
from anyio.abc import TaskGroup

from ..data import Reply, Request
from ..errors import Code, ParticipantError
from ..peer import BACKOFF_S, ERROR_HEADER, MAX_TRIES, HttpPeer, unreachable
from ..reach import REACH_S, timeout_of, transport
from ..routing import routing_key, worker_of
from .frames import CHANNEL_PATH, MAX_FRAME_BYTES, WORKERS_PATH, call_rest
from .line import CLOSE_S, Broken, Line
from .server import PING_S
from .shared import Shared

CONNECT_S = 30.0
"""For making a channel, or for asking where the workers are: a worker that is being replaced takes its time.

A host that is there takes the connection itself at once, so that one has less (`reach.REACH_S`)."""
_BROKEN = (aiohttp.ClientError, OSError, TimeoutError)


class Channels:
    """The connections of one process to other servers; an async context, which owns all their tasks."""

    def __init__(self) -> None:
        """Nothing is connected before it is needed."""
        self._stack = AsyncExitStack()
        self._servers: dict[tuple[str, bool], _Server] = {}
        self._base: _Base | None = None

    def __repr__(self) -> str:
        return f"<Channels to {sorted({url for url, _ in self._servers})}>"

    async def __aenter__(self) -> Self:
        enter = self._stack.enter_async_context
        http = await enter(httpx.AsyncClient(timeout=timeout_of(), transport=transport(_no_limits()), trust_env=False))
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REACH_S)
        connector = aiohttp.TCPConnector(limit=0)
        session = await enter(aiohttp.ClientSession(connector=connector, timeout=timeout))
        self._base = _Base(await enter(anyio.create_task_group()), session, http)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._base is not None
        self._base.closed = True
        self._base.group.cancel_scope.cancel()
        await self._stack.aclose()

    def peer(self, url: str, role: str) -> "ChannelPeer":
        """A server, by the URL at which any of its workers answers; it need not be there yet."""
        return self._peer(url, role, alone=False)

    def worker(self, url: str, role: str) -> "ChannelPeer":
        """One worker, by its own URL; whatever is asked is asked there."""
        return self._peer(url, role, alone=True)

    def _peer(self, url: str, role: str, *, alone: bool) -> "ChannelPeer":
        if self._base is None:
            raise RuntimeError("the channels are used outside their context")
        key = (url.rstrip("/"), alone)
        if key not in self._servers:
            self._servers[key] = _Server(key[0], self._base, alone=alone)
        return ChannelPeer(role, self._servers[key])


def _no_limits() -> httpx.Limits:
    return httpx.Limits(max_connections=None, max_keepalive_connections=None)


@dataclass(slots=True, eq=False)
class _Base:
    """What all connections share."""

    group: TaskGroup
    session: aiohttp.ClientSession
    http: httpx.AsyncClient
    closed: bool = False


class _NoChannel:
    """Stands for the connection to a server that has no such route."""

    over = False


class _Way:
    """The address of one worker."""

    def __init__(self, url: str, base: _Base) -> None:
        self.url = url
        self._base = base
        self.line: Shared[Line | _NoChannel] = Shared(base.group, self._connect, lambda line: not line.over)

    async def _connect(self) -> Line | _NoChannel:
        try:
            with anyio.fail_after(CONNECT_S):
                socket = await self._base.session.ws_connect(
                    self.url + CHANNEL_PATH,
                    heartbeat=PING_S,
                    max_msg_size=MAX_FRAME_BYTES,
                    timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status < 500:
                return _NoChannel()
            raise Broken(f"{self.url} answered {error.status}") from error
        except _BROKEN as error:
            raise Broken(f"{self.url}: {error!r}") from error
        line = Line(socket)
        self._base.group.start_soon(line.run)
        return line


@dataclass(frozen=True, slots=True, eq=False)
class _Workers:
    """Where the workers of a server are."""

    ways: tuple[_Way, ...]
    serves: str = ""
    """The role; empty where the server does not say."""
    turns: Any = field(default_factory=itertools.count)

    def owner(self, request: Request, role: str) -> _Way:
        """Whom to call; in turn, where it does not matter."""
        key = routing_key(request, role)
        number = next(self.turns) % len(self.ways) if key is None else worker_of(key, len(self.ways))
        return self.ways[number]


class _Server:
    """One server, as all peers of its URL know it."""

    def __init__(self, url: str, base: _Base, *, alone: bool) -> None:
        self.url = url
        self.base = base
        self._alone = alone
        self.workers: Shared[_Workers] = Shared(base.group, self._find, lambda _: True)
        self._ways: dict[str, _Way] = {}

    async def _find(self) -> _Workers:
        urls, serves = ((), "") if self._alone else await self._ask()
        # The way to a worker that is there still stays; one that has gone breaks by itself.
        self._ways = {url: self._ways.get(url) or _Way(url, self.base) for url in urls or (self.url,)}
        return _Workers(tuple(self._ways[url] for url in urls or (self.url,)), serves)

    async def _ask(self) -> tuple[tuple[str, ...], str]:
        """The addresses of the workers, and the role; nothing where the server does not say. Raises Broken."""
        try:
            with anyio.fail_after(CONNECT_S):
                async with self.base.session.get(self.url + WORKERS_PATH) as response:
                    status, said = response.status, await response.read()
        except _BROKEN as error:
            raise Broken(repr(error)) from error
        if status >= 500:
            raise Broken(f"it answered {status}: {said[:200]!r}")
        return _workers_in(said) if status == 200 else ((), "")


def _workers_in(document: bytes) -> tuple[tuple[str, ...], str]:
    """The addresses and the role that a server tells; nothing where it tells something else."""
    try:
        told = orjson.loads(document)
        return tuple(str(url).rstrip("/") for url in told["workers"]), f"{told['kind']}.{told['name']}"
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return (), ""


class ChannelPeer:
    """A participant behind channels."""

    def __init__(self, role: str, server: _Server) -> None:
        """Made by `Channels.peer`."""
        self._role = role
        self._server = server

    def __repr__(self) -> str:
        return f"<ChannelPeer {self._role} at {self._server.url}>"

    @property
    def role(self) -> str:
        """`<kind>.<name>`."""
        return self._role

    async def call(self, request: Request) -> Reply:
        """Make one call, again after a broken connection if it has an id."""
        rest = call_rest(request)
        tries = MAX_TRIES if request.call is not None else 1
        while True:
            tries -= 1
            try:
                return await self._once(request, rest)
            except Broken as error:
                if tries == 0 or self._server.base.closed:
                    raise unreachable(self._role, self._server.url, str(error)) from error
            await anyio.sleep(BACKOFF_S * 2 ** (MAX_TRIES - 1 - tries))

    async def _once(self, request: Request, rest: bytes) -> Reply:
        """One try. Raises Broken."""
        server = self._server
        if server.base.closed:
            raise Broken("the channels of this process were closed")
        workers = server.workers.now() or await server.workers.get()
        if workers.serves not in ("", self._role):
            server.workers.forget(workers)
            raise unreachable(self._role, server.url, f"{workers.serves} is served there")
        way = workers.owner(request, self._role)
        try:
            line = None if _streams(request) else way.line.now() or await way.line.get()
            if isinstance(line, Line):
                return _read(await line.ask(rest))
            return await HttpPeer(way.url, self._role, server.base.http).call(request)
        except Broken:
            server.workers.forget(workers)
            raise
        except ParticipantError as error:
            if error.code is Code.UNREACHABLE:
                server.workers.forget(workers)
            raise


def _streams(request: Request) -> bool:
    return isinstance(request.body, dict) and bool(request.body.get("stream"))


def _read(reply: Reply) -> Reply:
    if ERROR_HEADER in reply.headers:
        raise ParticipantError.from_body(reply.status, reply.body)
    return reply
