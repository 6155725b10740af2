"""What differs between two checkpoints of one root, with a digest a record in memory and never the records."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import anyio.to_thread
import orjson

from .entries import Ref
from .frames import sha256
from .layout import BlobRef, CheckpointId, Life, ProcessName
from .manifest import differing_fields
from .reader import Checkpoint, Process, Which, open_checkpoint
from .records import RawRecord
from .root import Store

Progress = Callable[[int], None]
"""Called with the number of records just compared."""

_DIGEST_BYTES = 16
_BLOB = re.compile(rb'(\{"\$blob":\{"sha256":"[0-9a-f]{64}",)"written_by":"[0-9]+\.[0-9]+"')
"""In a line no text can look like this, for quotes inside of text are escaped."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much a participant, or a set of blobs, has."""

    count: int
    """Records or blobs."""
    bytes: int


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Rollout ids, sorted, by what became of them from A to B."""

    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    same: tuple[str, ...]
    """The same life with the same content."""
    changed: tuple[str, ...]
    """The same life with other content: it went on."""
    new_life: tuple[str, ...]
    """Another life: it was restored or started over between the two."""


@dataclass(frozen=True, slots=True)
class Participant:
    """A participant's records on both sides; None where it is not there."""

    name: str
    """`<kind>.<name>`."""
    a: Amount | None
    b: Amount | None


@dataclass(frozen=True, slots=True)
class Field:
    """A value that differs; None where it is not there."""

    name: str
    a: str | int | None
    b: str | int | None


@dataclass(frozen=True, slots=True)
class Blobs:
    """Payloads in blobs, by content."""

    only_a: Amount
    only_b: Amount
    shared: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Everything that differs from checkpoint A to checkpoint B."""

    a: CheckpointId
    b: CheckpointId
    rollouts: Rollouts
    participants: tuple[Participant, ...]
    """All of them, whether they differ or not."""
    fingerprint: tuple[Field, ...]
    """Only fields that differ."""
    state_changed: bool
    """Whether the controller's own state differs."""
    blobs: Blobs
    output: tuple[Field, ...]
    """Lengths of output segments, only where they differ."""


async def diff_checkpoints(
    store: Store, a: Which | Ref, b: Which | Ref, progress: Progress | None = None
) -> Difference:
    """Compare two checkpoints. Raises as `open_checkpoint` does, for either."""
    before, after = await open_checkpoint(store, a), await open_checkpoint(store, b)
    lengths = [{part.name: part.length for part in checkpoint.manifest.output} for checkpoint in (before, after)]
    prints = before.manifest.fingerprint, after.manifest.fingerprint
    return Difference(
        a=before.ref.checkpoint,
        b=after.ref.checkpoint,
        rollouts=compare_rollouts(
            _lives(before), _lives(after), await _digests(before, progress), await _digests(after, progress)
        ),
        participants=_participants(before.processes, after.processes),
        fingerprint=tuple(Field(name, prints[0].get(name), prints[1].get(name)) for name in differing_fields(*prints)),
        state_changed=await _state_digest(before) != await _state_digest(after),
        blobs=_blobs(before.blobs, after.blobs),
        output=tuple(
            Field(name, lengths[0].get(name), lengths[1].get(name))
            for name in sorted(lengths[0].keys() | lengths[1].keys())
            if lengths[0].get(name) != lengths[1].get(name)
        ),
    )


def compare_rollouts(
    a: Mapping[str, Life], b: Mapping[str, Life], content_a: Mapping[str, int], content_b: Mapping[str, int]
) -> Rollouts:
    """Sort the rollouts of two scopes by what became of them; contents are digests, by rollout id."""
    both = sorted(a.keys() & b.keys())
    same_life = [rollout for rollout in both if a[rollout] == b[rollout]]
    same = {rollout for rollout in same_life if content_a.get(rollout) == content_b.get(rollout)}
    return Rollouts(
        only_a=tuple(sorted(a.keys() - b.keys())),
        only_b=tuple(sorted(b.keys() - a.keys())),
        same=tuple(rollout for rollout in same_life if rollout in same),
        changed=tuple(rollout for rollout in same_life if rollout not in same),
        new_life=tuple(rollout for rollout in both if a[rollout] != b[rollout]),
    )


def _lives(checkpoint: Checkpoint) -> dict[str, Life]:
    return {life.rollout_id: life for life in checkpoint.manifest.scope}


async def _digests(checkpoint: Checkpoint, progress: Progress | None) -> dict[str, int]:
    """One digest a rollout over its records of all participants, whichever of their processes holds them."""
    found: dict[str, int] = {}
    for process in checkpoint.processes:
        async with checkpoint.raw_records([process]) as records:
            async for record in records:
                rollout = record.life.rollout_id
                found[rollout] = found.get(rollout, 0) ^ digest_record(process.name, record)
                if progress is not None:
                    progress(1)
    return found


def digest_record(process: ProcessName, record: RawRecord) -> int:
    """A digest of a participant's record that does not tell by whom a blob of the same content was written."""
    line = _anonymous(record.line) if record.escaped else record.line
    digest = hashlib.blake2b(f"{process.kind}.{process.name}\n".encode(), digest_size=_DIGEST_BYTES)
    digest.update(line)
    return int.from_bytes(digest.digest())


def _anonymous(line: bytes) -> bytes:
    return _BLOB.sub(rb"\1", line)


async def _state_digest(checkpoint: Checkpoint) -> str | None:
    """Enough to tell whether two states are the same; one in a blob that names others is read for it."""
    state = checkpoint.manifest.state
    if state is None:
        return None
    if state.blob is not None and not state.blobs:
        return state.blob.sha256
    data = await checkpoint.read_blob(state.blob.ref) if state.blob else orjson.dumps(state.inline)
    return await anyio.to_thread.run_sync(sha256, _anonymous(data) if state.escaped else data)


def _participants(a: Iterable[Process], b: Iterable[Process]) -> tuple[Participant, ...]:
    before, after = _amounts(a), _amounts(b)
    return tuple(Participant(name, before.get(name), after.get(name)) for name in sorted(before.keys() | after.keys()))


def _amounts(processes: Iterable[Process]) -> dict[str, Amount]:
    found: dict[str, Amount] = {}
    for process in processes:
        name = f"{process.name.kind}.{process.name.name}"
        known = found.get(name, Amount(0, 0))
        found[name] = Amount(known.count + process.manifest.records, known.bytes + process.manifest.size)
    return found


def _blobs(a: Iterable[BlobRef], b: Iterable[BlobRef]) -> Blobs:
    before, after = {ref.sha256: ref.size for ref in a}, {ref.sha256: ref.size for ref in b}

    def amount(digests: Iterable[str]) -> Amount:
        sizes = [before.get(digest, after.get(digest, 0)) for digest in digests]
        return Amount(len(sizes), sum(sizes))

    return Blobs(
        amount(before.keys() - after.keys()), amount(after.keys() - before.keys()), amount(before.keys() & after.keys())
    )
