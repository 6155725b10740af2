"""A streamed generation, watched: what came is the caller's, and every other end is typed.

Rules. While nothing has been received the request is made again, as long as tries may take (`Patience`). Once a byte
is with the caller, nothing is tried again here: a break is `model_failed`, and whoever has the beginning may continue
it. A first token that does not come in time is not asked for again, for that would only add work to a slow server.
Closing the stream, or leaving its block, closes the connection, so that the backend stops.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
import anyio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from .breaks import RETRIED_STATUS, Break, Unreachable, failed, is_event_stream, retry_after_s

T = TypeVar("T")
SHOWN_BYTES = 300
"""Of a body that is no answer, in a message."""
REFUSAL_BYTES = 64 * 1024
"""Read of the body of a 404 at most."""
BROKEN = (aiohttp.ClientError, OSError)
"""What the client raises where a connection fails; TimeoutError is an OSError."""
_BACKOFF = wait_random_exponential(0.1, 10.0)


def _nobody(failure: Unreachable | None) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a call is tried."""

    where: str
    """The base URL, for messages."""
    retry_for_s: float
    told: Callable[[Unreachable | None], None] = _nobody
    """Of each try that has failed, and with None of one that was answered."""

    async def __call__(self, attempt: Callable[[], Awaitable[T]], since: float | None = None) -> T:
        """The result of the first try that is not Unreachable; else `model_failed`.

        A wait is as long as the server asks (Retry-After); one that would end after `retry_for_s` is not begun.
        `since` is when the call began, on anyio's clock; else now.
        """
        began = anyio.current_time() if since is None else since
        tries = AsyncRetrying(
            retry=retry_if_exception_type(Unreachable),
            wait=_wait,
            stop=lambda state: anyio.current_time() - began + state.upcoming_sleep >= self.retry_for_s,
            sleep=anyio.sleep,
            reraise=True,
        )

        async def once() -> T:
            try:
                result = await attempt()
            except Unreachable as error:
                self.told(error)
                raise
            self.told(None)
            return result

        try:
            return await tries(once)
        except Unreachable as error:
            asked = error.retry_after_s
            wait = "" if asked is None else f"; it asks to wait {asked:g} s, and tries may take {self.retry_for_s:g} s"
            message = f"{self.where} did not answer: {error}{wait}"
            raise failed(
                Break.UNREACHABLE, message, status=error.status, retry_after_s=asked, limit="retry_for_s"
            ) from error


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after_s if isinstance(error, Unreachable) else None
    return max(_BACKOFF(state), asked or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a stream may take; times are seconds, sizes bytes."""

    first_token_timeout_s: float
    idle_timeout_s: float
    max_stream_bytes: int
    timeout_s: float


class WatchedStream:
    """The bytes of one streamed reply; `participants.upstream.Chunks`."""

    def __init__(
        self,
        request: Callable[[], Awaitable[aiohttp.ClientResponse]],
        patience: Patience,
        watch: Watch,
        most_events: int | None,
        missing: Callable[[bytes], bytes],
    ) -> None:
        """`request` makes the call; it is awaited once a try. `missing` makes the body of a 404 from the server's."""
        self._request, self._patience, self._watch, self._most_events = request, patience, watch, most_events
        self._missing, self._instead = missing, b""
        self._response: aiohttp.ClientResponse | None = None
        self._scope = anyio.CancelScope()
        self._closed = self._ended = False
        self._events = 0
        self._began = self._asked_at = 0.0
        self.received_bytes = 0
        self.status = 0

    async def __aenter__(self) -> "WatchedStream":
        self._began = anyio.current_time()
        self._response = await self._patience(self._open)
        self.status = self._response.status
        if self.status == 404:
            self._instead = self._missing(await self._refusal())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._drop()

    def __aiter__(self) -> "WatchedStream":
        return self

    async def __anext__(self) -> bytes:
        if self._instead:
            said, self._instead, self._ended = self._instead, b"", True
            return said
        if self._ended:
            raise StopAsyncIteration
        if self._closed:
            raise self._is_closed()
        nothing_yet = not self.received_bytes and self.status == 200
        with anyio.move_on_after(None if nothing_yet else self._watch.idle_timeout_s) as self._scope:
            chunk = await (self._patience(self._first, self._began) if nothing_yet else self._next())
            if not chunk:
                self._ended = True
                raise StopAsyncIteration
            self._count(chunk)
            return chunk
        if self._closed:
            raise self._is_closed()
        raise self._late(Break.IDLE_TIMEOUT, "idle_timeout_s", self._watch.idle_timeout_s)

    def close(self) -> None:
        """End the generation now: the connection is closed, and whoever waits for a chunk is told."""
        self._closed = True
        self._scope.cancel()
        self._drop()

    async def _open(self) -> aiohttp.ClientResponse:
        """One try: a response whose body has not begun to be read."""
        if self._closed:
            raise self._is_closed()
        self._asked_at = anyio.current_time()
        with anyio.move_on_after(self._watch.first_token_timeout_s):
            try:
                response = await self._request()
                if response.status in RETRIED_STATUS or not self._is_stream(response):
                    await self._refuse(response)
            except BROKEN as error:
                raise Unreachable(repr(error)) from error
            return response
        raise self._late(Break.FIRST_TOKEN_TIMEOUT, "first_token_timeout_s", self._watch.first_token_timeout_s)

    @staticmethod
    def _is_stream(response: aiohttp.ClientResponse) -> bool:
        return response.status != 200 or is_event_stream(response.headers.get("content-type"))

    async def _refuse(self, response: aiohttp.ClientResponse) -> None:
        try:
            shown = (await response.content.read(SHOWN_BYTES)).decode(errors="replace")
        finally:
            response.close()
        where = self._patience.where
        if response.status not in RETRIED_STATUS:
            kind = response.headers.get("content-type")
            message = f"{where} was asked for a stream of events and sent {kind}: {shown}"
            raise failed(Break.NOT_A_STREAM, message, status=response.status)
        raise unreachable(response, shown)

    async def _first(self) -> bytes:
        """One try for the first bytes; it asks again where the try before has failed."""
        if self._response is None:
            self._response = await self._open()
        if self._response.status != 200:  # Told 200 before: it cannot be taken back.
            status = self._response.status
            raise failed(Break.UNREACHABLE, f"{self._patience.where} answered {status} when asked again", status=status)
        left = self._asked_at + self._watch.first_token_timeout_s - anyio.current_time()
        with anyio.move_on_after(max(left, 0.0)):
            try:
                chunk = await self._response.content.readany()
            except BROKEN as error:
                self._drop()
                raise Unreachable(repr(error)) from error
            if not chunk:
                self._drop()
                raise Unreachable("a stream without anything in it")
            return chunk
        raise self._late(Break.FIRST_TOKEN_TIMEOUT, "first_token_timeout_s", self._watch.first_token_timeout_s)

    async def _refusal(self) -> bytes:
        """The beginning of the body of a refusal, empty where it breaks off."""
        assert self._response is not None  # just opened
        with anyio.move_on_after(self._watch.idle_timeout_s):
            try:
                return await self._response.content.read(REFUSAL_BYTES)
            except BROKEN:
                pass
        return b""

    async def _next(self) -> bytes:
        assert self._response is not None  # set on entering; dropped only where nothing is received or it is closed
        try:
            return await self._response.content.readany()
        except TimeoutError as error:
            raise self._late(Break.TIMEOUT, "timeout_s", self._watch.timeout_s) from error
        except BROKEN as error:
            where, came = self._patience.where, self.received_bytes
            message = f"the stream of {where} broke off after {came} bytes: {error!r}"
            raise failed(Break.BROKE_OFF, message, received_bytes=came) from error

    def _count(self, chunk: bytes) -> None:
        self.received_bytes += len(chunk)
        self._events += chunk.count(b"data:")
        if self.received_bytes > self._watch.max_stream_bytes:
            raise self._too_long("max_stream_bytes", f"{self._watch.max_stream_bytes} bytes")
        if self._most_events is not None and self._events > self._most_events:
            raise self._too_long("max_tokens", f"{self._most_events} events, for the tokens that were asked for")

    def _too_long(self, limit: str, what: str) -> Exception:
        self._drop()
        message = f"the stream of {self._patience.where} does not end: more than {what}"
        return failed(Break.TOO_LONG, message, limit=limit, received_bytes=self.received_bytes)

    def _late(self, reason: Break, limit: str, seconds: float) -> Exception:
        self._drop()
        message = f"{self._patience.where} was silent or not done for {seconds:g} s ({limit})"
        return failed(reason, message, limit=limit, received_bytes=self.received_bytes)

    def _is_closed(self) -> Exception:
        message = f"the stream of {self._patience.where} was closed"
        return failed(Break.CLOSED, message, received_bytes=self.received_bytes)

    def _drop(self) -> None:
        """Let go of the connection; one that has more to say is closed."""
        response, self._response = self._response, None
        if response is not None and self._ended:
            response.release()
        elif response is not None:
            response.close()


def unreachable(response: aiohttp.ClientResponse, shown: str) -> Unreachable:
    """A status that may pass, with what the server asks for."""
    wait = retry_after_s(response.headers.get("retry-after"), response.headers.get("date"))
    return Unreachable(f"status {response.status}: {shown}", status=response.status, retry_after_s=wait)


async def read_whole(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The body, at most so many bytes. Raises `model_failed` past that, and what the client raises."""
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > most:
            response.close()
            message = f"a reply does not end: more than {most} bytes (max_reply_bytes)"
            raise failed(Break.TOO_LONG, message, limit="max_reply_bytes", received_bytes=size)
    return b"".join(parts)
