"""The ledgers over HTTP, for trainers: one small app, to be mounted under `/ledger/v1` beside the control plane.

    GET    /<key>/manifest             what the ledger of a capture key holds, as JSON
    GET    /<key>/rows[?version=v]     its rows, as JSON Lines, carried ones first
    GET    /<key>/records              the complete records of its own calls, as JSON Lines
    POST   /<key>/freeze               {"version": "v"}: note where it stands; the receipt
    POST   /<key>/retire               end it; the receipt
    DELETE /<key>                      retire and remove every life of that attempt; the receipts

Every route needs the control token. To retire or delete what is not there is fine, and the receipt says so.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..control_http import guarded, malformed, read_body
from .ledger import Ledger
from .lines import END, Receipt

LEDGER_PREFIX = "/ledger/v1"
MAX_BODY_BYTES = 64 * 1024
MAX_VERSION_CHARS = 200
LINES = "application/x-ndjson"
ByKey = Callable[[str, Request], Awaitable[Response]]


class Freeze(BaseModel):
    """The body of a freeze."""

    model_config = ConfigDict(extra="forbid", strict=True)
    version: str = Field(min_length=1, max_length=MAX_VERSION_CHARS)


def ledger_app(ledger: Ledger, token: str) -> Starlette:
    """The app. Raises ValueError for an empty token."""
    if not token:
        raise ValueError("the ledgers need a token: an empty one would let anybody in")
    routes = _Routes(ledger)
    table: list[tuple[str, str, ByKey]] = [
        ("GET", "/{key}/manifest", routes.manifest),
        ("GET", "/{key}/rows", routes.rows),
        ("GET", "/{key}/records", routes.records),
        ("POST", "/{key}/freeze", routes.freeze),
        ("POST", "/{key}/retire", routes.retire),
        ("DELETE", "/{key}", routes.delete),
    ]
    return Starlette(
        routes=[Route(path, guarded(token, _keyed(serve)), methods=[method]) for method, path, serve in table]
    )


def _keyed(serve: ByKey) -> Callable[[Request], Awaitable[Response]]:
    async def handler(request: Request) -> Response:
        return await serve(request.path_params["key"], request)

    return handler


class _Routes:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def manifest(self, key: str, _: Request) -> Response:
        return _json((await self._ledger.manifest(key)).to_json())

    async def rows(self, key: str, request: Request) -> Response:
        return _lines(await self._ledger.row_lines(key, request.query_params.get("version", "")))

    async def records(self, key: str, _: Request) -> Response:
        return _lines(await self._ledger.record_lines(key))

    async def freeze(self, key: str, request: Request) -> Response:
        try:
            body = Freeze.model_validate_json(await read_body(request, MAX_BODY_BYTES))
        except ValidationError as error:
            raise malformed(error) from error
        return _json((await self._ledger.freeze(key, body.version)).to_json())

    async def retire(self, key: str, _: Request) -> Response:
        lives = await self._ledger.lives(key)
        receipt = await self._ledger.retire(lives[-1]) if lives else Receipt(key, END, found=False)
        return _json(receipt.to_json())

    async def delete(self, key: str, _: Request) -> Response:
        # The newest goes last: as long as there is any, the key names the right one.
        receipts = [await self._ledger.delete(life) for life in await self._ledger.lives(key)]
        return _json({"receipts": [receipt.to_json() for receipt in receipts]})


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


def _lines(lines: list[bytes]) -> Response:
    return Response(b"".join(line + b"\n" for line in lines), media_type=LINES)
