"""The independent checker: it passes what is right, and finds every planted fault, however well covered up."""

import base64
import copy
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from participants.ledger import check
from participants.ledger.rows import Tail, row_after
from store import Life
from tests.support.ledgers import life, turn

pytestmark = pytest.mark.unit

Rows = list[dict[str, Any]]
LIVES = [life(0, 1), life(1, 3), life(2, 4)]
DEAD = life(1, 2)
NAMES = [str(each) for each in LIVES]


def made(lives: Sequence[Life], turns: Sequence[int], staged: Sequence[int] = ()) -> Rows:
    """A chain with these turns, each of the life beside it; some staged."""
    rows, tail = [], Tail()
    for each, k in zip(lives, turns, strict=True):
        entry = replace(turn(k), staged=(f"key-{k}",)) if k in staged else turn(k)
        row = row_after(tail, each, entry)
        tail = tail.with_row(row)
        rows.append(row.to_json())
    return rows


def good(staged: Sequence[int] = ()) -> Rows:
    """Two turns in each of three lives."""
    return made([each for each in LIVES for _ in range(2)], range(6), staged)


def token_store(row: Any) -> tuple[Sequence[int], Sequence[int]] | None:
    """What is staged under the keys."""
    k = int(row["staged"][0].removeprefix("key-"))
    return turn(k).prompt or (), turn(k).output or ()


def codes(rows: Rows, **expected: Any) -> set[str]:
    """What is found where the manifest is that of the good chain."""
    last = good()[-1]["chain"]
    found = check(rows, **{"lives": NAMES, "count": 6, "last": last, **expected})
    return {finding.code for finding in found}


@pytest.mark.parametrize("staged", [(), (0,), (1, 2), range(6)])
def test_a_right_chain_passes(staged: Sequence[int]) -> None:
    """Nothing is found in a right chain, inline, staged or both in turn."""
    rows = good(staged)
    assert check(rows, lives=NAMES, count=6, last=rows[-1]["chain"], staged=token_store) == []
    assert check(rows) == []
    assert check([], count=0, last="0" * 64) == []


def flip(text: str) -> str:
    """The same number of tokens, one of them another."""
    ids = list(struct.unpack(f"<{len(base64.b64decode(text)) // 4}I", base64.b64decode(text)))
    ids[-1] ^= 1
    return base64.b64encode(struct.pack(f"<{len(ids)}I", *ids)).decode()


def dropped(rows: Rows) -> None:
    del rows[2]


def dropped_last(rows: Rows) -> None:
    del rows[-1]


def dropped_first(rows: Rows) -> None:
    del rows[0]


def swapped_parent(rows: Rows) -> None:
    rows[3]["parent"] = rows[1]["call"]


def swapped_rows(rows: Rows) -> None:
    rows[2], rows[3] = rows[3], rows[2]


def corrupted(rows: Rows) -> None:
    rows[2]["inline"]["output"] = flip(rows[2]["inline"]["output"])


def corrupted_prompt(rows: Rows) -> None:
    rows[0]["inline"]["prompt"] = flip(rows[0]["inline"]["prompt"])


def truncated(rows: Rows) -> None:
    rows[1]["inline"]["prompt"] = ""


def truncated_output(rows: Rows) -> None:
    rows[1]["inline"]["output"] = rows[1]["inline"]["output"][:4] + "AA=="


def not_extending(rows: Rows) -> None:
    rows[4]["inline"]["extends"] = False


def both(rows: Rows) -> None:
    rows[4]["staged"] = ["key-4"]


def neither(rows: Rows) -> None:
    rows[4]["inline"] = None


def overlapping(rows: Rows) -> None:
    rows[4]["segments"] = [[0, 2, "7"], [1, 1, "8"]]


def gap(rows: Rows) -> None:
    rows[4]["segments"] = [[0, 1, "7"]]


def miscounted(rows: Rows) -> None:
    rows[4]["generated_count"] = 3


def overmasked(rows: Rows) -> None:
    rows[4]["masked"] = 3


def other_index(rows: Rows) -> None:
    rows[4]["index"] = 5


def stranger(rows: Rows) -> None:
    rows[4]["life"] = "s/4.2#0"


def malformed(rows: Rows) -> None:
    rows[4]["inline"]["output"] = "AAA"


def without_field(rows: Rows) -> None:
    del rows[4]["outcome"]


FAULTS: list[tuple[Callable[[Rows], None], set[str]]] = [
    (dropped, {"index", "parent", "chain", "rows"}), (dropped_last, {"rows", "last"}),
    (dropped_first, {"index", "parent", "chain", "tokens"}), (swapped_parent, {"parent", "chain"}),
    (swapped_rows, {"index", "parent", "chain"}), (corrupted, {"context_digest", "chain"}),
    (corrupted_prompt, {"prompt_digest", "context_digest"}), (truncated, {"count", "prompt_digest"}),
    (truncated_output, {"count", "context_digest"}), (not_extending, {"count", "prompt_digest"}),
    (both, {"both"}), (neither, {"tokens", "chain"}), (overlapping, {"segments"}), (gap, {"segments"}),
    (miscounted, {"count", "segments"}), (overmasked, {"masked"}), (other_index, {"index"}),
    (stranger, {"life", "chain"}), (malformed, {"malformed"}), (without_field, {"malformed"}),
]  # fmt: skip


@pytest.mark.parametrize(("plant", "expected"), FAULTS)
def test_a_planted_fault_is_found(plant: Callable[[Rows], None], expected: set[str]) -> None:
    """Each fault is found under the codes that say what it is."""
    rows = copy.deepcopy(good())
    plant(rows)
    assert expected <= codes(rows)


def test_a_row_of_a_dead_attempt_is_found_though_the_chain_was_made_again() -> None:
    """A dead life's row in an otherwise perfect chain is found: by the lineage, and without one by the attempts."""
    rows = made([LIVES[0], DEAD, LIVES[1]], range(3))
    assert {"life", "rows", "last"} <= codes(rows)
    assert {finding.code for finding in check(rows)} == {"life"}


def test_what_was_made_again_as_a_whole_is_found_by_the_manifest() -> None:
    """A chain that was recomputed over other tokens, or without a row, is consistent, and still not the manifest's."""
    other = made([each for each in LIVES for _ in range(2)], [0, 1, 2, 3, 4, 7])
    assert check(other, lives=NAMES) == []
    assert codes(other) == {"last"}
    shorter = made([LIVES[0], *LIVES[1:2], *LIVES[1:2], *LIVES[2:], *LIVES[2:]], [0, 2, 3, 4, 5])
    assert codes(shorter) == {"rows", "last"}


def test_staged_tokens_that_differ_or_are_gone_are_found() -> None:
    """What the token store has under a row's keys must be what the row says."""
    rows = good(range(6))
    last = rows[-1]["chain"]

    def wrong(row: Any) -> tuple[Sequence[int], Sequence[int]]:
        prompt, _ = token_store(row) or ((), ())
        return prompt, [90, 92]

    assert {f.code for f in check(rows, count=6, last=last, staged=wrong)} == {"context_digest"}
    assert {f.code for f in check(rows, count=6, last=last, staged=lambda _: None)} == {"tokens"}


def test_a_life_that_comes_back_is_found() -> None:
    """A lineage never returns to a life that was continued."""
    rows = made([LIVES[0], LIVES[1], LIVES[0]], range(3))
    assert {finding.code for finding in check(rows)} == {"life"}


def test_the_checker_shares_no_code_with_what_it_checks() -> None:
    """It imports nothing of the project, so that one mistake cannot hide in both."""
    from participants.ledger import checker

    assert not [
        name for name, value in vars(checker).items()
        if getattr(value, "__module__", "participants.ledger.checker").startswith(("participants", "store"))
        and getattr(value, "__module__", "participants.ledger.checker") != "participants.ledger.checker"
    ]  # fmt: skip
