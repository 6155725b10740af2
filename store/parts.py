"""Packing records: batches of them become frames in worker threads, frames become parts, parts go to the backend.

Memory is bounded: a few batches are encoded at a time, and two parts are on their way. The name of a part and of an
index holds its digest, so that what an earlier try left behind is never mixed in, and no try overwrites another's.
"""

from contextlib import suppress
from dataclasses import dataclass, field

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from .errors import InvalidInput, IOFailed, NotFound, StoreError
from .frames import compress, sha256
from .index import Frame, UniqueRollouts, encode_index
from .layout import BlobRef, CheckpointId, Life, ProcessName, index_key, part_key, participant_key
from .lazy import LazyBytes
from .manifest import Index, Part
from .records import Line, RawRecord, Record, encode_line
from .root import Store
from .tasks import map_bounded
from .values import BlobPlan

_DISCARD_S = 10.0
_PARTS_IN_FLIGHT = 2


@dataclass(slots=True)
class EncodedFrame:
    """One frame, ready to be placed."""

    data: bytes
    raw_size: int
    sha256: str
    lives: list[Life]
    blobs: dict[BlobRef, None]


@dataclass(slots=True)
class Batch:
    """One job of a worker thread: its frames, and the payloads that go to blobs."""

    frames: list[EncodedFrame] = field(default_factory=list)
    outgoing: dict[BlobRef, bytes] = field(default_factory=dict)
    lazy: dict[BlobRef, LazyBytes] = field(default_factory=dict)
    records: int = 0
    raw_size: int = 0
    failure: BaseException | None = None
    done: anyio.Event = field(default_factory=anyio.Event)


def encode_batch(records: list[Record | RawRecord], plan: BlobPlan, job: Batch) -> None:
    """Runs in a worker thread: lines, frames, digests."""
    lines = [encode_line(record, plan) for record in records]
    start = 0
    for end in _borders([len(line.data) + 1 for line in lines], plan.limits.frame_bytes):
        job.frames.append(_encode_frame(records[start:end], lines[start:end]))
        start = end
    for line in lines:
        if line.outgoing:
            job.outgoing.update(line.outgoing)
        if line.lazy:
            job.lazy.update(line.lazy)
    job.records = len(records)
    job.raw_size = sum(frame.raw_size for frame in job.frames)


def _borders(sizes: list[int], frame_bytes: int) -> list[int]:
    """Where frames end: as few as will do, all about equally large, so that no small one is left over."""
    share = sum(sizes) / -(-sum(sizes) // frame_bytes)
    ends: list[int] = []
    size = 0
    for position, more in enumerate(sizes, 1):
        size += more
        if size >= share or position == len(sizes):
            ends.append(position)
            size = 0
    return ends


def _encode_frame(records: list[Record | RawRecord], lines: list[Line]) -> EncodedFrame:
    data = compress([line.data for line in lines])
    return EncodedFrame(
        data=data,
        raw_size=sum(len(line.data) for line in lines) + len(lines),
        sha256=sha256(data),
        lives=[record.life for record in records],
        blobs=dict.fromkeys(ref for line in lines for ref in line.blobs),
    )


class PartWriter:
    """Collects frames into parts and keeps a bounded number of parts on their way to the backend."""

    def __init__(self, store: Store, checkpoint: CheckpointId, process: ProcessName) -> None:
        self._store = store
        self._checkpoint = checkpoint
        self._process = process
        self._room = anyio.Semaphore(_PARTS_IN_FLIGHT)
        self._open: list[bytes] = []
        self._open_size = self._open_raw = self._open_records = 0
        self._frames: list[Frame] = []
        self._sizes: dict[str, int] = {}
        self._slots: list[Part | None] = []
        self.unique = UniqueRollouts(f"in the records of {process}")
        self.dry = False

    @property
    def blobs(self) -> set[BlobRef]:
        """Every blob that a record so far names."""
        return {ref for frame in self._frames for ref in frame.blobs}

    @property
    def parts(self) -> list[Part]:
        """All parts, in order, once they are written."""
        return [part for part in self._slots if part is not None]

    def add(self, frame: EncodedFrame, group: TaskGroup) -> None:
        """Append one frame to the open part. Raises DuplicateRollout, and InvalidInput for a part past the limit."""
        size, limit = self._open_size + len(frame.data), self._store.limits.max_part_bytes
        if size > limit:
            raise InvalidInput(f"a part of {self._process} would have {size} bytes, and the limit is {limit}")
        self.unique.add_all(frame.lives)
        self._frames.append(
            Frame(
                part=len(self._slots),
                offset=self._open_size,
                size=len(frame.data),
                raw_size=frame.raw_size,
                sha256=frame.sha256,
                lives=tuple(frame.lives),
                blobs=tuple(frame.blobs),
            )
        )
        self._open.append(frame.data)
        self._open_size = size
        self._open_raw += frame.raw_size
        self._open_records += len(frame.lives)
        if self._open_size >= self._store.limits.part_bytes:
            self.flush(group)

    def flush(self, group: TaskGroup) -> None:
        """Close the open part and send it off."""
        if not self._open:
            return
        frames, self._open = self._open, []
        position = len(self._slots)
        self._slots.append(None)
        group.start_soon(self._write, position, frames, self._open_raw, self._open_records)
        self._open_size = self._open_raw = self._open_records = 0

    async def wait_for_room(self) -> None:
        """Hold the caller back while too many parts are on their way."""
        async with self._room:
            pass

    async def _write(self, position: int, frames: list[bytes], raw_size: int, records: int) -> None:
        async with self._room:
            data, digest = await anyio.to_thread.run_sync(_join, frames)
            frames.clear()
            name = f"{position:05d}-{digest[:16]}.jsonl.zst"
            await self._put(part_key(self._checkpoint, self._process, name), data)
        self._slots[position] = Part(name=name, size=len(data), raw_size=raw_size, records=records, sha256=digest)

    async def finish(self) -> Index:
        """Write the index, after all parts."""
        data, raw_size = await anyio.to_thread.run_sync(encode_index, self._frames)
        if raw_size > (limit := self._store.limits.max_index_bytes):
            raise InvalidInput(f"the index of {self._process} would have {raw_size} bytes, and the limit is {limit}")
        digest = await anyio.to_thread.run_sync(sha256, data)
        await self._put(index_key(self._checkpoint, self._process, digest), data)
        return Index(size=len(data), raw_size=raw_size, sha256=digest)

    async def _put(self, key: str, data: bytes) -> None:
        self._sizes[key] = len(data)
        if not self.dry:
            await self._store.backend.put(key, data)

    async def check_all_there(self) -> None:
        """What the manifest is about to name is there, now, with its size: nobody deleted it meanwhile."""

        async def check(key: str) -> None:
            try:
                found = (await self._store.backend.stat(key)).size
            except NotFound as error:
                raise IOFailed("commit", key, "it was deleted while the commit was running") from error
            if found != self._sizes[key]:
                raise IOFailed("commit", key, f"it has {found} bytes and not {self._sizes[key]}")

        await map_bounded(check, self._sizes, self._store.limits.requests_in_flight)

    async def discard(self) -> None:
        """Delete what a failed commit wrote, unless a manifest names it. A failure to delete hides nothing."""
        if self.dry or not self._sizes:
            return
        with anyio.move_on_after(_DISCARD_S, shield=True):
            with suppress(StoreError):  # Pruning sweeps what is left.
                await self._discard_unnamed()

    async def _discard_unnamed(self) -> None:
        try:
            # The same commit, tried elsewhere at the same time, has parts of the same names.
            await self._store.backend.stat(participant_key(self._checkpoint, self._process))
        except NotFound:
            await self._store.backend.delete(list(self._sizes))


def _join(frames: list[bytes]) -> tuple[bytes, str]:
    data = b"".join(frames)
    return data, sha256(data)
