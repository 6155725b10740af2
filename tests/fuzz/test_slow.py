"""A client that is too slow with a head, with a body, or with what is left of one that has its answer, is let go."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.abc
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from participants.serving import bounded
from participants.serving.sockets import bind, server_of
from tests.support.channels import settled

pytestmark = [pytest.mark.process, pytest.mark.anyio]

HEAD = b"POST / HTTP/1.1\r\nhost: x\r\n"


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[anyio.abc.SocketStream]:
    """A connection to a server of it."""
    with bind("127.0.0.1", 0) as listener:
        server = server_of(app, shutdown_s=1.0)
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [listener])
            with anyio.fail_after(30):
                async with await anyio.connect_tcp("127.0.0.1", listener.getsockname()[1]) as stream:
                    yield stream
            server.should_exit = True


class Reader:
    """Takes all of a body before it answers."""

    def __init__(self) -> None:
        self.size = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async for piece in Request(scope, receive).stream():
            self.size += len(piece)
        await PlainTextResponse(str(self.size), 401)(scope, receive, send)


async def heard(stream: anyio.abc.SocketStream) -> bytes:
    """Everything until the server closes."""
    found = b""
    with suppress(anyio.BrokenResourceError):
        async for piece in stream:
            found += piece
    return found


@pytest.mark.parametrize(
    ("begun", "answers"), [(b"", 0), (HEAD, 0), (HEAD + b"content-length: 0\r\n\r\n" + HEAD, 1),
                           (HEAD + b"content-length: 9\r\n\r\n1", 1)]
)  # fmt: skip
async def test_what_comes_too_slowly_ends(begun: bytes, answers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time that a head may take the connection is closed; what was asked before is answered."""
    monkeypatch.setattr(bounded, "READ_S", 0.1)
    async with serving(PlainTextResponse("no", 401)) as stream:
        await stream.send(begun)
        found = await heard(stream)
    assert found.count(b"HTTP/1.1 401") == answers


@pytest.mark.parametrize("length", ["content-length: 1000000", "transfer-encoding: chunked"])
async def test_a_body_that_does_not_come_on_ends(length: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing at all, or a byte now and then: nobody has answered it, and its connection ends."""
    monkeypatch.setattr(bounded, "READ_S", 0.3)
    begun = HEAD + f"{length}\r\n\r\n".encode()
    async with serving(Reader()) as stream, anyio.create_task_group() as group:
        await stream.send(begun)

        async def trickle() -> None:
            with suppress(anyio.BrokenResourceError):
                while True:
                    await stream.send(b"1" if "content" in length else b"1\r\n1\r\n")
                    await settled(lambda: 0, 0.05)

        group.start_soon(trickle)
        assert await heard(stream) == b""
        group.cancel_scope.cancel()


async def test_a_body_that_comes_on_steadily_may_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it likes, while each part of it comes in time."""
    monkeypatch.setattr(bounded, "READ_S", 1.5)
    app, pieces = Reader(), 6
    piece = b"x" * bounded.STEADY_BYTES
    async with serving(app) as stream:
        await stream.send(HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % (pieces * len(piece)))
        began = anyio.current_time()
        for _ in range(pieces):
            await settled(lambda: app.size, 0.4)
            await stream.send(piece)
        found = await heard(stream)
        assert anyio.current_time() - began > bounded.READ_S
    assert found.endswith(str(pieces * len(piece)).encode())
