"""The data plane over HTTP: one ASGI app in front of a participant of any kind.

Identity is the life: the header `x-midflight-life`, or the path prefix `/rollouts/<rollout_id>/<epoch>.<attempt>.<n>`
of clients that cannot set headers. Where both stand they must be equal. A request without a life is served as it
comes while its handler knows no epoch, and refused once it does: nobody could tell whose work it is.

Errors are `{"error": {"code", "message", "hint", "details"}}` with the code in `x-midflight-error`. Text goes out as
text, anything else as JSON, streams as server-sent events, chunk by chunk.
"""

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, runtime_checkable

import anyio
import anyio.to_thread
import orjson
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from store import InvalidName, Life

from .containment import own_task
from .control_http import announced
from .data import CALL_HEADER, LIFE_HEADER, CallId, Reply, Request, error_reply
from .errors import Code, ParticipantError
from .peer import ERROR_HEADER, EVENT_STREAM, Handler

MAX_BODY_BYTES = 256 * 2**20
PARSE_IN_THREAD_BYTES = 256 * 2**10
"""Larger bodies are parsed in a worker thread."""
CLOSE_TIMEOUT_S = 10.0
"""For ending the source of a stream."""
HEALTH_ROUTES = ("/", "/health", "/healthz", "/livez", "/readyz")

_PREFIX = re.compile(r"/rollouts/([^/]+)/(\d+)\.(\d+)\.(\d+)(/.*)")
_NOT_PASSED_ON = frozenset(
    {LIFE_HEADER, CALL_HEADER, "host", "connection", "content-length", "content-type", "transfer-encoding", "accept",
     "accept-encoding", "authorization", "user-agent"}
)  # fmt: skip
_NOT_SENT = frozenset({"content-length", "content-type", "transfer-encoding", "connection"})
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""In a header these would end it, and begin another (RFC 9110, 5.5)."""

log = logging.getLogger("midflight.data")


@runtime_checkable
class EndsWithClient(Protocol):
    """A participant whose calls may be given up when their client has gone, because nothing is lost with them."""

    ends_with_client: bool


class Served(Handler, Protocol):
    """A handler that knows whether it takes part in a run; participants of every kind do."""

    @property
    def epoch(self) -> int:
        """That its control plane knows; 0 for none."""


def data_app(handler: Served) -> Starlette:
    """The app of one participant."""
    ends = ends_with_client(handler)

    async def serve(incoming: HttpRequest) -> Response:
        replies: list[Reply] = []

        async def work() -> None:
            with suppress(ClientDisconnect):
                serving = partial(_serve, handler, incoming, ends=ends)
                replies.append(await answered(handler, incoming.url.path, serving))

        async with anyio.create_task_group() as group:  # The web server cancels the task around it when it stops.
            group.start_soon(work)
        return _respond(replies[0]) if replies else Response(status_code=499)

    async def health(_: HttpRequest) -> Response:
        return _respond(Reply(200, {"status": "ok"}))

    routes = [Route(path, health, methods=["GET"], include_in_schema=False) for path in HEALTH_ROUTES]
    return Starlette(routes=[*routes, Route("/{path:path}", serve, methods=["GET", "POST"])])


async def answered(handler: Served, route: str, serve: Callable[[], Awaitable[Reply]]) -> Reply:
    """The reply, or the error as one; for a task of its own. Raises only where the client has gone."""

    async def served() -> Reply:
        reply = await serve()
        if (name := _unfit(reply.headers)) is not None:
            await close_source(reply.stream)
            raise ParticipantError(
                Code.INTERNAL, f"{handler.role} answered with control characters in the header {name!r:.100}"
            )
        return reply

    try:
        return await own_task(f"{route} at {handler.role}", served)
    except ParticipantError as error:
        return refusal(error)
    except ClientDisconnect:
        raise
    except Exception as error:
        log.exception("%s: %s raised", handler.role, route)
        return refusal(ParticipantError(Code.INTERNAL, f"{handler.role} raised {error!r:.300}"))


async def _serve(handler: Served, incoming: HttpRequest, *, ends: bool) -> Reply:
    headers = incoming.headers
    life, route, call = identified(handler, incoming.scope["path"], headers.get(LIFE_HEADER), headers.get(CALL_HEADER))
    body = None if incoming.method == "GET" else await _body(incoming)
    request = Request(route=route, body=body, life=life, call=call, headers=passed_on(headers))
    if ends:
        return await _while_there(incoming, partial(handler.handle, request))
    return await handler.handle(request)


def ends_with_client(handler: Served) -> bool:
    """Whether calls of this handler end with their clients."""
    return isinstance(handler, EndsWithClient) and handler.ends_with_client


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """What a handler sees of a call's headers: not the envelope, and nothing of the transport's own.

    Raises `invalid_request` for what no header may hold, which a channel would carry.
    """
    passed = {name: value for name, value in headers.items() if name not in _NOT_PASSED_ON}
    if (name := _unfit(passed)) is not None:
        raise ParticipantError(Code.INVALID_REQUEST, f"the header {name!r:.100} has control characters")
    return passed


def _unfit(headers: Mapping[str, str]) -> str | None:
    """The name of a header with control characters, if there is one."""
    return next((name for name, value in headers.items() if _CONTROL.search(name) or _CONTROL.search(value)), None)


async def close_source(stream: AsyncIterator[bytes] | None) -> None:
    """Close the source of a stream, where it can be closed."""
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()


async def _while_there(incoming: HttpRequest, work: Callable[[], Awaitable[Reply]]) -> Reply:
    """Do the work, and give it up when its client goes. Raises ClientDisconnect then."""
    replies: list[Reply] = []
    try:
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                while (await incoming.receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(watch)
            replies.append(await work())
            group.cancel_scope.cancel()
    except BaseExceptionGroup as error:  # Only the work can fail, and its error is the caller's.
        raise error.exceptions[0] from error.exceptions[0].__cause__
    if not replies:
        raise ClientDisconnect
    return replies[0]


def identified(
    handler: Served, path: str, named: str | None, call: str | None
) -> tuple[Life | None, str, CallId | None]:
    """Who makes a call, its route and its id, from the path and what the headers name. Raises `invalid_request`."""
    life, route = _identity(path, named)
    if life is None and handler.epoch:
        raise ParticipantError(
            Code.INVALID_REQUEST,
            f"this server takes part in checkpoints: a controller has adopted it, and the call has no {LIFE_HEADER}",
        )
    if call is not None and life is None:
        raise ParticipantError(Code.INVALID_REQUEST, f"a call with {CALL_HEADER} needs a life")
    return life, route, None if call is None else CallId.parse(call)


def _identity(path: str, named: str | None) -> tuple[Life | None, str]:
    """The life that a request names, and its route without the prefix."""
    match = _PREFIX.fullmatch(path)
    try:
        if match is None:
            return (None if named is None else Life.parse(named)), path
        life = Life.parse(f"{match[1]}/{match[2]}.{match[3]}#{match[4]}")
        if named is not None and Life.parse(named) != life:
            raise ParticipantError(Code.INVALID_REQUEST, f"the path names {life}, and {LIFE_HEADER} {named!r:.200}")
    except InvalidName as error:
        raise ParticipantError(Code.INVALID_REQUEST, str(error)) from error
    return life, match[5]


async def _body(incoming: HttpRequest) -> Any:
    chunks, size = [], 0
    if announced(incoming) > MAX_BODY_BYTES:
        raise ParticipantError(Code.INVALID_REQUEST, f"the body is larger than {MAX_BODY_BYTES} bytes")
    async for chunk in incoming.stream():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise ParticipantError(Code.INVALID_REQUEST, f"the body is larger than {MAX_BODY_BYTES} bytes")
        chunks.append(chunk)
    data = b"".join(chunks) or b"{}"
    try:
        if size > PARSE_IN_THREAD_BYTES:
            return await anyio.to_thread.run_sync(orjson.loads, data)
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ParticipantError(Code.INVALID_REQUEST, f"the body is not JSON: {error}") from error


def refusal(error: ParticipantError) -> Reply:
    """An error as a reply that nobody takes for anything else."""
    reply = error_reply(error)
    headers = {ERROR_HEADER: error.code.value}
    if error.code is Code.ADMISSION_CLOSED:
        headers["retry-after"] = str(error.details.get("retry_after_s", 1))
    return Reply(reply.status, reply.body, headers)


def _respond(reply: Reply) -> Response:
    headers = {name: value for name, value in reply.headers.items() if name.lower() not in _NOT_SENT}
    if reply.stream is not None:
        return _Streaming(reply.stream, reply.status, headers, media_type=EVENT_STREAM)
    if isinstance(reply.body, str):
        return Response(reply.body, reply.status, headers, media_type="text/plain")
    return Response(orjson.dumps(reply.body), reply.status, headers, media_type="application/json")


class _Streaming(StreamingResponse):
    """Closes the source when it is over, and also when the client has gone, before the first chunk or later."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
                await close_source(self._source)

    def __init__(self, source: AsyncIterator[bytes], *options: Any, **more: Any) -> None:
        self._source = source
        super().__init__(source, *options, **more)
