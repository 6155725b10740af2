"""How staged tokens stand in a file, and the keys that find them again. Pure.

A pack holds the prefixes that one request staged, one entry after another:

    "MFT1"  sha256 of the rest (32 bytes)  header (one line of JSON)  newline  ids (four bytes each, little-endian)

The header names the life and the call that the tokens were generated for, count and digest of the prompt, count and
digest of the ids. A digest of tokens is the sha256, in hexadecimal, over the ids as they stand in the file, so it
depends on their order. A key is `<pack>.<offset>.<length>`: where one entry stands.
"""

import hashlib
import re
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import orjson

from store import InvalidName, Life

from .limits import HEADER_BYTES, MAX_CALL_CHARS, StagingLimits
from .refusals import Reason, StagingRefused

MAGIC = b"MFT1"
TOKEN_BYTES = 4
_SUM_BYTES = 32
_KEY = re.compile(r"([0-9a-f]{32})\.(0|[1-9][0-9]{0,11})\.([1-9][0-9]{0,8})")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose generation it is."""

    life: Life
    call: str
    """The call id of the life, as text."""


@dataclass(frozen=True, slots=True)
class PromptRef:
    """Which prompt: its length in tokens and the digest of its ids."""

    count: int
    digest: str

    @classmethod
    def of(cls, ids: Sequence[int]) -> Self:
        """Of these ids."""
        return cls(len(ids), digest_of_ids(ids))


@dataclass(frozen=True)
class Entry:
    """One staged prefix."""

    source: Identity
    prompt: PromptRef
    ids: "array[int]"
    """From the first generated token on, also where an earlier part was staged before."""

    @property
    def count(self) -> int:
        """Tokens."""
        return len(self.ids)

    @cached_property
    def digest(self) -> str:
        """Of the ids, in their order."""
        return digest_of_ids(self.ids)


@dataclass(frozen=True, slots=True)
class Key:
    """Where an entry stands."""

    pack: str
    offset: int
    length: int
    """Bytes."""

    def __str__(self) -> str:
        return f"{self.pack}.{self.offset}.{self.length}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the written form. Raises `unknown_key`: nothing was ever staged under such a key."""
        match = _KEY.fullmatch(text)
        if match is None:
            raise StagingRefused(Reason.UNKNOWN_KEY, f"{text!r:.80} is not the key of staged tokens")
        return cls(match[1], int(match[2]), int(match[3]))


def as_ids(ids: Iterable[int]) -> "array[int]":
    """Token ids, packed. Raises OverflowError for what does not fit in 32 bits."""
    return array("I", ids)


def ids_bytes(ids: Sequence[int]) -> bytes:
    """As they stand in a file: four bytes each, little-endian."""
    packed = ids if isinstance(ids, array) else as_ids(ids)
    if sys.byteorder == "big":
        packed = packed[:]
        packed.byteswap()
    return packed.tobytes()


def ids_from_bytes(data: bytes) -> "array[int]":
    """The inverse; `data` has a multiple of four bytes."""
    ids = array("I")
    ids.frombytes(data)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def digest_of_ids(ids: Sequence[int]) -> str:
    """sha256 over the ids in their order, hexadecimal."""
    return hashlib.sha256(ids_bytes(ids)).hexdigest()


def encode_entry(entry: Entry) -> bytes:
    """An entry as it stands in a pack."""
    header = {
        "life": str(entry.source.life),
        "call": entry.source.call,
        "prompt": [entry.prompt.count, entry.prompt.digest],
        "count": entry.count,
        "digest": entry.digest,
    }
    rest = orjson.dumps(header) + b"\n" + ids_bytes(entry.ids)
    return MAGIC + hashlib.sha256(rest).digest() + rest


def decode_entry(data: bytes) -> Entry:
    """The entry again. Raises `damaged` for anything else than what `encode_entry` made."""
    start = len(MAGIC) + _SUM_BYTES
    rest = data[start:]
    if data[: len(MAGIC)] != MAGIC or hashlib.sha256(rest).digest() != data[len(MAGIC) : start]:
        raise StagingRefused(Reason.DAMAGED, "the staged tokens are not what was written")
    end = rest.find(b"\n", 0, HEADER_BYTES)
    try:
        return _read_entry(orjson.loads(rest[:end]), rest[end + 1 :])
    except (ValueError, KeyError, TypeError, InvalidName) as error:
        raise StagingRefused(Reason.DAMAGED, f"the header of the staged tokens cannot be read: {error!r}") from error


def _read_entry(header: Any, ids: bytes) -> Entry:
    call, (prompt_count, prompt_digest), count = header["call"], header["prompt"], header["count"]
    if not isinstance(call, str) or len(call) > MAX_CALL_CHARS or type(prompt_count) is not int or prompt_count < 0:
        raise ValueError("a field is not what it should be")
    if not _DIGEST.fullmatch(prompt_digest) or type(count) is not int or len(ids) != count * TOKEN_BYTES:
        raise ValueError("a digest or the count is not what it should be")
    source = Identity(Life.parse(header["life"]), call)
    entry = Entry(source, PromptRef(prompt_count, prompt_digest), ids_from_bytes(ids))
    if entry.digest != header["digest"]:
        raise ValueError("the digest is of other ids")
    return entry


def entry_bytes(count: int) -> int:
    """Most bytes that an entry with so many tokens takes."""
    return len(MAGIC) + _SUM_BYTES + HEADER_BYTES + TOKEN_BYTES * count


def grouped(counts: Sequence[int], limits: StagingLimits) -> list[list[int]]:
    """Positions of the prefixes that share a pack, given how many tokens each has; in order, none empty."""
    groups: list[list[int]] = []
    room = 0
    for position, count in enumerate(counts):
        size = entry_bytes(count)
        if not groups or size > room:
            groups.append([])
            room = limits.pack_bytes
        groups[-1].append(position)
        room -= size
    return groups


def encode_pack(pack: str, entries: Iterable[Entry]) -> tuple[bytes, list[Key]]:
    """A pack of this name, and the key of each entry."""
    parts, keys, offset = [], [], 0
    for entry in entries:
        parts.append(encode_entry(entry))
        keys.append(Key(pack, offset, len(parts[-1])))
        offset += len(parts[-1])
    return b"".join(parts), keys
