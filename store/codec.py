"""Records and their lines: one record is one line of JSON, read back exactly as it was written or refused by name.

A line is `{"life":"<life>","payload":<value>}`. Values keep their key order, 64-bit integers and text as they are.
Bytes have no JSON form, so a record that holds any is written escaped, `{"life":...,"escaped":true,"payload":...}`:
there `{"$bytes":"<base64>"}` stands for bytes, `{"$blob":{"sha256":...,"written_by":...,"size":...}}` for bytes kept in
a blob, and every key of the payload's own that begins with `$` has one more `$` before it.

JSON has no tuples: they are read back as lists, and str enums and UUIDs as strings.
"""

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import orjson

from .errors import CorruptCheckpoint, InvalidName, InvalidRecord
from .layout import BlobRef, CheckpointId, Life, check_sha256
from .limits import Limits

_OPTIONS = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
_BYTES, _BLOB = "$bytes", "$blob"


@dataclass(frozen=True, slots=True)
class Record:
    """What one participant keeps of one rollout: a JSON value in which bytes, and BlobRefs, may stand."""

    life: Life
    payload: Any


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A record as its line (no line feed), unparsed; it can be committed again unchanged, which costs no parsing."""

    life: Life
    line: bytes

    def parse(self) -> Record:
        """Parse the line; a payload kept in a blob comes back as its BlobRef. Raises CorruptCheckpoint."""
        return decode_line(self.line, f"the record of {self.life}", self.life)

    def with_life(self, life: Life) -> "RawRecord":
        """The same payload under another life of the same rollout."""
        return RawRecord(life, _head(life) + self.line[len(_head(self.life)) :])

    @property
    def escaped(self) -> bool:
        """Whether bytes or blobs stand in the payload."""
        return self.line.startswith(_ESCAPED, len(_head(self.life)))


@dataclass(frozen=True, slots=True)
class Line:
    """An encoded record, the payloads to be put into blobs, and all the blobs that it names."""

    data: bytes
    outgoing: Mapping[BlobRef, bytes]
    blobs: tuple[BlobRef, ...]


def _head(life: Life) -> bytes:
    return f'{{"life":"{life}",'.encode()


_ESCAPED = b'"escaped":true,'


class BlobPlan:
    """Decides for each large payload of one commit which blob holds it: one of the parent's, or a new one."""

    def __init__(self, checkpoint: CheckpointId, parent_blobs: Mapping[str, BlobRef], limits: Limits) -> None:
        """`parent_blobs` maps the sha256 of each blob that the parent checkpoint names to it; no other is reused."""
        self._checkpoint = checkpoint
        self._parent = parent_blobs
        self.limits = limits

    def place(self, data: bytes) -> BlobRef:
        """The blob for `data`."""
        digest = hashlib.sha256(data).hexdigest()
        known = self._parent.get(digest)
        return known if known else BlobRef(digest, self._checkpoint, len(data))

    def owns(self, ref: BlobRef) -> bool:
        """Whether this commit writes that blob itself, rather than reusing it."""
        return ref.written_by == self._checkpoint

    def allows(self, ref: BlobRef) -> bool:
        """Whether a record that is committed again may go on naming `ref`."""
        return self._parent.get(ref.sha256) == ref


class _NeedsEscape(Exception):
    """Internal: a value without a JSON form was met."""


def encode(record: Record | RawRecord, plan: BlobPlan) -> Line:
    """Encode one record; raises InvalidRecord where it could not be read back exactly."""
    line = _encode_raw(record, plan) if isinstance(record, RawRecord) else _encode_parsed(record, plan)
    if len(line.data) > plan.limits.max_record_bytes:
        limit = plan.limits.max_record_bytes
        raise InvalidRecord(record.life.rollout_id, f"it has {len(line.data)} bytes, and the limit is {limit}")
    return line


def _encode_raw(record: RawRecord, plan: BlobPlan) -> Line:
    if b"\n" in record.line or not record.line.startswith(_head(record.life)):
        raise InvalidRecord(record.life.rollout_id, "the raw line is not one line that begins with its life")
    blobs = blobs_in(record.parse().payload) if record.escaped else ()
    for ref in blobs:
        if not plan.allows(ref):
            raise InvalidRecord(record.life.rollout_id, f"blob {ref} is not one that the parent checkpoint names")
    return Line(record.line, {}, blobs)


def _encode_parsed(record: Record, plan: BlobPlan) -> Line:
    rollout_id = record.life.rollout_id
    try:
        return Line(_dump_plain(record, rollout_id), {}, ())
    except _NeedsEscape:
        escape = _Escape(rollout_id, plan)
        try:
            value = escape.value(record.payload)
        except RecursionError as error:
            raise InvalidRecord(rollout_id, "it is nested too deeply") from error
        data = _dump(rollout_id, {"life": str(record.life), "escaped": True, "payload": value}, _refuse)
        _check_finite(rollout_id, data, value)
        return Line(data, escape.outgoing, tuple(escape.blobs))


def _dump_plain(record: Record, rollout_id: str) -> bytes:
    data = _dump(rollout_id, {"life": str(record.life), "payload": record.payload}, _default)
    _check_finite(rollout_id, data, record.payload)
    return data


def _dump(rollout_id: str, document: dict[str, Any], default: Callable[[Any], Any]) -> bytes:
    try:
        return orjson.dumps(document, default, _OPTIONS)
    except TypeError as error:  # orjson.JSONEncodeError is a TypeError
        if isinstance(error.__cause__, _NeedsEscape):
            raise error.__cause__ from None
        raise InvalidRecord(rollout_id, str(error.__cause__ or error)) from error


def _default(value: Any) -> NoReturn:
    if isinstance(value, bytes | bytearray | memoryview | BlobRef):
        raise _NeedsEscape
    _refuse(value)


def _refuse(value: Any) -> NoReturn:
    raise TypeError(f"a value of type {type(value).__name__} has no JSON form")


def _check_finite(rollout_id: str, data: bytes, value: Any) -> None:
    # orjson writes NaN and infinity as null, so only a line with a null in it can hide one.
    if b"null" in data and _any_not_finite(value):
        raise InvalidRecord(rollout_id, "NaN and infinity have no JSON form")


def _any_not_finite(value: Any) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        if type(item) is float:
            if not math.isfinite(item):
                return True
        elif type(item) is dict:
            pending.extend(item.values())
        elif type(item) in (list, tuple) and set(map(type, item)) - {int, str}:
            pending.extend(item)
    return False


class _Escape:
    """Rewrites one payload so that its bytes have a JSON form."""

    def __init__(self, rollout_id: str, plan: BlobPlan) -> None:
        self._rollout_id = rollout_id
        self._plan = plan
        self.outgoing: dict[BlobRef, bytes] = {}
        self.blobs: dict[BlobRef, None] = {}

    def value(self, value: Any) -> Any:
        if isinstance(value, bytes | bytearray | memoryview):
            return self._bytes(bytes(value))
        if isinstance(value, BlobRef):
            return self._kept(value)
        if isinstance(value, dict):
            return {_escape_key(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def _bytes(self, data: bytes) -> dict[str, Any]:
        limits = self._plan.limits
        if len(data) <= limits.inline_payload_bytes:
            return {_BYTES: base64.b64encode(data).decode()}
        if len(data) > limits.max_blob_bytes:
            raise InvalidRecord(
                self._rollout_id, f"a payload has {len(data)} bytes, and the limit is {limits.max_blob_bytes}"
            )
        ref = self._plan.place(data)
        if self._plan.owns(ref):
            self.outgoing[ref] = data
        return self._name(ref)

    def _kept(self, ref: BlobRef) -> dict[str, Any]:
        if not self._plan.allows(ref):
            raise InvalidRecord(self._rollout_id, f"blob {ref} is not one that the parent checkpoint names")
        return self._name(ref)

    def _name(self, ref: BlobRef) -> dict[str, Any]:
        self.blobs[ref] = None
        return {_BLOB: {"sha256": ref.sha256, "written_by": str(ref.written_by), "size": ref.size}}


def _escape_key(key: Any) -> Any:
    return f"${key}" if isinstance(key, str) and key.startswith("$") else key


def decode_line(line: bytes, name: str, life: Life) -> Record:
    """Parse one line of a part that holds the record of `life`; `name` is for messages. Raises CorruptCheckpoint."""
    document = _parse_exactly(line, name)
    escaped = document.get("escaped", False)
    keys = ["life", "escaped", "payload"] if escaped else ["life", "payload"]
    if list(document) != keys or escaped not in (True, False):
        raise CorruptCheckpoint(name, f"its keys are {list(document)[:5]} and not {keys}")
    if document["life"] != str(life):
        raise CorruptCheckpoint(name, f"it holds {document['life']!r:.100}")
    payload = document["payload"]
    return Record(life, _unescape(payload, name) if escaped else payload)


def _parse_exactly(line: bytes, name: str) -> dict[str, Any]:
    """Parse so that nothing is lost: writing the value again gives the same bytes, or a slow parse says why not."""
    try:
        value = orjson.loads(line)
        if orjson.dumps(value) != line:
            _check_exact(line)
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptCheckpoint(name, f"it is not JSON that can be kept exactly ({error})") from error
    if not isinstance(value, dict):
        raise CorruptCheckpoint(name, "it is not a JSON object")
    return value


def _check_exact(line: bytes) -> None:
    """Other float spellings and white space are fine; duplicate keys and integers past 64 bits would be lost."""

    def unique(pairs: list[tuple[str, Any]]) -> None:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("a key appears twice")

    def integer(text: str) -> None:
        if not _INT_MIN <= int(text) <= _INT_MAX:
            raise ValueError("an integer has more than 64 bits")

    json.loads(line, object_pairs_hook=unique, parse_int=integer)


def _unescape(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [_unescape(item, name) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and _BYTES in value:
        return _parse_bytes(value[_BYTES], name)
    if len(value) == 1 and _BLOB in value:
        return _parse_blob(value[_BLOB], name)
    if any(key.startswith("$") and not key.startswith("$$") for key in value):
        raise CorruptCheckpoint(name, "a key begins with a single $")
    return {key[1:] if key.startswith("$$") else key: _unescape(item, name) for key, item in value.items()}


def _parse_bytes(text: Any, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise CorruptCheckpoint(name, f"a bytes payload is not base64 ({error})") from error


def _parse_blob(fields: Any, name: str) -> BlobRef:
    try:
        ref = BlobRef(check_sha256(fields["sha256"]), CheckpointId.parse(fields["written_by"]), fields["size"])
    except (InvalidName, KeyError, TypeError) as error:
        raise CorruptCheckpoint(name, "a blob reference is malformed") from error
    if type(ref.size) is not int or ref.size < 0 or len(fields) != 3:
        raise CorruptCheckpoint(name, "a blob reference is malformed")
    return ref


def blobs_in(payload: Any) -> tuple[BlobRef, ...]:
    """The blobs that a parsed payload names, each once, in order."""
    found: dict[BlobRef, None] = {}
    pending = [payload]
    while pending:
        item = pending.pop()
        if isinstance(item, BlobRef):
            found[item] = None
        elif isinstance(item, dict):
            pending.extend(reversed(item.values()))
        elif isinstance(item, list):
            pending.extend(reversed(item))
    return tuple(found)


def fill_blobs(payload: Any, contents: Mapping[BlobRef, bytes]) -> Any:
    """The payload with each BlobRef replaced by its bytes."""
    if isinstance(payload, BlobRef):
        return contents[payload]
    if isinstance(payload, dict):
        return {key: fill_blobs(item, contents) for key, item in payload.items()}
    if isinstance(payload, list):
        return [fill_blobs(item, contents) for item in payload]
    return payload
