"""The limit that the store is compared with: a bare loop of the least work that does the job, in as many threads.

Commit: serialise + compress + sha256 + write + fsync. Restore: read + sha256 + decompress + parse, and keep what was
parsed, as the store's restore is measured too. Same records, same frames, same level; each thread takes an equal run of
the records and an object of its own, so no thread ever waits for another. What it lacks is what makes a checkpoint: an
order, names, an index, manifests, exclusive creation, the refusal of what could not be read back, a pass that verifies
everything before anything is handed out.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import orjson
import zstandard

from store import Backend, Record
from store.frames import LEVEL

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BareFrame:
    """Where one frame is, and what it must hash to."""

    offset: int
    size: int
    digest: str


@dataclass(slots=True)
class BareObject:
    """One thread's share: its documents, and, once written, its frames."""

    key: str
    documents: list[Document]
    frames: list[BareFrame]
    raw_bytes: int = 0

    @property
    def size(self) -> int:
        """Bytes written."""
        return self.frames[-1].offset + self.frames[-1].size


def shares(records: Sequence[Record], threads: int) -> list[BareObject]:
    """The records as bare documents, in an equal run for each thread."""
    documents = [{"life": str(record.life), "payload": record.payload} for record in records]
    size = -(-len(documents) // threads)
    starts = range(0, len(documents), size)
    return [BareObject(f"bare/{i}", documents[start : start + size], []) for i, start in enumerate(starts)]


def _encode(share: BareObject, frame_bytes: int) -> Iterator[bytes]:
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    share.frames, share.raw_bytes, offset = [], 0, 0
    for raw in _frames(share.documents, frame_bytes):
        data = compressor.compress(raw)
        share.frames.append(BareFrame(offset, len(data), hashlib.sha256(data).hexdigest()))
        share.raw_bytes += len(raw)
        offset += len(data)
        yield data


def _frames(documents: list[Document], frame_bytes: int) -> Iterator[bytes]:
    lines: list[bytes] = []
    size = 0
    for document in documents:
        line = orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)
        lines.append(line)
        size += len(line)
        if size >= frame_bytes:
            yield b"".join(lines)
            lines, size = [], 0
    if lines:
        yield b"".join(lines)


def _decode(data: bytes, frame: BareFrame, decompressor: zstandard.ZstdDecompressor) -> list[Document]:
    if hashlib.sha256(data).hexdigest() != frame.digest:
        raise ValueError(f"the frame at {frame.offset} is not what was written")
    return [orjson.loads(line) for line in decompressor.decompress(data).splitlines()]


class BareFiles:
    """The loop on local files."""

    def __init__(self, root: Path, frame_bytes: int) -> None:
        """`root` is made here."""
        self._root = root
        self._frame_bytes = frame_bytes
        (root / "bare").mkdir(parents=True)

    async def commit(self, objects: Sequence[BareObject]) -> None:
        """Write all shares, a thread each."""
        async with anyio.create_task_group() as group:
            for share in objects:
                group.start_soon(anyio.to_thread.run_sync, self._write, share)

    async def restore(self, objects: Sequence[BareObject]) -> list[Document]:
        """Read all shares, a thread each."""
        found: list[Document] = []
        async with anyio.create_task_group() as group:
            for share in objects:
                group.start_soon(anyio.to_thread.run_sync, self._read, share, found)
        return found

    def _write(self, share: BareObject) -> None:
        with (self._root / share.key).open("wb", buffering=0) as file:
            for data in _encode(share, self._frame_bytes):
                file.write(data)
            os.fsync(file.fileno())

    def _read(self, share: BareObject, found: list[Document]) -> None:
        decompressor = zstandard.ZstdDecompressor()
        with (self._root / share.key).open("rb", buffering=0) as file:
            for frame in share.frames:
                found.extend(_decode(file.read(frame.size), frame, decompressor))


class BareObjects:
    """The loop on an object store, through the store's own client: one PUT and one GET a thread."""

    def __init__(self, backend: Backend, frame_bytes: int) -> None:
        """`backend` is opened and closed by the caller."""
        self._backend = backend
        self._frame_bytes = frame_bytes

    async def commit(self, objects: Sequence[BareObject]) -> None:
        """Write all shares, a thread each."""
        async with anyio.create_task_group() as group:
            for share in objects:
                group.start_soon(self._write, share)

    async def restore(self, objects: Sequence[BareObject]) -> list[Document]:
        """Read all shares, a thread each."""
        found: list[Document] = []
        async with anyio.create_task_group() as group:
            for share in objects:
                group.start_soon(self._read, share, found)
        return found

    async def _write(self, share: BareObject) -> None:
        data = await anyio.to_thread.run_sync(lambda: b"".join(_encode(share, self._frame_bytes)))
        await self._backend.put(share.key, data)

    async def _read(self, share: BareObject, found: list[Document]) -> None:
        data = await self._backend.get(share.key, max_bytes=share.size)
        await anyio.to_thread.run_sync(_decode_all, share, data, found)


def _decode_all(share: BareObject, data: bytes, found: list[Document]) -> None:
    decompressor = zstandard.ZstdDecompressor()
    for frame in share.frames:
        found.extend(_decode(data[frame.offset : frame.offset + frame.size], frame, decompressor))
