"""The control plane over HTTP: one small app, to be mounted under `/checkpoint/v1` in any ASGI server.

Off unless it is mounted. Every route needs the bearer token, compared in constant time; a wrong one changes nothing and
learns nothing. `openapi.json` describes the routes and needs the token too. The header `traceparent` (W3C Trace
Context) says inside which span of the caller an operation is carried out; where nothing records it is ignored.
"""

import hmac
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import anyio.to_thread
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from .errors import CODES_BY_STATUS, Code, ParticipantError
from .plane import MAX_REPORTED_BLOCKERS, ControlPlane
from .telemetry import HEADER as TRACE_HEADER
from .telemetry import continuing
from .telemetry.operations import operated
from .wire import OPERATIONS, RESULTS, Beat, Began, Capabilities, Finished, Results, Status

CONTROL_PREFIX = "/checkpoint/v1"
LINES = "application/x-ndjson"
MAX_BODY_BYTES = 256 * 1024 * 1024
"""For episodes with long rows, of which a controller may submit thousands at once."""
LARGE_BODY_BYTES = 256 * 1024
"""From here on a body, such as a scope of very many lives, is parsed beside the event loop, and may have keys twice."""

log = logging.getLogger("midflight.control")

Parsed = TypeVar("Parsed", bound=BaseModel)
Handler = Callable[[Request], Awaitable[Response]]


def control_app(plane: ControlPlane, token: str) -> Starlette:
    """The app of one participant process. Raises ValueError for an empty token."""
    if not token:
        raise ValueError("the control plane needs a token: an empty one would let anybody in")

    async def capabilities(request: Request) -> Response:
        return _json(plane.capabilities())

    async def status(request: Request) -> Response:
        return _json(plane.status(_blockers(request)))

    async def openapi(request: Request) -> Response:
        return JSONResponse(describe())

    handlers = {"capabilities": capabilities, "status": status, "openapi.json": openapi}
    routes = [Route(f"/{name}", guarded(token, handler), methods=["GET"]) for name, handler in handlers.items()]
    for name, (message, _) in OPERATIONS.items():
        operation = _operation(plane, name, message)
        routes.append(Route(f"/{name}", guarded(token, operation), methods=["POST"]))
    routes.append(Route(f"/{RESULTS}", guarded(token, _streaming(plane)), methods=["POST"]))
    return Starlette(routes=routes)


def _blockers(request: Request) -> int:
    given = request.query_params.get("blockers", str(MAX_REPORTED_BLOCKERS))
    if not (given.isascii() and given.isdigit() and len(given) < 10):
        raise ParticipantError(Code.INVALID_REQUEST, "blockers is a number from 0, of at most 9 digits")
    return int(given)


def guarded(token: str, handler: Handler) -> Handler:
    """A handler that needs the token, and answers errors as JSON."""

    async def serve(request: Request) -> Response:
        try:
            _authorize(request, token)
            return await handler(request)
        except ParticipantError as error:
            return error_response(error)
        except ClientDisconnect:
            return Response(status_code=499)  # Nobody reads it, and nothing is wrong here.
        except Exception as error:
            log.exception("%s raised", request.url.path)
            return error_response(ParticipantError(Code.INTERNAL, f"{error!r:.300}"))

    return serve


def _authorize(request: Request, token: str) -> None:
    given = request.headers.get("authorization", "")
    if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        raise ParticipantError(Code.UNAUTHORIZED, "the control token is missing or wrong")


def _operation(plane: ControlPlane, name: str, message: type[BaseModel]) -> Handler:
    async def operate(request: Request) -> Response:
        with continuing(request.headers.get(TRACE_HEADER)):
            return _json(await operated(plane, name, await _read(message, request)))

    return operate


def _streaming(plane: ControlPlane) -> Handler:
    async def stream(request: Request) -> Response:
        lines = plane.results(await _read(Results, request))  # A refusal comes before the stream.
        return StreamingResponse(_written(lines), media_type=LINES)

    return stream


async def _written(lines: AsyncGenerator[BaseModel]) -> AsyncGenerator[bytes]:
    async with aclosing(lines):
        async for line in lines:
            yield line.model_dump_json().encode() + b"\n"


async def _read(message: type[Parsed], request: Request) -> Parsed:
    body = await read_body(request, MAX_BODY_BYTES)
    try:
        if len(body) >= LARGE_BODY_BYTES:
            return await anyio.to_thread.run_sync(message.model_validate_json, body)
        found = message.model_validate_json(body)
    except ValidationError as error:
        raise malformed(error) from error
    _check_once(body)
    return found


def _check_once(body: bytes) -> None:
    """Refuse a body in which an object has a key twice: the last would win, and others read the first."""

    def once(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) < len(pairs):
            raise ParticipantError(Code.INVALID_REQUEST, "body: an object has a key twice")

    json.loads(body, object_pairs_hook=once)


def malformed(error: ValidationError) -> ParticipantError:
    """What is wrong first with a body, and where, however long the names in it are."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(step) for step in first["loc"]) or "body"
    return ParticipantError(Code.INVALID_REQUEST, f"{where:.200}: {first['msg']:.300}")


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body, refused before it is read where it says that it is too large, else while it streams in."""
    chunks: list[bytes] = []
    size = 0
    if announced(request) > max_bytes:
        raise ParticipantError(Code.INVALID_REQUEST, f"the body has more than {max_bytes} bytes")
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise ParticipantError(Code.INVALID_REQUEST, f"the body has more than {max_bytes} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def announced(request: Request) -> int:
    """How many bytes the body of a request is said to have; 0 where that is not said."""
    said = request.headers.get("content-length", "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 20 else 0


def error_response(error: ParticipantError) -> Response:
    """An error as HTTP; 503 says when to come back."""
    headers = {"retry-after": str(error.details.get("retry_after_s", 1))} if error.status == 503 else {}
    return JSONResponse(error.to_body(), error.status, headers)


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")


def describe() -> dict[str, Any]:
    """The OpenAPI document of the control plane."""
    models = [model for pair in OPERATIONS.values() for model in pair]
    models += [Capabilities, Status, Results, Began, Finished, Beat]
    _, schema = models_json_schema(
        [(model, "validation") for model in dict.fromkeys(models)], ref_template="#/components/schemas/{model}"
    )
    line = {"anyOf": [_ref(model) for model in (Began, Finished, Beat)]}
    posts = {name: _describe_operation(name, message, _ref(answer)) for name, (message, answer) in OPERATIONS.items()}
    posts[RESULTS] = _describe_operation(RESULTS, Results, line, LINES)
    paths: dict[str, Any] = {f"{CONTROL_PREFIX}/{name}": {"post": described} for name, described in posts.items()}
    for name, model in (("capabilities", Capabilities), ("status", Status)):
        paths[f"{CONTROL_PREFIX}/{name}"] = {"get": {"operationId": name, "responses": _responses(_ref(model))}}
    paths[f"{CONTROL_PREFIX}/status"]["get"]["parameters"] = [
        {"name": "blockers", "in": "query", "schema": {"type": "integer", "minimum": 0}}
    ]
    return {
        "openapi": "3.1.0",
        "info": {"title": "midflight control plane", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": schema.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _describe_operation(
    name: str, message: type[BaseModel], answer: dict[str, Any], media: str = "application/json"
) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": (message.__doc__ or "").strip().splitlines()[0],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(message)}}},
        "responses": _responses(answer, media),
    }


def _responses(answer: dict[str, Any], media: str = "application/json") -> dict[str, Any]:
    fine = {"description": "done", "content": {media: {"schema": answer}}}
    errors = {
        str(status): {"description": ", ".join(code.value for code in codes)}
        for status, codes in CODES_BY_STATUS.items()
    }
    return {"200": fine, **errors}


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}
