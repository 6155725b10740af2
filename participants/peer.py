"""Participants as their callers see them: in this process (`LocalPeer`) or behind HTTP (`HttpPeer`).

Both raise a ParticipantError of the other side again. A call that has an id may be sent again after a broken
connection: the other side carries it out once, whatever happens to sockets.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

import anyio
import httpx
import orjson

from .data import CALL_HEADER, LIFE_HEADER, Reply, Request
from .errors import Code, ParticipantError

ERROR_HEADER = "x-midflight-error"
"""On error replies, with the code: tells midflight's errors from bodies that happen to look like one."""
EVENT_STREAM = "text/event-stream"
MAX_TRIES = 4
BACKOFF_S = 0.1
"""Before the second try; doubled each time."""


class Handler(Protocol):
    """What serves data calls: a participant of any kind."""

    @property
    def role(self) -> str:
        """`<kind>.<name>`."""

    async def handle(self, request: Request) -> Reply:
        """Serve one data call. Raises ParticipantError."""


class LocalPeer:
    """A participant in this process."""

    def __init__(self, holder: Handler) -> None:
        """Bodies are handed over as they are: neither side may change one."""
        self._holder = holder

    def __repr__(self) -> str:
        return f"<LocalPeer {self.role}>"

    @property
    def role(self) -> str:
        """`<kind>.<name>`."""
        return self._holder.role

    async def call(self, request: Request) -> Reply:
        """Make one call."""
        return await self._holder.handle(request)


def unreachable(role: str, url: str, why: object) -> ParticipantError:
    """Nobody answers there, or the answer did not come through."""
    return ParticipantError(Code.UNREACHABLE, f"{role} at {url} cannot be reached: {why!r}")


class HttpPeer:
    """A participant behind `participants.data_http`."""

    def __init__(self, url: str, role: str, client: httpx.AsyncClient) -> None:
        """`client` is the caller's, with its timeouts and limits."""
        self._url = url.rstrip("/")
        self._role = role
        self._client = client

    def __repr__(self) -> str:
        return f"<HttpPeer {self._role} at {self._url}>"

    @property
    def role(self) -> str:
        """`<kind>.<name>`."""
        return self._role

    async def call(self, request: Request) -> Reply:
        """Make one call, again after a broken connection if it has an id."""
        outgoing = self._client.build_request(
            "POST", self._url + request.route, content=orjson.dumps(request.body), headers=_headers(request)
        )
        tries = MAX_TRIES if request.call is not None else 1
        while True:
            tries -= 1
            try:
                return await self._send(outgoing)
            except (httpx.ReadTimeout, httpx.WriteTimeout, httpx.PoolTimeout) as error:
                raise ParticipantError(Code.DEADLINE_EXCEEDED, f"{self._role} took too long: {error!r}") from error
            except httpx.TransportError as error:
                if tries == 0:
                    raise unreachable(self._role, self._url, error) from error
            await anyio.sleep(BACKOFF_S * 2 ** (MAX_TRIES - 1 - tries))

    async def _send(self, outgoing: httpx.Request) -> Reply:
        response = await self._client.send(outgoing, stream=True)
        content_type = response.headers.get("content-type", "")
        if response.is_success and content_type.startswith(EVENT_STREAM):
            return Reply(response.status_code, None, dict(response.headers), _events(response))
        try:
            content = await response.aread()
        finally:
            await response.aclose()
        body = _parse(content, content_type)
        if ERROR_HEADER in response.headers:
            raise ParticipantError.from_body(response.status_code, body)
        return Reply(response.status_code, body, dict(response.headers))


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_bytes():
            yield chunk
    finally:
        await response.aclose()


def _headers(request: Request) -> dict[str, str]:
    headers: Mapping[str, str] = {**request.headers, "content-type": "application/json"}
    own = {LIFE_HEADER: request.life, CALL_HEADER: request.call}
    return {**headers, **{name: str(value) for name, value in own.items() if value is not None}}


def _parse(content: bytes, content_type: str) -> Any:
    """JSON where it is said to be and is; else text."""
    if content_type.startswith("application/json"):
        try:
            return orjson.loads(content)
        except orjson.JSONDecodeError:
            pass
    return content.decode(errors="replace")
