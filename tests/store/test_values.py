"""Values: whatever is written is read back exactly, and whatever could not be is refused by name."""

import contextlib
import dataclasses
import datetime
import decimal
import enum
import math
import uuid
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import CorruptCheckpoint, InvalidRecord
from store.layout import BlobRef, CheckpointId
from store.limits import DEFAULT_LIMITS
from store.values import BlobPlan, Encoded, encode_value, fill_blobs, parse_exactly, unescape

pytestmark = pytest.mark.unit

LIMITS = dataclasses.replace(DEFAULT_LIMITS, inline_payload_bytes=32, max_blob_bytes=256)
OWNER = "r1"
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
KEYS = TEXT | st.sampled_from(["$bytes", "$blob", "$", "$$", "$$bytes", "$$$x", "", "\0", "\U0001f4a9", "life"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
PLAIN = st.recursive(SCALARS, lambda child: st.lists(child) | st.dictionaries(KEYS, child), max_leaves=25)
WITH_BYTES = st.recursive(
    SCALARS | st.binary(max_size=80), lambda child: st.lists(child) | st.dictionaries(KEYS, child), max_leaves=25
)
ODD = [
    -(2**63), 2**63 - 1, 2**63, 2**64 - 1, -0.0, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 1e22, 0.1,
    "", "\0", "\x7f\x80", "\u2028", "\U0010ffff", "\ufeff", [], {}, [[]], {"": {}}, None, True,
    {"$bytes": "AA=="}, {"$blob": 1}, {"$$bytes": 1}, {"$": 1, "$$": 2}, [None, None],
    b"", b"\0", [b"x", {"$bytes": b"y"}], {"$blob": {"sha256": b"z"}}, {"$bytes": "AA==", "b": b"x"},
]  # fmt: skip


def plan(parent: tuple[BlobRef, ...] = ()) -> BlobPlan:
    return BlobPlan(CheckpointId(1, 2), parent, LIMITS)


def encode(value: Any) -> Encoded:
    return encode_value(value, plan(), OWNER)


def read_back(encoded: Encoded) -> Any:
    value = parse_exactly(encoded.data, OWNER)
    return fill_blobs(unescape(value, OWNER), encoded.outgoing) if encoded.escaped else value


def same(left: Any, right: Any) -> bool:
    """Equal in type, order and every bit, where `==` calls 1 and True, or 0.0 and -0.0, the same."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return bool(left.hex() == right.hex())
    return repr(left) == repr(right)


@given(WITH_BYTES)
@pytest.mark.fault(61)
def test_a_value_with_bytes_anywhere_is_read_back_exactly(value: Any) -> None:
    """Keys that look like escapes, bytes beside and inside them, and every scalar survive in order."""
    assert same(read_back(encode(value)), value)


@given(PLAIN)
def test_a_value_without_bytes_is_written_as_plain_json(value: Any) -> None:
    """Nothing is escaped where nothing needs it, so another language reads the value with any JSON parser."""
    encoded = encode(value)
    assert not encoded.escaped
    assert encoded.data == orjson.dumps(value)


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.fault(61)
def test_an_odd_value_is_read_back_exactly(value: Any) -> None:
    """The edges of integers and floats, odd text, empty containers and keys that look like escapes."""
    assert same(read_back(encode(value)), value)
    assert same(read_back(encode([value, b"x"])), [value, b"x"])


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Hidden(enum.Enum):
    NAN = math.nan
    DEEP = [math.inf]  # noqa: RUF012


@dataclasses.dataclass
class Thing:
    x: int = 1


Point = namedtuple("Point", "x")
REFUSED = [
    math.nan, math.inf, -math.inf, Hidden.NAN, Hidden.DEEP, -(2**63) - 1, 2**64, 10**5000, "\ud800", "a\udfffb",
    {1, 2}, frozenset(), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), datetime.date(2026, 1, 1), Thing(), Thing,
    decimal.Decimal(1), 1j, object(), Text("x"), Number(5), OrderedDict(a=1), Point(1), iter([]), range(3),
    {1: 2}, {None: 1}, {b"k": 1}, {Text("k"): 1}, {Text("$k"): 1}, {"\ud800": 1}, {("a",): 1},
    orjson.Fragment(b"1"), orjson.Fragment(b"NaN"), orjson.Fragment(b'{"a":1,"a":2}'), orjson.Fragment(b"null"),
]  # fmt: skip
PLACES: dict[str, Callable[[Any], Any]] = {
    "alone": lambda value: value,
    "in a list": lambda value: [1, value],
    "in a dict": lambda value: {"k": value},
    "in a tuple": lambda value: (value, "x"),
    "beside nulls": lambda value: [None, {"a": None, "b": [None, value]}],
    "among numbers": lambda value: [1, 2, value, 3],
    "after bytes": lambda value: [b"x", value],
    "before bytes": lambda value: {"a": [value], "b": b"x"},
    "beside an escaped key": lambda value: {"$bytes": value, "b": b"x"},
}


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
@pytest.mark.fault(61)
def test_what_could_not_be_read_back_is_refused_by_name_wherever_it_hides(value: Any) -> None:
    """NaN, wide integers, surrogates, foreign types and keys are refused alike in every place, bytes or not."""
    for put in PLACES.values():
        with pytest.raises(InvalidRecord, match=OWNER) as caught:
            encode(put(value))
        assert caught.value.rollout_id == OWNER


def test_a_fragment_made_later_is_found_too() -> None:
    """The shortcut that looks for fragments only while there are any does see each of them."""
    assert encode([1]).data == b"[1]"
    fragments = [orjson.Fragment(b"1"), orjson.Fragment(b"2")]
    with pytest.raises(InvalidRecord, match="Fragment"):
        encode({"deep": [[fragments.pop()]]})
    assert encode([1]).data == b"[1]"


def test_what_json_has_no_type_for_but_reads_back_as_documented_is_accepted() -> None:
    """Tuples come back as lists, and text enums and UUIDs as text."""

    class Colour(enum.StrEnum):
        RED = "red"

    number = uuid.UUID(int=5)
    assert read_back(encode((1, (Colour.RED, number), b"x"))) == [1, ["red", str(number)], b"x"]


@pytest.mark.parametrize("with_bytes", [False, True])
@pytest.mark.parametrize("kind", [list, dict])
@pytest.mark.fault(61)
def test_nesting_is_read_back_up_to_a_limit_and_refused_beyond_it(kind: type, with_bytes: bool) -> None:
    """Whatever depth is accepted is read back; 100 000 levels are refused without a crash."""
    accepted = 0
    for depth in (1, 50, 100, 150, 200, 240, 250, 254, 255, 300, 500, 2000, 100_000):
        value: Any = b"x" if with_bytes else 1
        for _ in range(depth):
            value = [value] if kind is list else {"k": value}
        try:
            encoded = encode(value)
        except InvalidRecord:
            continue
        assert depth <= 254
        accepted = max(accepted, depth)
        assert read_back(encoded) == value
    assert accepted >= 200


@pytest.mark.parametrize("with_bytes", [False, True])
def test_a_value_that_contains_itself_is_refused(with_bytes: bool) -> None:
    """A cycle ends in a refusal and never in a hang."""
    value: dict[str, Any] = {"b": b"x"} if with_bytes else {}
    value["self"] = [value]
    with pytest.raises(InvalidRecord):
        encode(value)


@pytest.mark.parametrize(("size", "in_blob"), [(0, False), (31, False), (32, False), (33, True), (256, True)])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_above_the_limit_go_to_a_blob(kind: Any, size: int, in_blob: bool) -> None:
    """At the limit bytes stay inline, one more and they are kept outside, under their own digest."""
    data = bytes(range(256))[:size] if size <= 256 else b""
    encoded = encode({"b": kind(data)})
    assert [len(blob) for blob in encoded.outgoing.values()] == ([size] if in_blob else [])
    assert read_back(encoded) == {"b": data}


def test_bytes_larger_than_any_blob_are_refused() -> None:
    """The limit of one payload is named."""
    with pytest.raises(InvalidRecord, match="257 bytes, and the limit is 256"):
        encode(bytes(257))


def test_one_payload_in_two_places_is_one_blob() -> None:
    """Content decides the name of a blob."""
    encoded = encode([bytes(100), {"again": bytes(100)}])
    assert len(encoded.outgoing) == len(encoded.blobs) == 1


def test_a_blob_of_the_parent_is_named_again_and_not_written() -> None:
    """The same content as in the parent checkpoint, given as bytes or as a reference, costs no second blob."""
    [ref] = encode(bytes(100)).blobs
    parent = dataclasses.replace(ref, written_by=CheckpointId(1, 1))
    for value in (bytes(100), parent):
        encoded = encode_value(value, plan((parent,)), OWNER)
        assert encoded.blobs == (parent,)
        assert not encoded.outgoing


def test_a_reference_to_any_other_blob_is_refused() -> None:
    """A record cannot name what the parent does not, for nothing would keep that blob alive."""
    ref = BlobRef("ab" * 32, CheckpointId(1, 1), 5)
    for known in ((), (dataclasses.replace(ref, size=6),), (dataclasses.replace(ref, written_by=CheckpointId(1, 2)),)):
        with pytest.raises(InvalidRecord, match="is not one that the parent checkpoint names"):
            encode_value([ref], plan(known), OWNER)


INEXACT = [
    b'{"a":1,"a":2}', b'[{"b":{"a":1,"a":1}}]', b"18446744073709551616", b"[-9223372036854775809]", b"1e999", b"-1e999",
    b"NaN", b"[Infinity]", b"-Infinity", b'"\\ud800"', b'"\xff"', b'"\n"', b"", b"{", b"[1,]", b"01", b"+1", b"'a'",
    b"9" * 5000, b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    b"[" * 300 + b"]" * 300, b"1 2", b"\xef\xbb\xbf1",
]  # fmt: skip


@pytest.mark.parametrize("data", INEXACT, ids=lambda data: repr(data)[:40])
@pytest.mark.fault(61)
def test_json_that_cannot_be_kept_exactly_is_refused_when_it_is_read(data: bytes) -> None:
    """Duplicate keys, numbers out of range, surrogates and bottomless nesting are damage, and never a crash."""
    with pytest.raises(CorruptCheckpoint) as caught:
        parse_exactly(data, "the record of r1")
    assert caught.value.name == "the record of r1"
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(("data", "value"), [(b"1.0e0", 1.0), (b" [1 ,2]", [1, 2]), (b'"\\u0041"', "A"), (b"-0", 0)])
def test_another_spelling_of_the_same_value_is_read(data: bytes, value: Any) -> None:
    """Somebody else's JSON writer may choose white space, escapes and float spellings of its own."""
    assert parse_exactly(data, OWNER) == value


@pytest.mark.parametrize(
    "value",
    [
        {"$x": 1}, {"$bytes": 1}, {"$bytes": "?"}, {"$bytes": "AA==", "x": 1}, {"$bytes": None}, {"$bytes": "ä"},
        {"$blob": 1}, {"$blob": {}}, {"$blob": "x"}, {"$blob": []},
        {"$blob": {"sha256": "ab" * 32, "written_by": "1.1", "size": -1}},
        {"$blob": {"sha256": "ab" * 32, "written_by": "1.1", "size": True}},
        {"$blob": {"sha256": "ab" * 32, "written_by": "1.1", "size": 1, "x": 1}},
        {"$blob": {"sha256": "AB" * 32, "written_by": "1.1", "size": 1}},
        {"$blob": {"sha256": "../" * 21 + "x", "written_by": "1.1", "size": 1}},
        {"$blob": {"sha256": "ab" * 32, "written_by": "../1", "size": 1}},
        {"$blob": {"sha256": 1, "written_by": "1.1", "size": 1}},
        {"$blob": {"sha256": "ab" * 32, "written_by": 1.1, "size": 1}},
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.fault(58, 64)
def test_a_malformed_escape_is_damage(value: Any) -> None:
    """Nothing but well-formed bytes and well-named blobs hides behind a `$`."""
    for place in (value, [value], {"a": {"b": value}}):
        with pytest.raises(CorruptCheckpoint):
            unescape(place, OWNER)


@given(st.binary(max_size=60))
def test_any_bytes_are_json_or_damage(data: bytes) -> None:
    """The parser raises nothing but CorruptCheckpoint."""
    with contextlib.suppress(CorruptCheckpoint):
        parse_exactly(data, OWNER)
