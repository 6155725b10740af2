"""Cohorts as a table: every phase and event, who may be which member, what is kept for how long, what is written."""

import random
from dataclasses import replace
from itertools import product
from typing import Any

import orjson
import pytest

from participants import Code, Floor, ParticipantError
from participants.verifiers.cohort import (
    TRANSITIONS,
    Cohort,
    CohortKey,
    CohortLimits,
    Event,
    Joining,
    Member,
    Phase,
    advance,
    dump,
    load,
)
from participants.verifiers.cohorts import Cohorts
from store import Life

pytestmark = pytest.mark.unit

KEY = CohortKey(text="g/0", group="g")
LIMITS = CohortLimits(collection_timeout_s=10, evaluation_timeout_s=20, terminal_ttl_s=100, terminal_max=3)
SIZE = 2


def life(index: int, n: int = 0, epoch: int = 1) -> Life:
    """Of the rollout `r<index>`."""
    return Life(f"r{index}", epoch, n, n)


def joins(index: int, n: int = 0, *, epoch: int = 1, digest: str = "", key: CohortKey = KEY) -> Joining:
    """One member."""
    return Joining(key=key, index=index, life=life(index, n, epoch), digest=digest or f"d{index}", answer=index)


def made(*, floor: Floor | None = None, **limits: Any) -> Cohorts:
    """Cohorts of two."""
    cohorts = Cohorts(SIZE, replace(LIMITS, **limits))
    if floor:
        cohorts.raise_floor(floor, 0.0)
    return cohorts


def decided(cohorts: Cohorts, key: CohortKey = KEY, *, epoch: int = 1, now: float = 0.0) -> Cohort:
    """Both members are there, and have 1.0 and 2.0."""
    for index in range(SIZE):
        cohort = cohorts.join(joins(index, n=index, epoch=epoch, key=key), now)
    assert cohorts.decide(cohort, ["d0", "d1"], [1.0, 2.0], now)
    return cohort


def refused(code: Code, act: Any) -> ParticipantError:
    """The error of an act, which must have this code."""
    with pytest.raises(ParticipantError) as error:
        act()
    assert error.value.code is code
    return error.value


@pytest.mark.parametrize(("phase", "event"), list(product(Phase, Event)), ids=str)
def test_each_event_leads_where_the_table_says_or_is_refused_by_name(phase: Phase, event: Event) -> None:
    """All pairs; what is over stays over."""
    if (phase, event) in TRANSITIONS:
        assert advance(phase, event) is TRANSITIONS[phase, event]
    else:
        error = refused(Code.INVALID_PHASE, lambda: advance(phase, event))
        assert phase in error.message
        assert event in error.message
    if phase in (Phase.COMPLETED, Phase.FAILED):
        assert (phase, event) not in TRANSITIONS


def _in_phase(phase: Phase) -> tuple[Cohorts, Cohort]:
    """One cohort in a phase, whose member 0 has position 1.5."""
    cohorts = made()
    cohort = cohorts.join(joins(0, 5), 0.0)
    if phase is not Phase.COLLECTING:
        cohorts.join(joins(1, 6), 0.0)
    if phase is Phase.COMPLETED:
        cohorts.decide(cohort, cohort.answers, [1.0, 2.0], 0.0)
    if phase is Phase.FAILED:
        cohorts.fail(cohort, Code.JUDGE_FAILED, "why", 0.0)
    assert cohort.phase is phase
    return cohorts, cohort


COLLECTING, EVALUATING, COMPLETED, FAILED = Phase
AGAIN: dict[tuple[Phase, str, str], Code | Phase] = {
    (COLLECTING, "older", "same"): Code.STALE_LIFE,
    (COLLECTING, "older", "other"): Code.STALE_LIFE,
    (COLLECTING, "equal", "same"): COLLECTING,
    (COLLECTING, "equal", "other"): Code.STALE_CALL,
    (COLLECTING, "newer", "same"): COLLECTING,
    (COLLECTING, "newer", "other"): COLLECTING,
    (EVALUATING, "older", "same"): Code.STALE_LIFE,
    (EVALUATING, "older", "other"): Code.STALE_LIFE,
    (EVALUATING, "equal", "same"): EVALUATING,
    (EVALUATING, "equal", "other"): Code.STALE_CALL,
    (EVALUATING, "newer", "same"): EVALUATING,
    (EVALUATING, "newer", "other"): EVALUATING,
    (COMPLETED, "older", "same"): Code.STALE_LIFE,
    (COMPLETED, "older", "other"): Code.STALE_LIFE,
    (COMPLETED, "equal", "same"): COMPLETED,
    (COMPLETED, "equal", "other"): Code.STALE_CALL,
    (COMPLETED, "newer", "same"): COMPLETED,
    (COMPLETED, "newer", "other"): Code.COHORT_FAILED,
    (FAILED, "older", "same"): Code.STALE_LIFE,
    (FAILED, "older", "other"): Code.STALE_LIFE,
    (FAILED, "equal", "same"): Code.JUDGE_FAILED,
    (FAILED, "equal", "other"): Code.STALE_CALL,
    (FAILED, "newer", "same"): Code.JUDGE_FAILED,
    (FAILED, "newer", "other"): Code.JUDGE_FAILED,
}
"""What becomes of a member that comes again: by phase, by its life and by its answer."""


@pytest.mark.parametrize(
    ("case", "outcome"), AGAIN.items(), ids=lambda value: "-".join(value) if isinstance(value, tuple) else ""
)
def test_a_member_that_comes_again_is_taken_answered_or_refused(
    case: tuple[Phase, str, str], outcome: Code | Phase
) -> None:
    """By its life and its answer; a refusal changes nothing."""
    phase, age, answer = case
    cohorts, cohort = _in_phase(phase)
    n = {"older": 4, "equal": 5, "newer": 7}[age]
    digest = "d0" if answer == "same" else "another"
    before = dump(cohort)
    if isinstance(outcome, Code):
        refused(outcome, lambda: cohorts.join(joins(0, n, digest=digest), 1.0))
        if outcome is not Code.JUDGE_FAILED:
            assert dump(cohort) == before
        return
    assert cohorts.join(joins(0, n, digest=digest), 1.0) is cohort
    assert (cohort.phase, cohort.members[0].life, cohort.members[0].digest) == (outcome, life(0, n), digest)


def test_all_cases_of_a_repeat_are_in_the_table() -> None:
    """None was forgotten."""
    assert set(AGAIN) == set(product(Phase, ("older", "equal", "newer"), ("same", "other")))


def test_who_is_told_that_a_cohort_has_failed_is_told_the_same_again() -> None:
    """Also a newer life with another answer, whose call is sent twice because the first reply was lost."""
    cohorts, cohort = _in_phase(Phase.FAILED)
    for _ in range(2):
        refused(Code.JUDGE_FAILED, lambda: cohorts.join(joins(0, 7, digest="other"), 1.0))
    assert cohort.members[0].digest == "other"


def test_an_index_and_a_rollout_belong_to_each_other() -> None:
    """Another rollout at a taken index, and a rollout at a second index, are refused."""
    cohorts = made()
    cohorts.join(joins(0), 0.0)
    refused(Code.INVALID_REQUEST, lambda: cohorts.join(replace(joins(0), life=life(9)), 0.0))
    refused(Code.INVALID_REQUEST, lambda: cohorts.join(replace(joins(1), life=life(0, 3)), 0.0))


def test_an_evaluation_of_other_answers_has_the_whole_time_again() -> None:
    """With the same answer of a newer life it goes on as it is."""
    cohorts = made()
    for index in range(SIZE):
        cohort = cohorts.join(joins(index), 0.0)
    cohorts.join(joins(1, 4), 5.0)
    assert cohorts.ends_at(cohort) == 20.0
    cohorts.join(joins(1, 5, digest="new"), 7.0)
    assert cohorts.ends_at(cohort) == 27.0


def test_a_decision_on_answers_that_have_changed_is_none() -> None:
    """And neither is one of a cohort that collects again."""
    cohorts = made()
    cohort = cohorts.join(joins(0), 0.0)
    cohorts.join(joins(1), 0.0)
    cohorts.join(joins(1, 4, digest="new"), 0.0)
    assert not cohorts.decide(cohort, ["d0", "d1"], [1.0, 2.0], 0.0)
    cohorts.leave(life(1, 4), 0.0)
    assert (cohort.phase, cohort.missing) == (Phase.COLLECTING, [1])
    assert not cohorts.decide(cohort, ["d0"], [1.0], 0.0)


def test_an_older_life_that_ends_takes_no_newer_one_out() -> None:
    """Only the member's own life, and those that a newer one is told of."""
    cohorts = made()
    cohort = cohorts.join(joins(0, 5), 0.0)
    cohorts.leave(life(0, 4), 0.0)
    assert 0 in cohort.members
    cohorts.leave(life(0, 6), 0.0)
    assert len(cohorts) == 0


def test_a_cohort_ends_when_its_phase_takes_too_long() -> None:
    """At the limit and not before; the time to evaluate begins when all are there; a failure stays."""
    cohorts = made()
    cohort = cohorts.join(joins(0), 0.0)
    cohorts.expire(cohort, 9.9)
    phases = [cohort.phase]
    cohorts.join(joins(1), 9.9)
    for now in (29.8, 29.9):
        cohorts.expire(cohort, now)
        phases.append(cohort.phase)
    assert phases == [Phase.COLLECTING, Phase.EVALUATING, Phase.FAILED]
    assert cohort.error().code is Code.COHORT_FAILED
    refused(Code.COHORT_FAILED, lambda: cohorts.join(joins(1, 7), 30.0))
    late = made()
    late.join(joins(0), 0.0)
    assert "[1]" in refused(Code.COHORT_FAILED, lambda: late.join(joins(1), 10.0)).message


def test_a_later_attempt_supersedes_and_a_scrapped_cohort_begins_anew() -> None:
    """Who waits in the earlier one fails, who comes there is refused; what was scrapped is as if it had never been."""
    cohorts = made()
    first = cohorts.join(joins(0), 0.0)
    later = CohortKey(text="g/1", group="g", attempt=1)
    second = cohorts.join(joins(0, 5, key=later), 0.0)
    assert (first.phase, second.phase) == (Phase.FAILED, Phase.COLLECTING)
    refused(Code.COHORT_FAILED, lambda: cohorts.join(joins(1, 6), 0.0))
    never = CohortKey(text="g/-", group="g")
    refused(Code.COHORT_FAILED, lambda: cohorts.join(joins(1, 6, key=never), 0.0))
    cohorts.scrap(second, Code.UNREACHABLE, "gone", 0.0)
    again = cohorts.join(joins(0, 7, key=later), 0.0)
    assert (second.phase, again.phase, again is second) == (Phase.FAILED, Phase.COLLECTING, False)


# For how long


def test_without_a_run_what_is_over_is_kept_for_a_time_and_in_number() -> None:
    """The oldest go first; in a run neither counts for what is open there."""
    for in_run in (False, True):
        cohorts = made()
        if in_run:
            cohorts.adopted(1)
        for number in range(5):
            decided(cohorts, CohortKey(text=f"k{number}"), now=float(number))
        cohorts.sweep(5.0)
        assert len(cohorts) == (5 if in_run else 3)
        cohorts.sweep(103.5)
        assert len(cohorts) == (5 if in_run else 1)


FLOORS = [Floor(1, 0), Floor(1, 1), Floor(1, 2), Floor(2, 0), Floor(2, 1), Floor(3, 0)]


@pytest.mark.parametrize(
    ("pending", "n", "epoch", "passes"),
    [
        (0, 0, 1, Floor(1, 1)),
        (0, 1, 1, Floor(1, 2)),
        (2, 0, 1, Floor(3, 0)),
        (2, 0, 2, Floor(3, 0)),
        (0, 0, 2, Floor(2, 1)),
    ],
)
def test_a_member_is_passed_once_nobody_can_ask_for_it(pending: int, n: int, epoch: int, passes: Floor) -> None:
    """By the floor, and one that may be brought back only by the floor of a later epoch."""
    member = Member(0, life(0, n, epoch), "d", pending=pending)
    assert [member.passed(floor) for floor in FLOORS] == [floor >= passes for floor in FLOORS]
    assert not Member(0, None, "d").passed(Floor(9, 9))
    assert Member(0, life(0, 9, 9), "d", pending=9, done=True).passed(Floor())


def test_what_is_over_goes_with_the_floor_of_its_last_member() -> None:
    """And what is undecided with its members."""
    cohorts = made()
    decided(cohorts)
    cohorts.raise_floor(Floor(1, 1), 0.0)
    assert len(cohorts) == 1
    cohorts.join(joins(0, 3, key=CohortKey(text="other")), 0.0)
    cohorts.raise_floor(Floor(1, 2), 0.0)
    assert (len(cohorts), cohorts.undecided) == (1, 1)
    cohorts.raise_floor(Floor(1, 4), 0.0)
    assert (len(cohorts), cohorts._newest, cohorts._of) == (0, {}, {})


def test_survivors_of_a_controller_keep_what_its_successor_may_ask_for() -> None:
    """Whose life the new floor passes may be restored from the head: until that life is passed, or another epoch."""
    for comes in (True, False):
        cohorts = made()
        decided(cohorts)
        cohorts.adopted(2)
        cohorts.raise_floor(Floor(2, 0), 0.0)
        assert len(cohorts) == 1
        if comes:
            for index in (0, 1):
                assert cohorts.join(joins(index, 5 + index, epoch=2), 0.0).members[index].reward == 1.0 + index
        cohorts.raise_floor(Floor(2, 9), 0.0)
        assert len(cohorts) == (0 if comes else 1)
        cohorts.raise_floor(Floor(3, 0), 0.0)
        assert len(cohorts) == 0


def test_memory_is_bounded_over_many_epochs() -> None:
    """Of each epoch only what is open at its end stays, for the time to live of what nobody has come back for."""
    cohorts = made()
    chance = random.Random(1)
    for epoch in range(1, 40):
        now = epoch * 60.0
        cohorts.adopted(epoch)
        cohorts.raise_floor(Floor(epoch, 0), now)
        for number in range(chance.randint(1, 6)):
            key = CohortKey(text=f"{epoch}.{number}")
            lives = [Life(f"{key.text}.{index}", epoch, 0, 2 * number + index) for index in (0, 1)]
            for index, each in enumerate(lives):
                cohort = cohorts.join(Joining(key=key, index=index, life=each, digest="d"), now)
            cohorts.decide(cohort, ["d", "d"], [0.0, 0.0], now)
            cohorts.raise_floor(Floor(epoch, 2 * number + chance.randint(0, 2)), now)
        assert len(cohorts) <= 6
    cohorts.raise_floor(Floor(100, 0), now)
    cohorts.sweep(now + LIMITS.terminal_ttl_s + 1)
    assert (len(cohorts), cohorts._of) == (0, {})


def test_a_member_whose_result_is_durable_holds_nothing_up() -> None:
    """Also where a new controller comes before the floor has passed it; an older life that is done is none of it."""
    cohorts = made()
    decided(cohorts)
    cohorts.done(life(0, 0), 0.0)
    cohorts.adopted(2)
    cohorts.raise_floor(Floor(2, 0), 0.0)
    assert cohorts.join(joins(1, 5, epoch=2), 0.0).members[1].reward == 2.0
    cohorts.done(life(1, 1), 0.0)
    cohorts.raise_floor(Floor(2, 1), 0.0)
    assert len(cohorts) == 1
    cohorts.done(life(1, 5, epoch=2), 0.0)
    assert (len(cohorts), cohorts._of, cohorts._newest) == (0, {}, {})


# What is written down


def _exported(cohorts: Cohorts, *lives: Life) -> list[Any]:
    """As it comes back from JSON."""
    found: list[Any] = orjson.loads(orjson.dumps(cohorts.export(lives)))
    return found


def _restored(items: list[Any], scope: list[Life], into: Cohorts, *, epoch: int = 2, owns: Any = None) -> Cohorts:
    into.stage(items, scope, epoch, owns or (lambda key: True), 0.0)
    into.activate(0.0)
    into.settle()
    return into


def test_what_concerns_the_scope_is_exported_and_nothing_undecided() -> None:
    """Also a failure; of a decided cohort the scope may have one member only."""
    cohorts = made()
    decided(cohorts)
    failed = cohorts.join(joins(3, key=CohortKey(text="f")), 0.0)
    cohorts.fail(failed, Code.JUDGE_FAILED, "why", 0.0)
    cohorts.join(joins(5, key=CohortKey(text="undecided")), 0.0)
    everybody = [life(index) for index in range(6)]
    assert sorted(item["key"] for item in _exported(cohorts, *everybody)) == ["f", "g/0"]
    assert [item["key"] for item in _exported(cohorts, life(1, 1))] == ["g/0"]
    assert _exported(cohorts, life(5)) == []
    for item in _exported(cohorts, *everybody):
        assert dump(load(item, 0.0)) == item


def test_a_restored_decision_answers_and_goes_once_its_members_are_passed() -> None:
    """The one who is restored counts as pending until its next life comes; the others never come."""
    items = _exported_after(made())
    new = _restored(items, [life(1, 1)], made(floor=Floor(2, 0)))
    new.raise_floor(Floor(2, 3), 0.0)
    assert len(new) == 1
    assert new.join(joins(1, 4, epoch=2), 0.0).members[1].reward == 2.0
    new.raise_floor(Floor(2, 5), 0.0)
    assert len(new) == 0


def _exported_after(cohorts: Cohorts) -> list[Any]:
    decided(cohorts)
    return _exported(cohorts, life(1, 1))


def test_only_what_concerns_the_restore_and_belongs_here_is_taken() -> None:
    """Another worker takes the rest; who is never dispatched again is forgotten with the next epoch."""
    items = _exported_after(made())
    assert len(_restored(items, [life(7)], made())) == 0
    assert len(_restored(items, [life(1, 1)], made(), owns=lambda key: key != "g/0")) == 0
    new = _restored(items, [life(1, 1)], made(floor=Floor(2, 0)))
    new.raise_floor(Floor(3, 0), 0.0)
    assert len(new) == 0


def test_a_decision_that_all_go_back_behind_is_taken_anew() -> None:
    """Where one member stays where it is, as one that is delivered, the decision stands."""
    for scope, left in (([life(0), life(1, 1)], 0), ([life(0)], 1)):
        cohorts = made()
        decided(cohorts)
        _restored([], scope, cohorts)
        assert len(cohorts) == left
    waiting = made()
    cohort = waiting.join(joins(0), 0.0)
    _restored([], [life(0)], waiting)
    assert (len(waiting), cohort.members) == (0, {})


def test_a_restore_that_is_discarded_puts_back_what_it_replaced() -> None:
    """After it was activated, and before."""
    items = _exported_after(made())
    for activates in (True, False):
        cohorts = made()
        there = decided(cohorts)
        other = load({**items[0], "key": "other"}, 0.0)
        cohorts.stage([dump(other)], [life(0), life(1, 1)], 2, lambda key: True, 0.0)
        if activates:
            cohorts.activate(0.0)
            assert (cohorts.find("g/0"), cohorts.find("other") is None) == (None, False)
        cohorts.discard()
        assert (cohorts.find("g/0"), cohorts.find("other")) == (there, None)
        assert cohorts.join(joins(0, 7), 0.0) is there


@pytest.mark.parametrize(
    "damage",
    [
        {"members": None},
        {"members": [{}]},
        {"members": []},
        {"failure": ["no such code", ""]},
        {"size": "many"},
        {"attempt": None},
    ],
    ids=lambda damage: f"{damage!s:.40}",
)
def test_a_damaged_cohort_is_refused(damage: dict[str, Any]) -> None:
    """Before anything is active."""
    [item] = _exported_after(made())
    refused(Code.CORRUPT_CHECKPOINT, lambda: load({**item, **damage}, 0.0))


@pytest.mark.parametrize(("field", "value"), [("reward", None), ("life", "nobody"), ("index", "x"), ("index", 7)])
def test_a_damaged_member_is_refused(field: str, value: Any) -> None:
    """A completed cohort has each index, and a reward for each."""
    [item] = _exported_after(made())
    item["members"][0][field] = value
    refused(Code.CORRUPT_CHECKPOINT, lambda: load(item, 0.0))
