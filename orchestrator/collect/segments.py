"""The segments of a run's output: rows that are durable before they count, exactly once, whatever dies.

Every epoch writes to a segment of its own, `<output>.segments/<run>/<epoch>/`, as numbered chunks of JSON Lines, each
created exclusively and durably. Only the chunks from 0 up to the first absent one count. Chunk 0 is the header: what
the run meant when it wrote this. After a claim, a seal on the chain fixes the length of every lower segment; what a
fenced writer adds later is past it and does not count. Before the first claim an empty segment of epoch 0 is made. A
run without checkpoints has no claims, and one segment.

    crash                  what is left
    while a chunk is put   the chunk, or nothing of it: its rollouts are then continued or started over
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import anyio.to_thread
import orjson

from store import (
    Backend,
    CheckpointConflict,
    CorruptCheckpoint,
    InvalidInput,
    Life,
    LocalBackend,
    NotFound,
    StoreError,
    create_once,
    open_backend,
)

from .groups import ENDS_GROUP

ROWS_ONLY = "rows"
"""Stands for the run where there is no store, and so no run id."""
_OWNER = "owner.json"
"""Says which run's rows count, once a fresh start has put those of others aside; without it there is one run alone."""
_NO_RUNS = frozenset({"alive", _OWNER})
_LARGEST_CHUNK = 1 << 30
_READ_AHEAD = 16
"""Chunks that are read at once."""


class AnotherWriter(StoreError):
    """Another collector writes the same segment, as only one without checkpoints can."""

    def __init__(self, url: str, key: str) -> None:
        super().__init__(
            f"another collector writes {url}: {key} is there already, and not from this one",
            hint="Let one of them end; the same command then goes on from the rows of both",
        )


class CorruptSegment(CorruptCheckpoint):
    """A chunk of the output is damaged. It is no part of a checkpoint, so none can take its place."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.hint = (
            "Put this file back from a copy and run the same command again, or start anew with "
            "--fresh: the rows of before do not count then"
        )


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a segment: a finished rollout, or one failure of it."""

    rollout_id: str
    life: str
    row: Mapping[str, Any]
    """The output row; for a failure its facts."""
    failed: bool = False
    final: bool = True
    """Whether the rollout is over; a failure that will be tried again is not."""

    def encode(self) -> bytes:
        """As JSON, with a line feed."""
        document = {
            "rollout_id": self.rollout_id,
            "life": self.life,
            "failed": self.failed,
            "final": self.final,
            "row": self.row,
        }
        return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)


@dataclass(frozen=True, slots=True)
class Kept:
    """A line that counts, and where its row is; rows themselves stay on disk."""

    rollout_id: str
    life: str
    failed: bool
    final: bool
    key: str
    start: int
    size: int
    why: str = ""
    """The class of a failure."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the run meant when it wrote a segment."""

    fingerprint: Mapping[str, str] = field(default_factory=dict)
    accepted: Sequence[str] = ()
    """Fields in which it was told to differ from what came before."""
    retry_failed: bool = False
    """Whether failures of lower segments are tried again, and so decide nothing."""

    def encode(self) -> bytes:
        """As JSON, with a line feed."""
        document = {
            "fingerprint": dict(self.fingerprint),
            "accepted": list(self.accepted),
            "retry_failed": self.retry_failed,
        }
        return orjson.dumps({"header": document}, option=orjson.OPT_APPEND_NEWLINE)


@dataclass(slots=True)
class Found:
    """What of a segment counts."""

    header: Header | None = None
    lines: list[Kept] = field(default_factory=list)
    length: int = 0
    """Bytes."""
    chunks: int = 0


class Segments:
    """The segments of one output, as far as one run is concerned."""

    def __init__(self, backend: Backend, run: str) -> None:
        """`run` is the run id, or ROWS_ONLY."""
        self.backend = backend
        self.run = run

    def __repr__(self) -> str:
        return f"<Segments of run {self.run} at {self.backend.url}>"

    def key(self, epoch: int, chunk: int) -> str:
        """Key of one chunk."""
        return f"{self.run}/{epoch}/{chunk:08d}.jsonl"

    def of(self, run: str) -> "Segments":
        """Those of another run at the same output."""
        return Segments(self.backend, run)

    async def runs(self) -> list[str]:
        """Every run that has written here."""
        return sorted({info.key.partition("/")[0] for info in await self.backend.list("")} - _NO_RUNS)

    async def rivals(self) -> list[str]:
        """Other runs that have written here, unless a fresh start of this one has put them aside since."""
        others = [run for run in await self.runs() if run != self.run]
        owner = await self._owner() if others else None
        if owner is None:
            return others
        return [] if owner == self.run else [owner]

    async def put_others_aside(self) -> None:
        """From now on the rows of this run count, and no others."""
        if await self.rivals():
            await self.backend.put(_OWNER, orjson.dumps({"run": self.run}))

    async def _owner(self) -> str | None:
        try:
            data = await self.backend.get(_OWNER, max_bytes=_LARGEST_CHUNK)
        except NotFound:
            return None
        return str(_fields(self._url(_OWNER), data).get("run"))

    async def epochs(self) -> list[int]:
        """Epochs of this run that have a segment."""
        return sorted(await self.sizes())

    async def sizes(self) -> dict[int, int]:
        """Bytes of each segment of this run, all its chunks together, as a listing has them."""
        sizes: dict[int, int] = {}
        for info in await self.backend.list(f"{self.run}/"):
            if (epoch := info.key.split("/")[1]).isdigit():
                sizes[int(epoch)] = sizes.get(int(epoch), 0) + info.size
        return sizes

    async def mark(self) -> None:
        """Before the run is claimed for the first time: a segment of epoch 0, by which its output is known.

        So an output that is gone is told from that of a run which was killed before it had written anything.
        """
        await create_once(self.backend, self.key(0, 0), Header().encode())

    async def read(self, epoch: int, length: int | None = None) -> Found:
        """What counts of a segment: its chunks up to the first absent one, or its first `length` bytes."""
        found = Found()
        while length is None or found.length < length:
            chunks = await self._read_ahead(epoch, found.chunks)
            for data in chunks:
                if data is None or (length is not None and found.length >= length):
                    return found
                key = self.key(epoch, found.chunks)
                await anyio.to_thread.run_sync(_take_chunk, found, key, self._url(key), data)
        return found

    async def _read_ahead(self, epoch: int, first: int) -> list[bytes | None]:
        """A few chunks at once; the first one alone tells whether there are any."""
        count = _READ_AHEAD if first else 1
        chunks: list[bytes | None] = [None] * count

        async def read(position: int) -> None:
            with suppress(NotFound):
                key = self.key(epoch, first + position)
                chunks[position] = await self.backend.get(key, max_bytes=_LARGEST_CHUNK)

        async with anyio.create_task_group() as group:
            for position in range(count):
                group.start_soon(read, position)
        return chunks

    async def row(self, kept: Kept) -> Mapping[str, Any]:
        """The row of a line."""
        data = await self.backend.get_range(kept.key, kept.start, kept.size)
        row = _fields(self._url(kept.key), data).get("row")
        if not isinstance(row, dict):
            raise CorruptSegment(self._url(kept.key), "one of its lines has no row")
        return row

    def _url(self, key: str) -> str:
        """Of an object, for people."""
        return f"{self.backend.url}/{key}"

    async def leftovers(self) -> list[str]:
        """What is half written: by a start that was killed, or by one that lives. Only local disks show all of it."""
        inner = getattr(self.backend, "inner", self.backend)
        temporary = await inner.list_leftovers() if isinstance(inner, LocalBackend) else []
        return [info.key for info in (*temporary, *await self.backend.list("alive/"))]

    async def remove(self, keys: Sequence[str]) -> None:
        """Remove what stood half written when this start began: whoever wrote it is dead or fenced by now."""
        await self.backend.delete(keys)

    async def aclose(self) -> None:
        """Release the backend."""
        await self.backend.aclose()


def _take_chunk(found: Found, key: str, url: str, data: bytes) -> None:
    start = 0
    for line in data.splitlines(keepends=True):
        try:
            _take_line(found, key, _fields(url, line), start, len(line))
        except (KeyError, TypeError, ValueError, InvalidInput) as error:
            raise CorruptSegment(url, f"one of its lines is no row and no header: {error!r:.200}") from error
        start += len(line)
    found.length += len(data)
    found.chunks += 1


def _take_line(found: Found, key: str, fields: Mapping[str, Any], start: int, size: int) -> None:
    if "header" in fields:
        header = fields["header"]
        found.header = Header(dict(header["fingerprint"]), tuple(header["accepted"]), bool(header["retry_failed"]))
        if found.header.retry_failed:
            found.lines = forgiven(found.lines)
        return
    Life.parse(fields["life"])
    item = (str(fields["rollout_id"]), fields["life"], bool(fields["failed"]), bool(fields["final"]))
    found.lines.append(Kept(*item, key, start, size, why_of(fields["row"]) if item[2] else ""))


def _fields(url: str, line: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(line)
    except ValueError as error:
        raise CorruptSegment(url, f"a row of the output is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise CorruptSegment(url, "a row of the output is not a JSON object")
    return fields


class Writer:
    """The segment of one epoch, to be written. Not for two tasks at once."""

    def __init__(self, segments: Segments, epoch: int, found: Found | None = None) -> None:
        """`found` is what the segment has already, in a run without epochs."""
        self._segments = segments
        self._chunks = found.chunks if found else 0
        self.epoch = epoch
        self.length = found.length if found else 0
        self.lines: list[Kept] = []

    async def begin(self, header: Header) -> None:
        """Say what the run means, before its first row."""
        await self._put(header.encode())

    async def append(self, lines: Sequence[Line]) -> None:
        """Write lines; when it returns they are durable."""
        encoded = [line.encode() for line in lines]
        key, start = self._segments.key(self.epoch, self._chunks), 0
        await self._put(b"".join(encoded))
        for line, data in zip(lines, encoded, strict=True):
            why = why_of(line.row) if line.failed else ""
            self.lines.append(Kept(line.rollout_id, line.life, line.failed, line.final, key, start, len(data), why))
            start += len(data)

    async def _put(self, data: bytes) -> None:
        key = self._segments.key(self.epoch, self._chunks)
        try:
            await create_once(self._segments.backend, key, data)
        except CheckpointConflict as error:
            raise AnotherWriter(self._segments.backend.url, key) from error
        self._chunks += 1
        self.length += len(data)


async def open_segments(url: str, run: str, *, single_writer: bool = False) -> Segments:
    """Open the segments of an output."""
    opened = await open_backend(f"{url}.segments", writable=True, single_writer=single_writer)
    return Segments(opened.backend, run)


def final_lines(lines: Iterable[Kept]) -> dict[str, Kept]:
    """The line that decides each rollout: the first final one."""
    decided: dict[str, Kept] = {}
    for line in lines:
        if line.final:
            decided.setdefault(line.rollout_id, line)
    return decided


def forgiven(lines: Iterable[Kept]) -> list[Kept]:
    """The same where what has failed is tried again: no failure counts any more.

    That a cohort failed stays known, by its class alone: its attempt is over, and the next one must be a later one.
    """
    left = (line for line in lines if not line.failed or line.why in ENDS_GROUP)
    return [replace(line, failed=False, final=False) if line.failed else line for line in left]


def count_failures(lines: Iterable[Kept]) -> dict[str, int]:
    """How often each rollout has failed so far."""
    counts: dict[str, int] = {}
    for line in lines:
        if line.failed:
            counts[line.rollout_id] = counts.get(line.rollout_id, 0) + 1
    return counts


def why_of(row: Any) -> str:
    """The class of a failure, of its facts."""
    return str(row.get("_ng_failure_class", "")) if isinstance(row, Mapping) else ""
