"""Reading parts and blobs piece by piece, so that memory stays small whatever size a manifest announces."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import anyio.to_thread

from .errors import CorruptCheckpoint, NotFound
from .findings import Finding, FrameCheck, Seen, check_frame, name_lives, secret
from .index import Frame, pieces
from .layout import BlobRef, part_key
from .limits import MIB
from .manifest import Part, ParticipantManifest
from .opened import check_blob_size
from .root import Store
from .secrets import LONGEST_SECRET, SecretHit, scan

PIECE_BYTES = 8 * MIB
"""Read at a time; a longer frame is read whole."""
Progress = Callable[[int], None]
Each = Callable[[int, bytes], None]
"""Takes an offset and the bytes there; called in a worker thread, in order."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at contents is for, and where it puts what it finds."""

    store: Store
    deep: bool
    seen: Seen
    progress: Progress | None = None

    def count(self, size: int) -> None:
        """Note that so many bytes were read."""
        self.seen.bytes += size
        if self.progress is not None:
            self.progress(size)


async def read_through(look: Look, ref: BlobRef, max_bytes: int, each: Each) -> None:
    """Read a whole blob and check size and digest. Raises CorruptCheckpoint."""
    store = look.store
    await check_size(store, ref, max_bytes)
    digest = hashlib.sha256()

    def take(start: int, piece: bytes) -> None:
        digest.update(piece)
        each(start, piece)

    for start in range(0, ref.size, PIECE_BYTES):
        length = min(PIECE_BYTES, ref.size - start)
        piece = await store.backend.get_range(ref.key, start, length)
        if len(piece) != length:
            raise CorruptCheckpoint(ref.key, f"it ends after {start + len(piece)} of {ref.size} bytes")
        await anyio.to_thread.run_sync(take, start, piece)
        look.count(length)
    if digest.hexdigest() != ref.sha256:
        raise CorruptCheckpoint(ref.key, "its content does not match its digest")


async def check_size(store: Store, ref: BlobRef, max_bytes: int) -> None:
    """Look that a blob is there, with its size. Raises CorruptCheckpoint."""
    check_blob_size(ref, max_bytes)
    try:
        found = (await store.backend.stat(ref.key)).size
    except NotFound as error:
        raise CorruptCheckpoint(ref.key, "it is missing") from error
    if found != ref.size:
        raise CorruptCheckpoint(ref.key, f"it has {found} bytes, and its manifest says {ref.size}")


async def check_blob(look: Look, ref: BlobRef, max_bytes: int) -> None:
    """A blob's size, and where the look is deep its digest and what in it looks like a credential.

    Raises CorruptCheckpoint.
    """
    look.seen.blobs += 1
    if not look.deep:
        await check_size(look.store, ref, max_bytes)
        return
    await read_blob(look, ref, max_bytes, keep=False)


async def read_blob(look: Look, ref: BlobRef, max_bytes: int, *, keep: bool) -> bytes:
    """Check and scan a whole blob; its bytes where they are to be kept. Raises CorruptCheckpoint."""
    kept: list[bytes] = []
    hits: dict[SecretHit, None] = {}
    tail = b""

    def each(start: int, piece: bytes) -> None:
        nonlocal tail
        for hit in scan(tail + piece):
            hits[SecretHit(hit.kind, hit.offset + start - len(tail))] = None
        tail = piece[-LONGEST_SECRET:]
        if keep:
            kept.append(piece)

    await read_through(look, ref, max_bytes, each)
    look.seen.findings += [secret(ref.key, "the blob", hit, f"byte {hit.offset}") for hit in hits]
    return b"".join(kept)


async def check_part(look: Look, manifest: ParticipantManifest, own: Sequence[Frame], position: int) -> None:
    """A part's size and digest, and every frame of its `own`; goes on after damage, to name each record that is hit.

    Raises CorruptCheckpoint where it is missing.
    """
    part, process = manifest.parts[position], str(manifest.process_name)
    key = part_key(manifest.checkpoint, manifest.process_name, part.name)
    look.seen.parts += 1
    look.seen.records += part.records
    try:
        found = (await look.store.backend.stat(key)).size
    except NotFound as error:
        lives = name_lives([life for frame in own for life in frame.lives])
        raise CorruptCheckpoint(key, f"it is missing, and with it {part.records} records: {lives}") from error
    if found != part.size:
        look.seen.damage(key, f"it has {found} bytes, and the manifest of {process} says {part.size}")
    check = FrameCheck(key, process, look.deep, look.store.limits.max_record_bytes)
    digest = hashlib.sha256()
    broken = found != part.size
    for start, length, held in _pieces(part, own):
        # Nothing is asked for past the end: a manifest may announce far more than there is.
        piece = await look.store.backend.get_range(key, start, length) if start < found else b""
        findings = await anyio.to_thread.run_sync(partial(_look_at, digest, piece, start, held, check))
        broken = broken or any(finding.severity == "damage" for finding in findings)
        look.seen.findings += findings
        look.count(len(piece))
    if not broken and digest.hexdigest() != part.sha256:
        look.seen.damage(key, f"its content does not match the digest in the manifest of {process}")


def _pieces(part: Part, frames: Sequence[Frame]) -> Iterator[tuple[int, int, list[Frame]]]:
    """Ranges of a part: offset, length, and the frames that lie in it; without an index there are none."""
    if not frames:
        yield from ((at, min(PIECE_BYTES, part.size - at), []) for at in range(0, part.size, PIECE_BYTES))
        return
    for held in pieces(frames, PIECE_BYTES):
        yield held[0].offset, held[-1].offset + held[-1].size - held[0].offset, held


def _look_at(
    digest: "hashlib._Hash", piece: bytes, start: int, frames: Sequence[Frame], check: FrameCheck
) -> list[Finding]:
    digest.update(piece)
    view = [(frame, frame.offset - start) for frame in frames]
    return [finding for frame, at in view for finding in check_frame(piece[at : at + frame.size], frame, check)]
