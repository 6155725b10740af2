"""The index of one process's parts: which frame holds which life, on which line, and which blobs it names.

`index-<16 digits of its sha256>.jsonl.zst` has one line a frame, in order, with the keys `part`, `offset`, `size`,
`raw_size`, `sha256`, `lives`, `blobs`. The record of the i-th life is line i of that frame. Offsets and sizes are bytes
of the part; the sha256 is the frame's as stored, so one frame can be read, checked and handed out without the rest of
its part.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from .errors import CorruptCheckpoint, DuplicateRollout, InvalidName
from .frames import compress_bytes, decompress, largest_frame
from .layout import BlobRef, CheckpointId, Life, check_sha256
from .limits import Limits

_KEYS = ["part", "offset", "size", "raw_size", "sha256", "lives", "blobs"]
_TEXT, _COUNT = rb'"[^"\\]*+"', rb"[0-9]{1,20}+"
_BLOB = rb"\[" + _TEXT + rb"," + _TEXT + rb"," + _COUNT + rb"\]"
_LINE = re.compile(
    rb'\{"part":%b,"offset":%b,"size":%b,"raw_size":%b,"sha256":%b,"lives":\[%b(?:,%b)*+\],"blobs":\[(?:%b(?:,%b)*+)?+\]\}'
    % (_COUNT, _COUNT, _COUNT, _COUNT, _TEXT, _TEXT, _TEXT, _BLOB, _BLOB)
)
"""Asked before a line is parsed: a parser makes twenty times its size of a line of empty brackets."""
NONE_KNOWN: Mapping[str, Life] = {}
"""No life has been parsed already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame of a part."""

    part: int
    """Position of its part in the manifest's list, from 0."""
    offset: int
    size: int
    raw_size: int
    sha256: str
    lives: tuple[Life, ...]
    """One a line, in order."""
    blobs: tuple[BlobRef, ...]
    """Every blob that one of its records names."""


def encode_index(frames: Iterable[Frame]) -> tuple[bytes, int]:
    """The index object and its uncompressed size."""
    raw = b"".join(_encode(frame) for frame in frames)
    return compress_bytes(raw), len(raw)


def _encode(frame: Frame) -> bytes:
    blobs = [[ref.sha256, str(ref.written_by), ref.size] for ref in frame.blobs]
    lives = [str(life) for life in frame.lives]
    values = (frame.part, frame.offset, frame.size, frame.raw_size, frame.sha256, lives, blobs)
    return orjson.dumps(dict(zip(_KEYS, values, strict=True)), option=orjson.OPT_APPEND_NEWLINE)


def decode_index(
    data: bytes,
    raw_size: int,
    part_sizes: Sequence[int],
    records: int,
    name: str,
    limits: Limits,
    known: Mapping[str, Life] = NONE_KNOWN,
) -> list[Frame]:
    """Parse an index whose digest was checked, of `records` lives in all; those `known` by their text are not parsed.

    Raises CorruptCheckpoint unless its frames tile the parts exactly. Memory follows what is said of so many records,
    whatever else the index holds.
    """
    if raw_size > limits.max_index_bytes:
        raise CorruptCheckpoint(name, f"it announces {raw_size} bytes, and the limit is {limits.max_index_bytes}")
    frames, left = [], records
    for line in _lines(decompress(data, raw_size, name), name):
        frames.append(_decode(line, name, limits, known))
        left -= max(1, len(frames[-1].lives))
        if left < 0:
            raise CorruptCheckpoint(name, f"it has more than the {records} records that the manifest says")
    _check_tiling(frames, part_sizes, name)
    _check_unique(frames, name)
    return frames


def by_part(frames: Iterable[Frame], parts: int) -> list[list[Frame]]:
    """The frames of each part; they were checked to lie in one."""
    found: list[list[Frame]] = [[] for _ in range(parts)]
    for frame in frames:
        found[frame.part].append(frame)
    return found


def pieces(frames: Iterable[Frame], max_bytes: int) -> Iterator[list[Frame]]:
    """Neighbouring frames of a part, together at most `max_bytes`; a longer frame is alone."""
    held: list[Frame] = []
    for frame in frames:
        if held and frame.offset + frame.size - held[0].offset > max_bytes:
            yield held
            held = []
        held.append(frame)
    if held:
        yield held


def _lines(raw: bytes, name: str) -> Iterator[bytes]:
    """One line after the other, so that a million of them are never held at once."""
    start = 0
    while start < len(raw):
        end = raw.find(b"\n", start)
        if end < 0:
            raise CorruptCheckpoint(name, "its last line does not end")
        yield raw[start:end]
        start = end + 1


def _decode(line: bytes, name: str, limits: Limits, known: Mapping[str, Life]) -> Frame:
    try:
        if not _LINE.fullmatch(line):
            raise ValueError("it does not have the form of a frame's")
        fields = orjson.loads(line)
        frame = Frame(
            part=_natural(fields["part"]),
            offset=_natural(fields["offset"]),
            size=_natural(fields["size"]),
            raw_size=_natural(fields["raw_size"]),
            sha256=check_sha256(fields["sha256"]),
            lives=tuple([known.get(life) or Life.parse(life) for life in fields["lives"]]),
            blobs=tuple(BlobRef(check_sha256(s), CheckpointId.parse(c), _natural(n)) for s, c, n in fields["blobs"]),
        )
    except (ValueError, TypeError, InvalidName) as error:
        raise CorruptCheckpoint(name, f"a line is malformed ({error})") from error
    if frame.raw_size > limits.frame_bytes + limits.max_record_bytes:
        raise CorruptCheckpoint(name, f"a frame announces {frame.raw_size} bytes, past the limit")
    if frame.size > largest_frame(frame.raw_size):
        raise CorruptCheckpoint(name, f"a frame of {frame.raw_size} bytes is said to take {frame.size}")
    return frame


def _natural(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.40} is not a count")
    return value


def _check_tiling(frames: Sequence[Frame], part_sizes: Sequence[int], name: str) -> None:
    ends = [0] * len(part_sizes)
    for frame in frames:
        if frame.part >= len(ends) or frame.offset != ends[frame.part] or not frame.lives or not frame.size:
            raise CorruptCheckpoint(name, f"the frame at {frame.part}:{frame.offset} is out of place")
        ends[frame.part] += frame.size
    if ends != list(part_sizes):
        raise CorruptCheckpoint(name, "its frames do not fill the parts")


def _check_unique(frames: Iterable[Frame], name: str) -> None:
    try:
        UniqueRollouts(name).add_all(life for frame in frames for life in frame.lives)
    except DuplicateRollout as error:
        raise CorruptCheckpoint(name, error.message) from error


class UniqueRollouts:
    """Refuses a second record of one rollout."""

    def __init__(self, where: str) -> None:
        """`where` is for the message."""
        self._where = where
        self._seen: set[str] = set()

    def __len__(self) -> int:
        return len(self._seen)

    def add_all(self, lives: Iterable[Life]) -> None:
        """Take these lives in; raises DuplicateRollout."""
        rollouts = [life.rollout_id for life in lives]
        if len(set(rollouts)) < len(rollouts) or not self._seen.isdisjoint(rollouts):
            raise DuplicateRollout(self._repeated(rollouts), self._where)
        self._seen.update(rollouts)

    def _repeated(self, rollouts: Iterable[str]) -> str:
        """The first that was there already; there is one."""
        seen = set(self._seen)
        for rollout in rollouts:
            if rollout in seen:
                return rollout
            seen.add(rollout)
        raise AssertionError
