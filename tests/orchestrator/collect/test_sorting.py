"""What becomes of the lives that servers have when a new controller comes to them."""

from itertools import product

import pytest

from orchestrator.adoption import Standing
from orchestrator.collect.ledger import RunLedger
from orchestrator.collect.rows import Rollout
from orchestrator.collect.sorting import sort_out
from participants import Floor
from store import Life

pytestmark = pytest.mark.unit


def test_each_life_ends_in_one_place_whatever_is_known_of_it() -> None:
    """Over whole, written and wanted: only what is whole and wanted goes on, only what is written is released."""
    life = Life("a", 3, 1, 7)
    for whole, written, wanted in product([True, False], repeat=3):
        standing = Standing(frozenset([life]), frozenset([life] if whole else []))
        found = sort_out(standing, [str(life)] if written else [], ["a"] if wanted else [])
        expected = "written" if written else "going_on" if whole and wanted else "broken"
        assert {name: getattr(found, name) for name in ("going_on", "written", "broken")} == {
            name: [life] if name == expected else [] for name in ("going_on", "written", "broken")
        }, (whole, written, wanted)


def test_what_a_life_that_goes_on_may_still_take_up_is_not_ended() -> None:
    """Its restored record waits under the life of the checkpoint; that of another rollout is ended."""
    record, life, other = Life("a", 1, 0, 0), Life("a", 2, 1, 0), Life("b", 1, 0, 1)
    found = sort_out(Standing(frozenset([record, life, other]), frozenset([life])), [], ["a", "b"])
    assert (found.going_on, found.broken) == ([life], [other])


def test_a_life_whose_failure_was_written_is_released_although_its_rollout_is_wanted_again() -> None:
    """It is not delivered a second time, so the failure counts once; its rollout is dispatched anew."""
    life = Life("a", 2, 0, 0)
    assert sort_out(Standing(frozenset([life]), frozenset([life])), [str(life)], ["a"]).written == [life]


def rollouts(*names: str) -> list[Rollout]:
    """One each."""
    return [Rollout(name, {}, number, 0) for number, name in enumerate(names)]


def test_a_run_begins_with_adopted_lives_open_and_its_floor_below_them() -> None:
    """They are neither dispatched nor restored; what ends is started as the attempt after, in the new epoch."""
    older, newer = Life("b", 2, 3, 5), Life("a", 4, 0, 1)
    ledger = RunLedger.begin(5, rollouts("a", "b", "c"), (), adopted=[newer, older], restarts=[Life("b", 1, 2, 0)])
    assert (list(ledger.open.values()), list(ledger.waiting), ledger.again) == ([older, newer], ["c"], {})
    assert ledger.floor == Floor(2, 5)
    ledger.close(older, final=False)
    assert ledger.floor == Floor(4, 1)
    ledger.close(newer, final=True)
    assert [ledger.next_dispatch(), ledger.next_dispatch()] == [
        (Life("c", 5, 0, 0), ledger.rollouts["c"]),
        (Life("b", 5, 4, 1), ledger.rollouts["b"]),
    ]
    assert ledger.floor == Floor(5, 0)


def test_a_checkpoint_has_adopted_lives_in_its_scope() -> None:
    """They are undelivered like any other."""
    life = Life("a", 2, 0, 0)
    ledger = RunLedger.begin(3, rollouts("a", "b"), (), adopted=[life])
    assert ledger.sets(()).scope == [life]
    assert ledger.sets([life]).restarts == [life]
