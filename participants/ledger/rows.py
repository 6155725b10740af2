"""One row of a capture ledger: what is known of one model call, its JSON form, and the digests that chain the rows.

With `T(ids)` for token ids as unsigned 32-bit little-endian integers, one after the other, and `sha256` in lower-case
hexadecimal:

    prompt_digest  = sha256(T(prompt))
    context_digest = sha256(T(prompt + output))         both empty where the ids are not known
    facts          = sha256(canonical JSON of all fields except prompt_digest, context_digest, chain)
    chain          = sha256(previous chain + "\\n" + prompt_digest + "\\n" + context_digest + "\\n" + facts)

`previous chain` is that of the row before, or 64 zeros for the first. Canonical JSON is UTF-8 with sorted keys, no
spaces, and nothing escaped that need not be. Rows that a life carries over from the one it continues stay as they
are, with their own life, so that a chain goes on over any number of crashes.

The parent of a row is the call of the nearest row before it that was completed; a failed call is nobody's parent.
Where the ids are inline, a prompt that begins with the parent's whole context (its prompt and output) has only what
comes after that; any other prompt stands there whole. A row has inline tokens or staged keys, never both, and neither
where the backend names no ids.
"""

import base64
import binascii
import hashlib
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import orjson

from store import InvalidName, Life

from ..cuts.prefix import Segment
from ..errors import Code, ParticipantError

GENESIS = "0" * 64
"""Stands for the chain before the first row."""
COMPLETED = "completed"
MAX_TOKEN = 2**32 - 1
_BESIDE_FACTS = frozenset({"prompt_digest", "context_digest", "chain"})
_COUNTS = ("index", "prompt_count", "generated_count", "continued", "masked")
_TEXTS = ("call", "parent", "route", "request_digest", "outcome", "finish_reason", "record_digest", "prompt_digest",
          "context_digest", "chain")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A model call that has ended, as the model server knows it. Raises `invalid_request` where it is no row."""

    call: str
    """The id of the call, `str(CallId)`, or one of the server's making where its caller gave none."""
    route: str
    request_digest: str
    """`Request.digest`."""
    outcome: str = COMPLETED
    """`completed`, or the code of the failure."""
    finish_reason: str = ""
    prompt: Sequence[int] | None = None
    """The ids of the prompt, and of the output: both or neither."""
    output: Sequence[int] | None = None
    prompt_count: int = 0
    """Of tokens, as the usage tells; the ids go before."""
    generated_count: int = 0
    staged: tuple[str, ...] = ()
    """Keys of the worker's token store that hold the ids; they are not stored here then."""
    segments: tuple[Segment, ...] = ()
    """Of the output, by weight version."""
    continued: int = 0
    """How many tokens of the output were taken over from the cut of an earlier life."""
    masked: int = 0
    """How many tokens at the beginning of the output a policy has masked."""

    def __post_init__(self) -> None:
        if (self.prompt is None) != (self.output is None):
            raise ParticipantError(Code.INVALID_REQUEST, f"call {self.call}: ids of the prompt or the output alone")
        if not self.call or not self.outcome:
            raise ParticipantError(Code.INVALID_REQUEST, "a row needs the id of its call, and an outcome")


@dataclass(frozen=True, slots=True)
class Inline:
    """Token ids in a row."""

    extends: bool
    """`prompt` has only what comes after the parent's context."""
    prompt: bytes
    """Ids as `pack` gives them, as `output`."""
    output: bytes


@dataclass(frozen=True, slots=True)
class Tail:
    """What the next row of a chain needs to know of the rows before it."""

    count: int = 0
    """Rows so far."""
    chain: str = GENESIS
    parent: str = ""
    """Call of the last completed row."""
    context_count: int = 0
    """Tokens of that row's prompt and output."""
    context_digest: str = ""
    """Of them; empty where the ids are not known."""

    def after(self, row: "Row") -> "Tail":
        """The tail with one more row. Raises `corrupt_checkpoint` where that does not follow."""
        if row.index != self.count:
            raise _malformed(f"row {row.index} stands where {self.count} should")
        if row.parent != self.parent:
            raise _malformed(f"row {row.index} has the parent {row.parent!r}, not {self.parent!r}")
        if row.chain != row.chained(self.chain):
            raise _malformed(f"the chain is broken at row {row.index}")
        return self.with_row(row)

    def with_row(self, row: "Row") -> "Tail":
        """The tail with a row that was made to follow it."""
        if row.outcome != COMPLETED:
            return Tail(row.index + 1, row.chain, self.parent, self.context_count, self.context_digest)
        context_count = row.prompt_count + row.generated_count
        return Tail(row.index + 1, row.chain, row.call, context_count, row.context_digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row."""

    index: int
    """Its place in the chain, from 0, carried rows counted."""
    call: str
    parent: str
    """Empty where no completed row stands before it."""
    life: Life
    """The life that made the call; of a carried row, an earlier one."""
    route: str
    request_digest: str
    outcome: str
    finish_reason: str
    prompt_count: int
    generated_count: int
    continued: int
    masked: int
    segments: tuple[Segment, ...]
    staged: tuple[str, ...]
    record_digest: str
    """sha256 of the line of its complete record; empty without one."""
    prompt_digest: str
    context_digest: str
    chain: str
    inline: Inline | None

    def to_json(self) -> dict[str, Any]:
        """JSON values; ids are base64 of `T(ids)`."""
        inline: dict[str, Any] | None = None
        if self.inline is not None:
            prompt, output = (base64.b64encode(ids).decode() for ids in (self.inline.prompt, self.inline.output))
            inline = {"extends": self.inline.extends, "prompt": prompt, "output": output}
        return {
            "index": self.index, "call": self.call, "parent": self.parent, "life": str(self.life),
            "route": self.route, "request_digest": self.request_digest, "outcome": self.outcome,
            "finish_reason": self.finish_reason, "prompt_count": self.prompt_count,
            "generated_count": self.generated_count, "continued": self.continued, "masked": self.masked,
            "segments": [[each.start, each.count, each.weights] for each in self.segments],
            "staged": list(self.staged), "record_digest": self.record_digest, "prompt_digest": self.prompt_digest,
            "context_digest": self.context_digest, "chain": self.chain, "inline": inline,
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The row again. Raises `corrupt_checkpoint` where it is malformed."""
        try:
            if not isinstance(value, Mapping) or value.keys() != _NAMES:
                raise _malformed("a row has other fields than a row")
            values = dict(value)
            values["life"] = Life.parse(values["life"])
            values["segments"] = tuple(_segment(each) for each in values["segments"])
            values["staged"] = tuple(text_of(each) for each in values["staged"])
            values["inline"] = _inline(values["inline"])
            for name in _COUNTS:
                count_of(values[name])
            for name in _TEXTS:
                text_of(values[name])
            row = cls(**values)
        except (KeyError, TypeError, ValueError, AttributeError, InvalidName) as error:
            raise _malformed(f"a row is malformed: {error!r:.200}") from error
        if row.inline is not None and row.staged:
            raise _malformed(f"row {row.index} has inline tokens and staged keys")
        return row

    def chained(self, previous: str) -> str:
        """Its `chain` after a row with that one."""
        facts = self.to_json()
        for name in _BESIDE_FACTS:
            del facts[name]
        digest = hashlib.sha256(orjson.dumps(facts, option=orjson.OPT_SORT_KEYS)).hexdigest()
        text = "\n".join((previous, self.prompt_digest, self.context_digest, digest))
        return hashlib.sha256(text.encode()).hexdigest()


_NAMES = frozenset(each.name for each in fields(Row))


def row_after(tail: Tail, life: Life, entry: Entry, record_digest: str = "") -> Row:
    """The row of a call that comes next in a chain. Raises `invalid_request` for ids that are none."""
    prompt = None if entry.prompt is None else pack(entry.prompt)
    output = None if entry.output is None else pack(entry.output)
    prompt_digest, context_digest, inline = _digests(tail, prompt, output)
    row = Row(
        index=tail.count, call=entry.call, parent=tail.parent, life=life, route=entry.route,
        request_digest=entry.request_digest, outcome=entry.outcome, finish_reason=entry.finish_reason,
        prompt_count=entry.prompt_count if prompt is None else len(prompt) // 4,
        generated_count=entry.generated_count if output is None else len(output) // 4,
        continued=entry.continued, masked=entry.masked, segments=tuple(entry.segments), staged=tuple(entry.staged),
        record_digest=record_digest, prompt_digest=prompt_digest, context_digest=context_digest, chain="",
        inline=None if entry.staged else inline,
    )  # fmt: skip
    return replace(row, chain=row.chained(tail.chain))


def _digests(tail: Tail, prompt: bytes | None, output: bytes | None) -> tuple[str, str, Inline | None]:
    """Digests of prompt and context, and the ids beyond the parent's context."""
    if prompt is None or output is None:
        return "", "", None
    ids, shared = hashlib.sha256(), 4 * tail.context_count
    extends = bool(tail.context_digest) and shared <= len(prompt)
    if extends:
        ids.update(memoryview(prompt)[:shared])
        extends = ids.hexdigest() == tail.context_digest
        ids.update(memoryview(prompt)[shared:])
    else:
        ids.update(prompt)
    prompt_digest = ids.hexdigest()
    ids.update(output)
    return prompt_digest, ids.hexdigest(), Inline(extends, prompt[shared:] if extends else prompt, output)


def pack(ids: Sequence[int]) -> bytes:
    """`T(ids)`. Raises `invalid_request` for what is no list of token ids."""
    try:
        packed = array("I", ids)
    except (TypeError, OverflowError, ValueError) as error:
        raise ParticipantError(Code.INVALID_REQUEST, f"token ids are integers from 0 to {MAX_TOKEN}") from error
    return _little(packed).tobytes()


def unpack(data: bytes) -> "array[int]":
    """The ids again. Raises ValueError where the length is no multiple of four."""
    ids = array("I")
    ids.frombytes(data)
    return _little(ids)


def _little(ids: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def contexts(rows: Sequence[Row]) -> "list[tuple[array[int], array[int]] | None]":
    """Prompt and output of each row of a whole chain, where they are inline and what they extend is too."""
    found: list[tuple[array[int], array[int]] | None] = []
    context: array[int] | None = None
    for row in rows:
        ids = None if row.inline is None else _whole(row.inline, context)
        found.append(ids)
        if row.outcome == COMPLETED:
            context = None if ids is None else ids[0] + ids[1]
    return found


def _whole(inline: Inline, context: "array[int] | None") -> "tuple[array[int], array[int]] | None":
    if not inline.extends:
        return unpack(inline.prompt), unpack(inline.output)
    return None if context is None else (context + unpack(inline.prompt), unpack(inline.output))


def _inline(value: Any) -> Inline | None:
    if value is None:
        return None
    if value.keys() != {"extends", "prompt", "output"} or type(value["extends"]) is not bool:
        raise ValueError("inline tokens are {extends, prompt, output}")
    return Inline(value["extends"], _packed(value["prompt"]), _packed(value["output"]))


def _packed(text: Any) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("inline tokens are no base64") from error
    if len(data) % 4:
        raise ValueError("inline tokens are no 32-bit integers")
    return data


def _segment(value: Any) -> Segment:
    start, count, weights = value
    return Segment(count_of(start), count_of(count), text_of(weights))


def count_of(value: Any) -> int:
    """A field that is a count. Raises ValueError for another one."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.50} is no count")
    return value


def text_of(value: Any) -> str:
    """A field that is text. Raises TypeError for another one."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.50} is no text")
    return value


def _malformed(problem: str) -> ParticipantError:
    return ParticipantError(Code.CORRUPT_CHECKPOINT, f"a ledger: {problem}")
