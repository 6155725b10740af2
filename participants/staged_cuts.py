"""Prefixes that the worker keeps in its own token store: keys in the checkpoint instead of token ids, never both.

A commit stages what is in flight, and pins the keys under its checkpoint before it writes anything. What could not be
staged within the deadline has its ids inline, as without staging: a worker that is gone holds no commit up. Pins of
checkpoints that no longer exist are let go of at the next commit, whoever pruned them.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace

import orjson
from pydantic import ValidationError

from store import CheckpointId, Life

from .backends.probe import Asks
from .cuts import Prefix
from .cuts.prefix import StagedIds
from .data import CallId
from .errors import Code, ParticipantError
from .flights import Flight
from .holder import in_turns
from .staging import Identity, PromptRef, Staged, Wanted, digest_of_ids
from .staging.client import begin, pin_all, stage_all, sweep, unpin
from .staging.wire import STAGING_PREFIX, Begin, Source, StagingStatus

STAGE_TIMEOUT_S = 20.0
"""For staging everything that is in flight at one commit."""
log = logging.getLogger("midflight.model")


@dataclass(slots=True)
class StagedCuts:
    """What one model server has staged at its worker."""

    worker: Asks
    timeout_s: float = STAGE_TIMEOUT_S
    _keys: set[str] = field(default_factory=set)
    """Of the open commit."""
    _pinned: set[CheckpointId] | None = None
    """Checkpoints that have pins; None before the worker was asked."""

    async def freeze(self, flights: Iterable[Flight]) -> None:
        """Stage what these have so far; a flight that could not be staged keeps its ids."""
        self._keys = set()
        cut: list[tuple[Flight, Prefix]] = []
        wanted: list[Wanted] = []
        async for flight in in_turns(flights):
            if (prefix := _stageable(flight)) is not None:
                cut.append((flight, prefix))
                wanted.append(_wanted(flight, prefix))
        outcomes = await stage_all(self.worker.post, wanted, self.timeout_s) if wanted else []
        async for (flight, prefix), outcome in in_turns(zip(cut, outcomes, strict=True)):
            flight.staged = None
            if isinstance(outcome, Staged):
                flight.staged = _without_ids(flight, prefix, outcome)
                self._keys.add(outcome.key)
            else:
                log.info("%s of %s stays inline: %s", flight.request.call, flight.request.life, outcome.message)

    def needs(self, prefixes: Iterable[Prefix]) -> None:
        """The open commit also writes these, which an earlier one has staged."""
        self._keys.update(prefix.staged.key for prefix in prefixes if prefix.staged is not None)

    async def pin(self, run: str, checkpoint: CheckpointId) -> None:
        """Keep the keys of the open commit. Raises `model_failed` or a refusal where that cannot be promised."""
        if self._keys:
            await pin_all(self.worker.post, run, checkpoint, sorted(self._keys))
            if self._pinned is not None:
                self._pinned.add(checkpoint)

    async def release(self, run: str, standing: Collection[CheckpointId], now: CheckpointId) -> None:
        """Let go of what checkpoints before `now` pinned that no longer stand. A failure is logged and tried again."""
        try:
            if self._pinned is None:
                self._pinned = await self._pinned_there(run)
            gone = [each for each in self._pinned if each < now and each not in standing]
            for checkpoint in gone:
                await unpin(self.worker.post, run, checkpoint)
                self._pinned.discard(checkpoint)
            if gone:
                await sweep(self.worker.post)
        except ParticipantError as error:
            log.warning("what the worker keeps for checkpoints that are gone is left for later: %s", error)

    async def _pinned_there(self, run: str) -> set[CheckpointId]:
        reply = await self.worker.get(f"{STAGING_PREFIX}/status?run={run}")
        try:
            return set(StagingStatus.model_validate_json(orjson.dumps(reply.body)).pinned or ())
        except ValidationError as error:
            raise ParticipantError(Code.MODEL_FAILED, f"the worker's status is none: {reply.body!r:.200}") from error

    async def ids_of(self, prefix: Prefix, by: Life, call: CallId | None) -> Prefix:
        """A staged prefix with its ids, checked by the worker. Raises a refusal or `model_failed`."""
        staged = prefix.staged
        assert staged is not None
        if prefix.prompt is None:
            raise ParticipantError(Code.CORRUPT_CHECKPOINT, "a staged prefix has no prompt")
        prompt = PromptRef.of(prefix.prompt)
        source = Life.parse(staged.life)
        asked = Begin(
            key=staged.key,
            count=staged.count,
            digest=staged.digest,
            life=source,
            call=staged.call,
            prompt_count=prompt.count,
            prompt_digest=prompt.digest,
            by=Source(life=by, call=str(call)) if call is not None else None,
            return_ids=True,
        )
        answer = await begin(self.worker.post, asked)
        if answer.ids is None or len(answer.ids) != staged.count or digest_of_ids(answer.ids) != staged.digest:
            raise ParticipantError(Code.MODEL_FAILED, "the worker gave other ids than it has staged")
        return replace(prefix, ids=answer.ids)


def staged_body(body: dict[str, object], prefix: Prefix) -> dict[str, object]:
    """A continuation asked for by key: the prompt alone, and where the rest of it stands."""
    staged = prefix.staged
    if staged is None or prefix.prompt is None:
        return body
    named = asdict(staged)
    without = {key: value for key, value in body.items() if key != "continued_tokens"}
    return {**without, "prompt": list(prefix.prompt), "staged": named}


def _stageable(flight: Flight) -> Prefix | None:
    if flight.uncuttable or flight.request.call is None or flight.request.life is None:
        return None
    prefix = flight.prefix()
    return prefix if prefix is not None and prefix.ids and prefix.prompt is not None else None


def _wanted(flight: Flight, prefix: Prefix) -> Wanted:
    assert flight.request.life is not None
    ids: Sequence[int] = prefix.ids or ()
    return Wanted(Identity(flight.request.life, str(flight.request.call)), len(ids), digest_of_ids(ids))


def _without_ids(flight: Flight, prefix: Prefix, staged: Staged) -> Prefix:
    where = StagedIds(staged.key, staged.count, staged.digest, str(flight.request.life), str(flight.request.call))
    return replace(prefix, ids=None, staged=where)
