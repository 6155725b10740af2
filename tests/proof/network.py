"""The simulated network: what `HttpLink` and `HttpPeer` need of their client, and the servers' end of it.

A request is two messages, each with a delay of its own, so that requests overtake each other. What happens to a message
is decided by `Weather`: it is lost, comes twice, or is late. Of a lost one the caller hears that the connection broke:
soon, or after `GONE_S`, as channels and watched sockets do where nobody acknowledges anything (`participants.reach`).

    a crash of the server         its connections break: at once, or without a word
    a crash of the client         handlers whose calls end with their client are cancelled, all others go on
    the client gives a call up    the same
"""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
import httpx
import orjson

from participants import CONTROL_PREFIX
from participants.reach import GONE_S

from .machine import Process, Site


class Weather(Protocol):
    """What becomes of messages now."""

    def delay(self, sender: str, receiver: str) -> float:
        """Of one message, in seconds."""

    def fate(self, sender: str, receiver: str) -> str:
        """`fine`, `lost`, `twice` or `broken`: lost, and the caller hears of it."""

    def silent_crash(self) -> bool:
        """Whether nobody is told that the connections of a process are gone."""


@dataclass(eq=False)
class Connection:
    """One request on its way, at the server's end too."""

    client: Process
    address: str
    method: str
    path: str
    headers: Mapping[str, str]
    content: bytes
    server: Process | None = None
    gone: anyio.Event = field(default_factory=anyio.Event)
    """The client has: set at the server's end."""
    replied: bool = False
    """The answer is on its way, or nobody waits for it."""
    status: int = 0
    answer_headers: Mapping[str, str] = field(default_factory=dict)
    chunks: deque[bytes] = field(default_factory=deque)
    """Arrived and not read yet."""
    begun: anyio.Event = field(default_factory=anyio.Event)
    """Status and headers have arrived, or an error has."""
    news: anyio.Event = field(default_factory=anyio.Event)
    closed: bool = False
    error: httpx.TransportError | None = None
    ghost: bool = False
    """A second copy of a message: nobody waits for its reply."""
    severed: bool = False
    """Something from the server was lost: nothing behind it can arrive."""
    last_at: float = 0.0
    """When the last chunk arrives: those of one connection keep their order."""

    @property
    def is_data(self) -> bool:
        return not self.path.startswith(CONTROL_PREFIX)

    def arrived(self) -> None:
        """Something came from the server, or will not."""
        self.begun.set()
        self.news.set()
        self.news = anyio.Event()

    def fail(self, error: httpx.TransportError) -> None:
        if self.error is None and not self.closed:
            self.error = error
            self.arrived()


class Network:
    """Between all processes of a site."""

    def __init__(self, site: Site, weather: Weather) -> None:
        self.site = site
        self.weather = weather
        self.open: dict[int, Connection] = {}
        self._opened = 0
        site.on_end.append(self.ended)

    def connect(self, connection: Connection) -> int:
        """Send a request."""
        self._opened += 1
        number, client = self._opened, connection.client
        self.open[number] = connection
        receiver = self._name(connection.address)
        fate = self.weather.fate(client.name, receiver)
        delay = self.weather.delay(client.name, receiver)
        if fate in ("fine", "twice"):
            self.site.later(delay, self._arrive, connection)
        else:
            self._lose(connection, delay, fate)
        if fate == "twice" and not connection.path.endswith("/results"):
            copy = Connection(client, connection.address, connection.method, connection.path, connection.headers,
                              connection.content, ghost=True)  # fmt: skip
            self.site.later(delay + self.weather.delay(client.name, receiver) * 20, self._arrive, copy)
        return number

    def _lose(self, connection: Connection, delay: float, fate: str) -> None:
        broken = httpx.ReadError("the connection broke")
        self.site.later(delay if fate == "broken" else GONE_S, connection.fail, broken)

    def _name(self, address: str) -> str:
        return address.removeprefix("http://")

    def _arrive(self, connection: Connection) -> None:
        server = self.site.listening.get(connection.address)
        if server is None or server.inbox is None:
            self.site.later(0.001, connection.fail, httpx.ConnectError("nobody listens"))
            return
        connection.server = server
        server.inbox.put(connection)

    # The server's end

    def answer(self, connection: Connection, status: int, headers: Mapping[str, str], content: bytes) -> None:
        """A whole answer."""
        connection.replied = True
        self._back(connection, lambda: self._complete(connection, status, headers, content))

    def begin(self, connection: Connection, status: int, headers: Mapping[str, str]) -> None:
        """Status and headers of a stream."""

        def act() -> None:
            connection.status, connection.answer_headers = status, headers
            connection.arrived()

        self._back(connection, act)

    def push(self, connection: Connection, chunk: bytes) -> None:
        """More of a stream."""

        def act() -> None:
            connection.chunks.append(chunk)
            connection.arrived()

        self._back(connection, act)

    def finish(self, connection: Connection) -> None:
        """The end of a stream."""

        def act() -> None:
            connection.closed = True
            connection.arrived()

        connection.replied = True
        self._back(connection, act)

    def sever(self, connection: Connection) -> None:
        """Break an answer off."""
        connection.severed = True
        self._lose(connection, 0.001, "broken")

    def _complete(self, connection: Connection, status: int, headers: Mapping[str, str], content: bytes) -> None:
        connection.status, connection.answer_headers = status, headers
        connection.chunks.append(content)
        connection.closed = True
        connection.arrived()

    def _back(self, connection: Connection, act: Any) -> None:
        if connection.ghost or connection.severed or connection.error is not None:
            return
        sender, receiver = self._name(connection.address), connection.client.name
        fate = self.weather.fate(sender, receiver)
        now = self.site.loop.time()
        arrives = max(connection.last_at + 1e-9, now + self.weather.delay(sender, receiver))
        connection.last_at = arrives
        if fate in ("fine", "twice"):
            self.site.later(arrives - now, act)
        else:
            connection.severed = True
            self._lose(connection, arrives - now, fate)

    # Ends

    def give_up(self, number: int) -> None:
        """The client waits no more."""
        connection = self.open.pop(number)
        if not connection.replied and connection.server is not None:
            self.site.later(self.weather.delay(connection.client.name, "gone"), connection.gone.set)

    def ended(self, process: Process) -> None:
        """All connections of a process break, at either end."""
        silent = self.weather.silent_crash()
        for number, connection in list(self.open.items()):
            if connection.client is process:
                self.give_up(number)
            elif connection.server is process and not connection.replied:
                self._lose(connection, self.weather.delay("crash", process.name), "lost" if silent else "broken")


@dataclass
class Response:
    """As much of httpx.Response as links and peers look at."""

    status_code: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    @property
    def text(self) -> str:
        return self.content.decode()

    def json(self) -> Any:
        return orjson.loads(self.content)

    async def aread(self) -> bytes:
        return self.content

    async def aclose(self) -> None:
        """Nothing is held."""


@dataclass
class Streamed(Response):
    """A stream that is being read."""

    connection: Connection
    silence_s: float | None

    async def aread(self) -> bytes:
        while not self.connection.closed:
            await _more(self.connection, self.silence_s)
        self.content = b"".join(self.connection.chunks)
        return self.content

    async def aiter_lines(self) -> AsyncGenerator[str]:
        connection = self.connection
        while True:
            while connection.chunks:
                yield connection.chunks.popleft().decode()
            if connection.closed:
                return
            await _more(connection, self.silence_s)


async def _more(connection: Connection, silence_s: float | None) -> None:
    if connection.error is not None:
        raise connection.error
    with anyio.move_on_after(silence_s) as waiting:
        await connection.news.wait()
    if waiting.cancelled_caught:
        raise httpx.ReadTimeout("silence")
    if connection.error is not None:
        raise connection.error


@dataclass
class Outgoing:
    """A request that can be sent again."""

    method: str
    url: str
    content: bytes
    headers: Mapping[str, str]


class SimClient:
    """Stands for httpx.AsyncClient in one process."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process
        self._calls = 0

    async def request(
        self, method: str, url: str, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Response:
        async with self._open(method, url, content, headers or {}) as connection:
            with self._noted(connection, content):
                return await self._whole(connection)

    @contextmanager
    def _noted(self, connection: Connection, content: bytes) -> Iterator[None]:
        """Tell the history of a control call, as the controller sees it."""
        if not content:
            yield
            return
        self._calls += 1
        number, fields = self._calls, orjson.loads(content)
        operation = connection.path.rpartition("/")[2]
        self._process.note("sent", number=number, member=connection.address, operation=operation,
                           timeout_s=fields.get("timeout_s", 0.0), round=fields.get("round"))  # fmt: skip
        try:
            yield
        finally:
            self._process.note("heard", number=number)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        content: str,
        timeout: httpx.Timeout,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Streamed]:
        async with self._open(method, url, content.encode(), headers or {}) as connection:
            await self._begun(connection, timeout.read)
            yield Streamed(connection.status, connection.answer_headers, b"", connection, timeout.read)

    def build_request(self, method: str, url: str, *, content: bytes, headers: Mapping[str, str]) -> Outgoing:
        return Outgoing(method, url, content, headers)

    async def send(self, outgoing: Outgoing, *, stream: bool) -> Response:
        async with self._open(outgoing.method, outgoing.url, outgoing.content, outgoing.headers) as connection:
            return await self._whole(connection)

    async def aclose(self) -> None:
        """Connections are of single requests."""

    @asynccontextmanager
    async def _open(
        self, method: str, url: str, content: bytes, headers: Mapping[str, str]
    ) -> AsyncIterator[Connection]:
        address, slash, path = url.removeprefix("http://").partition("/")
        connection = Connection(self._process, f"http://{address}", method, slash + path, headers, content)
        number = self._network.connect(connection)
        try:
            yield connection
        finally:
            self._network.give_up(number)

    async def _begun(self, connection: Connection, silence_s: float | None) -> None:
        with anyio.move_on_after(silence_s) as waiting:
            await connection.begun.wait()
        if waiting.cancelled_caught:
            raise httpx.ReadTimeout("no answer")
        if connection.error is not None:
            raise connection.error

    async def _whole(self, connection: Connection) -> Response:
        while not connection.closed:
            if connection.error is not None:
                raise connection.error
            await connection.news.wait()
        return Response(connection.status, connection.answer_headers, connection.chunks[0])


class Inbox:
    """Connections that a process has not taken yet."""

    def __init__(self) -> None:
        self._waiting: deque[Connection] = deque()
        self._news = anyio.Event()

    def put(self, connection: Connection) -> None:
        self._waiting.append(connection)
        self._news.set()

    async def take(self) -> Connection:
        while not self._waiting:
            self._news = anyio.Event()
            await self._news.wait()
        return self._waiting.popleft()
