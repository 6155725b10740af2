"""Fences: which lives may act, as a table and as a property against a naive model that never forgets."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants import Admitted, Code, Fences, Floor, ParticipantError
from store import Life

pytestmark = [pytest.mark.unit, pytest.mark.fault(49)]


def life(text: str) -> Life:
    """`<epoch>.<attempt>#<n>` of the one rollout of the table."""
    return Life.parse(f"r0/{text}")


def admit(text: str) -> Callable[[Fences], Any]:
    return lambda fences: fences.admit(life(text), creates=True)


def call(text: str) -> Callable[[Fences], Any]:
    return lambda fences: fences.admit(life(text), creates=False)


def fence(text: str) -> Callable[[Fences], Any]:
    return lambda fences: fences.fence(life(text))


def floor(epoch: int, n: int) -> Callable[[Fences], Any]:
    return lambda fences: fences.raise_floor(Floor(epoch, n))


NEW, KNOWN, STALE = Admitted(created=True), Admitted(), Code.STALE_LIFE


@pytest.mark.parametrize(
    ("steps", "last", "answer"),
    [
        ([], admit("1.0#3"), NEW),
        ([], call("1.0#3"), STALE),
        ([admit("1.0#3")], admit("1.0#3"), KNOWN),
        ([admit("1.0#3")], call("1.0#3"), KNOWN),
        ([admit("1.0#3")], admit("1.0#4"), Admitted(True, life("1.0#3"))),
        ([admit("1.0#3")], admit("2.1#0"), Admitted(True, life("1.0#3"))),
        ([admit("1.0#3")], call("1.0#4"), STALE),
        ([admit("1.0#3")], admit("1.0#2"), STALE),
        ([admit("1.0#3")], admit("1.1#3"), STALE),
        ([admit("1.0#3"), admit("2.1#0")], admit("1.0#3"), STALE),
        ([admit("1.0#3"), admit("2.1#0")], call("1.0#3"), STALE),
        ([admit("1.0#3")], fence("1.0#3"), True),
        ([admit("1.0#3")], fence("1.0#2"), False),
        ([admit("1.0#3")], fence("1.0#4"), True),
        ([], fence("1.0#3"), False),
        ([admit("1.0#3"), fence("1.0#2")], call("1.0#3"), KNOWN),
        ([admit("1.0#3"), fence("1.0#3")], call("1.0#3"), STALE),
        ([admit("1.0#3"), fence("1.0#3")], admit("1.0#3"), STALE),
        ([admit("1.0#3"), fence("1.0#3")], admit("1.0#4"), NEW),
        ([fence("1.0#3")], admit("1.0#2"), STALE),
        ([fence("1.0#3"), fence("1.0#1")], admit("1.0#2"), STALE),
        ([floor(2, 1)], admit("2.0#0"), STALE),
        ([floor(2, 1)], admit("1.0#9"), STALE),
        ([floor(2, 1)], admit("2.0#1"), NEW),
        ([fence("1.0#3"), floor(1, 3)], admit("1.0#3"), STALE),
        ([admit("1.0#3")], floor(1, 3), []),
        ([admit("1.0#3")], floor(1, 4), [life("1.0#3")]),
        ([admit("1.0#3"), floor(1, 4)], call("1.0#3"), STALE),
        ([admit("1.0#3"), floor(1, 4)], admit("1.0#3"), STALE),
        ([floor(2, 0), admit("2.0#0")], floor(1, 9), []),
    ],
)
def test_a_call_is_admitted_or_refused(steps: list[Callable[[Fences], Any]], last: Any, answer: Any) -> None:
    """Each rule of creating, superseding, fencing and the floor is one row; a refusal changes nothing."""
    fences = Fences()
    for step in steps:
        step(fences)
    if answer is not STALE:
        assert last(fences) == answer
        return
    before = fences.live, repr(fences)
    with pytest.raises(ParticipantError) as caught:
        last(fences)
    assert caught.value.code is STALE
    assert (fences.live, repr(fences)) == before


def test_what_is_installed_may_act() -> None:
    """A restore installs lives as current ones."""
    fences = Fences()
    fences.install([life("1.0#3")])
    assert fences.current("r0") == life("1.0#3")
    assert fences.admit(life("1.0#3"), creates=False) == KNOWN


@dataclass
class Model:
    """The rules said naively: remember every life that was ever seen or ended, for ever."""

    floor: Floor = field(default_factory=Floor)
    seen: set[Life] = field(default_factory=set)
    ended: set[Life] = field(default_factory=set)

    def admits(self, asked: Life, *, creates: bool) -> bool:
        place = (asked.epoch, asked.n)
        if place < (self.floor.epoch, self.floor.n):
            return False
        if any((life.epoch, life.n) >= place for life in self._of(asked, self.ended)):
            return False
        newest = max(self._of(asked, self.seen), key=lambda life: (life.epoch, life.n), default=None)
        if newest is not None and (newest.epoch, newest.n) >= place:
            return newest == asked
        if creates:
            self.seen.add(asked)
        return creates

    def _of(self, asked: Life, lives: set[Life]) -> list[Life]:
        return [life for life in lives if life.rollout_id == asked.rollout_id]


LIVES = st.builds(Life, st.sampled_from(["r0", "r1"]), st.integers(1, 3), st.just(0), st.integers(0, 4))
STEPS = st.one_of(
    st.tuples(st.just("admit"), LIVES),
    st.tuples(st.just("call"), LIVES),
    st.tuples(st.just("fence"), LIVES),
    st.tuples(st.just("floor"), st.builds(Floor, st.integers(1, 3), st.integers(0, 4))),
)


@given(st.lists(STEPS, max_size=40))
def test_forgetting_what_is_below_the_floor_changes_no_answer(steps: list[tuple[str, Any]]) -> None:
    """Fences answer as a model that keeps everything, and hold at most two lives a rollout, none below the floor."""
    fences, model = Fences(), Model()
    for what, subject in steps:
        if what == "floor":
            fences.raise_floor(subject)
            model.floor = max(model.floor, subject)
        elif what == "fence":
            fences.fence(subject)
            model.ended.add(subject)
        else:
            assert _admits(fences, subject, creates=what == "admit") is model.admits(subject, creates=what == "admit")
        _check_bounded(fences)


def _admits(fences: Fences, asked: Life, *, creates: bool) -> bool:
    try:
        fences.admit(asked, creates=creates)
    except ParticipantError:
        return False
    return True


def _check_bounded(fences: Fences) -> None:
    kept = [*fences.live, *fences.fenced]
    assert all(Floor(life.epoch, life.n) >= fences.floor for life in kept)
    assert len(fences.live) <= 2
    assert len(fences.fenced) <= 2


def test_memory_follows_what_is_open_and_not_what_has_been() -> None:
    """Twenty thousand finished lives leave nothing once the floor has passed them."""
    fences = Fences()
    for n in range(20_000):
        each = Life(f"r{n}", 1, 0, n)
        fences.admit(each, creates=True)
        fences.fence(each)
        if n % 1000 == 0:
            fences.raise_floor(Floor(1, n))
            assert len(fences.fenced) <= 1
    fences.raise_floor(Floor(2, 0))
    assert (fences.live, fences.fenced) == ([], [])
    assert repr(fences) == "<Fences 0 live, 0 fenced, floor 2.0>"
