"""Loading what a ref pins, each step checked by the digest of the step before it: manifest, participants, indexes."""

import hashlib
from collections.abc import Iterable, Mapping

import anyio.to_thread

from .again import damage_seen_twice
from .entries import Ref
from .errors import CorruptCheckpoint, ForeignObject, NotFound, ObjectTooLarge
from .frames import sha256
from .index import NONE_KNOWN, Frame, by_part, decode_index
from .layout import BlobRef, CheckpointId, Life, aggregate_key, index_key, part_key, participant_key
from .limits import MIB, Limits
from .manifest import AggregateManifest, ParticipantManifest, ParticipantRef
from .root import Store
from .sealed import digest_of, load_model

_PIECE_BYTES = 8 * MIB
"""Of a blob, read at a time."""


async def read_pinned(store: Store, key: str, size: int) -> bytes:
    """A whole object of exactly `size` bytes.

    Raises CorruptCheckpoint where it is missing or has another size.
    """
    try:
        data = await store.backend.get(key, max_bytes=size)
    except NotFound as error:
        raise CorruptCheckpoint(key, "it is missing") from error
    except ObjectTooLarge as error:
        raise CorruptCheckpoint(key, f"it has more than the {size} bytes that the manifest says") from error
    if len(data) != size:
        raise CorruptCheckpoint(key, f"it has {len(data)} bytes, and the manifest says {size}")
    return data


@damage_seen_twice
async def load_aggregate(store: Store, ref: Ref) -> AggregateManifest:
    """The aggregate manifest that a chain entry pins. Raises CorruptCheckpoint, UnsupportedVersion, ForeignObject."""
    key = aggregate_key(ref.checkpoint)
    try:
        data = await store.backend.get(key, max_bytes=store.limits.max_manifest_bytes)
    except NotFound as error:
        raise CorruptCheckpoint(key, "the chain names it and it is missing") from error
    except ObjectTooLarge as error:
        raise CorruptCheckpoint(key, error.message) from error
    manifest = await anyio.to_thread.run_sync(load_model, AggregateManifest, key, data, CorruptCheckpoint)
    if digest_of(data) != ref.digest:
        raise CorruptCheckpoint(key, "it is not the one that the chain names")
    _check_origin(key, manifest.run_id, manifest.checkpoint, ref.run_id, ref.checkpoint)
    if not _adds_up(manifest):
        raise CorruptCheckpoint(key, "its fields contradict each other")
    return manifest


def _adds_up(manifest: AggregateManifest) -> bool:
    participants = manifest.participants
    return (
        manifest.epoch == manifest.checkpoint.epoch
        and manifest.records == sum(ref.records for ref in participants)
        and manifest.size == sum(ref.bytes for ref in participants)
        and len({ref.process_name for ref in participants}) == len(participants)
    )


@damage_seen_twice
async def load_participant(
    store: Store, checkpoint: CheckpointId, ref: ParticipantRef, run_id: str
) -> ParticipantManifest:
    """The participant manifest that an aggregate manifest (or a receipt) pins. Raises as `load_aggregate`."""
    key = participant_key(checkpoint, ref.process_name)
    if ref.size > store.limits.max_manifest_bytes:
        raise CorruptCheckpoint(key, f"it announces {ref.size} bytes, past the limit")
    data = await read_pinned(store, key, ref.size)
    manifest = load_model(ParticipantManifest, key, data, CorruptCheckpoint)
    if digest_of(data) != ref.digest:
        raise CorruptCheckpoint(key, "it is not the one that is named")
    _check_origin(key, manifest.run_id, manifest.checkpoint, run_id, checkpoint)
    _check_parts(manifest, store.limits)
    sums = (sum(part.records for part in manifest.parts), sum(part.size for part in manifest.parts))
    if manifest.process_name != ref.process_name or sums != (manifest.records, manifest.size):
        raise CorruptCheckpoint(key, "its fields contradict each other")
    if (manifest.records, manifest.size) != (ref.records, ref.bytes):
        raise CorruptCheckpoint(key, "its counts are not those that are named")
    return manifest


def _check_parts(manifest: ParticipantManifest, limits: Limits) -> None:
    """No part is announced that no writer makes: whoever reads one may count on it."""
    for part in manifest.parts:
        if part.size > limits.max_part_bytes:
            key = part_key(manifest.checkpoint, manifest.process_name, part.name)
            raise CorruptCheckpoint(key, f"it announces {part.size} bytes, and the limit is {limits.max_part_bytes}")


def check_blob_size(ref: BlobRef, max_bytes: int) -> None:
    """Refuse a blob by what it announces, before anything is asked of the store. Raises CorruptCheckpoint."""
    if ref.size > max_bytes:
        raise CorruptCheckpoint(ref.key, f"it announces {ref.size} bytes, past the limit of {max_bytes}")


@damage_seen_twice
async def check_blob(store: Store, ref: BlobRef, max_bytes: int) -> None:
    """Read a blob piece by piece and check its size and digest. Raises CorruptCheckpoint."""
    check_blob_size(ref, max_bytes)
    try:
        found = (await store.backend.stat(ref.key)).size
        if found != ref.size:
            raise CorruptCheckpoint(ref.key, f"it has {found} bytes, and its record says {ref.size}")
        digest = hashlib.sha256()
        for start in range(0, ref.size, _PIECE_BYTES):
            length = min(_PIECE_BYTES, ref.size - start)
            piece = await store.backend.get_range(ref.key, start, length)
            if len(piece) != length:
                raise CorruptCheckpoint(ref.key, f"it ends after {start + len(piece)} of {ref.size} bytes")
            await anyio.to_thread.run_sync(digest.update, piece)
    except NotFound as error:
        raise CorruptCheckpoint(ref.key, "it is missing") from error
    if digest.hexdigest() != ref.sha256:
        raise CorruptCheckpoint(ref.key, "its content does not match its digest")


async def load_frames(
    store: Store, manifest: ParticipantManifest, known: Mapping[str, Life] = NONE_KNOWN
) -> list[Frame]:
    """The index that a participant manifest pins. Raises CorruptCheckpoint.

    Lives that are `known` by their text, as those of the scope are, come out as the same objects.
    """
    key = index_key(manifest.checkpoint, manifest.process_name, manifest.index.sha256)
    if manifest.index.size > store.limits.max_index_bytes:
        raise CorruptCheckpoint(key, f"it announces {manifest.index.size} bytes, past the limit")
    data = await _read_index(store, key, manifest)
    # Outside of the look that is taken twice: these are the bytes that the manifest pins, and they say the same again.
    return await anyio.to_thread.run_sync(_decode_frames, store, manifest, data, key, known)


@damage_seen_twice
async def _read_index(store: Store, key: str, manifest: ParticipantManifest) -> bytes:
    data = await read_pinned(store, key, manifest.index.size)
    if await anyio.to_thread.run_sync(sha256, data) != manifest.index.sha256:
        raise CorruptCheckpoint(key, "its content does not match its digest")
    return data


def lives_by_text(lives: Iterable[Life]) -> dict[str, Life]:
    """As `load_frames` takes them."""
    return {str(life): life for life in lives}


def _decode_frames(
    store: Store, manifest: ParticipantManifest, data: bytes, key: str, known: Mapping[str, Life]
) -> list[Frame]:
    sizes = [part.size for part in manifest.parts]
    frames = decode_index(data, manifest.index.raw_size, sizes, manifest.records, key, store.limits, known)
    for part, own in zip(manifest.parts, by_part(frames, len(sizes)), strict=True):
        if (sum(f.raw_size for f in own), sum(len(f.lives) for f in own)) != (part.raw_size, part.records):
            raise CorruptCheckpoint(key, f"it disagrees with the manifest about {part.name}")
    return frames


def _check_origin(key: str, run_id: str, checkpoint: CheckpointId, own_run: str, own_checkpoint: CheckpointId) -> None:
    if run_id != own_run:
        raise ForeignObject(key, f"it was written by run {run_id}, and this is {own_run}")
    if checkpoint != own_checkpoint:
        raise CorruptCheckpoint(key, f"it says that it belongs to checkpoint {checkpoint}")
