"""Streamed generations: chunk by chunk to the client while admission is open, read on and held while it is closed.

A stream is whole once the backend has ended it; then it is a reply like any other, kept or held, and what the client
has not had of it is delivered after resume. There is no task: the reader's own turns move it, so a slow reader slows
the backend. Ending a life closes its streams at once, and a reader's next turn is refused.

Nothing that says the end is passed on before the owner has taken note of the whole.

A stream that ends before it is whole, because the backend broke off or the client has gone, leaves its prefix with the
owner: a repeat of the call continues it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from typing import TYPE_CHECKING, Any

from .data import Reply
from .errors import Code, ParticipantError
from .flights import Listening
from .holder import Held

if TYPE_CHECKING:
    from .model import ModelServer
    from .upstream import Chunks

EVENT_STREAM = "text/event-stream"


Over = Callable[[bool], None]
"""Told at the end whether the client has had all of it."""


async def _nothing(reply: Reply) -> Over | None:
    """Set by the owner."""
    return None


async def _untold(error: ParticipantError) -> None:
    """Set by the owner."""


class PassingStream:
    """One generation on its way through; `aclose` it, read to its end or not."""

    def __init__(
        self, server: "ModelServer", held: Held[Any], chunks: "Chunks", listening: Listening, *, kept: bool
    ) -> None:
        """`held` is whose it is; `listening` hears what passes; `kept` says that its call has an id."""
        self._kept = kept
        self._server = server
        self._held = held
        self._chunks = chunks
        self._listening = listening
        self._pending: list[bytes] = []
        self._all: list[bytes] = []
        self._whole: Reply | None = None
        self._aborted = False
        self._over: Over | None = None
        self.on_end: Callable[[Reply], Awaitable[Over | None]] = _nothing
        """Awaited once the backend has ended it, with all of it."""
        self.on_failure: Callable[[ParticipantError], Awaitable[None]] = _untold
        """Awaited where it breaks off, or ends and is no whole generation."""
        self._failed: ParticipantError | None = None
        self.resources = AsyncExitStack()
        """Closed with it."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while self._whole is None and self._failed is None:
            await self._read()
            if self._pending and not self._listening.over and not self._server.gate.closed:
                return self._take()
        if self._pending:
            if self._whole is not None:
                self._server.count_held()
            with self._working(), self._server.holding() if self._kept and self._whole else nullcontext():
                await self._server.gate.wait_open()
            return self._take()
        if self._failed is not None:
            raise self._failed
        await self._close(delivered=True)
        raise StopAsyncIteration

    async def _read(self) -> None:
        try:
            with self._working():
                chunk = await self._listening.hear(self._chunks)
            if chunk is None:
                await self._end()
                return
        except ParticipantError as error:
            if error.code is Code.MODEL_FAILED:
                await self.on_failure(error)
            self._failed = error  # What came before it is delivered first.
            return
        self._pending.append(chunk)
        self._all.append(chunk)

    async def _end(self) -> None:
        text = b"".join(self._all).decode(errors="replace")
        whole = Reply(200, text, {"content-type": EVENT_STREAM})
        self._all.clear()
        self._over = await self.on_end(whole)
        self._whole = whole

    def _take(self) -> bytes:
        taken = b"".join(self._pending)
        self._pending.clear()
        return taken

    def _working(self) -> Any:
        if self._aborted:
            raise ParticipantError(Code.STALE_LIFE, f"{self._held.life} was stopped")
        return self._server.working(self._held)

    def abort(self) -> None:
        """Its life is over: the backend stops, and the reader is refused."""
        self._aborted = True
        self._chunks.close()

    async def aclose(self) -> None:
        """End it, wherever it stands."""
        await self._close(delivered=False)

    async def _close(self, *, delivered: bool) -> None:
        over, self._over = self._over, None
        if over is not None:
            over(delivered)
        await self.resources.aclose()


class _Replay:
    """A kept stream, once more and whole."""

    def __init__(self, text: str) -> None:
        self._left = [text.encode()] if text else []

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()


def replayed(reply: Reply) -> Reply:
    """A kept reply, as the stream that it was."""
    if reply.headers.get("content-type") != EVENT_STREAM:
        return reply
    return Reply(reply.status, None, reply.headers, _Replay(reply.body))
