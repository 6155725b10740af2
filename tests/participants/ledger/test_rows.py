"""Rows and their digests: the formula, the JSON form, what is inline, and what is refused."""

import hashlib
import json
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants import Code, ParticipantError
from participants.cuts.prefix import Segment
from participants.ledger import COMPLETED, GENESIS, CaptureKey, Entry, Row
from participants.ledger.rows import Tail, contexts, row_after
from tests.support.ledgers import entry, life, turn

pytestmark = pytest.mark.unit

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=20)


def chain_of(entries: list[Entry]) -> list[Row]:
    rows, tail = [], Tail()
    for each in entries:
        rows.append(row_after(tail, life(), each))
        tail = tail.after(rows[-1])
    return rows


def test_the_digests_are_those_of_the_formula() -> None:
    """Worked out by hand from the docstring's formula, the three digests of a row are the same."""
    row = chain_of([entry(0, [7, 2**32 - 1], [9], segments=(Segment(0, 1, "a"),), finish_reason="ü\n")])[0]
    facts = {
        "index": 0, "call": "agent.main:0.0", "parent": "", "life": "r/1.0#0", "route": "/v1/chat/completions",
        "request_digest": "d" * 64, "outcome": "completed", "finish_reason": "ü\n", "prompt_count": 2,
        "generated_count": 1, "continued": 0, "masked": 0, "segments": [[0, 1, "a"]], "staged": [],
        "record_digest": "", "inline": {"extends": False, "prompt": "BwAAAP////8=", "output": "CQAAAA=="},
    }  # fmt: skip
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    prompt = hashlib.sha256(struct.pack("<2I", 7, 2**32 - 1)).hexdigest()
    context = hashlib.sha256(struct.pack("<3I", 7, 2**32 - 1, 9)).hexdigest()
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert (row.prompt_digest, row.context_digest) == (prompt, context)
    assert row.chain == hashlib.sha256("\n".join([GENESIS, prompt, context, digest]).encode()).hexdigest()


def test_a_prompt_that_goes_on_has_only_what_is_new() -> None:
    """Inline tokens are what comes after the parent's prompt and output; another prompt stands there whole."""
    rows = chain_of([turn(0), turn(1), entry(2, [1, 2], [3]), turn(3)])
    extends = [row.inline and (row.inline.extends, len(row.inline.prompt) // 4) for row in rows]
    assert extends == [(False, 1), (True, 1), (False, 2), (False, 10)]
    assert [ids and list(ids[0]) for ids in contexts(rows)] == [list(e.prompt or ()) for e in (turn(0), turn(1))] + [
        [1, 2], list(turn(3).prompt or ())
    ]  # fmt: skip


def test_a_failed_call_is_nobodys_parent() -> None:
    """A failure has a row in the chain, and the next call still goes on from the last completed one."""
    failed = entry(1, None, None, outcome="model_failed", prompt_count=4)
    rows = chain_of([turn(0), failed, turn(1)])
    assert [row.parent for row in rows] == ["", "agent.main:0.0", "agent.main:0.0"]
    assert rows[2].inline is not None
    assert rows[2].inline.extends
    assert rows[1].prompt_count == 4


def test_staged_tokens_are_not_inline_and_are_gone_on_from() -> None:
    """A row with staged keys has the digests and counts of its ids, and a later prompt may go on from them."""
    rows = chain_of([replace(turn(0), staged=("k1",)), turn(1)])
    assert rows[0].inline is None
    assert (rows[0].prompt_count, rows[0].generated_count) == (1, 2)
    assert rows[1].inline is not None
    assert rows[1].inline.extends
    assert contexts(rows) == [None, None]


def test_unknown_ids_leave_the_digests_empty() -> None:
    """A backend that names no ids gives a row with counts alone, and nothing goes on from it."""
    rows = chain_of([entry(0, None, None, prompt_count=3, generated_count=2), turn(1)])
    assert (rows[0].prompt_digest, rows[0].context_digest, rows[0].inline) == ("", "", None)
    assert (rows[0].prompt_count, rows[0].generated_count) == (3, 2)
    assert rows[1].inline is not None
    assert not rows[1].inline.extends


@given(st.lists(st.tuples(IDS, IDS, st.booleans()), max_size=5))
def test_a_row_comes_back_from_json(calls: list[tuple[list[int], list[int], bool]]) -> None:
    """Any chain survives JSON, still is a chain, and gives back its tokens."""
    entries: list[Entry] = []
    context: list[int] = []
    for k, (prompt, output, goes_on) in enumerate(calls):
        whole = [*context, *prompt] if goes_on else prompt
        entries.append(entry(k, whole, output))
        context = [*whole, *output]
    rows = chain_of(entries)
    back = [Row.from_json(json.loads(json.dumps(row.to_json()))) for row in rows]
    assert back == rows
    tail = Tail()
    for row in back:
        tail = tail.after(row)
    assert [ids and (list(ids[0]), list(ids[1])) for ids in contexts(back)] == [
        (list(e.prompt or ()), list(e.output or ())) for e in entries
    ]


BAD: list[tuple[str, Any]] = [
    ("index", -1), ("index", "0"), ("index", True), ("call", 1), ("life", "r"), ("segments", [[0]]),
    ("segments", [[0, -1, "a"]]), ("staged", [1]), ("inline", {}),
    ("inline", {"extends": 1, "prompt": "", "output": ""}),
    ("inline", {"extends": False, "prompt": "AAA=", "output": ""}),
    ("inline", {"extends": False, "prompt": "?", "output": ""}),
    ("staged", ["both"]), ("prompt_count", 1.0), ("chain", None), ("extra", 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_malformed_row_is_refused(name: str, value: Any) -> None:
    """Each malformed field is `corrupt_checkpoint`, and nothing else is ever raised."""
    values = {**chain_of([turn(0)])[0].to_json(), name: value}
    with pytest.raises(ParticipantError) as caught:
        Row.from_json(values)
    assert caught.value.code is Code.CORRUPT_CHECKPOINT


@pytest.mark.parametrize("what", [None, [], "row", {}])
def test_what_is_no_row_is_refused(what: Any) -> None:
    """Other JSON values are `corrupt_checkpoint` too."""
    with pytest.raises(ParticipantError, match="corrupt_checkpoint"):
        Row.from_json(what)


@pytest.mark.parametrize("ids", [[-1], [2**32], ["1"], [1.5], [None]])
def test_what_is_no_token_id_is_refused(ids: list[Any]) -> None:
    """Ids are integers of 32 bits, else `invalid_request`."""
    with pytest.raises(ParticipantError, match="invalid_request"):
        chain_of([entry(0, ids, [])])


def test_an_entry_has_all_ids_or_none() -> None:
    """Ids of the prompt alone, or no call id, are `invalid_request`."""
    for wrong in ({"prompt": [1], "output": None}, {"prompt": None, "output": [1]}):
        with pytest.raises(ParticipantError, match="invalid_request"):
            entry(0, **wrong)
    with pytest.raises(ParticipantError, match="invalid_request"):
        Entry(call="", route="/", request_digest="", outcome=COMPLETED)


@pytest.mark.parametrize(
    ("text", "key"),
    [("r", CaptureKey("r", 0)), ("r-a1", CaptureKey("r", 1)), ("r-a12", CaptureKey("r", 12)),
     ("x-b-a3", CaptureKey("x-b", 3))],
)  # fmt: skip
def test_a_capture_key_names_a_rollout_and_an_attempt(text: str, key: CaptureKey) -> None:
    """The written form is parsed and written again."""
    assert CaptureKey.parse(text) == key
    assert str(key) == text
    assert CaptureKey.of(life(key.attempt, rollout=key.rollout_id)) == key


@pytest.mark.parametrize("text", ["", "-a1", "../x", "r-a0", "r-a01", "r/1", "r-a1-a2", "x" * 201])
def test_what_is_no_capture_key_is_refused(text: str) -> None:
    """Anything else is `invalid_request`, so that no path is ever made of it."""
    with pytest.raises(ParticipantError, match="invalid_request"):
        CaptureKey.parse(text)
