"""The server's end of channels: calls of one connection are served at once, and replies go out as they are made.

A connection is one task of the web server. Inside it live two groups: that of the connection, which ends with it, and
around it that of the calls, which does not. So the task lasts until the last call has ended:

    a hook cancels its own task      its call is answered with `internal`, as over HTTP, and no other notices
    the caller gives a call up       its handler is cancelled if its calls end with their clients, else it goes on; no
                                     reply is sent
    the connection breaks            the same, for all its calls
    the reader of replies is slow    handlers wait with their replies, and no further call is read meanwhile
    more calls than MAX_OPEN         the others wait, as the bytes that they came as, and begin in order as calls end;
                                     past MAX_WAITING_BYTES nothing more is read, so pings go without an answer
    something that is no frame       the connection is closed with code 1002: calls on it are as after a break
    the server shuts down            uvicorn closes the connections, waits for the tasks as long as for those of HTTP
                                     requests, and cancels them then

Nothing has to be opened in the app's lifespan. Any number of apps and workers may have the route.
"""

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import orjson
from anyio.abc import TaskGroup
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Message, Receive, Scope, Send

from ..data import Reply, Request
from ..data_http import (
    PARSE_IN_THREAD_BYTES,
    Served,
    answered,
    close_source,
    ends_with_client,
    identified,
    passed_on,
    refusal,
)
from ..errors import Code, ParticipantError
from .frames import (
    CHANNEL_PATH,
    MAX_FRAME_BYTES,
    WORKERS_PATH,
    Call,
    Cancel,
    MalformedFrame,
    frames_of,
    read_call,
    reply_frame,
)
from .outbox import Outbox

PROTOCOL_ERROR = 1002
MAX_OPEN = 16_384
"""Calls of one connection that are being served at once, each for some 12 KB: those that are held and those that nobody
waits for any more are among them."""
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Of calls that have come beyond that."""
_WAITS_BYTES = 300
"""What a call that waits takes besides its own bytes."""
_TURN = 64
"""Calls that are begun before everybody else on the event loop has a turn."""
POLICY_VIOLATION = 1008
PING_S = 20.0
"""How often either side looks whether the other one is there still: a small frame a connection, however many calls."""
PONG_S = PING_S / 2
"""How long the other side may take to answer; to the client's library it is always half of the above.

An event loop that is busy so long is taken for dead; whoever waits for a dead one waits 30 s at most. It costs little
to be wrong: a call with an id that is sent again joins the one that goes on, or continues the generation that was cut.
"""
UVICORN_OPTIONS: dict[str, Any] = {
    "ws": "participants.channels.socket:ChannelSocket",
    "ws_max_size": MAX_FRAME_BYTES,
    "ws_ping_interval": PING_S,
    "ws_ping_timeout": PONG_S,
    "ws_per_message_deflate": False,
}
"""For `uvicorn.Config`, wherever an app with a channel is served."""

log = logging.getLogger("midflight.channels")


def workers_route(role: str, urls: Sequence[str]) -> Route:
    """The route that tells clients of ours where each worker is reached; the position is its number."""
    kind, _, name = role.partition(".")
    document = {"kind": kind, "name": name, "workers": list(urls)}

    async def workers(_: HttpRequest) -> Response:
        return Response(orjson.dumps(document), media_type="application/json")

    return Route(WORKERS_PATH, workers, methods=["GET"], include_in_schema=False)


def channel_route(handler: Served) -> WebSocketRoute:
    """The route of an app over which clients of ours make data calls; see the module for how calls end."""
    return WebSocketRoute(CHANNEL_PATH, _Endpoint(handler))


class _Endpoint:
    """An ASGI app of its own, so that no message passes more hands than needed."""

    def __init__(self, handler: Served) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if any(name == b"origin" for name, _ in scope["headers"]):  # Web pages of anywhere have no business here.
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
            return
        await send({"type": "websocket.accept"})
        await _Connection(self._handler, receive, send).run()


class _Connection:
    """One connection of one client."""

    def __init__(self, handler: Served, receive: Receive, send: Send) -> None:
        self._handler = handler
        self._receive = receive
        self._send = send
        self._outbox = Outbox(self._send_message)
        self._ends_with_client = ends_with_client(handler)
        self._calls: dict[int, anyio.CancelScope] = {}
        """Calls whose reply is wanted."""
        self._open = 0
        self._waiting: OrderedDict[int, bytes] = OrderedDict()
        """Calls that begin once others have ended."""
        self._waiting_bytes = 0
        self._fewer = anyio.Event()

    async def run(self) -> None:
        """Serve until the connection is over and its calls have ended."""
        async with anyio.create_task_group() as calls:
            try:
                await self._serve(calls)
            finally:
                self._outbox.close()
                self._waiting.clear()
                for number in list(self._calls):
                    self._give_up(number)

    async def _serve(self, calls: TaskGroup) -> None:
        try:
            async with anyio.create_task_group() as connection:
                connection.start_soon(self._write, connection)
                await self._read(calls)
                connection.cancel_scope.cancel()
        except* MalformedFrame as errors:
            problem = errors.exceptions[0]
            log.warning("%s closes a channel: %s", self._handler.role, problem)
            await self._close(str(problem))

    async def _write(self, connection: TaskGroup) -> None:
        try:
            await self._outbox.run()
        except Exception as error:  # Whatever the web server raises once the client has gone.
            log.debug("a channel of %s broke: %r", self._handler.role, error)
            connection.cancel_scope.cancel()

    async def _close(self, reason: str) -> None:
        try:
            await self._send({"type": "websocket.close", "code": PROTOCOL_ERROR, "reason": reason[:100]})
        except Exception as error:
            log.debug("a channel of %s broke: %r", self._handler.role, error)

    async def _send_message(self, message: bytes) -> None:
        await self._send({"type": "websocket.send", "bytes": message})

    async def _read(self, calls: TaskGroup) -> None:
        """Until the client has gone. Raises MalformedFrame."""
        while (event := await self._receive())["type"] != "websocket.disconnect":
            for number, frame in enumerate(frames_of(_bytes_of(event)), 1):
                await self._take(calls, frame)
                if number % _TURN == 0:
                    await anyio.lowlevel.checkpoint()
            await self._outbox.room()

    async def _take(self, calls: TaskGroup, frame: bytes) -> None:
        call = await _parsed(frame)
        if isinstance(call, Cancel):
            self._give_up(call.number)
            return
        if call.number in self._calls or call.number in self._waiting:
            raise MalformedFrame(f"call {call.number} is being served already")
        if self._open < MAX_OPEN:
            self._begin(calls, call.number, call)
            return
        self._waiting[call.number] = bytes(frame)
        self._waiting_bytes += len(frame) + _WAITS_BYTES
        while self._waiting_bytes > MAX_WAITING_BYTES:
            self._fewer = anyio.Event()
            await self._fewer.wait()

    def _begin(self, calls: TaskGroup, number: int, call: Call | bytes) -> None:
        self._open += 1
        scope = self._calls[number] = anyio.CancelScope()
        calls.start_soon(self._call, calls, number, call, scope)

    def _waits_no_more(self, frame: bytes) -> None:
        self._waiting_bytes -= len(frame) + _WAITS_BYTES
        if self._waiting_bytes <= MAX_WAITING_BYTES:
            self._fewer.set()

    def _give_up(self, number: int) -> None:
        if (frame := self._waiting.pop(number, None)) is not None:
            self._waits_no_more(frame)
        scope = self._calls.pop(number, None)
        if scope is not None and self._ends_with_client:
            scope.cancel()

    async def _call(self, calls: TaskGroup, number: int, came: Call | bytes, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                call = came if isinstance(came, Call) else await _call_in(came)
                reply = await answered(self._handler, call.route, lambda: self._handle(call))
            if self._calls.get(number) is scope:
                # Still counted while it waits for room, so that whoever gives up now is heard.
                await self._outbox.put(self._framed(call, reply))
                self._calls.pop(number, None)
        finally:
            self._open -= 1
            if self._waiting and self._open < MAX_OPEN:
                number, frame = self._waiting.popitem(last=False)
                self._waits_no_more(frame)
                self._begin(calls, number, frame)

    async def _handle(self, call: Call) -> Reply:
        life, route, call_id = identified(self._handler, call.route, call.life, call.call)
        request = Request(route=route, body=call.body, life=life, call=call_id, headers=passed_on(call.headers))
        reply = await self._handler.handle(request)
        if reply.stream is not None:
            await close_source(reply.stream)
            raise ParticipantError(Code.INVALID_REQUEST, "a stream was asked for over a channel; streams go over HTTP")
        return reply

    def _framed(self, call: Call, reply: Reply) -> bytes:
        try:
            return reply_frame(call.number, reply)
        except ParticipantError as error:
            problem = error
        except TypeError as error:
            problem = ParticipantError(Code.INTERNAL, f"the reply to {call.route} is not JSON: {error}")
        log.error("%s: %s", self._handler.role, problem)
        return reply_frame(call.number, refusal(problem))


def _bytes_of(event: Message) -> bytes:
    return event.get("bytes") or (event.get("text") or "").encode()


async def _parsed(frame: bytes) -> Call | Cancel:
    """What a client sent. Raises MalformedFrame."""
    if len(frame) < PARSE_IN_THREAD_BYTES:
        return read_call(frame)
    return await anyio.to_thread.run_sync(read_call, frame)


async def _call_in(frame: bytes) -> Call:
    """The call in a frame that was looked at before."""
    call = await _parsed(frame)
    assert isinstance(call, Call)
    return call
