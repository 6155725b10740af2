"""Where a start of a run begins: what earlier starts left, and what of it counts.

With checkpoints, in this order: check that it is the same run, and that its rows are there (before claiming, so that a
refusal disturbs nobody); claim an epoch; read the lower segments and fix their lengths with a seal; adopt the epoch
everywhere; let servers that outlived their controller go on with the lives that are whole; restore what the head has of
the others and the output does not. Without them there is no claim and no lock: finished rows are kept, nothing else.

    crash                  what is left
    anywhere before the    a claim whose segment is empty; the next start does the same again
    first dispatch
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from participants import Floor
from participants.fences import position
from store import (
    Chain,
    Checkpoint,
    CheckpointId,
    Controller,
    Life,
    NotAStore,
    Ref,
    RootMissing,
    Seal,
    Segment,
    Store,
    open_checkpoint,
    open_store,
)

from ..adoption import standing
from ..coordination import restore, resume
from ..fleet import adopt
from .base import choose_base, naming_older
from .config import ForeignHead, OtherRun, OutputGone, StoreGone
from .fingerprint import check_accepted, check_same
from .rows import Rollout
from .saved import Totals
from .segments import ROWS_ONLY, Found, Header, Kept, Segments, final_lines, forgiven
from .sorting import sort_out
from .world import World

RESTORE_TIMEOUT_S = 600.0
RETIRE_TIMEOUT_S = 20.0
NOT_IN_DATASET = "the input has no such row any more: it was removed or changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a start was asked for beside the configuration."""

    fresh: bool = False
    base: CheckpointId | None = None
    """The checkpoint to continue from; None for the head."""
    accept: Sequence[str] = ()
    """Fingerprint fields that may differ."""
    retry_failed: bool = False


@dataclass(frozen=True, slots=True)
class Checked:
    """What a start has found before it claims anything."""

    chain: Chain
    """To read on from."""
    begun: bool
    """Whether the output has a segment of this run."""


@dataclass(frozen=True, slots=True)
class Before:
    """What earlier epochs left that counts."""

    lines: list[Kept] = field(default_factory=list)
    adopted: Sequence[Life] = ()
    """Which servers that outlived their controller go on with."""
    retired: Sequence[Life] = ()
    """Which some of them had, and which were not whole."""
    scope: Sequence[Life] = ()
    restarts: Sequence[Life] = ()
    dropped: Mapping[Life, str] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    """As of the head."""


@dataclass(slots=True)
class _Segments:
    """The lower segments, read."""

    header: Header | None = None
    """The newest."""
    lines: list[Kept] = field(default_factory=list)
    lengths: list[Segment] = field(default_factory=list)

    def add(self, epoch: int, found: Found) -> None:
        """The next higher segment."""
        if found.header is not None:
            self.header = found.header
            if found.header.retry_failed:
                self.lines = forgiven(self.lines)
        self.lines.extend(found.lines)
        self.lengths.append(Segment(name=str(epoch), length=found.length))


async def refuse_lost_store(url: str, segments: Segments) -> None:
    """Make no new store where an output has rows that belong to one. Raises StoreGone."""
    if not set(await segments.runs()) - {ROWS_ONLY}:
        return
    try:
        async with open_store(url):
            return
    except (NotAStore, RootMissing) as error:
        raise StoreGone(url, segments.backend.url, "holds no checkpoint store", "start anew") from error


async def check_run(store: Store, segments: Segments, fields: Mapping[str, str], wishes: Wishes) -> Checked:
    """Refuse to continue another run, or one whose rows are gone, before anything is claimed.

    Raises ConfigError, naming what differs or is missing, and DamagedBase.
    """
    sizes = await segments.sizes()
    written = max(sizes, default=0)
    chain = await store.chain()
    if written > chain.state.epoch:
        why = f"is older than it was (epoch {chain.state.epoch} where the output has epoch {written})"
        raise StoreGone(store.url, segments.backend.url, why, "remove this one and start anew")
    if wishes.fresh:
        check_accepted(wishes.accept, fields)
        return Checked(chain, bool(sizes))
    await _check_runs(segments)
    lengths = sealed_lengths(chain)
    header = None
    for epoch in range(chain.state.epoch, 0, -1):
        if lengths.get(epoch) != 0 and (header := (await segments.read(epoch, 1)).header) is not None:
            break
    base = choose_base(chain, store.url, wishes.base)
    head = await _open_base(store, chain, base) if base else None
    _check_fields(fields, header, head, wishes)
    await _refuse_cut_output(store, segments, sizes, _delivered(lengths, head))
    return Checked(chain, bool(sizes))


async def _open_base(store: Store, chain: Chain, base: Ref) -> Checkpoint:
    with naming_older(chain, base):
        head = await open_checkpoint(store, base)
    if not head.manifest.fingerprint:
        raise ForeignHead(store.url, str(base.checkpoint))
    return head


def _delivered(sealed: Mapping[int, int], head: Checkpoint | None) -> dict[int, int]:
    """How long each segment is at least, by epoch: a seal fixed it, or it was so long at the checkpoint."""
    segments = head.manifest.output if head else ()
    known = {int(segment.name): segment.length for segment in segments if segment.name.isdigit()}
    return {epoch: length for epoch, length in sorted({**known, **sealed}.items()) if length}


async def _refuse_cut_output(
    store: Store, segments: Segments, sizes: Mapping[int, int], delivered: Mapping[int, int]
) -> None:
    lost = []
    for epoch, length in delivered.items():
        # A listing alone is no proof that something is missing.
        if sizes.get(epoch, 0) < length and (there := (await segments.read(epoch, length)).length) < length:
            lost.append(f"segment {epoch} has {there} of {length} bytes")
    if lost:
        raise OutputGone(store.url, segments.backend.url, ", ".join(lost))


def refuse_lost_output(store: Store, segments: Segments, checked: Checked, wishes: Wishes) -> None:
    """Where a run was claimed before, its output has a sign of it, though it had no row yet. Raises OutputGone."""
    if checked.chain.state.epoch and not checked.begun and not wishes.fresh:
        why = f"it has no segments of this run, which was started before (epoch {checked.chain.state.epoch})"
        raise OutputGone(store.url, segments.backend.url, why)


async def mark_output(segments: Segments, checked: Checked) -> None:
    """Leave that sign, before the first claim; where rows of another run count, whoever puts them aside does."""
    if not checked.begun and not await segments.rivals():
        await segments.mark()


def _check_fields(fields: Mapping[str, str], header: Header | None, head: Checkpoint | None, wishes: Wishes) -> None:
    known = [header.fingerprint if header else (), head.manifest.fingerprint if head else ()]
    check_accepted(wishes.accept, fields, *known)
    accepted = [*wishes.accept, *(header.accepted if header else ())]
    if header is not None:
        check_same(fields, header.fingerprint, wishes.accept, "the output")
    if head is not None:
        check_same(fields, head.manifest.fingerprint, accepted, f"checkpoint {head.ref.checkpoint}")


async def _check_runs(segments: Segments) -> None:
    if rivals := await segments.rivals():
        raise OtherRun(segments.backend.url, rivals)


def sealed_lengths(chain: Chain) -> dict[int, int]:
    """The lengths that the seals so far have fixed; a later seal, of a fresh start, overrules."""
    lengths: dict[int, int] = {}
    for entry in chain.entries:
        if isinstance(entry.action, Seal):
            lengths.update((int(segment.name), segment.length) for segment in entry.action.segments)
    return lengths


async def seal_and_read(controller: Controller, segments: Segments, wishes: Wishes) -> _Segments:
    """Fix the lengths of lower segments on the chain, and read what counts. A fresh start seals them all at 0.

    What is sealed at its length already is not named again: a run of many claims would have a chain of their square.
    """
    sealed = sealed_lengths(controller.chain())
    below = _Segments()
    for epoch in range(1, controller.epoch):
        below.add(epoch, await segments.read(epoch, 0 if wishes.fresh else sealed.get(epoch)))
    if new := [segment for segment in below.lengths if sealed.get(int(segment.name)) != segment.length]:
        await controller.seal(new)
    return below


async def go_on(
    store: Store,
    controller: Controller,
    world: World,
    lines: Sequence[Kept],
    written: Collection[str],
    rollouts: Mapping[str, Rollout],
) -> Before:
    """Adopt the epoch everywhere, let go on what is whole, and restore what the head has of everything else.

    `lines` are those that count, `written` the lives of all that were ever written, `rollouts` what the input has.
    """
    assert world.fleet is not None
    fleet, answers = await adopt(world.fleet, controller.epoch, Floor())
    done = final_lines(lines).keys()
    found = sort_out(standing(fleet, answers), written, rollouts.keys() - done)
    floor = min((position(life) for life in found.going_on), default=Floor(controller.epoch, 0))
    world.fleet = fleet
    await world.release(found.written)
    await world.end(found.broken, RETIRE_TIMEOUT_S)
    world.fleet = fleet.with_floor(floor)
    world.raise_floor(floor)
    before = Before(list(lines), adopted=found.going_on, retired=found.broken)
    if controller.head is not None:
        going_on = {life.rollout_id for life in found.going_on}
        before = await _restore_head(store, controller, world, before, rollouts, done, going_on)
    taken = {life.rollout_id for life in (*before.scope, *before.restarts)}
    again = [life for life in found.broken if life.rollout_id in rollouts and life.rollout_id not in taken | done]
    return replace(before, restarts=(*before.restarts, *again))


async def _restore_head(
    store: Store,
    controller: Controller,
    world: World,
    before: Before,
    rollouts: Mapping[str, Rollout],
    done: Collection[str],
    going_on: Collection[str],
) -> Before:
    """What the head has, the output has not, the input still has and nobody goes on with."""
    assert world.fleet is not None
    assert controller.head is not None
    with naming_older(controller.chain(), controller.head):
        checkpoint = await open_checkpoint(store, controller.head)
        await checkpoint.verify_own()
        totals = Totals.of(await checkpoint.state())
    manifest = checkpoint.manifest
    lives = (*manifest.scope, *manifest.restarts)
    dropped = {
        life: NOT_IN_DATASET for life in lives if life.rollout_id not in rollouts and life.rollout_id not in done
    }
    wanted = rollouts.keys() - {*done, *going_on}
    scope = tuple(life for life in manifest.scope if life.rollout_id in wanted)
    if scope:
        round_id = controller.next_round()
        with naming_older(controller.chain(), controller.head):
            await restore(world.fleet, round_id, controller.head, scope, timeout_s=RESTORE_TIMEOUT_S)
        await resume(world.fleet, round_id)
    restarts = tuple(life for life in manifest.restarts if life.rollout_id not in going_on)
    return replace(before, scope=scope, restarts=restarts, dropped=dropped, totals=totals)


async def rows_only(segments: Segments, fields: Mapping[str, str], wishes: Wishes) -> tuple[int, Found]:
    """Without checkpoints: the segment to go on with, and what it has. A fresh start begins another one."""
    epochs = await segments.epochs()
    if wishes.fresh:
        check_accepted(wishes.accept, fields)
        return max(epochs, default=-1) + 1, Found()
    await _check_runs(segments)
    epoch = max(epochs, default=0)
    found = await segments.read(epoch)
    check_accepted(wishes.accept, fields, found.header.fingerprint if found.header else ())
    if found.header is not None:
        check_same(fields, found.header.fingerprint, wishes.accept, "the output")
    return epoch, found
