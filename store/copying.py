"""Copying one checkpoint into another root: data first, the manifest that names it after it, the chain last.

1. Open and verify the checkpoint at the source. Ask the destination's chain whether it may be imported at all.
2. Write blobs; parts; indexes; participant manifests; the aggregate manifest; each after all before it. An object that
   stands there already with the same content is left as it is, so the same command continues an interrupted copy.
3. Read everything back from the destination and verify it, the content of every blob included.
4. Append the import. From that entry on the checkpoint exists there; the chain of the source is never copied.

    crash                  what is left
    before 4               at the destination objects that no reader sees; the same command goes on from them, and
                           pruning sweeps them when they are old
    during 4               the entry, or nothing of it

The source is only read. What a deletion plan of the destination names is not imported: its objects may be going while
they look as if they stood. Neither is an id that a controller of the destination may still publish itself.

Memory holds a few parts at a time, or one large object, none past the limits that verifying at the source has checked.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

import anyio.to_thread

from .backends.retry import create_once
from .chain import Chain, find_ref
from .entries import Entry, Import, Ref, is_open, refuse
from .errors import (
    AlreadyExists,
    CheckpointConflict,
    CorruptCheckpoint,
    InvalidInput,
    NotFound,
    ObjectConflict,
    ObjectTooLarge,
)
from .frames import sha256
from .layout import BlobRef, CheckpointId, aggregate_key, index_key, part_key, participant_key
from .limits import MIB
from .manifest import ParticipantRef
from .opened import read_pinned
from .reader import Checkpoint, Process, Which, find_checkpoint, open_checkpoint
from .root import Store
from .sealed import digest_of, unseal
from .tasks import map_bounded

Progress = Callable[[int], None]
"""Called with the number of bytes that were written, or found to stand already."""
_LARGE_BYTES = 32 * MIB
"""An object above this size is moved alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """One object to be moved."""

    key: str
    size: int
    digest: str
    sealed: bool = False
    """Whether `digest` is the one that a sealed document carries, and not that of all its bytes."""
    named_by_content: bool = False
    """Whether other bytes under this key can only be damage, and never another checkpoint's."""

    def matches(self, data: bytes) -> bool:
        """Whether these are the bytes."""
        if len(data) != self.size:
            return False
        return _is_document(self.key, data, self.digest) if self.sealed else sha256(data) == self.digest


async def copy_checkpoint(
    source: Store,
    destination: Store,
    which: Which = "head",
    progress: Progress | None = None,
    *,
    externals: Collection[str] = (),
) -> Ref:
    """Copy a checkpoint and import it; idempotent, and a copy that was damaged since is repaired.

    Files outside the store are not copied but checked: local ones, and what lies below the URLs in `externals`.

    Raises what opening and verifying at the source raises; CheckpointConflict where another checkpoint has this id at
    the destination, CheckpointDeleted where a deletion plan there names it or an id whose blobs it needs, InvalidInput
    where a controller there may still write this id; and OutcomeUnknown: then the same call again tells.
    """
    checkpoint = await open_checkpoint(source, await find_checkpoint(source, which))
    await checkpoint.verify(externals=externals)
    action = Import(ref=checkpoint.ref, needs=_needs(checkpoint))
    chain = await destination.chain()
    standing = _check_allowed(chain, action)
    if standing is not None and await _is_sound(destination, checkpoint.ref, externals):
        return checkpoint.ref
    try:
        await _move_all(_Move(source, destination, standing is not None, progress), checkpoint)
    except CorruptCheckpoint:
        await find_checkpoint(source, checkpoint.ref.checkpoint)  # Says so where it was deleted meanwhile.
        raise
    await _verify(destination, checkpoint.ref, externals)
    await chain.append(None, lambda found: _check_allowed(found, action) or action)
    return checkpoint.ref


def _needs(checkpoint: Checkpoint) -> tuple[CheckpointId, ...]:
    owners = {blob.written_by for blob in checkpoint.blobs}
    return tuple(sorted(owners - {checkpoint.ref.checkpoint}))


def _check_allowed(chain: Chain, action: Import) -> Entry | None:
    """The entry that says it already, where there is one. Raises where the import must not be."""
    ref = action.ref
    refusal = refuse(chain.state, chain.known, chain.state.epoch, action)
    if isinstance(refusal, CheckpointConflict):
        refusal.hint = "Another checkpoint has this id there: copy it into another root"
    if refusal is not None:
        raise refusal
    if ref.checkpoint in chain.known.refs:
        return find_ref(chain, ref)
    if ref.checkpoint.epoch <= chain.state.epoch and is_open(chain.state, ref.checkpoint):
        raise InvalidInput(
            f"checkpoint {ref.checkpoint} may still be written there by the controller of epoch {ref.checkpoint.epoch}",
            hint="Copy it into another root, or when that run has moved on",
        )
    return None


async def _is_sound(store: Store, ref: Ref, externals: Collection[str]) -> bool:
    try:
        await _verify(store, ref, externals)
    except CorruptCheckpoint:
        return False
    return True


async def _verify(store: Store, ref: Ref, externals: Collection[str]) -> None:
    """Everything of a checkpoint, the content of its blobs included. Raises CorruptCheckpoint."""
    await (await open_checkpoint(store, ref)).verify(externals=externals)


@dataclass(frozen=True, slots=True)
class _Move:
    """From where to where."""

    source: Store
    destination: Store
    is_repair: bool
    """The destination has this very checkpoint, and some of it is damaged: what differs may be replaced."""
    progress: Progress | None


async def _move_all(move: _Move, checkpoint: Checkpoint) -> None:
    """In the order of the module's step 2."""
    aggregate = await _aggregate_item(move.source, checkpoint.ref)
    stages: Sequence[Iterable[_Item]] = (
        [_blob_item(blob) for blob in checkpoint.blobs],
        [item for process in checkpoint.processes for item in _part_items(process)],
        [_index_item(process) for process in checkpoint.processes],
        [_manifest_item(checkpoint.ref.checkpoint, named) for named in checkpoint.manifest.participants],
        [aggregate],
    )
    for stage in stages:
        items = list(stage)
        small = [item for item in items if item.size <= _LARGE_BYTES]
        large = [item for item in items if item.size > _LARGE_BYTES]
        await map_bounded(partial(_move, move), small, move.source.limits.frames_in_flight)
        await map_bounded(partial(_move, move), large, 1)


def _blob_item(blob: BlobRef) -> _Item:
    return _Item(key=blob.key, size=blob.size, digest=blob.sha256, named_by_content=True)


def _part_items(process: Process) -> list[_Item]:
    checkpoint = process.manifest.checkpoint
    return [
        _Item(
            key=part_key(checkpoint, process.name, part.name), size=part.size, digest=part.sha256, named_by_content=True
        )
        for part in process.manifest.parts
    ]


def _index_item(process: Process) -> _Item:
    index = process.manifest.index
    key = index_key(process.manifest.checkpoint, process.name, index.sha256)
    return _Item(key=key, size=index.size, digest=index.sha256, named_by_content=True)


def _manifest_item(checkpoint: CheckpointId, named: ParticipantRef) -> _Item:
    key = participant_key(checkpoint, named.process_name)
    return _Item(key=key, size=named.size, digest=named.digest, sealed=True)


async def _aggregate_item(source: Store, ref: Ref) -> _Item:
    key = aggregate_key(ref.checkpoint)
    size, limit = (await source.backend.stat(key)).size, source.limits.max_manifest_bytes
    if size > limit:
        raise CorruptCheckpoint(key, f"it has {size} bytes, and the limit is {limit}")
    return _Item(key=key, size=size, digest=ref.digest, sealed=True)


def _is_document(key: str, data: bytes, digest: str) -> bool:
    try:
        unseal(key, data, CorruptCheckpoint)
    except CorruptCheckpoint:
        return False
    return digest_of(data) == digest


Standing = Literal["absent", "same", "other"]


async def _move(move: _Move, item: _Item) -> None:
    standing, found = await _look(move.destination, item)
    if standing == "same":
        await _make_sure(move.destination, item, found)
    else:
        data = await read_pinned(move.source, item.key, item.size)
        if not await anyio.to_thread.run_sync(item.matches, data):
            raise CorruptCheckpoint(item.key, "its content changed while it was copied")
        if standing == "other" and (item.named_by_content or move.is_repair):
            await move.destination.backend.put(item.key, data)
        else:
            await _create(move.destination, item, data)
    if move.progress is not None:
        move.progress(item.size)


async def _make_sure(destination: Store, item: _Item, found: bytes) -> None:
    """What an earlier copy left may be lost by a power loss after the import; a create that meets it makes sure."""
    if not destination.backend.traits.durable_when_seen:
        with suppress(AlreadyExists):
            await destination.backend.create(item.key, found)


async def _create(destination: Store, item: _Item, data: bytes) -> None:
    try:
        await create_once(destination.backend, item.key, data)
    except ObjectConflict as error:
        error.hint = "An unfinished checkpoint of another origin has this id there: copy it into another root"
        raise


async def _look(store: Store, item: _Item) -> tuple[Standing, bytes]:
    """What stands under the item's key, and the bytes where they are the same."""
    try:
        data = await store.backend.get(item.key, max_bytes=item.size)
    except NotFound:
        return "absent", b""
    except ObjectTooLarge:
        return "other", b""
    return ("same", data) if await anyio.to_thread.run_sync(item.matches, data) else ("other", b"")
