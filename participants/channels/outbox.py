"""Frames on their way out of one end of a channel: many go in one message, and a slow reader holds the senders back.

Who has a frame puts it in and goes on; one task sends. What has come together meanwhile goes out as one message, so the
cost of a message is shared when there is much to send, and nothing waits when there is little. Once `MAX_WAITING_BYTES`
are in, whoever puts more waits until half of them are out: memory is bounded by that and one frame of each sender.
"""

from collections import deque
from collections.abc import Awaitable, Callable

import anyio

MESSAGE_BYTES = 64 * 1024
"""A message is sent once it has this many; a larger frame is a message of its own."""
MAX_WAITING_BYTES = 4 * 1024 * 1024
_LOW_BYTES = MAX_WAITING_BYTES // 2
"""So that who waits is not woken for each message, to find that others were quicker."""


class Outbox:
    """The frames of one end of one connection."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """`send` sends one message, and waits while the other side does not read."""
        self._send = send
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._some = anyio.Event()
        self._room = anyio.Event()
        self._room.set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Outbox of {len(self._frames)} frames, {self._bytes} bytes>"

    async def put(self, frame: bytes) -> None:
        """Add a frame, once there is room. After the close nothing is added any more."""
        await self.room()
        self.put_now(frame)

    def put_now(self, frame: bytes) -> None:
        """Add a small frame, whether there is room or not."""
        if not self._closed:
            self._frames.append(frame)
            self._bytes += len(frame)
            if self._bytes > MAX_WAITING_BYTES and self._room.is_set():
                self._room = anyio.Event()
            self._some.set()

    async def room(self) -> None:
        """Wait until there is room, or until it is closed."""
        while not self._room.is_set():
            await self._room.wait()

    def close(self) -> None:
        """Nothing is sent any more; nobody waits for room."""
        self._closed = True
        self._frames.clear()
        self._bytes = 0
        self._room.set()
        self._some.set()

    async def run(self) -> None:
        """Send what comes, until it is closed. Raises what `send` raises."""
        while not self._closed:
            if not self._frames:
                self._some = anyio.Event()
                await self._some.wait()
                continue
            await self._send(self._take())

    def _take(self) -> bytes:
        """The next message; makes room."""
        frames, size = [self._frames.popleft()], 0
        size += len(frames[0])
        while self._frames and size + len(self._frames[0]) <= MESSAGE_BYTES:
            frames.append(self._frames.popleft())
            size += len(frames[-1])
        self._bytes -= size
        if self._bytes <= _LOW_BYTES:
            self._room.set()
        return frames[0] if len(frames) == 1 else b"\n".join(frames)
