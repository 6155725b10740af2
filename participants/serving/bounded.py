"""uvicorn's HTTP, with bounds on what a client may send, and how slowly, before anybody has looked at its token.

What a request may hold without an answer is bounded elsewhere: bodies by those who read them. Here it is all else:

    a head, a trailer, or what stands between pieces of a body    MAX_HEAD_BYTES, else 431
    from a connection to its first head, and for each head        READ_S, else the connection is closed
    for each STEADY_BYTES of a body, and for the last             the same, while the server reads
    for the rest of a body that has been answered already         the same, for all of it
    requests that wait for the answer to another one              MAX_WAITING, else the connection is closed
    connections and calls                                         as many as there are descriptors for (`crowd`)
"""

import asyncio
from typing import Any, cast

from starlette.responses import JSONResponse
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..control_http import CONTROL_PREFIX
from ..data_http import HEALTH_ROUTES
from ..errors import Code, ParticipantError
from ..peer import ERROR_HEADER
from .crowd import Crowd

MAX_HEAD_BYTES = 64 * 1024
READ_S = 60.0
STEADY_BYTES = 16 * 1024
"""That a body must come on by in `READ_S`."""
MAX_WAITING = 100
_CONTROL = f"{CONTROL_PREFIX}/".encode()
_HEALTH = frozenset(path.encode() for path in HEALTH_ROUTES)
"""These are answered however many ask."""
_CROWDED = ParticipantError(
    Code.ADMISSION_CLOSED, "so many ask already that this server has no descriptors for more", {"retry_after_s": 1}
)
_COME_AGAIN = JSONResponse(
    _CROWDED.to_body(),
    _CROWDED.status,
    {ERROR_HEADER: _CROWDED.code.value, "retry-after": "1", "connection": "close"},
)
_NO_CHANNEL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class BoundedHttp(HttpToolsProtocol):
    """The protocol of one connection."""

    _unused = 0
    """Bytes since a head, a piece of a body or a message was complete."""
    _used = False
    _deadline: asyncio.TimerHandle | None = None
    _due = 0.0
    """When what is expected must be there; the timer is not made anew each time."""
    _body_bytes = 0
    """Of the piece of a body that must be there then."""

    @property
    def _crowd(self) -> Crowd:
        return cast("Crowd", self.server_state)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first head must come soon."""
        super().connection_made(transport)
        self._crowd.came(self)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is expected any more."""
        self._expect_nothing()
        self._crowd.gone(self)
        super().connection_lost(exc)

    def evict(self) -> None:
        """End at once: others need its place."""
        self.transport.abort()

    def handle_websocket_upgrade(self) -> None:
        """It becomes a channel, if there is room for one."""
        self._expect_nothing()
        if not self._crowd.has_room():
            self.transport.write(_NO_CHANNEL)
            self.transport.close()
            return
        self._crowd.gone(self)
        super().handle_websocket_upgrade()

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
        if self._deadline is None:  # Else it is the first one, which has been expected since the connection was made.
            self._expect()

    def on_headers_complete(self) -> None:
        """A head is whole; one that came at once may be too large, too. Its body must come soon."""
        self._used = True
        self._expect()
        if len(self.pipeline) >= MAX_WAITING:
            self.transport.close()
            raise ValueError("too many requests wait")
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            raise ValueError("the head is too large")  # It becomes 400.
        app = self.app
        if not self._crowd.asks(self) and not self.url.startswith(_CONTROL) and self.url not in _HEALTH:
            self.app = _COME_AGAIN
        try:
            super().on_headers_complete()
        finally:
            self.app = app

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._used = True
        self._body_bytes += len(body)
        if self._body_bytes >= STEADY_BYTES and self._is_answering():
            self._expect()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of a request is there."""
        self._used = True
        self._expect_nothing()
        self._crowd.has_asked(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """What was answered before all of it was there must end soon."""
        super().on_response_complete()
        if not self._is_answering() and not self.transport.is_closing():
            self._crowd.has_answer(self)
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
        self._due, self._body_bytes = self.loop.time() + READ_S, 0
        if self._deadline is None:
            self._deadline = self.loop.call_later(READ_S, self._look)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _look(self) -> None:
        self._deadline = None
        left_s = self._due - self.loop.time()
        if self.flow.read_paused:
            self._expect()
        elif left_s > 0:
            self._deadline = self.loop.call_later(left_s, self._look)
        elif not self.transport.is_closing():
            self.transport.close()
