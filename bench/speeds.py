"""What one core of this machine does with these records, and the least time that follows from it on paper."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import orjson
import zstandard

from store.frames import LEVEL

from .limit import Document
from .timing import MB

_SAMPLE, _ROUNDS = 2_000, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """MB of uncompressed records a second, on one core; the best of three rounds over a sample."""

    serialise: float
    compress: float
    sha256: float
    """Of what is compressed."""
    decompress: float
    parse: float

    def commit_s(self, raw_bytes: int, cores: int) -> float:
        """Seconds: all work spread over the cores, but serialising holds the interpreter lock."""
        return _least(raw_bytes, cores, self.serialise, self.compress, self.sha256)

    def restore_s(self, raw_bytes: int, cores: int) -> float:
        """Seconds: all work spread over the cores, but parsing holds the interpreter lock."""
        return _least(raw_bytes, cores, self.parse, self.decompress, self.sha256)


def _least(raw_bytes: int, cores: int, locked: float, *free: float) -> float:
    seconds = raw_bytes / MB / locked
    return max(seconds, (seconds + sum(raw_bytes / MB / speed for speed in free)) / cores)


def measure(documents: list[Document], frame_bytes: int) -> Speeds:
    """Try each step on its own."""
    lines = [orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE) for document in documents[:_SAMPLE]]
    size = sum(map(len, lines))
    step = max(1, frame_bytes * len(lines) // size)
    raws = [b"".join(lines[start : start + step]) for start in range(0, len(lines), step)]
    compressor, decompressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True), zstandard.ZstdDecompressor()
    frames = [compressor.compress(raw) for raw in raws]

    def speed(work: Callable[[], object]) -> float:
        return size / MB / min(_seconds(work) for _ in range(_ROUNDS))

    return Speeds(
        serialise=speed(lambda: [orjson.dumps(document) for document in documents[:_SAMPLE]]),
        compress=speed(lambda: [compressor.compress(raw) for raw in raws]),
        sha256=speed(lambda: [hashlib.sha256(frame).hexdigest() for frame in frames]),
        decompress=speed(lambda: [decompressor.decompress(frame) for frame in frames]),
        parse=speed(lambda: [len([orjson.loads(line) for line in raw.splitlines()]) for raw in raws]),
    )


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
