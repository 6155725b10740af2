"""JSON values with bytes in them, written as JSON so that they are read back exactly, or refused by name.

Values keep their key order, 64-bit integers and text as they are. Bytes have no JSON form, so a value that holds any is
written escaped: there `{"$bytes":"<base64>"}` stands for bytes, `{"$blob":{"sha256":...,"written_by":...,"size":...}}`
for bytes kept in a blob, and every key of the value's own that begins with `$` has one more `$` before it. Whether a
value is escaped is said beside it, so values without bytes are plain JSON whatever their keys are.

JSON has no tuples: they are read back as lists, and str enums and UUIDs as strings.
"""

import base64
import binascii
import hashlib
import json
import math
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import orjson

from .errors import CorruptCheckpoint, InvalidName, InvalidRecord
from .layout import BlobRef, CheckpointId, check_sha256
from .lazy import LazyBytes
from .limits import Limits
from .sealed import INT_MAX, INT_MIN

_OPTIONS = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_BYTES, _BLOB = "$bytes", "$blob"
NOTHING: Mapping[Any, Any] = MappingProxyType({})
"""No blobs."""
_SHORT = 32
"""Longer lists, which are mostly token ids, are looked into after everything else."""
_NO_FRAGMENTS = sys.getrefcount(orjson.Fragment)
"""Each Fragment refers to its type: while there are no more references than at import, there is none to look for."""


class Encoded(NamedTuple):
    """An encoded value, the payloads to be put into blobs, and all the blobs that it names."""

    data: bytes
    escaped: bool = False
    outgoing: Mapping[BlobRef, bytes] = NOTHING
    blobs: tuple[BlobRef, ...] = ()
    lazy: Mapping[BlobRef, LazyBytes] = NOTHING
    """Further payloads to be put into blobs, which are not read yet."""


class BlobPlan:
    """Decides for each large payload of one commit which blob holds it: one of the parent's, or a new one."""

    def __init__(self, checkpoint: CheckpointId, parent_blobs: Collection[BlobRef], limits: Limits) -> None:
        """`parent_blobs` are those that the parent checkpoint names; no other is reused."""
        self._checkpoint = checkpoint
        self._parent = frozenset(parent_blobs)
        self._by_digest = {ref.sha256: ref for ref in parent_blobs}
        self.limits = limits

    def place(self, data: bytes) -> BlobRef:
        """The blob for `data`."""
        return self.place_digest(hashlib.sha256(data).hexdigest(), len(data))

    def place_digest(self, digest: str, size: int) -> BlobRef:
        """The blob for a payload of that digest."""
        known = self._by_digest.get(digest)
        return known if known else BlobRef(digest, self._checkpoint, size)

    def owns(self, ref: BlobRef) -> bool:
        """Whether this commit writes that blob itself, rather than reusing it."""
        return ref.written_by == self._checkpoint

    def allows(self, ref: BlobRef) -> bool:
        """Whether a record that is committed again may go on naming `ref`."""
        return ref in self._parent


class _NeedsEscape(Exception):
    """Internal: a value without a JSON form was met."""


def encode_value(value: Any, plan: BlobPlan, owner: str) -> Encoded:
    """Encode one value; raises InvalidRecord, naming `owner`, where it could not be read back exactly."""
    try:
        return Encoded(_dump(owner, value, _default))
    except _NeedsEscape:
        escape = _Escape(owner, plan)
        try:
            escaped = escape.value(value)
        except RecursionError as error:
            raise InvalidRecord(owner, "it is nested too deeply") from error
        return Encoded(_dump(owner, escaped, _refuse), True, escape.outgoing, tuple(escape.blobs), escape.lazy)


def _dump(owner: str, value: Any, default: Callable[[Any], Any]) -> bytes:
    try:
        data = orjson.dumps(value, default, _OPTIONS)
    except TypeError as error:  # orjson.JSONEncodeError is a TypeError
        if isinstance(error.__cause__, _NeedsEscape):
            raise error.__cause__ from None
        raise InvalidRecord(owner, str(error.__cause__ or error)) from error
    # orjson writes NaN and infinity as null, so only a value with a null in it can hide one.
    nulls = data.count(b"null")  # Those in texts are too many, and cost a longer look.
    if nulls and _hides_not_finite(nulls, value):
        raise InvalidRecord(owner, "NaN and infinity have no JSON form")
    # orjson copies a Fragment as it is, and nobody has checked that it is JSON.
    if sys.getrefcount(orjson.Fragment) > _NO_FRAGMENTS and _holds_fragment(value):
        raise InvalidRecord(owner, "a value of type Fragment may hold anything")
    return data


def _default(value: Any) -> NoReturn:
    if isinstance(value, bytes | bytearray | memoryview | BlobRef | LazyBytes):
        raise _NeedsEscape
    _refuse(value)


def _refuse(value: Any) -> NoReturn:
    raise TypeError(f"a value of type {type(value).__name__} has no JSON form")


def _hides_not_finite(nulls: int, value: Any) -> bool:
    """Whether one of the nulls in its text is NaN or infinity; stops looking once each is found to be a None.

    What is near to the top comes first: there most of them stand.
    """
    near: list[Any] = [value]
    far: list[Sequence[Any]] = []
    while True:
        for item in near:  # It grows meanwhile.
            kind = type(item)
            if kind is str or kind is int:
                continue
            if item is None:
                nulls -= 1
                if not nulls:
                    return False
            elif kind is dict:
                near.extend(item.values())
            elif kind is list or kind is tuple:
                near.extend(item) if len(item) <= _SHORT else far.append(item)
            elif kind is float:
                if not math.isfinite(item):
                    return True
            elif isinstance(item, Enum):
                near.append(item.value)
        if not far:
            return False
        near = list(_suspects(far.pop()))


def _suspects(items: Sequence[Any]) -> Sequence[Any]:
    """None of them where they are finite numbers, which a sum tells soonest, or integers and text alone."""
    with suppress(TypeError, OverflowError):
        if math.isfinite(sum(items)):
            return ()
    return items if set(map(type, items)) - {int, str} else ()


def _holds_fragment(value: Any) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        if type(item) is dict:
            pending.extend(item.values())
        elif type(item) in (list, tuple):
            pending.extend(item if set(map(type, item)) - {int, str} else ())
        elif isinstance(item, Enum):
            pending.append(item.value)
        elif type(item) is orjson.Fragment:
            return True
    return False


class _Escape:
    """Rewrites one payload so that its bytes have a JSON form."""

    def __init__(self, owner: str, plan: BlobPlan) -> None:
        self._owner = owner
        self._plan = plan
        self.outgoing: dict[BlobRef, bytes] = {}
        self.lazy: dict[BlobRef, LazyBytes] = {}
        self.blobs: dict[BlobRef, None] = {}

    def value(self, value: Any) -> Any:
        if isinstance(value, bytes | bytearray | memoryview):
            return self._bytes(bytes(value))
        if isinstance(value, LazyBytes):
            return self._lazy(value)
        if isinstance(value, BlobRef):
            return self._kept(value)
        if type(value) is dict:
            return {_escape_key(key): self.value(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return [self.value(item) for item in value]
        return value  # What is neither, subclasses too, is up to orjson, as in a value without bytes.

    def _bytes(self, data: bytes) -> dict[str, Any]:
        limits = self._plan.limits
        if len(data) <= limits.inline_payload_bytes:
            return {_BYTES: base64.b64encode(data).decode()}
        self._check_size(len(data))
        ref = self._plan.place(data)
        if self._plan.owns(ref):
            self.outgoing[ref] = data
        return self._name(ref)

    def _lazy(self, data: LazyBytes) -> dict[str, Any]:
        if data.size <= self._plan.limits.inline_payload_bytes:
            return self._bytes(data.load(self._owner))
        self._check_size(data.size)
        ref = self._plan.place_digest(data.sha256, data.size)
        if self._plan.owns(ref):
            self.lazy[ref] = data
        return self._name(ref)

    def _check_size(self, size: int) -> None:
        if size > (limit := self._plan.limits.max_blob_bytes):
            raise InvalidRecord(self._owner, f"a payload has {size} bytes, and the limit is {limit}")

    def _kept(self, ref: BlobRef) -> dict[str, Any]:
        if not self._plan.allows(ref):
            raise InvalidRecord(self._owner, f"blob {ref} is not one that the parent checkpoint names")
        return self._name(ref)

    def _name(self, ref: BlobRef) -> dict[str, Any]:
        self.blobs[ref] = None
        return {_BLOB: {"sha256": ref.sha256, "written_by": str(ref.written_by), "size": ref.size}}


def _escape_key(key: Any) -> Any:
    return f"${key}" if type(key) is str and key.startswith("$") else key


def parse_exactly(data: bytes, name: str) -> Any:
    """Parse so that nothing is lost: writing the value again gives the same bytes, or a slow parse says why not."""
    try:
        value = orjson.loads(data)
        if orjson.dumps(value) != data:
            _check_exact(data)
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptCheckpoint(name, f"it is not JSON that can be kept exactly ({error})") from error
    return value


def _check_exact(data: bytes) -> None:
    """Other float spellings and white space are fine; duplicate keys and integers past 64 bits would be lost."""

    def unique(pairs: list[tuple[str, Any]]) -> None:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("a key appears twice")

    def integer(text: str) -> None:
        if not INT_MIN <= int(text) <= INT_MAX:
            raise ValueError("an integer has more than 64 bits")

    json.loads(data, object_pairs_hook=unique, parse_int=integer)


def unescape(value: Any, name: str) -> Any:
    """Undo the escapes; a payload kept in a blob comes back as its BlobRef. Raises CorruptCheckpoint."""
    try:
        return _unescape(value, name)
    except RecursionError as error:
        raise CorruptCheckpoint(name, "it is nested too deeply") from error


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


async def resolve(value: Any, read: Callable[[BlobRef], Awaitable[bytes]]) -> Any:
    """The value with each BlobRef replaced by the bytes that `read` gives."""
    contents = {ref: await read(ref) for ref in blobs_in(value)}
    return fill_blobs(value, contents) if contents else value
