"""The lines of a ledger file, and what is found in one that a crash may have torn. Pure.

A ledger is JSON Lines, only ever appended to; each line names its kind:

    {"kind": "ledger", ...}     the first line: life, the life it continues, how many rows it carries and their chain
    {"kind": "row", ...}        a row (`participants.ledger.rows`): first the carried ones, then the life's own
    {"kind": "freeze", ...}     a receipt: up to here reads whoever asks for that version
    {"kind": "end", ...}        the last line: the receipt of the retirement; nothing may follow

The complete records stand beside it, one line for each own row that names a `record_digest`, in the same order.

What a crash leaves is a tail without meaning: nobody was told of it, because what a caller is told is durable. It is
cut off when the file is next written to. A bad line with a good row behind it is no crash but damage: nothing more is
appended to such a ledger and its rows are refused, and still it can be retired and deleted.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from store import InvalidName, Life

from ..errors import Code, ParticipantError
from .rows import Row, Tail, count_of, text_of

FORMAT = 1
LEDGER, ROW, FREEZE, END = "ledger", "row", "freeze", "end"
_COUNTS = ("rows", "carried", "records", "size")
_TEXTS = ("life", "what", "version", "reason", "last", "sha256", "damage")


@dataclass(frozen=True, slots=True)
class Receipt:
    """Says what a ledger held when it was frozen, retired or deleted; the same again for a repeat."""

    life: str
    what: str
    """`freeze`, `end` or `deleted`."""
    found: bool = True
    """Whether there was such a ledger; without one there is nothing to count."""
    version: str = ""
    """Of a freeze."""
    reason: str = ""
    """Of a retirement: `retired`, or why it came by itself."""
    rows: int = 0
    """Carried ones counted."""
    carried: int = 0
    records: int = 0
    """Complete records beside it: as many as own rows, less those that were appended without one."""
    last: str = ""
    """Chain of the last row."""
    size: int = 0
    """Bytes of the ledger file up to here, and their sha256."""
    sha256: str = ""
    damage: str = ""
    """Why its rows cannot be trusted, where that is so."""

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    def line(self) -> bytes:
        """As a line of the file that it speaks of."""
        return _line({"kind": self.what, **self.to_json()})


@dataclass(slots=True)
class Found:
    """What is in a ledger file."""

    life: Life | None = None
    """None where even the first line is missing."""
    source: str = ""
    """The life that it continues, as text."""
    carried: int = 0
    carried_chain: str = ""
    rows: list[bytes] = field(default_factory=list)
    """Lines, without their ends."""
    own_records: list[str] = field(default_factory=list)
    """Digest of each record that own rows name."""
    origins: list[str] = field(default_factory=list)
    """The lives of the carried rows, as text, without repetitions."""
    tail: Tail = field(default_factory=Tail)
    frozen: dict[str, Receipt] = field(default_factory=dict)
    end: Receipt | None = None
    good: int = 0
    """Bytes up to the end of the last good line."""
    damage: str = ""

    def receipt(self, what: str, data: bytes, *, version: str = "", reason: str = "") -> Receipt:
        """Of the good part of the file, whose bytes are `data`."""
        return Receipt(
            str(self.life), what, rows=self.tail.count, carried=self.carried, records=len(self.own_records),
            last=self.tail.chain, size=len(data), sha256=hashlib.sha256(data).hexdigest(), damage=self.damage,
            version=version, reason=reason,
        )  # fmt: skip


def head_line(life: Life, source: Life | None, carried: Sequence[Row]) -> bytes:
    """The first line."""
    chain = carried[-1].chain if carried else Tail().chain
    values = {"format": FORMAT, "life": str(life), "source": str(source or ""), "carried": len(carried)}
    return _line({"kind": LEDGER, **values, "carried_chain": chain})


def row_line(row: Row) -> bytes:
    """A row as a line."""
    return _line({"kind": ROW, **row.to_json()})


def record_line(row_call: str, record: Any) -> bytes:
    """A complete record as a line. Raises `invalid_request` where it is no JSON."""
    try:
        return _line({"call": row_call, "record": record})
    except TypeError as error:
        raise ParticipantError(Code.INVALID_REQUEST, f"the record of call {row_call} is no JSON: {error}") from error


def digest_of_line(line: bytes) -> str:
    """sha256 of a line, without its end."""
    return hashlib.sha256(line.removesuffix(b"\n")).hexdigest()


def parse_row(line: bytes) -> Row:
    """A row again. Raises `corrupt_checkpoint`."""
    return Row.from_json(row_json(line))


def row_json(line: bytes) -> dict[str, Any]:
    """The JSON of a row's line, without its kind."""
    value: dict[str, Any] = orjson.loads(line)
    del value["kind"]
    return value


def record_json(line: bytes) -> Any:
    """The complete record in its line."""
    return orjson.loads(line)["record"]


def check_carried(life: Life, source: Life | None, values: Sequence[Mapping[str, Any]]) -> tuple[list[Row], Tail]:
    """The rows that a life is to carry over. Raises `corrupt_checkpoint` unless they are a chain of older lives."""
    rows, tail = [Row.from_json(value) for value in values], Tail()
    for row in rows:
        tail = tail.after(row)
        if row.life.rollout_id != life.rollout_id or (row.life.epoch, row.life.n) >= (life.epoch, life.n):
            raise _corrupt(f"{life} cannot carry a row of {row.life}")
    if source is not None and (source.rollout_id != life.rollout_id or source == life):
        raise _corrupt(f"{life} cannot continue {source}")
    return rows, tail


def scan(data: bytes) -> Found:
    """Read a whole file. Never raises: what is bad is torn or damage."""
    found = Found()
    lines = data.split(b"\n")
    torn = lines.pop()  # What comes after the last end of a line.
    for number, line in enumerate(lines):
        try:
            _take(found, line)
        except (ParticipantError, InvalidName, KeyError, TypeError, ValueError) as error:
            _end_badly(found, lines[number:], f"line {number + 1}: {error!s:.200}")
            return found
        found.good += len(line) + 1
    if found.end is not None and torn:
        found.damage = "something stands behind its end"
    if found.tail.count < found.carried:
        found.damage = f"{found.carried - found.tail.count} of the carried rows are missing"
    return found


def _take(found: Found, line: bytes) -> None:
    """One good line; a bad one leaves what was found before it as it is."""
    value = orjson.loads(line)
    if not isinstance(value, dict):
        raise _corrupt("a line is no JSON object")
    kind = value.pop("kind")
    if (found.life is None) != (kind == LEDGER) or found.end is not None:
        raise _corrupt(f"a line of kind {kind!r:.20} stands where it may not")
    if kind == LEDGER:
        if value["format"] != FORMAT:
            raise _corrupt(f"format {value['format']!r:.20} is not known here")
        life, source = Life.parse(value["life"]), text_of(value["source"])
        if source:
            Life.parse(source)
        carried, chain = count_of(value["carried"]), text_of(value["carried_chain"])
        if not carried and chain != found.tail.chain:
            raise _corrupt("it carries nothing, and names a chain")
        found.life, found.source, found.carried, found.carried_chain = life, source, carried, chain
    elif kind == ROW:
        _take_row(found, Row.from_json(value), line)
    elif kind == FREEZE:
        receipt = _receipt_of(value)
        if (receipt.rows, receipt.last, receipt.size) != (found.tail.count, found.tail.chain, found.good):
            raise _corrupt(f"the freeze {receipt.version!r:.80} is of another place")
        found.frozen[receipt.version] = receipt
    elif kind == END:
        found.end = _receipt_of(value)
    else:
        raise _corrupt(f"no line is of kind {kind!r:.20}")


def _take_row(found: Found, row: Row, line: bytes) -> None:
    carried = row.index < found.carried
    if not carried and row.life != found.life:
        raise _corrupt(f"row {row.index} is of {row.life}")
    tail = found.tail.after(row)
    if row.index == found.carried - 1 and row.chain != found.carried_chain:
        raise _corrupt("the carried rows are not those that it began with")
    found.tail = tail
    found.rows.append(line)
    if carried and str(row.life) not in found.origins:
        found.origins.append(str(row.life))
    if not carried and row.record_digest:
        found.own_records.append(row.record_digest)


def _end_badly(found: Found, rest: Sequence[bytes], problem: str) -> None:
    """A bad line: torn unless something good stands behind it; an end is heeded whatever stands before it."""
    kinds = [_kind(line) for line in rest[1:]]
    if any(kinds):
        found.damage = problem
    if kinds and kinds[-1] == END:
        found.end = _receipt(rest[-1])


def _receipt(line: bytes) -> Receipt | None:
    value = orjson.loads(line)
    del value["kind"]
    try:
        return _receipt_of(value)
    except (TypeError, ValueError):
        return None


def _receipt_of(value: Mapping[str, Any]) -> Receipt:
    """Raises TypeError or ValueError where it is none."""
    receipt = Receipt(**value)
    for name in _COUNTS:
        count_of(getattr(receipt, name))
    for name in _TEXTS:
        text_of(getattr(receipt, name))
    if type(receipt.found) is not bool:
        raise TypeError(f"{receipt.found!r:.50} is neither true nor false")
    return receipt


def _kind(line: bytes) -> str:
    """The kind of a line that can be read, else nothing."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return ""
    kind = value.get("kind") if isinstance(value, dict) else None
    return kind if kind in (ROW, FREEZE, END) else ""


def good_records(data: bytes, digests: Sequence[str]) -> list[bytes]:
    """The lines of complete records that the rows name, in their order; what stands behind them nobody was told of."""
    found: list[bytes] = []
    for line in data.split(b"\n")[:-1]:
        if len(found) < len(digests) and digest_of_line(line) == digests[len(found)]:
            found.append(line)
    return found


def _line(value: Mapping[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def _corrupt(problem: str) -> ParticipantError:
    return ParticipantError(Code.CORRUPT_CHECKPOINT, f"a ledger: {problem}")
