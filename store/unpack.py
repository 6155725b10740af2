"""From the bytes of a part to records, each step checked: digest, size, lines, lives, JSON, blobs. Runs in threads."""

import hashlib
from collections.abc import Callable, Iterable
from typing import TypeVar

from .errors import CorruptCheckpoint
from .frames import decompress, sha256
from .index import Frame
from .limits import Limits
from .records import RawRecord, Record

Item = TypeVar("Item")


def check_piece(key: str, data: bytes, frames: Iterable[Frame], whole: "hashlib._Hash") -> None:
    """Neighbouring frames, which the piece must end with, and their share of the part's digest.

    Raises CorruptCheckpoint, which says which records are hit.
    """
    at = 0
    for frame in frames:
        check_frame(key, data[at : at + frame.size], frame)
        at += frame.size
    if len(data) > at:
        raise CorruptCheckpoint(key, "it goes on after its last frame")
    whole.update(data)


def check_frame(key: str, data: bytes, frame: Frame) -> None:
    """The stored bytes of one frame against its digest. Raises CorruptCheckpoint."""
    if len(data) != frame.size or sha256(data) != frame.sha256:
        first, last = frame.lives[0], frame.lives[-1]
        lives = str(first) if first == last else f"{len(frame.lives)} records from {first} to {last}"
        raise CorruptCheckpoint(key, f"the frame at {frame.offset}, with {lives}, does not match its digest")


def split(key: str, data: bytes, frame: Frame, wanted: list[int], limits: Limits) -> list[RawRecord]:
    """The wanted lines of a frame, after everything about it was checked. Raises CorruptCheckpoint."""
    check_frame(key, data, frame)
    lines = decompress(data, frame.raw_size, key).split(b"\n")
    if lines.pop() != b"" or len(lines) != len(frame.lives):
        raise CorruptCheckpoint(key, f"the frame at {frame.offset} has {len(lines)} lines and not {len(frame.lives)}")
    for line, life in zip(lines, frame.lives, strict=True):
        if len(line) > limits.max_record_bytes:
            raise CorruptCheckpoint(key, f"the record of {life} has {len(line)} bytes, past the limit")
    return [RawRecord(frame.lives[line], lines[line]) for line in wanted]


def unpack_run(
    key: str,
    data: bytes,
    frames: Iterable[tuple[Frame, list[int]]],
    convert: Callable[[RawRecord, Frame], Item],
    limits: Limits,
) -> list[Item]:
    """What `convert` makes of the wanted lines of neighbouring frames. Runs in a worker thread."""
    items: list[Item] = []
    at = 0
    for frame, wanted in frames:
        items.extend(convert_all(key, frame, split(key, data[at : at + frame.size], frame, wanted, limits), convert))
        at += frame.size
    return items


def convert_all(
    key: str, frame: Frame, records: Iterable[RawRecord], convert: Callable[[RawRecord, Frame], Item]
) -> list[Item]:
    """What `convert` makes of each record; damage in one is named together with the object that holds it."""
    try:
        return [convert(record, frame) for record in records]
    except CorruptCheckpoint as error:
        raise CorruptCheckpoint(f"{key}, {error.name}", error.reason) from error


def as_it_is(record: RawRecord, _: Frame) -> RawRecord:
    """For those who want lines."""
    return record


def parse(raw: RawRecord, frame: Frame) -> Record:
    """For those who want values. A record names no blob that the index does not. Raises CorruptCheckpoint."""
    record = raw.parse()
    for ref in record.blobs:
        if ref not in frame.blobs:
            raise CorruptCheckpoint(f"the record of {raw.life}", f"it names blob {ref}, and the index does not")
    return record
