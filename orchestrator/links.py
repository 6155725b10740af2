"""Links: how coordination reaches the control plane of one participant process, in this process or over HTTP."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from participants import (
    CONTROL_PREFIX,
    OPERATIONS,
    Capabilities,
    Code,
    ControlPlane,
    Finished,
    Message,
    ParticipantError,
    Status,
)
from participants.plane import MAX_REPORTED_BLOCKERS
from participants.reach import timeout_of, transport
from participants.telemetry import HEADER as TRACE_HEADER
from participants.telemetry import traceparent
from participants.telemetry.operations import operated
from participants.wire import BEAT_S, RESULTS, Results

Answer = TypeVar("Answer", bound=BaseModel)

NAMES = {message: name for name, (message, _) in OPERATIONS.items()}
"""Each message's operation."""
_CHUNK_BYTES = 256 * 1024
"""What of a large body is given to a connection at a time."""
SILENCE_S = 4 * BEAT_S
"""After so long without a line, not even a beat, a stream of results is broken."""


class NoAnswer(ConnectionError):
    """Nobody has answered a call over HTTP, or not to the end."""

    def __init__(self, url: str, error: httpx.HTTPError) -> None:
        self.why = _in_words(error)
        """Without the URL."""
        super().__init__(f"{url}: {self.why}")


class Link(Protocol):
    """One participant process."""

    async def capabilities(self) -> Capabilities:
        """What it is."""

    async def status(self, blockers: int = MAX_REPORTED_BLOCKERS) -> Status:
        """Where it stands, with so many of the blockers."""

    def results(self, envelope: Mapping[str, Any], after: int) -> AsyncGenerator[Finished]:
        """What has finished since number `after`, as it comes, until a higher epoch is adopted.

        `envelope` is the fleet's. Raises as `send`, also in between; close it (`contextlib.aclosing`) to stop reading.
        """

    def at(self, url: str) -> "Link":
        """The link to another process of the same server."""

    async def send(self, message: Message, answer: type[Answer]) -> Answer:
        """One control operation. Raises ParticipantError, and ConnectionError where nobody answers."""


class LocalLink:
    """A control plane in this process."""

    def __init__(self, plane: ControlPlane) -> None:
        """The plane must be running."""
        self._plane = plane

    def __repr__(self) -> str:
        c = self._plane.capabilities()
        return f"<LocalLink {c.kind}.{c.name}/{c.process}>"

    async def capabilities(self) -> Capabilities:
        """What it is."""
        return self._plane.capabilities()

    async def status(self, blockers: int = MAX_REPORTED_BLOCKERS) -> Status:
        """Where it stands."""
        return self._plane.status(blockers)

    async def results(self, envelope: Mapping[str, Any], after: int) -> AsyncGenerator[Finished]:
        """What has finished, as it comes."""
        async with aclosing(self._plane.results(Results(**envelope, after=after))) as lines:
            async for line in lines:
                if isinstance(line, Finished):
                    yield line

    def at(self, url: str) -> Link:
        """Nowhere else: what is in this process needs no URL."""
        raise ConnectionError(f"{self!r} is in this process, and {url} is not")

    async def send(self, message: Message, answer: type[Answer]) -> Answer:
        """One control operation."""
        result = await operated(self._plane, NAMES[type(message)], message)
        if not isinstance(result, answer):
            raise TypeError(f"{NAMES[type(message)]} does not answer {answer.__name__}")
        return result


class HttpLink:
    """A control plane behind HTTP."""

    def __init__(self, url: str, client: httpx.AsyncClient, names: Mapping[str, str] | None = None) -> None:
        """`url` is the server's root; `client` carries the bearer token (see `http_client`).

        `names` says for URLs, this one and those of other processes, what people are to be told of who is there.
        """
        root = url.rstrip("/")
        self._url = root + CONTROL_PREFIX
        self._client, self._names = client, names or {}
        self._name = self._names.get(root, f"<HttpLink {self._url}>")

    def __repr__(self) -> str:
        return self._name

    async def capabilities(self) -> Capabilities:
        """What it is."""
        return await self._request("GET", "capabilities", (), Capabilities)

    async def status(self, blockers: int = MAX_REPORTED_BLOCKERS) -> Status:
        """Where it stands."""
        return await self._request("GET", f"status?blockers={blockers}", (), Status)

    async def results(self, envelope: Mapping[str, Any], after: int) -> AsyncGenerator[Finished]:
        """What has finished, as it comes. A server that is silent for long counts as gone."""
        message = Results(**envelope, after=after)
        url, timeout = f"{self._url}/{RESULTS}", timeout_of(SILENCE_S)
        try:
            async with self._client.stream("POST", url, content=message.model_dump_json(), timeout=timeout) as response:
                if not response.is_success:
                    await response.aread()
                    raise ParticipantError.from_body(response.status_code, _json(response))
                async for line in response.aiter_lines():
                    if (finished := _parse_line(line)) is not None:
                        yield finished
        except httpx.HTTPError as error:
            raise NoAnswer(url, error) from error

    def at(self, url: str) -> Link:
        """The same client, another server."""
        return HttpLink(url, self._client, self._names)

    async def send(self, message: Message, answer: type[Answer]) -> Answer:
        """One control operation."""
        return await self._request("POST", NAMES[type(message)], message.written(), answer)

    async def _request(self, method: str, operation: str, body: Sequence[bytes], answer: type[Answer]) -> Answer:
        trace = traceparent()
        headers = {TRACE_HEADER: trace} if trace else {}
        size = sum(map(len, body))
        if size > _CHUNK_BYTES:
            headers["content-length"] = str(size)  # Servers refuse what is too large before they read it.
        content = _chunks(body) if size > _CHUNK_BYTES else b"".join(body)
        try:
            response = await self._client.request(method, f"{self._url}/{operation}", content=content, headers=headers)
        except httpx.HTTPError as error:
            raise NoAnswer(f"{self._url}/{operation}", error) from error
        if not response.is_success:
            raise ParticipantError.from_body(response.status_code, _json(response))
        try:
            return answer.model_validate_json(response.content)
        except ValidationError as error:
            raise ParticipantError.from_body(response.status_code, response.text) from error


async def _chunks(body: Sequence[bytes]) -> AsyncIterator[bytes]:
    """Of a large body no call holds more than what is on its way."""
    for piece in body:
        for start in range(0, len(piece), _CHUNK_BYTES):
            yield piece[start : start + _CHUNK_BYTES]


def _in_words(error: httpx.HTTPError) -> str:
    """What went wrong between here and there, for people who do not know the client that says it."""
    match error:
        case httpx.ConnectError():
            return "nobody takes the connection"
        case httpx.ConnectTimeout():
            return "nobody took the connection in time"
        case httpx.TimeoutException():
            return "it took too long"
        case httpx.NetworkError() | httpx.RemoteProtocolError():
            return "the connection broke"
    return str(error) or type(error).__name__


def _parse_line(line: str) -> Finished | None:
    """The result in a line of a stream; None for its beginning and its beats."""
    if not line.startswith('{"n":'):
        return None
    try:
        return Finished.model_validate_json(line)
    except ValidationError as error:
        raise ParticipantError(Code.INTERNAL, f"a line of results that is none: {line!r:.200}") from error


def http_client(token: str) -> httpx.AsyncClient:
    """A client for control calls; their deadlines are the caller's scopes. Raises ValueError for what is no token.

    A host that has gone fails them sooner (see `participants.reach`).
    """
    if not token or " " in token or not (token.isascii() and token.isprintable()):
        raise ValueError("a control token is printable ASCII without spaces")  # Never the token itself.
    headers, limits = {"authorization": f"Bearer {token}"}, httpx.Limits(max_connections=None)
    return httpx.AsyncClient(headers=headers, timeout=timeout_of(), transport=transport(limits))


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except (ValueError, RecursionError):
        return response.text
