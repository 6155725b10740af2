"""The output of a run: rows that are durable before they count, exactly once, whatever dies.

Every epoch writes its rows to a segment of its own, `<output>.segments/<epoch>/`, as numbered chunks of JSON Lines,
each created exclusively and durably. Only the chunks from 0 up to the first absent one count. After a claim, a seal on
the chain fixes the length of every lower segment; what a fenced writer adds later is past it and does not count.

At the end the segments are merged, in input order, into the one output file, and failures into the file beside it.

    crash                  what is left
    while a chunk is put   the chunk, or nothing of it: its rollouts are then continued or started over
    while merging          the segments, whole; the output is replaced in one step, so merging again gives the same
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from store import Backend, NotFound, Segment, create_once, open_backend

_LARGEST_CHUNK = 1 << 30


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

    @classmethod
    def decode(cls, line: bytes) -> "Line":
        """From JSON; raises KeyError, TypeError or ValueError where it is not one of ours."""
        fields = orjson.loads(line)
        return cls(fields["rollout_id"], fields["life"], fields["row"], fields["failed"], fields["final"])


def chunk_key(epoch: int, number: int) -> str:
    """Key of one chunk."""
    return f"{epoch}/{number:08d}.jsonl"


class Output:
    """The segments of one run's output."""

    def __init__(self, url: str, segments: Backend, epoch: int) -> None:
        """Made by `open_output`."""
        self.url = url
        self._segments = segments
        self._epoch = epoch
        self._chunks = 0
        self.length = 0
        """Bytes of this epoch's segment."""

    async def append(self, lines: Sequence[Line]) -> None:
        """Write lines; when it returns they are durable. Not for two tasks at once."""
        data = b"".join(line.encode() for line in lines)
        await create_once(self._segments, chunk_key(self._epoch, self._chunks), data)
        self._chunks += 1
        self.length += len(data)

    @property
    def segment(self) -> Segment:
        """This epoch's segment as of now."""
        return Segment(name=str(self._epoch), length=self.length)

    async def read_segment(self, epoch: int, length: int | None = None) -> tuple[list[Line], int]:
        """The lines of a segment and its length in bytes, or its first `length` bytes. A torn line cannot be there."""
        lines: list[Line] = []
        total = number = 0
        while length is None or total < length:
            try:
                data = await self._segments.get(chunk_key(epoch, number), max_bytes=_LARGEST_CHUNK)
            except NotFound:
                break
            lines.extend(Line.decode(line) for line in data.splitlines())
            total += len(data)
            number += 1
        return lines, total

    async def read_own(self) -> list[Line]:
        """The lines of this epoch's segment."""
        return (await self.read_segment(self._epoch))[0]

    async def go_on(self, length: int) -> None:
        """Continue this epoch's segment behind the `length` bytes that it has: for a run without epochs."""
        self.length = length
        while await self._exists(self._chunks):
            self._chunks += 1

    async def _exists(self, number: int) -> bool:
        try:
            await self._segments.stat(chunk_key(self._epoch, number))
        except NotFound:
            return False
        return True

    async def epochs(self) -> list[int]:
        """Epochs that have a segment here, as far as a listing shows."""
        found = {info.key.partition("/")[0] for info in await self._segments.list("")}
        return sorted(int(name) for name in found if name.isdigit())

    async def aclose(self) -> None:
        """Release the backend."""
        await self._segments.aclose()


async def open_output(url: str, epoch: int) -> Output:
    """Open the segments of an output for one epoch."""
    opened = await open_backend(f"{url}.segments", writable=True)
    return Output(url, opened.backend, epoch)


def final_lines(lines: Iterable[Line]) -> dict[str, Line]:
    """The line that decides each rollout: the first final one."""
    decided: dict[str, Line] = {}
    for line in lines:
        if line.final:
            decided.setdefault(line.rollout_id, line)
    return decided


def count_failures(lines: Iterable[Line]) -> dict[str, int]:
    """How often each rollout has failed so far."""
    counts: dict[str, int] = {}
    for line in lines:
        if line.failed:
            counts[line.rollout_id] = counts.get(line.rollout_id, 0) + 1
    return counts


async def merge(url: str, decided: Mapping[str, Line], failures: Sequence[Line], order: Sequence[str]) -> None:
    """Write the output, and the failures beside it, each in one step."""
    folder, _, name = url.rpartition("/")
    opened = await open_backend(folder or ".", writable=True)
    try:
        rows = [decided[r] for r in order if r in decided and not decided[r].failed]
        await opened.backend.put(name, b"".join(_public(line) for line in rows))
        if failures:
            stem = name.removesuffix(".jsonl")
            await opened.backend.put(f"{stem}_failures.jsonl", b"".join(_public(line) for line in failures))
    finally:
        await opened.backend.aclose()


def _public(line: Line) -> bytes:
    document = {**line.row, "_ng_rollout_id": line.rollout_id, "_midflight_life": line.life}
    return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)
