"""Where the policy model's generations come from: one interface, and any OpenAI-compatible endpoint behind it.

aiohttp is the client here because thousands of calls are held open at once: it stays linear in their number, which
httpx does not (bench/README).
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from typing import Any, Protocol, Self, runtime_checkable

import aiohttp
import anyio
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from store import Life

from .data import LIFE_HEADER, Reply
from .errors import Code, ParticipantError
from .generations import checked, parse

RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


class Upstream(Protocol):
    """An inference backend."""

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        """One whole generation, not streamed. Raises `model_failed` where the backend does not come back."""

    def stream(
        self, route: str, body: Mapping[str, Any], life: Life | None = None
    ) -> AbstractAsyncContextManager["Chunks"]:
        """One streamed generation."""


@runtime_checkable
class ListsModels(Protocol):
    """A backend that also says what it serves."""

    async def models(self) -> Reply:
        """As `GET /v1/models`."""


class Chunks(Protocol):
    """Server-sent events as bytes, and the status they came with."""

    status: int

    def __aiter__(self) -> "Chunks":
        """Itself."""

    async def __anext__(self) -> bytes:
        """The next bytes. Raises `model_failed` where the stream breaks off."""

    def close(self) -> None:
        """End the generation now; nothing more comes."""


class _Unreachable(Exception):
    """Internal: worth another try."""


class OpenAIEndpoint:
    """Any OpenAI-compatible server, at a base URL that ends in `/v1`."""

    def __init__(
        self, base_url: str, *, api_key: str | None = None, retry_for_s: float = 120.0, timeout_s: float = 3600.0
    ) -> None:
        """`api_key` comes from the environment of the caller and is kept in memory alone."""
        self._base = base_url.rstrip("/").removesuffix("/v1")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._retry_for_s = retry_for_s
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=30.0)
        self._stack = AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"<OpenAIEndpoint {self._base}/v1>"

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0)
        session = aiohttp.ClientSession(connector=connector, timeout=self._timeout, headers=self._headers)
        self._session = await self._stack.enter_async_context(session)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        """One whole generation; transient failures are retried for `retry_for_s`."""
        tries = AsyncRetrying(
            retry=retry_if_exception_type(_Unreachable),
            wait=wait_random_exponential(0.1, 10.0),
            stop=stop_after_delay(self._retry_for_s),
            sleep=anyio.sleep,
            reraise=True,
        )
        try:
            return await tries(self._once, route, body, life)
        except _Unreachable as error:
            raise ParticipantError(Code.MODEL_FAILED, f"{self._base} did not answer: {error}") from error

    async def _once(self, route: str, body: Mapping[str, Any], life: Life | None) -> Reply:
        try:
            async with self._open().post(self._base + route, json=dict(body), headers=_identity(life)) as response:
                data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _Unreachable(repr(error)) from error
        if response.status in RETRIED_STATUS:
            raise _Unreachable(f"status {response.status}: {data[:200].decode(errors='replace')}")
        return checked(route, Reply(response.status, parse(data)))

    def stream(
        self, route: str, body: Mapping[str, Any], life: Life | None = None
    ) -> AbstractAsyncContextManager[Chunks]:
        """One streamed generation; not retried."""
        return _Stream(self._open().post(self._base + route, json=dict(body), headers=_identity(life)))

    async def models(self) -> Reply:
        """What the endpoint serves."""
        with _translating():
            async with self._open().get(f"{self._base}/v1/models") as response:
                return Reply(response.status, parse(await response.read()))

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the endpoint is used outside its context")
        return self._session


class _Stream:
    """A response whose body is read as it comes."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self.status = 0

    async def __aenter__(self) -> "_Stream":
        with _translating():
            self._response: aiohttp.ClientResponse = await self._request.__aenter__()
        self.status = self._response.status
        self._chunks = self._response.content.iter_any().__aiter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._request.__aexit__(*exc)

    def __aiter__(self) -> "_Stream":
        return self

    async def __anext__(self) -> bytes:
        with _translating():
            chunk: bytes = await self._chunks.__anext__()
            return chunk

    def close(self) -> None:
        """Closes the connection, so that the backend stops generating."""
        self._response.close()


@contextmanager
def _translating() -> Iterator[None]:
    """The one seam where the client's errors become ours."""
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ParticipantError(Code.MODEL_FAILED, f"the backend did not answer, or broke off: {error!r}") from error


def _identity(life: Life | None) -> dict[str, str]:
    """Lets a backend that records its calls say for whom they were."""
    return {LIFE_HEADER: str(life)} if life else {}
