"""What verifying can find, and the checks of bytes that are already in memory: pure, to run in worker threads."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import orjson

from .entries import Document
from .errors import CorruptCheckpoint
from .frames import decompress, sha256
from .index import Frame
from .layout import BlobRef, Life
from .records import RawRecord
from .secrets import SecretHit, scan

Severity = Literal["damage", "secret", "leftover", "warning"]
_MAX_LIVES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that an operator should know."""

    severity: Severity
    object: str
    """The key of the object, or what else it is about."""
    message: str


@dataclass(frozen=True, slots=True)
class FrameCheck:
    """What to do with one frame."""

    key: str
    """Its part."""
    process: str
    deep: bool
    max_record_bytes: int


@dataclass(slots=True)
class Seen:
    """What has been looked at so far."""

    records: int = 0
    parts: int = 0
    blobs: int = 0
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    def damage(self, where: str, message: str) -> None:
        """Note damage."""
        self.findings.append(Finding("damage", where, message))

    def warn(self, where: str, message: str) -> None:
        """Note something that could not be checked, or deserves a look."""
        self.findings.append(Finding("warning", where, message))


def check_frame(data: bytes, frame: Frame, check: FrameCheck) -> list[Finding]:
    """Everything wrong with one frame of which these bytes were read."""
    where = f"the frame at {frame.offset} with {name_lives(frame.lives)} of {check.process}"
    if len(data) != frame.size:
        return [_damage(check, f"{where} ends after {len(data)} of {frame.size} bytes")]
    if sha256(data) != frame.sha256:
        return [_damage(check, f"{where} does not match its digest")]
    try:
        raw = decompress(data, frame.raw_size, check.key)
    except CorruptCheckpoint as error:
        return [_damage(check, f"{where} cannot be decompressed: {error.reason}")]
    lines = raw.split(b"\n")
    if lines.pop() != b"" or len(lines) != len(frame.lives):
        return [_damage(check, f"{where} has {len(lines)} lines, and the index names {len(frame.lives)}")]
    return [*_check_lines(lines, frame, check), *_secrets_in_frame(raw, lines, frame, check)]


def _check_lines(lines: Sequence[bytes], frame: Frame, check: FrameCheck) -> Iterator[Finding]:
    named: set[BlobRef] = set()
    sound = True
    for life, line in zip(frame.lives, lines, strict=True):
        record = RawRecord(life, line)
        if not line.startswith(f'{{"life":"{life}",'.encode()):
            sound = False
            yield _damage(check, f"the record of {life} of {check.process} does not begin with its life")
        elif len(line) > check.max_record_bytes:
            sound = False
            yield _damage(check, f"the record of {life} of {check.process} has {len(line)} bytes, past the limit")
        elif check.deep:
            try:
                named.update(record.parse().blobs)
            except CorruptCheckpoint as error:
                sound = False
                yield _damage(check, f"the record of {life} of {check.process}: {error.reason}")
    if check.deep and sound and named != set(frame.blobs):
        where = f"the frame at {frame.offset} with {name_lives(frame.lives)}"
        yield _damage(check, f"{where} names {len(named)} blobs, and the index {len(set(frame.blobs))} others for it")


def _secrets_in_frame(raw: bytes, lines: Sequence[bytes], frame: Frame, check: FrameCheck) -> Iterator[Finding]:
    """Secrets in a frame, each with the record that holds it."""
    starts = _starts(lines)
    for hit in scan(raw):
        position = next(n for n in range(len(starts) - 1, -1, -1) if starts[n] <= hit.offset)
        place = f"byte {hit.offset - starts[position]} of its line"
        yield secret(check.key, f"the record of {frame.lives[position]} of {check.process}", hit, place)


def _starts(lines: Iterable[bytes]) -> list[int]:
    starts, position = [], 0
    for line in lines:
        starts.append(position)
        position += len(line) + 1
    return starts


def secrets_in_document(key: str, document: Document) -> list[Finding]:
    """Secrets in a manifest, each with the field that holds it."""
    return [
        secret(key, f"the field {name!r}", hit, f"byte {hit.offset} of its value")
        for name, value in document.model_dump(mode="json").items()
        for hit in scan(orjson.dumps(value))
    ]


def secret(key: str, owner: str, hit: SecretHit, place: str) -> Finding:
    """The finding for one hit; names kind and place, never the secret."""
    return Finding("secret", key, f"{owner} holds what looks like a credential of kind {hit.kind}, at {place}")


def name_lives(lives: Sequence[Life]) -> str:
    """A few lives by name, and how many more there are."""
    shown = ", ".join(str(life) for life in lives[:_MAX_LIVES_SHOWN])
    more = len(lives) - _MAX_LIVES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _damage(check: FrameCheck, message: str) -> Finding:
    return Finding("damage", check.key, message)
