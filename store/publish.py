"""The controller's half of a checkpoint: claim an epoch, write the aggregate manifest, publish it on the chain.

Order of a publication: (1) every participant manifest is read back and must be the one its receipt pins, and its index
must agree with the scope; (2) the aggregate manifest, created exclusively; (3) the chain entry. From the entry on the
checkpoint exists.

    crash                  what is left
    before 3               an unfinished checkpoint that no reader sees; pruning sweeps it when it is dead and old
    during 3               the entry, or nothing of it; a later claim decides by its place on the chain
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Literal

import anyio
import anyio.to_thread

from .alive import keep_alive, refuse_if_alive
from .backends.retry import create_once
from .chain import Chain, Decide, find_ref
from .entries import Action, Claim, Entry, Publication, Ref, Seal, Segment, require
from .errors import (
    AccessDenied,
    BackendError,
    CheckpointDeleted,
    ControllerAlive,
    DuplicateRollout,
    Fenced,
    InvalidInput,
    OutcomeUnknown,
    StoreUnavailable,
)
from .externals import check_externals
from .layout import CHECKPOINTS_PREFIX, BlobRef, CheckpointId, Life, aggregate_key, parse_checkpoint_key
from .manifest import AggregateManifest, Dropped, External, ParticipantRef, StateDocument, software_versions
from .opened import lives_by_text, load_frames, load_participant
from .prune import PruneReport, prune
from .retention import Retention
from .root import Store
from .sealed import build, digest_of, seal_within
from .statedoc import StateValue, encode_state
from .tasks import Stage, map_bounded, no_stage
from .values import BlobPlan

Base = Literal["head", "none"] | CheckpointId
_SETTLE_MARGIN_S = 0.05


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a controller says about one checkpoint; may be published again after an unknown outcome."""

    checkpoint: CheckpointId
    parent: CheckpointId | None
    """The head that the participants' commits continued; it must still be the head when this is published."""
    participants: Sequence[ParticipantRef]
    scope: Sequence[Life]
    restarts: Sequence[Life] = ()
    dropped: Mapping[Life, str] = field(default_factory=dict)
    """Life to reason."""
    state: StateValue = None
    externals: Sequence[External] = ()
    output: Sequence[Segment] = ()
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    tags: Sequence[str] = ()
    created_at: str = field(default_factory=_now)


@asynccontextmanager
async def claim(
    store: Store,
    base: Base = "head",
    *,
    take_over: bool = False,
    following: "Controller | None" = None,
    chain: Chain | None = None,
) -> AsyncIterator["Controller"]:
    """Claim the run for the time of the context, in a new epoch that continues from `base`.

    `following` is a claim of one's own that still stands, and that this one takes the place of. `chain` is one that was
    read before, to read on from; it is the controller's from then on.

    Raises ControllerAlive where another controller lives and `take_over` was not asked for, NoCheckpoint and
    CheckpointDeleted for a base that is not there, Fenced where a third one was faster.
    """
    if chain is None and following is not None:
        chain = following.chain()
    chain = await store.chain(chain)
    taken = await _ids_with_objects(store)
    judged = chain.state.epoch
    if not take_over and following is None:
        await refuse_if_alive(store, judged)

    def decide(found: Chain) -> Action:
        if following is not None and found.state.epoch != following.epoch:
            raise Fenced(following.epoch, found.state.epoch)
        if found.state.epoch != judged and not take_over:
            raise ControllerAlive(store.url, f"epoch {found.state.epoch} was claimed just now")
        return Claim(base=_choose_base(store, found, base))

    entry = await chain.append(None, decide)
    async with keep_alive(store, entry.epoch) as beating:
        if following is not None:
            following.beating.cancel()
        yield Controller(store, chain, entry.epoch, taken, beating)


async def _ids_with_objects(store: Store) -> frozenset[CheckpointId]:
    """Ids that a listing shows objects of: a copy that was interrupted has left some, which no new round may meet.

    Only a hint, so that a round does not fail needlessly: whatever it misses ends in a CheckpointConflict.
    """
    try:
        listed = await store.backend.list(CHECKPOINTS_PREFIX)
    except AccessDenied:
        return frozenset()
    return frozenset(found for info in listed if (found := parse_checkpoint_key(info.key)))


def _choose_base(store: Store, chain: Chain, base: Base) -> Ref | None:
    if base == "head":
        return chain.state.head
    return None if base == "none" else require(chain.known, store.url, base)


class Controller:
    """One claim of a run: publishes checkpoints and seals output until a higher epoch fences it."""

    def __init__(
        self,
        store: Store,
        chain: Chain,
        epoch: int,
        taken: Collection[CheckpointId] = (),
        beating: anyio.CancelScope | None = None,
    ) -> None:
        """Made by `claim`; `taken` are ids that no round gets, `beating` says that this controller lives."""
        self._store = store
        self._chain = chain
        self._lock = anyio.Lock()
        self._taken = taken
        self._rounds = 0
        self.beating = beating or anyio.CancelScope()
        self.epoch = epoch

    def __repr__(self) -> str:
        return f"<Controller of epoch {self.epoch}, {self._rounds} rounds, {self._chain!r}>"

    @property
    def head(self) -> Ref | None:
        """The head as last read: the checkpoint that the next one has as its parent."""
        return self._chain.state.head

    def chain(self) -> Chain:
        """The chain as last read, for another task."""
        return self._chain.copy()

    def next_round(self) -> CheckpointId:
        """The id of a new round of this epoch; an id is used once, and none of which objects stood at the claim."""
        self._rounds += 1
        while CheckpointId(self.epoch, self._rounds) in self._taken:
            self._rounds += 1
        return CheckpointId(self.epoch, self._rounds)

    async def publish(self, draft: Draft, *, timeout_s: float, stage: Stage = no_stage) -> Ref:
        """Make the checkpoint exist. Idempotent for one draft. `stage` gives the context for `manifest` and `chain`.

        Raises InvalidInput, DuplicateRollout, CorruptCheckpoint and CheckpointConflict where it must not exist, Fenced
        where a higher epoch stands on the chain, CheckpointDeleted where a plan names it, and OutcomeUnknown at the
        deadline: then publish the same draft again, or let the chain tell.
        """
        check_sets(draft)
        if draft.checkpoint.epoch != self.epoch:
            raise InvalidInput(f"epoch {self.epoch} cannot publish checkpoint {draft.checkpoint}")
        with anyio.move_on_after(timeout_s):
            async with self._lock:
                await self._refuse_early(draft.checkpoint)
                await check_externals(draft.externals, None, self._store.limits)
                with stage("manifest"):
                    ref = await self._write_manifest(draft)
                with stage("chain"):
                    await self._settle(partial(_publication, draft, ref))
                return ref
        raise OutcomeUnknown("publish", aggregate_key(draft.checkpoint), f"{timeout_s:g} s were not enough")

    async def seal(self, segments: Sequence[Segment]) -> None:
        """Fix the lengths of lower epochs' output segments; rows past them do not count. Idempotent. Raises Fenced."""
        async with self._lock:
            await self._chain.append(self.epoch, partial(_sealing, self.epoch, tuple(segments)))

    async def refresh(self) -> None:
        """Read the chain on; raises Fenced where a higher epoch stands on it."""
        async with self._lock:
            await self._chain.refresh()
        if self._chain.state.epoch > self.epoch:
            raise Fenced(self.epoch, self._chain.state.epoch)

    async def prune(self, policy: Retention, *, sweep_after_s: float | None = None) -> PruneReport:
        """As `store.prune`, without reading the chain again from its beginning: it only grows.

        `sweep_after_s` instead of that of the limits. A publication does not wait for it.
        """
        store = self._store
        if sweep_after_s is not None:
            store = replace(store, limits=replace(store.limits, sweep_after_s=sweep_after_s))
        return await prune(store, policy, chain=self.chain())

    async def _refuse_early(self, checkpoint: CheckpointId) -> None:
        """Write nothing for a checkpoint that a plan names, or that a higher epoch keeps from being published."""
        await self._chain.refresh()
        known = self._chain.known
        if checkpoint in known.deleted:
            raise CheckpointDeleted(str(checkpoint), known.deleted[checkpoint])
        if self._chain.state.epoch > self.epoch and checkpoint not in known.refs:
            raise Fenced(self.epoch, self._chain.state.epoch)

    async def _settle(self, decide: Decide) -> Entry:
        """Append, and go on trying until the outcome is known or the caller's deadline is near."""
        unknown: OutcomeUnknown | None = None
        while True:
            try:
                return await self._chain.append(self.epoch, decide)
            except OutcomeUnknown as error:
                unknown = error
            except StoreUnavailable:
                # Nothing was changed by this try, but an earlier one may have been.
                if unknown is None:
                    raise
            except BackendError as error:
                raise (unknown or error) from error.__cause__
            if anyio.current_time() > anyio.current_effective_deadline() - _SETTLE_MARGIN_S:
                raise unknown

    async def _write_manifest(self, draft: Draft) -> Ref:
        await check_participants(self._store, draft)
        state = await self._encode_state(draft)
        manifest = build(
            AggregateManifest,
            run_id=self._store.run_id,
            checkpoint=draft.checkpoint,
            epoch=self.epoch,
            parent=draft.parent,
            participants=tuple(draft.participants),
            scope=tuple(draft.scope),
            restarts=tuple(draft.restarts),
            dropped=tuple(Dropped(life=life, reason=reason) for life, reason in draft.dropped.items()),
            records=sum(ref.records for ref in draft.participants),
            size=sum(ref.bytes for ref in draft.participants),
            state=state,
            externals=tuple(draft.externals),
            output=tuple(draft.output),
            fingerprint=dict(draft.fingerprint),
            tags=tuple(draft.tags),
            created_at=draft.created_at,
            software=software_versions(),
        )
        data = await anyio.to_thread.run_sync(_seal_manifest, manifest, self._store.limits.max_manifest_bytes)
        await create_once(self._store.backend, aggregate_key(draft.checkpoint), data)
        return Ref(checkpoint=draft.checkpoint, digest=digest_of(data), run_id=self._store.run_id)

    async def _encode_state(self, draft: Draft) -> StateDocument | None:
        async def put(outgoing: Mapping[BlobRef, bytes]) -> None:
            for ref, data in outgoing.items():
                await self._store.backend.put(ref.key, data)

        plan = BlobPlan(draft.checkpoint, (), self._store.limits)
        return await encode_state(draft.state, plan, "the controller", put)


def _seal_manifest(manifest: AggregateManifest, max_bytes: int) -> bytes:
    return seal_within(max_bytes, manifest.model_dump(mode="json"))


def _sealing(epoch: int, segments: tuple[Segment, ...], chain: Chain) -> Action | Entry:
    """The seal, unless this epoch has made the same one already."""
    action = Seal(segments=segments)
    return next((entry for entry in chain.entries if entry.epoch == epoch and entry.action == action), action)


def _publication(draft: Draft, ref: Ref, chain: Chain) -> Action | Entry:
    """The publication of `ref`, unless the chain has it already."""
    standing = find_ref(chain, ref)
    if standing is not None and ref.checkpoint in chain.known.refs:
        return standing
    if ref.checkpoint in chain.known.deleted:
        raise CheckpointDeleted(str(ref.checkpoint), chain.known.deleted[ref.checkpoint])
    head = chain.state.head.checkpoint if chain.state.head else None
    if chain.state.epoch == draft.checkpoint.epoch and head != draft.parent:
        raise InvalidInput(f"checkpoint {draft.checkpoint} continues {draft.parent}, and the head is {head}")
    return Publication(ref=ref)


def check_sets(draft: Draft) -> None:
    """Every rollout is in exactly one of the three sets, once, and every participant is named once."""
    seen: set[str] = set()
    for life in (*draft.scope, *draft.restarts, *draft.dropped):
        if life.rollout_id in seen:
            raise DuplicateRollout(life.rollout_id, "in scope, restarts and dropped together")
        seen.add(life.rollout_id)
    names = [ref.process_name for ref in draft.participants]
    if len(set(names)) != len(names):
        raise InvalidInput("a participant's process is named twice", hint="Give one receipt a process")


async def check_participants(store: Store, draft: Draft) -> None:
    """Read back what the receipts pin: it is whole, it is of this round, and its lives are exactly the scope's."""
    scope = {life.rollout_id: life for life in draft.scope}
    known = await anyio.to_thread.run_sync(lives_by_text, draft.scope)

    async def lives(ref: ParticipantRef) -> list[Life]:
        manifest = await load_participant(store, draft.checkpoint, ref, store.run_id)
        if manifest.parent != draft.parent:
            raise InvalidInput(f"{ref.process_name} continued {manifest.parent}, and the draft {draft.parent}")
        return [life for frame in await load_frames(store, manifest, known) for life in frame.lives]

    found = await map_bounded(lives, draft.participants, store.limits.requests_in_flight)
    held: dict[tuple[str, str], set[str]] = {}
    for ref, exported in zip(draft.participants, found, strict=True):
        rollouts, process = held.setdefault((ref.kind, ref.name), set()), str(ref.process_name)
        for life in exported:
            _check_life(life, scope, process)
            if life.rollout_id in rollouts:
                raise DuplicateRollout(life.rollout_id, f"in two processes of {ref.kind}.{ref.name}")
            rollouts.add(life.rollout_id)
    missing = scope.keys() - set().union(*held.values())
    if missing:
        raise InvalidInput(
            f"no participant exported {scope[min(missing)]}, which is in the scope",
            hint="Commit with the round's scope, or list it under restarts or dropped",
        )


def _check_life(life: Life, scope: Mapping[str, Life], process: str) -> None:
    expected = scope.get(life.rollout_id)
    if expected is None:
        raise InvalidInput(
            f"{process} exported {life}, which is not in the scope", hint="Commit with the round's scope"
        )
    if expected is not life and expected != life:
        raise DuplicateRollout(life.rollout_id, f"{process} exported {life}, and the scope has {expected}")
