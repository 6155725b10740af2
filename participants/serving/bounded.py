"""uvicorn's HTTP, with bounds on what a client may send, and how slowly, before anybody has looked at its token.

What a request may hold without an answer is bounded elsewhere: bodies by those who read them. Here it is all else:

    a head, a trailer, or what stands between pieces of a body    MAX_HEAD_BYTES, else 431
    from a connection to its first head, and for each head        READ_S, else the connection is closed
    for the rest of a body that has been answered already         the same
    requests that wait for the answer to another one              MAX_WAITING, else the connection is closed
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
READ_S = 60.0
MAX_WAITING = 100
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class BoundedHttp(HttpToolsProtocol):
    """The protocol of one connection."""

    _unused = 0
    """Bytes since a head, a piece of a body or a message was complete."""
    _used = False
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first head must come soon."""
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is expected any more."""
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Refuse what grows without an end."""
        self._used = False
        super().data_received(data)
        self._unused = 0 if self._used else self._unused + len(data)
        if self._unused > MAX_HEAD_BYTES and not self.transport.is_closing():
            if not self._is_answering():
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        """A head has begun."""
        super().on_message_begin()
        self._expect()

    def on_headers_complete(self) -> None:
        """A head is whole; one that came at once may be too large, too."""
        self._used = True
        self._expect_nothing()
        if len(self.pipeline) >= MAX_WAITING:
            self.transport.close()
            raise ValueError("too many requests wait")
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            raise ValueError("the head is too large")  # It becomes 400.
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._used = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of a request is there."""
        self._used = True
        self._expect_nothing()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """What was answered before all of it was there must end soon."""
        super().on_response_complete()
        if self.pipeline and not self.transport.is_closing():
            self.flow.pause_reading()  # Else more would come in than is answered.
        if self.cycle.response_complete and self.cycle.more_body and not self.transport.is_closing():
            self._expect()

    def send_400_response(self, msg: str) -> None:
        """What is no request, behind one that is being answered, has no answer of its own."""
        if not self._is_answering():
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _is_answering(self) -> bool:
        cycle: Any = self.cycle  # None before the first request, which uvicorn's types do not say.
        return cycle is not None and not cycle.response_complete

    def _expect(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(READ_S, self._end)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()
