"""Records and frames of records: one line each, read back by the life that the index says."""

import contextlib
import dataclasses
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import CorruptCheckpoint, InvalidRecord
from store.layout import BlobRef, CheckpointId, Life
from store.limits import DEFAULT_LIMITS
from store.records import RawRecord, Record, decode_line, encode_line
from store.values import BlobPlan, fill_blobs
from tests.store.test_values import WITH_BYTES, same

pytestmark = pytest.mark.unit

LIMITS = dataclasses.replace(DEFAULT_LIMITS, inline_payload_bytes=32, max_blob_bytes=1000, max_record_bytes=500)
LIFE = Life("r1", 1, 0, 7)
NEXT = Life("r1", 2, 1, 0)
HEAD = b'{"life":"r1/1.0#7",'


def plan(*parent: BlobRef) -> BlobPlan:
    return BlobPlan(CheckpointId(1, 2), parent, LIMITS)


def raw(payload: Any, *parent: BlobRef) -> RawRecord:
    return RawRecord(LIFE, encode_line(Record(LIFE, payload), plan(*parent)).data)


@given(WITH_BYTES)
def test_a_record_is_one_line_and_is_read_back_exactly(payload: Any) -> None:
    """Whatever the payload, the line has no line feed and parses back to the same payload, bytes filled in."""
    line = encode_line(Record(LIFE, payload), BlobPlan(CheckpointId(1, 2), (), DEFAULT_LIMITS))
    record = decode_line(line.data, LIFE)
    assert b"\n" not in line.data
    assert record.life == LIFE
    assert same(fill_blobs(record.payload, line.outgoing), payload)
    assert set(record.blobs) == set(line.blobs)


@pytest.mark.parametrize("payload", [None, {}, [], "", 0, b""])
def test_an_empty_record_is_a_record(payload: Any) -> None:
    """Nothing at all is a payload too."""
    assert same(raw(payload).parse().payload, payload)


def test_a_record_is_refused_only_above_the_limit() -> None:
    """At the limit a record is written; with one byte more it is refused, and the sizes are named."""
    room = LIMITS.max_record_bytes - len(raw("").line)
    assert len(raw("x" * room).line) == LIMITS.max_record_bytes
    with pytest.raises(InvalidRecord, match=r"r1.*501 bytes, and the limit is 500"):
        raw("x" * (room + 1))


def test_a_raw_record_is_written_as_it_is() -> None:
    """Committing a line again costs no parsing and changes no byte, whatever spelling it has."""
    record = RawRecord(LIFE, HEAD + b'"payload":[1.0e0, "\\u0041"]}')
    assert encode_line(record, plan()).data == record.line


def test_a_raw_record_may_go_on_under_the_next_life() -> None:
    """Another life of the same rollout changes the head of the line and nothing else."""
    moved = raw({"b": b"x"}).with_life(NEXT)
    assert encode_line(moved, plan()).data == moved.line
    assert moved.parse() == Record(NEXT, {"b": b"x"})


def test_a_raw_record_keeps_its_blob_only_from_the_parent() -> None:
    """A line that names a blob is accepted where the parent names that blob too, and refused otherwise."""
    record = raw(bytes(100))
    [ref] = record.parse().blobs
    assert encode_line(record, plan(ref)).blobs == (ref,)
    with pytest.raises(InvalidRecord, match="parent"):
        encode_line(record, plan())


@pytest.mark.parametrize(
    "line",
    [
        b"", b"{}", HEAD, HEAD + b'"payload":1', HEAD + b'"payload":1}\n', HEAD + b'"payload":\n1}',
        b'{"life":"r1/1.0#8","payload":1}', b'{"life":"r1/1.0#7"}', b' {"life":"r1/1.0#7","payload":1}',
        HEAD + HEAD[1:] + b'"payload":1}', HEAD + b' "escaped":true,"payload":{"$bytes":""}}',
        HEAD + b'"escaped":false,"payload":1}', HEAD + b'"escaped":true, "payload":1}',
    ],
)  # fmt: skip
def test_a_raw_record_that_is_no_line_of_its_life_is_refused(line: bytes) -> None:
    """A line must begin with its life and payload, spelt as we spell it, for its blobs are found by that."""
    with pytest.raises(InvalidRecord):
        encode_line(RawRecord(LIFE, line), plan())


@pytest.mark.parametrize(
    "line",
    [
        b"", b"1", b"[]", b"null", HEAD[:-1] + b"}", HEAD + b'"payload":1', HEAD + b'"payload":1,"x":2}',
        b'{"payload":1,"life":"r1/1.0#7"}', HEAD + b'"payload":1,"payload":1}', HEAD + b'"life":1,"payload":1}',
        b'{"life":"r1/1.0#8","payload":1}', b'{"life":"r2/1.0#7","payload":1}', b'{"life":1,"payload":1}',
        HEAD + b'"escaped":false,"payload":1}', HEAD + b'"escaped":1,"payload":1}',
        HEAD + b'"escaped":null,"payload":1}',
        HEAD + b'"escaped":true,"payload":{"$x":1}}', HEAD + b'"payload":NaN}', HEAD + b'"payload":1e999}',
        HEAD + b'"payload":{"a":1,"a":1}}', HEAD + b'"payload":18446744073709551616}', HEAD + b'"payload":"\\ud800"}',
        HEAD + b'"payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        HEAD + b'"escaped":true,"payload":' + b"[" * 600 + b"]" * 600 + b"}",
    ],
    ids=lambda line: repr(line)[:50],
)  # fmt: skip
@pytest.mark.fault(4, 61)
def test_a_line_that_is_not_exactly_a_record_of_its_life_is_damage(line: bytes) -> None:
    """Other keys, another life, and JSON that cannot be kept exactly are refused, and the record is named."""
    with pytest.raises(CorruptCheckpoint, match=r"r1/1\.0#7"):
        decode_line(line, LIFE)


@given(st.binary(max_size=100))
def test_any_line_is_a_record_or_damage(tail: bytes) -> None:
    """The parser of lines raises nothing but CorruptCheckpoint."""
    for line in (tail, HEAD + tail, HEAD + b'"payload":' + tail + b"}"):
        with contextlib.suppress(CorruptCheckpoint):
            decode_line(line, LIFE)


def test_a_line_is_json_that_any_tool_reads() -> None:
    """`zstdcat part | jq` shows the life and the payload."""
    assert orjson.loads(raw({"a": 1}).line) == {"life": "r1/1.0#7", "payload": {"a": 1}}
    assert orjson.loads(raw({"a": b"x"}).line) == {
        "life": "r1/1.0#7",
        "escaped": True,
        "payload": {"a": {"$bytes": "eA=="}},
    }
