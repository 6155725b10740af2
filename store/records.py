"""Records and their lines: one record is one line of JSON.

A line is `{"life":"<life>","payload":<value>}`, or, where bytes stand in the payload,
`{"life":"<life>","escaped":true,"payload":<value>}` (`store.values` has the escapes).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .errors import CorruptCheckpoint, InvalidRecord
from .layout import BlobRef, Life
from .lazy import LazyBytes
from .values import NOTHING, BlobPlan, blobs_in, encode_value, parse_exactly, unescape

_ESCAPED = b'"escaped":true,'
_PAYLOAD = b'"payload":'


@dataclass(frozen=True, slots=True)
class Record:
    """What one participant keeps of one rollout: a JSON value in which bytes, LazyBytes and BlobRefs may stand."""

    life: Life
    payload: Any
    blobs: tuple[BlobRef, ...] = field(default=(), compare=False, repr=False)
    """Those that a parsed payload names; empty on a record that was made, not read."""


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A record as its line (no line feed), unparsed; it can be committed again unchanged, which costs no parsing."""

    life: Life
    line: bytes

    def parse(self) -> Record:
        """Parse the line; a payload kept in a blob comes back as its BlobRef. Raises CorruptCheckpoint."""
        return decode_line(self.line, self.life)

    def with_life(self, life: Life) -> "RawRecord":
        """The same payload under another life of the same rollout. Raises InvalidRecord for another rollout."""
        if life.rollout_id != self.life.rollout_id:
            raise InvalidRecord(self.life.rollout_id, f"{life} is a life of another rollout")
        return RawRecord(life, _head(life) + self.line.removeprefix(_head(self.life)))

    @property
    def escaped(self) -> bool:
        """Whether bytes or blobs stand in the payload."""
        return self.line.startswith(_ESCAPED, len(_head(self.life)))


class Line(NamedTuple):
    """An encoded record, the payloads to be put into blobs, and all the blobs that it names.

    A tuple, as one is made for every record and a frozen dataclass takes three times as long.
    """

    data: bytes
    outgoing: Mapping[BlobRef, bytes]
    blobs: tuple[BlobRef, ...]
    lazy: Mapping[BlobRef, LazyBytes] = NOTHING
    """Further payloads to be put into blobs, which are not read yet."""


def _head(life: Life) -> bytes:
    return f'{{"life":"{life}",'.encode()


def encode_line(record: Record | RawRecord, plan: BlobPlan) -> Line:
    """Encode one record; raises InvalidRecord where it could not be read back exactly."""
    rollout_id = record.life.rollout_id
    line = _encode_raw(record, plan) if isinstance(record, RawRecord) else _encode_parsed(record, plan)
    if len(line.data) > plan.limits.max_record_bytes:
        raise InvalidRecord(
            rollout_id, f"it has {len(line.data)} bytes, and the limit is {plan.limits.max_record_bytes}"
        )
    return line


def _encode_parsed(record: Record, plan: BlobPlan) -> Line:
    value = encode_value(record.payload, plan, record.life.rollout_id)
    middle = _ESCAPED if value.escaped else b""
    data = b"".join((_head(record.life), middle, _PAYLOAD, value.data, b"}"))
    return Line(data, value.outgoing, value.blobs, value.lazy)


def _encode_raw(record: RawRecord, plan: BlobPlan) -> Line:
    start = _head(record.life) + (_ESCAPED if record.escaped else b"") + _PAYLOAD
    if not (record.line.startswith(start) and record.line.endswith(b"}")):
        raise InvalidRecord(record.life.rollout_id, "the raw line does not begin with its life and payload")
    if b"\n" in record.line:
        raise InvalidRecord(record.life.rollout_id, "its line has a line feed in it")
    blobs = record.parse().blobs if record.escaped else ()
    for ref in blobs:
        if not plan.allows(ref):
            raise InvalidRecord(record.life.rollout_id, f"blob {ref} is not one that the parent checkpoint names")
    return Line(record.line, NOTHING, blobs)


def decode_line(line: bytes, life: Life) -> Record:
    """Parse one line of a part that, by the index, holds the record of `life`. Raises CorruptCheckpoint."""
    start = _head(life) + _PAYLOAD
    if line.startswith(start) and line.endswith(b"}"):
        try:
            return Record(life, parse_exactly(line[len(start) : -1], "a payload"))
        except CorruptCheckpoint:
            pass  # The longer way has the better message.
    return _decode_other(line, life)


def _decode_other(line: bytes, life: Life) -> Record:
    """One that is escaped, spelled in another way, or damaged."""
    name = f"the record of {life}"
    document = parse_exactly(line, name)
    if not isinstance(document, dict):
        raise CorruptCheckpoint(name, "it is not a JSON object")
    escaped = "escaped" in document
    keys = ["life", "escaped", "payload"] if escaped else ["life", "payload"]
    if list(document) != keys or (escaped and document["escaped"] is not True):
        raise CorruptCheckpoint(name, f"its keys are {list(document)[:5]} and not {keys}")
    if document["life"] != str(life):
        raise CorruptCheckpoint(name, f"it holds {document['life']!r:.100}")
    if not escaped:
        return Record(life, document["payload"])
    payload = unescape(document["payload"], name)
    return Record(life, payload, blobs_in(payload))
