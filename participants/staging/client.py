"""What a proxy calls of a worker's staging routes. Staging never raises and never waits past its deadline.

A cut that could not be staged has a reason, and its caller keeps the tokens inline or generates anew: a worker that is
gone, slow or of another make does not hold up a checkpoint. Pins raise: a checkpoint that names tokens needs them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import aiohttp
import anyio
import orjson
from pydantic import ValidationError

from store import CheckpointId

from ..data import Reply
from ..errors import Code, ParticipantError
from ..generations import parse
from ..wire import Message
from .helper import Refused, Staged, Wanted
from .limits import DEFAULT_STAGING_LIMITS
from .refusals import Reason, StagingRefused
from .wire import (
    STAGING_PREFIX,
    Begin,
    BeginAnswer,
    Pin,
    PinAnswer,
    Stage,
    StageAnswer,
    StagedItem,
    StageItem,
    StagingStatus,
    Sweep,
    SweepAnswer,
    Unpin,
    UnpinAnswer,
)

M = TypeVar("M", bound=Message)
Post = Callable[[str, Mapping[str, Any]], Awaitable[Reply]]
"""Sends a JSON body to a path of the worker; gives its answer with any status, and raises `ParticipantError` or
`aiohttp.ClientError` where there is none."""
STAGE_ITEMS = 2_048
"""Items of one request: small enough that a deadline loses few of them."""
REQUESTS_IN_FLIGHT = 4
PIN_KEYS = DEFAULT_STAGING_LIMITS.max_items
"""Keys of one request."""


def posting(session: aiohttp.ClientSession, base_url: str, token: str | None = None) -> Post:
    """Post to the worker at `base_url` (with or without `/v1` at its end) through an open session."""
    base = base_url.rstrip("/").removesuffix("/v1")
    headers = {"authorization": f"Bearer {token}"} if token else {}

    async def post(path: str, body: Mapping[str, Any]) -> Reply:
        try:
            async with session.post(base + path, json=dict(body), headers=headers) as response:
                return Reply(response.status, parse(await response.read()))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ParticipantError(Code.MODEL_FAILED, f"the worker did not answer {path}: {error!r}") from error

    return post


async def stage_all(post: Post, items: Sequence[Wanted], deadline_s: float) -> list[Staged | Refused]:
    """Stage these calls on one worker, many a request; one outcome for each, in order. Raises nothing.

    What is not acknowledged after `deadline_s` seconds is refused. Give counts: the tokens that the caller has read.
    Then a repeat means the same cut, and text that is kept beside a key belongs to it.
    """
    late = Refused(Reason.DEADLINE, f"not acknowledged within {deadline_s:g} s")
    outcomes: list[Staged | Refused] = [late] * len(items)
    places = anyio.CapacityLimiter(REQUESTS_IN_FLIGHT)

    async def stage_some(start: int) -> None:
        some = items[start : start + STAGE_ITEMS]
        async with places:
            outcomes[start : start + len(some)] = await _stage(post, some)

    with anyio.move_on_after(deadline_s):
        async with anyio.create_task_group() as tasks:
            for start in range(0, len(items), STAGE_ITEMS):
                tasks.start_soon(stage_some, start)
    return outcomes


async def _stage(post: Post, items: Sequence[Wanted]) -> list[Staged | Refused]:
    asked = Stage(items=tuple(map(_item, items)))
    try:
        answer = await _ask(post, "stage", asked, StageAnswer)
    except ParticipantError as error:
        return [Refused(Reason.UNREACHABLE, str(error))] * len(items)
    if len(answer.items) != len(items):
        problem = f"the worker gave {len(answer.items)} answers to {len(items)} items"
        return [Refused(Reason.UNREACHABLE, problem)] * len(items)
    return [_outcome(each, given) for each, given in zip(items, answer.items, strict=True)]


def _item(asked: Wanted) -> StageItem:
    identity = asked.identity
    return StageItem(life=identity.life, call=identity.call, count=asked.count, digest=asked.digest)


def _outcome(asked: Wanted, given: StagedItem) -> Staged | Refused:
    if (given.life, given.call) != (asked.identity.life, asked.identity.call):
        return Refused(Reason.WRONG_IDENTITY, f"the worker answered for {given.life} {given.call}")
    if given.key is None:
        return Refused(given.reason or Reason.UNREACHABLE, given.message)
    if asked.count not in {None, given.count}:
        return Refused(Reason.WRONG_COUNT, f"{asked.count} tokens were to be staged, and {given.count} were")
    if asked.digest not in {None, given.digest}:
        return Refused(Reason.WRONG_DIGEST, f"the worker staged tokens with the digest {given.digest:.80}")
    return Staged(given.key, given.count, given.digest, given.ended)


async def begin(post: Post, cut: Begin) -> BeginAnswer:
    """Ask whether a cut may be continued. Raises `StagingRefused`; else as `pin_all` does."""
    return await _ask(post, "begin", cut, BeginAnswer)


async def pin_all(post: Post, run: str, checkpoint: CheckpointId, keys: Sequence[str]) -> int:
    """Keep these keys under a checkpoint; how many. Repeating it is safe.

    Raises `StagingRefused` where a key has no tokens any more, `model_failed` where the worker does not answer, and
    whatever else it answers.
    """
    pinned = 0
    for start in range(0, len(keys), PIN_KEYS):
        asked = Pin(run=run, checkpoint=checkpoint, keys=tuple(keys[start : start + PIN_KEYS]))
        pinned += (await _ask(post, "pin", asked, PinAnswer)).pinned
    return pinned


async def unpin(post: Post, run: str, checkpoint: CheckpointId) -> int:
    """The checkpoint was pruned, or never published; how many pins it had. Raises as `pin_all` does."""
    return (await _ask(post, "unpin", Unpin(run=run, checkpoint=checkpoint), UnpinAnswer)).unpinned


async def sweep(post: Post, older_than_s: float | None = None) -> SweepAnswer:
    """Remove what is old and not pinned. Raises as `pin_all` does."""
    return await _ask(post, "sweep", Sweep(older_than_s=older_than_s), SweepAnswer)


async def status(
    session: aiohttp.ClientSession, base_url: str, *, run: str = "", token: str | None = None
) -> StagingStatus:
    """Where a worker stands, and which checkpoints of a run it has pins of. Raises as `pin_all` does."""
    base = base_url.rstrip("/").removesuffix("/v1")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    query = {"run": run} if run else {}
    try:
        async with session.get(f"{base}{STAGING_PREFIX}/status", params=query, headers=headers) as response:
            reply = Reply(response.status, parse(await response.read()))
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ParticipantError(Code.MODEL_FAILED, f"the worker did not answer its status: {error!r}") from error
    return _answer(reply, StagingStatus)


async def _ask(post: Post, name: str, message: Message, answer: type[M]) -> M:
    body = message.model_dump(mode="json", exclude_none=True)
    try:
        reply = await post(f"{STAGING_PREFIX}/{name}", body)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ParticipantError(Code.MODEL_FAILED, f"the worker did not answer {name}: {error!r}") from error
    return _answer(reply, answer)


def _answer(reply: Reply, kind: type[M]) -> M:
    if not reply.ok:
        raise _refusal(reply)
    try:
        return kind.model_validate_json(orjson.dumps(reply.body))
    except ValidationError as error:
        problem = f"the worker's answer is not of its staging routes: {reply.body!r:.200}"
        raise ParticipantError(Code.MODEL_FAILED, problem) from error


def _refusal(reply: Reply) -> ParticipantError:
    error = ParticipantError.from_body(reply.status, reply.body)
    reason = error.details.get("reason")
    if error.code is Code.INVALID_REQUEST and reason in set(Reason):
        return StagingRefused(Reason(reason), error.message)
    if error.code is Code.INTERNAL:
        return ParticipantError(Code.MODEL_FAILED, f"the worker has no staging routes, or they failed: {error.message}")
    return error
