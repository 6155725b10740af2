"""The client's end of one connection: many calls wait on it at once, each for its own reply.

A call that is given up says so to the server. Once the connection is over, every call that still waits is told: whether
it was carried out nobody knows.
"""

from dataclasses import dataclass, field

import aiohttp
import anyio
from anyio.abc import TaskGroup

from ..data import Reply
from .frames import MalformedFrame, cancel_frame, frames_of, numbered, read_reply
from .outbox import Outbox

CLOSE_S = 2.0
"""For the server's answer to a close."""


class Broken(Exception):
    """The connection is over, or there is none; says why."""


@dataclass(slots=True, eq=False)
class _Waiting:
    done: anyio.Event = field(default_factory=anyio.Event)
    reply: Reply | None = None


class Line:
    """One standing connection."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """`run` must be running for as long as it is used."""
        self._socket = socket
        self._outbox = Outbox(socket.send_bytes)
        self._waiting: dict[int, _Waiting] = {}
        self._made = 0
        self._why = ""
        self.over = False
        """Nothing can be asked any more."""

    def __repr__(self) -> str:
        return f"<Line, {len(self._waiting)} calls wait{', over' if self.over else ''}>"

    async def ask(self, rest: bytes) -> Reply:
        """Make a call; `rest` is its frame without the number. Raises Broken."""
        if self.over:
            raise Broken(self._why)
        self._made += 1
        number, waiting = self._made, _Waiting()
        self._waiting[number] = waiting
        try:
            await self._outbox.put(numbered(number, rest))
            await waiting.done.wait()
        except anyio.get_cancelled_exc_class():
            self._outbox.put_now(cancel_frame(number))
            raise
        finally:
            del self._waiting[number]
        if waiting.reply is None:
            raise Broken(self._why)
        return waiting.reply

    async def run(self) -> None:
        """Send and receive until the connection is over."""
        try:
            async with anyio.create_task_group() as ends:
                ends.start_soon(self._write, ends)
                await self._read()
                ends.cancel_scope.cancel()
        finally:
            self._end("it was closed by this side")
            with anyio.move_on_after(CLOSE_S, shield=True):
                await self._socket.close()

    async def _write(self, ends: TaskGroup) -> None:
        try:
            await self._outbox.run()
        except (aiohttp.ClientError, OSError) as error:
            self._end(repr(error))
            ends.cancel_scope.cancel()

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                if message.type is not aiohttp.WSMsgType.BINARY:
                    self._end(f"it sent {message.type.name}, and not a message of bytes")
                    return
                for frame in frames_of(message.data):
                    self._deliver(*read_reply(frame))
            self._end(f"the other side closed it, code {self._socket.close_code}")
        except MalformedFrame as error:
            self._end(str(error))

    def _deliver(self, number: int, reply: Reply) -> None:
        """To whoever waits for it; one who gave up meanwhile does not."""
        waiting = self._waiting.get(number)
        if waiting is not None:
            waiting.reply = reply
            waiting.done.set()

    def _end(self, why: str) -> None:
        if self.over:
            return
        self.over, self._why = True, why
        self._outbox.close()
        for waiting in self._waiting.values():
            waiting.done.set()
