"""A server of no manners: each connection gets the next of a list of behaviours, the last one for ever.

A behaviour is an async function of the connection, called once the request has been read whole. It ends the
connection by returning.
"""

import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

MAX_HEAD_BYTES = 64 * 1024
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with no time: closing sends RST
Connection = anyio.abc.SocketStream
Behaviour = Callable[[Connection], Awaitable[None]]


@dataclass
class Rude:
    """What was asked of it."""

    base_url: str
    bodies: list[bytes] = field(default_factory=list)
    gone: anyio.Event = field(default_factory=anyio.Event)
    """Set when a client has left while a behaviour wanted to go on."""


@asynccontextmanager
async def rude_server(*behaviours: Behaviour) -> AsyncIterator[Rude]:
    """Serve while the block runs."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    server = Rude(f"http://127.0.0.1:{port}/v1")
    waiting = list(behaviours)

    async def handle(connection: Connection) -> None:
        behave = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        async with connection:
            try:
                server.bodies.append(await _request(connection))
                await behave(connection)
            except (anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead):
                server.gone.set()

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield server
        tasks.cancel_scope.cancel()


async def _request(connection: Connection) -> bytes:
    buffered = BufferedByteReceiveStream(connection)
    head = (await buffered.receive_until(b"\r\n\r\n", MAX_HEAD_BYTES)).lower()
    lengths = [line.partition(b":")[2] for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
    return await buffered.receive_exactly(int(lengths[0])) if lengths and int(lengths[0]) else b""


def answer(status: int, body: bytes = b"{}", *headers: str) -> Behaviour:
    """A whole reply."""
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}", "Connection: close", *headers]

    async def behave(connection: Connection) -> None:
        await connection.send("\r\n".join([*lines, "", ""]).encode() + body)

    return behave


def stream(
    chunks: Sequence[bytes], then: Behaviour | None = None, *, kind: str = "text/event-stream", status: int = 200
) -> Behaviour:
    """A chunked body; it ends well, or goes on with another behaviour."""
    lines = [f"HTTP/1.1 {status} Status", f"Content-Type: {kind}", "Transfer-Encoding: chunked", "Connection: close"]

    async def behave(connection: Connection) -> None:
        await connection.send("\r\n".join([*lines, "", ""]).encode())
        for chunk in chunks:
            await connection.send(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        await (then or _end)(connection)

    return behave


async def _end(connection: Connection) -> None:
    await connection.send(b"0\r\n\r\n")


async def stop(connection: Connection) -> None:
    """Close without the end of the body."""


async def reset(connection: Connection) -> None:
    """RST."""
    raw = connection.extra(anyio.abc.SocketAttribute.raw_socket)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


async def hang(connection: Connection) -> None:
    """Say nothing until the client has left."""
    await connection.receive()


async def garbage(connection: Connection) -> None:
    """No HTTP."""
    await connection.send(b"\x00\xff not http at all\r\n\r\n")


def endless(chunk: bytes) -> Behaviour:
    """The same piece of a chunked body for ever; after the head that `stream` sends."""

    async def behave(connection: Connection) -> None:
        while True:
            await connection.send(b"%x\r\n%b\r\n" % (len(chunk), chunk))

    return behave
