"""Where the policy model's generations come from: one interface, and any OpenAI-compatible endpoint behind it.

How a backend can fail, and what is tried again, is in `participants.backends.breaks` and `.watched`. aiohttp is the
client here because thousands of calls are held open at once: it stays linear in their number, which httpx does not
(bench/README).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import aiohttp
import orjson

from store import Life

from .backends.breaks import RETRIED_STATUS, Break, Unreachable, failed, most_events, naming_model
from .backends.observing import ids_of, text_of
from .backends.watched import BROKEN, SHOWN_BYTES, Patience, Watch, WatchedStream, read_whole, unreachable
from .data import CALL_HEADER, LIFE_HEADER, CallId, Reply
from .generations import checked, parse
from .reach import watched_socket

T = TypeVar("T")
MIB = 1024 * 1024
CALL_TIMEOUT_S = 60.0
"""Of one call beside the generations, such as `/tokenize`."""
KEEP_IDLE_S = 60.0
"""How long an idle connection is kept: one that is closed holds its port for a minute, and there are some 28,000."""


class Upstream(Protocol):
    """An inference backend."""

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        """One whole generation, not streamed. Raises `model_failed` where the backend does not come back."""

    def stream(
        self, route: str, body: Mapping[str, Any], life: Life | None = None, *, call: CallId | None = None
    ) -> AbstractAsyncContextManager["Chunks"]:
        """One streamed generation; `call` goes on to a worker that stages."""


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
        """The next bytes. Raises `model_failed` where the stream breaks off; what came before is the caller's."""

    def close(self) -> None:
        """End the generation now; nothing more comes."""


class OpenAIEndpoint:
    """Any OpenAI-compatible server, at a base URL that ends in `/v1`."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        retry_for_s: float = 120.0,
        timeout_s: float = 3600.0,
        first_token_timeout_s: float = 900.0,
        idle_timeout_s: float = 300.0,
        max_stream_bytes: int = 1024 * MIB,
        max_reply_bytes: int = 256 * MIB,
    ) -> None:
        """`api_key` comes from the environment of the caller and is kept in memory alone.

        Tries of one call take at most `retry_for_s`, the whole of it `timeout_s`; of a stream, the first bytes at most
        `first_token_timeout_s` and those after them `idle_timeout_s` each.
        """
        self._base = base_url.rstrip("/").removesuffix("/v1")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._patience = Patience(self._base, retry_for_s, self.tried)
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=30.0)
        self._max_reply_bytes = max_reply_bytes
        self._watch = Watch(
            first_token_timeout_s=first_token_timeout_s,
            idle_timeout_s=idle_timeout_s,
            max_stream_bytes=max_stream_bytes,
            timeout_s=timeout_s,
        )
        self._stack = AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"<OpenAIEndpoint {self._base}/v1>"

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_IDLE_S, socket_factory=watched_socket)
        session = aiohttp.ClientSession(connector=connector, timeout=self._timeout, headers=self._headers)
        self._session = await self._stack.enter_async_context(session)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        """One whole generation; transient failures are retried for `retry_for_s`, Retry-After is honoured."""
        return await self._patience(lambda: self._once(route, body, life))

    async def _once(self, route: str, body: Mapping[str, Any], life: Life | None) -> Reply:
        """One try. Raises Unreachable where another one may help."""
        return checked(route, naming_model(await self._tried(route, body, self._timeout, _identity(life)), body))

    async def _tried(
        self, path: str, body: Mapping[str, Any], timeout: aiohttp.ClientTimeout, headers: Mapping[str, str]
    ) -> Reply:
        try:
            posting = self._open().post(self._base + path, json=dict(body), headers=headers, timeout=timeout)
            async with posting as response:
                data = await read_whole(response, self._max_reply_bytes)
        except BROKEN as error:
            raise Unreachable(repr(error)) from error
        if response.status in RETRIED_STATUS:
            raise unreachable(response, data[:SHOWN_BYTES].decode(errors="replace"))
        return Reply(response.status, parse(data))

    def stream(
        self, route: str, body: Mapping[str, Any], life: Life | None = None, *, call: CallId | None = None
    ) -> AbstractAsyncContextManager[Chunks]:
        """One streamed generation; tried again while nothing of it has been received.

        A status that may pass is waited out as `complete` does; any other one is in `status`, with its body as chunks.
        `call` goes on to a worker that stages.
        """
        session, asked, headers = self._open(), dict(body), _identity(life, call)
        return WatchedStream(
            lambda: session.post(self._base + route, json=asked, headers=headers),
            self._patience,
            self._watch,
            most_events(body),
            lambda said: orjson.dumps(naming_model(Reply(404, parse(said)), asked).body),
        )

    def tried(self, failure: Unreachable | None) -> None:
        """Called after each try of a generation: with what it failed, or with None where it was answered.

        For a subclass that tells people what they would otherwise wait for in vain.
        """

    async def models(self) -> Reply:
        """What the endpoint serves."""
        return await self.get("/v1/models")

    async def get(self, path: str) -> Reply:
        """One call of any route, not tried again. Raises `model_failed` where nobody answers."""
        return await self._call("GET", path, None, CALL_TIMEOUT_S)

    async def post(self, path: str, body: Mapping[str, Any], *, timeout_s: float = CALL_TIMEOUT_S) -> Reply:
        """As `get`. A body that is no JSON, such as a stream of events, is text."""
        return await self._call("POST", path, dict(body), timeout_s)

    async def tokenize(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        """The ids of what `POST /tokenize` is asked; tried as a generation is. Raises `model_failed` without any."""
        reply = await self._question("/tokenize", body)
        return _answer(ids_of(reply), "/tokenize", "no ids", reply)

    async def detokenize(self, ids: Sequence[int], model: str = "") -> str:
        """The text of ids, by `POST /detokenize`; tried as a generation is. Raises `model_failed` without any."""
        reply = await self._question("/detokenize", {"tokens": list(ids), **({"model": model} if model else {})})
        return _answer(text_of(reply), "/detokenize", "no text", reply)

    async def _question(self, path: str, body: Mapping[str, Any]) -> Reply:
        """What a generation cannot be continued without, so that it is waited for as long."""
        timeout = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S, connect=30.0)
        return await self._patience(lambda: self._tried(path, body, timeout, {}))

    async def _call(self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float) -> Reply:
        timeout = aiohttp.ClientTimeout(total=timeout_s, connect=30.0)
        with _translating(self._base):
            async with self._open().request(method, self._base + path, json=body, timeout=timeout) as response:
                return Reply(response.status, parse(await read_whole(response, self._max_reply_bytes)))

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the endpoint is used outside its context")
        return self._session


def _answer(found: T | None, path: str, nothing: str, reply: Reply) -> T:
    if found is None:
        message = f"POST {path} answered {reply.status} with {nothing}: {reply.body!r:.200}"
        raise failed(Break.NO_ANSWER, message, status=reply.status)
    return found


@contextmanager
def _translating(where: str) -> Iterator[None]:
    """The errors of a call that is not tried again become ours."""
    try:
        yield
    except BROKEN as error:
        raise failed(Break.UNREACHABLE, f"{where} did not answer, or broke off: {error!r}") from error


def _identity(life: Life | None, call: CallId | None = None) -> dict[str, str]:
    """Lets a backend that records its calls, or stages them, say for whom they were."""
    return ({LIFE_HEADER: str(life)} if life else {}) | ({CALL_HEADER: str(call)} if call else {})
