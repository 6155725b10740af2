"""Which rollout is in which set, and what the sets of a checkpoint are."""

import pytest

from orchestrator.collect import RunLedger, plan_rollouts
from participants import Floor
from store import Life

pytestmark = pytest.mark.unit
ROLLOUTS = plan_rollouts([{"n": n} for n in range(4)], 1)
IDS = [rollout.rollout_id for rollout in ROLLOUTS]


def begin(**fields: object) -> RunLedger:
    """A ledger of epoch 2 over four rollouts."""
    given = {"done": (), **fields}
    return RunLedger.begin(2, ROLLOUTS, **given)  # type: ignore[arg-type]


def test_what_was_restored_is_dispatched_first_as_the_next_attempt() -> None:
    """A continued rollout gets attempt N + 1 and the first number; the others begin at attempt 0."""
    ledger = begin(scope=[Life(IDS[2], 1, 4, 7)])
    lives = [following[0] for _ in range(4) if (following := ledger.next_dispatch())]
    assert lives[0] == Life(IDS[2], 2, 5, 0)
    assert {(life.attempt, life.epoch) for life in lives[1:]} == {(0, 2)}
    assert (ledger.continued, ledger.next_dispatch()) == (1, None)


def test_rows_that_are_durable_are_never_dispatched_whatever_the_checkpoint_has() -> None:
    """A rollout with a row is done, though the head would continue it or start it over."""
    ledger = begin(done=IDS[:2], scope=[Life(IDS[0], 1, 0, 0)], restarts=[Life(IDS[1], 1, 0, 1)])
    dispatched = [following[0].rollout_id for _ in range(4) if (following := ledger.next_dispatch())]
    assert dispatched == IDS[2:]
    assert (ledger.continued, ledger.restarted) == (0, 0)


def test_every_undelivered_rollout_that_had_a_life_is_in_exactly_one_set() -> None:
    """Open and restored ones in the scope, those that no participant can hold and those that ended as restarts."""
    ledger = begin(scope=[Life(IDS[3], 1, 0, 0)], dropped={Life("gone.0.0", 1, 0, 5): "removed"})
    first, second, third, _ = [following[0] for _ in range(4) if (following := ledger.next_dispatch())]
    ledger.close(second, final=False)
    sets = ledger.sets({third})
    assert first in sets.scope
    assert set(sets.restarts) == {second, third}
    assert sets.dropped == {Life("gone.0.0", 1, 0, 5): "removed"}
    assert not {life.rollout_id for life in sets.scope} & {life.rollout_id for life in sets.restarts}


def test_the_floor_is_the_lowest_number_that_is_open() -> None:
    """It rises as the oldest ones end, and stands above all numbers once nothing is open."""
    ledger = begin()
    lives = [following[0] for _ in range(4) if (following := ledger.next_dispatch())]
    ledger.close(lives[1], final=True)
    assert ledger.floor == Floor(2, 0)
    ledger.close(lives[0], final=True)
    assert ledger.floor == Floor(2, 2)
    for life in lives[2:]:
        ledger.close(life, final=True)
    assert (ledger.floor, ledger.finished) == (Floor(2, 4), True)


def test_results_of_other_lives_are_ignored() -> None:
    """Only the life that is open is awaited; retiring another one changes nothing."""
    ledger = begin()
    following = ledger.next_dispatch()
    assert following
    old = Life(following[0].rollout_id, 1, 0, 0)
    assert ledger.is_open(following[0])
    assert not ledger.is_open(old)
    ledger.start_over([old])
    assert (len(ledger.open), ledger.restarted) == (1, 0)
