"""A proxy between an S3 client and its server that records every request and spoils the ones it is told to.

It runs as a task of the test. Each request has a connection of its own, in both directions.
"""

import itertools
import re
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

MAX_HEAD_BYTES = 64 * 1024
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with no time: closing sends RST


@dataclass(frozen=True, slots=True)
class Request:
    """One request, as the proxy saw it."""

    method: str
    path: str
    """Unquoted, with the bucket."""
    query: tuple[tuple[str, str], ...]
    head: bytes
    body: bytes

    @property
    def lists(self) -> bool:
        """Whether this is a ListObjectsV2."""
        return ("list-type", "2") in self.query


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply of the server, with its body whole."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def encode(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} Status", *(f"{name}: {value}" for name, value in self.headers)]
        return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + self.body

    def with_body(self, body: bytes) -> "Reply":
        """The same with another body, announced rightly."""
        kept = [(name, value) for name, value in self.headers if name.lower() != "content-length"]
        return Reply(self.status, (*kept, ("Content-Length", str(len(body)))), body)

    def with_header(self, name: str, value: str) -> "Reply":
        """The same with another value of a header."""
        kept = [pair for pair in self.headers if pair[0].lower() != name.lower()]
        return Reply(self.status, (*kept, (name, value)), self.body)


def error_reply(status: int, code: str, message: str = "injected") -> Reply:
    """What S3 answers in case of an error."""
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'.encode()
    return Reply(status, (("Content-Type", "application/xml"), ("Content-Length", str(len(body)))), body)


SLOW_DOWN = error_reply(503, "SlowDown")
INTERNAL_ERROR = error_reply(500, "InternalError")
CONFLICT = error_reply(409, "ConditionalRequestConflict")
EXPIRED = error_reply(403, "ExpiredToken")
DENIED = error_reply(403, "AccessDenied")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Which requests are spoiled and how; exactly one of the ways at the end is set."""

    method: str | None = None
    key_part: str = ""
    where: Callable[[Request], bool] = lambda request: True
    nth: int = 1
    """Counted over the matching requests, from 1."""
    times: int = 1
    """How many matching requests in a row."""

    answer: Reply | None = None
    """Answer this and forward nothing."""
    drop: bool = False
    """Reset the connection and forward nothing."""
    lose_reply: bool = False
    """Forward, wait for the reply, then reset: the request took effect."""
    hang: bool = False
    """Forward nothing and answer nothing, until the client goes away or the proxy ends."""
    cut_body_at: int | None = None
    """Forward, and break the reply off after so many bytes of its body."""
    rewrite: Callable[[Reply], Reply] | None = None
    """Forward, and change the reply."""


class FaultProxy:
    """Records requests, and obeys its faults; made by `fault_proxy`."""

    def __init__(self, port: int, upstream_port: int) -> None:
        self.port = port
        self.requests: list[Request] = []
        self._upstream_port = upstream_port
        self._faults: list[tuple[Fault, itertools.count[int]]] = []

    def inject(self, fault: Fault) -> None:
        """Arm a fault; its count starts now."""
        self._faults.append((fault, itertools.count(1)))

    def heal(self) -> None:
        """Forget all faults."""
        self._faults.clear()

    def count(self, method: str, key_part: str = "") -> int:
        """How many requests of a method there were."""
        return sum(request.method == method and key_part in request.path for request in self.requests)

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        """Handle one connection."""
        async with stream:
            try:
                request = await _receive_request(stream)
                self.requests.append(request)
                await self._handle(stream, request, self._pick(request))
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.IncompleteRead):
                return

    def _pick(self, request: Request) -> Fault | None:
        chosen = None
        for fault, counter in self._faults:
            if fault.method in (None, request.method) and fault.key_part in request.path and fault.where(request):
                number = next(counter)
                if chosen is None and fault.nth <= number < fault.nth + fault.times:
                    chosen = fault
        return chosen

    async def _handle(self, stream: anyio.abc.SocketStream, request: Request, fault: Fault | None) -> None:
        if fault is None:
            await stream.send((await self._forward(request)).encode())
        elif fault.answer is not None:
            await stream.send(fault.answer.encode())
        elif fault.drop:
            _reset(stream)
        elif fault.hang:
            await stream.receive()
        else:
            await self._spoil_reply(stream, await self._forward(request), fault)

    async def _spoil_reply(self, stream: anyio.abc.SocketStream, reply: Reply, fault: Fault) -> None:
        if fault.lose_reply:
            _reset(stream)
        elif fault.cut_body_at is not None:
            encoded = reply.encode()
            await stream.send(encoded[: len(encoded) - len(reply.body) + fault.cut_body_at])
        elif fault.rewrite is not None:
            await stream.send(fault.rewrite(reply).encode())

    async def _forward(self, request: Request) -> Reply:
        head = re.sub(rb"\r\n(?:Connection|Expect):[^\r]*", b"", request.head, flags=re.IGNORECASE)
        async with await anyio.connect_tcp("127.0.0.1", self._upstream_port) as upstream:
            await upstream.send(head + b"\r\nConnection: close\r\n\r\n" + request.body)
            return await _receive_reply(upstream, request.method)


@asynccontextmanager
async def fault_proxy(upstream_port: int) -> AsyncIterator[FaultProxy]:
    """Run a proxy before a server of this host until the block ends."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port: int = listener.extra(anyio.abc.SocketAttribute.local_port)
    proxy = FaultProxy(port, upstream_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, proxy.serve)
        try:
            yield proxy
        finally:
            tasks.cancel_scope.cancel()


def _reset(stream: anyio.abc.SocketStream) -> None:
    stream.extra(anyio.abc.SocketAttribute.raw_socket).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


async def _receive_request(stream: anyio.abc.SocketStream) -> Request:
    source = BufferedByteReceiveStream(stream)
    head = await source.receive_until(b"\r\n\r\n", MAX_HEAD_BYTES)
    lines = head.decode("latin-1").split("\r\n")
    method, target, _ = lines[0].split(" ", 2)
    headers = _headers(lines[1:])
    if _get(headers, "expect"):
        await stream.send(b"HTTP/1.1 100 Continue\r\n\r\n")
    chunked = _get(headers, "transfer-encoding").lower() == "chunked"
    body = await _receive_chunks(source) if chunked else b""
    if length := int(_get(headers, "content-length") or 0):
        body = await source.receive_exactly(length)
    parts = urlsplit(target)
    query = tuple(parse_qsl(parts.query, keep_blank_values=True))
    return Request(method, unquote(parts.path), query, head, body)


async def _receive_reply(stream: anyio.abc.SocketStream, method: str) -> Reply:
    source = BufferedByteReceiveStream(stream)
    head = await source.receive_until(b"\r\n\r\n", MAX_HEAD_BYTES)
    lines = head.decode("latin-1").split("\r\n")
    status, headers = int(lines[0].split(" ")[1]), _headers(lines[1:])
    kept = tuple(pair for pair in headers if pair[0].lower() not in {"connection", "transfer-encoding"})
    if method == "HEAD" or status in {204, 304}:
        return Reply(status, kept, b"")
    if _get(headers, "transfer-encoding").lower() == "chunked":
        return Reply(status, kept, b"").with_body(await _receive_chunks(source))
    return Reply(status, kept, await source.receive_exactly(int(_get(headers, "content-length") or 0)))


async def _receive_chunks(source: BufferedByteReceiveStream) -> bytes:
    """The payload of a chunked body; trailers are not supported."""
    parts = []
    while size := int((await source.receive_until(b"\r\n", 1024)).split(b";")[0], 16):
        parts.append(await source.receive_exactly(size))
        await source.receive_exactly(2)
    return b"".join(parts)


def _headers(lines: Sequence[str]) -> tuple[tuple[str, str], ...]:
    pairs = (line.partition(":") for line in lines)
    return tuple((name.strip(), value.strip()) for name, _, value in pairs)


def _get(headers: Sequence[tuple[str, str]], name: str) -> str:
    return next((value for key, value in headers if key.lower() == name), "")
