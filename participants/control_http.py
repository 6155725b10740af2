"""The control plane over HTTP: one small app, to be mounted under `/checkpoint/v1` in any ASGI server.

Off unless it is mounted. Every route needs the bearer token, compared in constant time; a wrong one changes nothing and
learns nothing. `openapi.json` describes the routes and needs the token too.
"""

import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio.to_thread
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .errors import CODES_BY_STATUS, Code, ParticipantError
from .plane import ControlPlane
from .wire import OPERATIONS, Capabilities, Status

CONTROL_PREFIX = "/checkpoint/v1"
MAX_BODY_BYTES = 64 * 1024 * 1024
LARGE_BODY_BYTES = 256 * 1024
"""From here on a body, such as a scope of very many lives, is parsed beside the event loop."""

log = logging.getLogger("midflight.control")

Handler = Callable[[Request], Awaitable[Response]]


def control_app(plane: ControlPlane, token: str) -> Starlette:
    """The app of one participant process. Raises ValueError for an empty token."""
    if not token:
        raise ValueError("the control plane needs a token: an empty one would let anybody in")

    async def capabilities(request: Request) -> Response:
        return _json(plane.capabilities())

    async def status(request: Request) -> Response:
        return _json(plane.status())

    async def openapi(request: Request) -> Response:
        return JSONResponse(describe())

    handlers = {"capabilities": capabilities, "status": status, "openapi.json": openapi}
    routes = [Route(f"/{name}", guarded(token, handler), methods=["GET"]) for name, handler in handlers.items()]
    for name, (message, _) in OPERATIONS.items():
        operation = _operation(getattr(plane, name), message)
        routes.append(Route(f"/{name}", guarded(token, operation), methods=["POST"]))
    return Starlette(routes=routes)


def guarded(token: str, handler: Handler) -> Handler:
    """A handler that needs the token, and answers errors as JSON."""

    async def serve(request: Request) -> Response:
        try:
            _authorize(request, token)
            return await handler(request)
        except ParticipantError as error:
            return error_response(error)
        except Exception as error:
            log.exception("%s raised", request.url.path)
            return error_response(ParticipantError(Code.INTERNAL, f"{error!r:.300}"))

    return serve


def _authorize(request: Request, token: str) -> None:
    given = request.headers.get("authorization", "")
    if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        raise ParticipantError(Code.UNAUTHORIZED, "the control token is missing or wrong")


def _operation(call: Callable[[Any], Awaitable[BaseModel]], message: type[BaseModel]) -> Handler:
    async def operate(request: Request) -> Response:
        body = await read_body(request, MAX_BODY_BYTES)
        try:
            parsed = await _parsed(message, body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(step) for step in first["loc"]) or "body"
            raise ParticipantError(Code.INVALID_REQUEST, f"{where}: {first['msg']}") from error
        return _json(await call(parsed))

    return operate


async def _parsed(message: type[BaseModel], body: bytes) -> BaseModel:
    if len(body) < LARGE_BODY_BYTES:
        return message.model_validate_json(body)
    return await anyio.to_thread.run_sync(message.model_validate_json, body)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body, refused while it streams in where it is too large."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise ParticipantError(Code.INVALID_REQUEST, f"the body has more than {max_bytes} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def error_response(error: ParticipantError) -> Response:
    """An error as HTTP; 503 says when to come back."""
    headers = {"retry-after": str(error.details.get("retry_after_s", 1))} if error.status == 503 else {}
    return JSONResponse(error.to_body(), error.status, headers)


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")


def describe() -> dict[str, Any]:
    """The OpenAPI document of the control plane."""
    models = [model for pair in OPERATIONS.values() for model in pair] + [Capabilities, Status]
    _, schema = models_json_schema(
        [(model, "validation") for model in dict.fromkeys(models)], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Any] = {
        f"{CONTROL_PREFIX}/{name}": {"post": _describe_operation(name, message, answer)}
        for name, (message, answer) in OPERATIONS.items()
    }
    for name, model in (("capabilities", Capabilities), ("status", Status)):
        paths[f"{CONTROL_PREFIX}/{name}"] = {"get": {"operationId": name, "responses": _responses(model)}}
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


def _describe_operation(name: str, message: type[BaseModel], answer: type[BaseModel]) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": (message.__doc__ or "").strip().splitlines()[0],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(message)}}},
        "responses": _responses(answer),
    }


def _responses(answer: type[BaseModel]) -> dict[str, Any]:
    fine = {"description": "done", "content": {"application/json": {"schema": _ref(answer)}}}
    errors = {
        str(status): {"description": ", ".join(code.value for code in codes)}
        for status, codes in CODES_BY_STATUS.items()
    }
    return {"200": fine, **errors}


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}
