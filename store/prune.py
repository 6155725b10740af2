"""Pruning: plan through the chain, delete what the plan names, say on the chain that it is done.

1. Look: which checkpoints exist, which the policy drops, which ids own leftovers that are dead and old, and which blobs
   the kept checkpoints name.
2. Plan: a deletion entry that names every id of which anything will be deleted. Where the chain has moved since the
   look, look again. From the entry on none of these ids can be published or imported.
3. Delete, for each id: its aggregate manifest first, then the rest below its prefix; then blobs that it wrote and no
   kept checkpoint names.
4. End: an entry that closes the plan. A plan that a crash left open is carried out by the next prune.
5. Sweep what no plan needs to name: `store.litter`.

An id is dead where no live controller can publish it any more (`store.entries.is_open`); leftovers of dead ids are
swept only when they are also old by the store's own clock, because a copy in progress looks the same. A running commit
reuses only blobs that the head names, and the head is always kept, so nothing that it can name is deleted.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial

from .backends.base import ObjectInfo
from .chain import Chain
from .entries import Action, Deletion, DeletionEnd, Entry, Import, Publication, Ref, is_open
from .errors import BackendError, CorruptCheckpoint, StoreError
from .layout import (
    BLOBS_PREFIX,
    CHECKPOINTS_PREFIX,
    CheckpointId,
    aggregate_key,
    parse_blob_key,
    parse_checkpoint_key,
)
from .litter import find_litter, store_clock
from .opened import load_aggregate
from .reader import open_checkpoint, published
from .retention import Candidate, Decision, Retention, decide
from .root import Store
from .tasks import map_bounded

_BATCH = 1000
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Survey:
    """What a prune would do, as of one length of the chain."""

    length: int
    """Chain entries when it was made."""
    decisions: tuple[Decision, ...]
    leftovers: tuple[CheckpointId, ...]
    """Ids without a checkpoint that still own objects, dead and old."""
    doomed: tuple[ObjectInfo, ...]
    """Every object that would be deleted."""

    @property
    def checkpoints(self) -> tuple[CheckpointId, ...]:
        """All ids that the plan names."""
        return (*(d.checkpoint for d in self.decisions if not d.keep), *self.leftovers)

    @property
    def size(self) -> int:
        """Bytes that would be freed."""
        return sum(info.size for info in self.doomed)


@dataclass(slots=True)
class PruneReport:
    """What a prune did."""

    survey: Survey
    resumed: list[int] = field(default_factory=list)
    """Plans of earlier prunes that this one completed."""
    deleted: int = 0
    """Objects."""
    swept: int = 0
    """Temporary files, counters and probes of the dead, which need no plan."""
    failures: list[str] = field(default_factory=list)
    """What could not be deleted; its plan stays open, and the next prune tries again."""


async def survey(store: Store, policy: Retention, chain: Chain | None = None) -> Survey:
    """Look, and change nothing: what `prune` with this policy would do now."""
    chain = chain or await store.chain()
    decisions = decide(await _candidates(store, chain), _head(chain), policy)
    kept = {d.checkpoint for d in decisions if d.keep}
    dropped = {d.checkpoint for d in decisions if not d.keep}
    objects = await _owned_objects(store)
    planned = {checkpoint for plan in chain.state.plans for checkpoint in plan.checkpoints}
    leftovers = await _dead_and_old(store, chain, objects) - planned
    going = dropped | leftovers | planned
    named = await _named_blobs(store, chain, kept) if going else set()
    doomed = [info for owner in sorted(going) for info in objects.get(owner, []) if info.key not in named]
    leftovers &= {owner for owner in leftovers if any(info.key not in named for info in objects[owner])}
    return Survey(len(chain.entries), tuple(decisions), tuple(sorted(leftovers)), tuple(doomed))


async def prune(
    store: Store, policy: Retention, progress: Progress | None = None, *, chain: Chain | None = None
) -> PruneReport:
    """Delete what the policy drops and what dead ids left behind. `chain` is one that was read before, to read on from.

    Raises what reading and appending to the chain raises, and CorruptCheckpoint where a kept checkpoint cannot be read,
    so that its blobs are not known; a failure to delete is reported and not raised.
    """
    chain = await store.chain(chain)
    resumed = [plan.n for plan in chain.state.plans]
    while True:
        found = await _look(store, policy, chain)
        if found is None:
            continue
        report = PruneReport(found, resumed)
        if found.checkpoints and not await _plan(chain, found):
            continue  # The chain moved: look again.
        if resumed and not found.checkpoints:
            await chain.confirm()  # A prune that was killed may have left its plan short of durable.
        await _delete(store, found.doomed, report, progress)
        if not report.failures:
            for plan in chain.state.plans:
                await chain.append(None, _end(plan.n))
        await _sweep(store, chain, report)
        return report


async def _sweep(store: Store, chain: Chain, report: PruneReport) -> None:
    try:
        litter = await find_litter(store, chain)
        if litter:
            await store.backend.delete([info.key for info in litter])
    except StoreError as error:
        report.failures.append(str(error))
    else:
        report.swept = len(litter)


async def _look(store: Store, policy: Retention, chain: Chain) -> Survey | None:
    """A survey; None where what could not be read is what another prune was deleting meanwhile."""
    length = len(chain.entries)
    try:
        return await survey(store, policy, chain)
    except CorruptCheckpoint:
        await chain.refresh()
        if len(chain.entries) == length:
            raise
        return None


async def _plan(chain: Chain, found: Survey) -> bool:
    """Append the plan; False where the chain is longer than it was at the survey."""

    def choose(chain: Chain) -> Action:
        if len(chain.entries) != found.length:
            raise _MovedError
        return Deletion(checkpoints=found.checkpoints)

    try:
        await chain.append(None, choose)
    except _MovedError:
        return False
    return True


class _MovedError(Exception):
    """Internal: the chain moved since the survey."""


def _end(plan: int) -> Callable[[Chain], Action | Entry]:
    """Close the plan, unless another pruner has just closed it."""
    action = DeletionEnd(plan=plan)
    return lambda chain: next((entry for entry in chain.entries if entry.action == action), action)


def _head(chain: Chain) -> CheckpointId | None:
    return chain.state.head.checkpoint if chain.state.head else None


async def _candidates(store: Store, chain: Chain) -> list[Candidate]:
    ordinals: dict[CheckpointId, int] = {}
    imported: set[CheckpointId] = set()
    for entry in chain.entries:
        if isinstance(entry.action, Publication | Import):
            ordinals.setdefault(entry.action.ref.checkpoint, len(ordinals) + 1)
        if isinstance(entry.action, Import):
            imported.add(entry.action.ref.checkpoint)

    async def candidate(ref: Ref) -> Candidate:
        return Candidate(
            checkpoint=ref.checkpoint,
            ordinal=ordinals[ref.checkpoint],
            imported=ref.checkpoint in imported,
            tags=await _tags(store, ref),
        )

    return await map_bounded(candidate, published(chain), store.limits.requests_in_flight)


async def _tags(store: Store, ref: Ref) -> Collection[str] | None:
    try:
        return (await load_aggregate(store, ref)).tags
    except BackendError:
        raise
    except StoreError:
        return None


async def _owned_objects(store: Store) -> dict[CheckpointId, list[ObjectInfo]]:
    """Every object below checkpoints/ and blobs/ by the id that owns it; the aggregate manifest first."""
    owned: dict[CheckpointId, list[ObjectInfo]] = {}
    for info in await store.backend.list(CHECKPOINTS_PREFIX):
        owner = parse_checkpoint_key(info.key)
        if owner is not None:
            objects = owned.setdefault(owner, [])
            objects.insert(0 if info.key == aggregate_key(owner) else len(objects), info)
    for info in await store.backend.list(BLOBS_PREFIX):
        blob = parse_blob_key(info.key)
        if blob is not None:
            owned.setdefault(blob[1], []).append(info)
    return owned


async def _dead_and_old(store: Store, chain: Chain, objects: dict[CheckpointId, list[ObjectInfo]]) -> set[CheckpointId]:
    dead = [c for c in objects if c not in chain.known.refs and not is_open(chain.state, c)]
    if not dead:
        return set()
    now = await store_clock(store, (info.modified_s for owned in objects.values() for info in owned))
    youngest = {c: max(info.modified_s for info in objects[c]) for c in dead}
    return {c for c in dead if now - youngest[c] >= store.limits.sweep_after_s}


async def _named_blobs(store: Store, chain: Chain, kept: Iterable[CheckpointId]) -> set[str]:
    """Keys of all blobs that a kept checkpoint names. Raises CorruptCheckpoint: what cannot be read must not lose
    its blobs.
    """
    load = partial(open_checkpoint, store)
    opened = await map_bounded(load, [chain.known.refs[c] for c in kept], store.limits.requests_in_flight)
    return {ref.key for checkpoint in opened for ref in checkpoint.blobs}


async def _delete(store: Store, doomed: Iterable[ObjectInfo], report: PruneReport, progress: Progress | None) -> None:
    todo = list(doomed)
    for start in range(0, len(todo), _BATCH):
        batch = todo[start : start + _BATCH]
        try:
            await store.backend.delete([info.key for info in batch])
        except StoreError as error:
            report.failures.append(str(error))
            continue
        report.deleted += len(batch)
        if progress is not None:
            progress(len(batch))
