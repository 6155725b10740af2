"""The staging routes of a worker, to be mounted in any ASGI server beside its generating ones."""

import hmac
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from store import InvalidName, StoreError

from ..control_http import error_response, malformed, read_body
from ..errors import Code, ParticipantError, from_store
from ..wire import Message
from .begin import Cut
from .helper import Refused, Staged, Stager, Wanted
from .packs import Identity, Key, PromptRef
from .wire import (
    STAGING_PREFIX,
    Begin,
    BeginAnswer,
    Pin,
    PinAnswer,
    Source,
    Stage,
    StageAnswer,
    StagedItem,
    StagedPrefix,
    StageItem,
    StagingStatus,
    Sweep,
    SweepAnswer,
    Unpin,
    UnpinAnswer,
)

M = TypeVar("M", bound=Message)
Answer = Callable[[Request], Awaitable[Message]]


def staging_routes(stager: Stager, token: str | None = None) -> list[Route]:
    """The routes. With a token each needs it as a bearer token; without one they are as open as the worker is."""

    async def stage(message: Stage) -> Message:
        _limit("items", message.items, stager)
        wanted = [Wanted(Identity(item.life, item.call), item.count, item.digest) for item in message.items]
        outcomes = await stager.stage(wanted)
        return StageAnswer(items=tuple(map(_staged_item, message.items, outcomes)))

    async def begin(message: Begin) -> Message:
        prompt = PromptRef(message.prompt_count, message.prompt_digest)
        entry = await stager.begin(cut_of(message, prompt, _identity(message.by)), message.max_tokens)
        ids = tuple(entry.ids) if message.return_ids else None
        source = entry.source
        return BeginAnswer(life=source.life, call=source.call, count=entry.count, digest=entry.digest, ids=ids)

    async def pin(message: Pin) -> Message:
        _limit("keys", message.keys, stager)
        keys = [Key.parse(key) for key in message.keys]
        return PinAnswer(pinned=await stager.store.pin(message.run, message.checkpoint, keys))

    async def unpin(message: Unpin) -> Message:
        return UnpinAnswer(unpinned=await stager.store.unpin(message.run, message.checkpoint))

    async def sweep(message: Sweep) -> Message:
        return SweepAnswer(**asdict(await stager.store.sweep(message.older_than_s)))

    async def status(request: Request) -> Message:
        run = request.query_params.get("run")
        return StagingStatus(
            store=stager.store.url,
            context_length=stager.context_length,
            active=stager.active,
            ended=stager.ended,
            counts=dict(stager.counts),
            pinned=None if run is None else tuple(await stager.store.pinned(run)),
        )

    most = stager.store.limits.max_body_bytes
    posts: dict[str, Answer] = {
        "stage": _reading(Stage, stage, most),
        "begin": _reading(Begin, begin, most),
        "pin": _reading(Pin, pin, most),
        "unpin": _reading(Unpin, unpin, most),
        "sweep": _reading(Sweep, sweep, most),
    }
    found = [Route(f"{STAGING_PREFIX}/{name}", _guarded(token, post), methods=["POST"]) for name, post in posts.items()]
    return [*found, Route(f"{STAGING_PREFIX}/status", _guarded(token, status), methods=["GET"])]


def cut_of(staged: StagedPrefix, prompt: PromptRef, by: Identity | None) -> Cut:
    """What a caller says that it continues. Raises `invalid_request` where it names half of a source."""
    if (staged.life is None) != (staged.call is None):
        raise ParticipantError(Code.INVALID_REQUEST, "the source of a cut is a life and a call, or neither")
    source = None if staged.life is None or staged.call is None else Identity(staged.life, staged.call)
    return Cut(key=staged.key, count=staged.count, digest=staged.digest, prompt=prompt, source=source, by=by)


def _identity(source: Source | None) -> Identity | None:
    return None if source is None else Identity(source.life, source.call)


def _staged_item(item: StageItem, outcome: Staged | Refused) -> StagedItem:
    life, call = item.life, item.call
    if isinstance(outcome, Refused):
        return StagedItem(life=life, call=call, reason=outcome.reason, message=outcome.message)
    key, count, digest = outcome.key, outcome.count, outcome.digest
    return StagedItem(life=life, call=call, key=key, count=count, digest=digest, ended=outcome.ended)


def _limit(what: str, values: Sequence[Any], stager: Stager) -> None:
    most = stager.store.limits.max_items
    if len(values) > most:
        raise ParticipantError(Code.INVALID_REQUEST, f"{len(values)} {what}, where one request takes {most}")


def _reading(kind: type[M], handle: Callable[[M], Awaitable[Message]], most: int) -> Answer:
    """Read the body of a request as its message."""

    async def answer(request: Request) -> Message:
        body = await read_body(request, most)
        try:
            message = kind.model_validate_json(body)
        except ValidationError as error:
            raise malformed(error) from error
        return await handle(message)

    return answer


def _guarded(token: str | None, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    async def guarded(request: Request) -> Response:
        try:
            _authorize(request, token)
            return Response((await answer(request)).model_dump_json(), media_type="application/json")
        except InvalidName as error:
            return error_response(ParticipantError(Code.INVALID_REQUEST, str(error)))
        except StoreError as error:
            return error_response(from_store(error))
        except ParticipantError as error:
            return error_response(error)

    return guarded


def _authorize(request: Request, token: str | None) -> None:
    given = request.headers.get("authorization", "")
    if token is not None and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        raise ParticipantError(Code.UNAUTHORIZED, "the staging token is missing or wrong")
