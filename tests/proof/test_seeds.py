"""A seed is all that a simulation depends on, and the checker has nothing to say of sound code."""

import dataclasses
from pathlib import Path

import pytest

from . import shrinking
from .checks_of_lives import only_the_newest_life
from .controllers import rollouts_of
from .history import History
from .scenario import Fault, Scenario, draw
from .seeds import ELSEWHERE, EXPECTED, judged
from .shrinking import shrink
from .simulation import simulate
from .view import View

pytestmark = pytest.mark.unit

SMALL = Scenario(
    seed=3,
    amounts=((2,), (5, 1)),
    concurrency=2,
    workers={"environment.main": 1, "agent.main": 1, "model.main": 1, "resources.counter": 1},
    verify="replay",
    interval_s=0.4,
    lease_s=2.0,
    prepare_timeout_s=1.0,
    more_time_s=0.5,
    keep_last=1,
    loose=True,
    skewed=True,
    slow=0.3,
    faults=(
        Fault("network_twice", 0.1, for_s=2.0, rate=0.3),
        Fault("kill", 0.0, "agent.main-0", 0.1, moment="generate", nth=2),
        Fault("kill_controller", 0.0, moment="release", nth=1),
    ),
)


def test_a_seed_gives_the_same_history_twice() -> None:
    """Every event of two runs is the same, crashes and lost messages included; another seed's are not."""
    first, second = simulate(SMALL), simulate(SMALL)
    assert first.history.digest == second.history.digest
    assert simulate(dataclasses.replace(SMALL, seed=4)).history.digest != first.history.digest


def test_sound_code_keeps_every_invariant() -> None:
    """The scenario has a crash of a participant and one of the controller, and nothing is found."""
    outcome, found = judged(SMALL)
    assert [str(violation) for violation in found] == []
    assert outcome.history.reached["fault: kill"] == outcome.history.reached["fault: kill_controller"] == 1
    assert len(outcome.output.splitlines()) == len(rollouts_of(SMALL))


def test_a_reply_that_is_lost_in_a_restore_is_not_waited_for_without_end() -> None:
    """The connection counts as gone after a while, the restore fails, and the next start does all the rest."""
    everybody = " ".join(f"{role}-0" for role in SMALL.workers)
    lost = Fault("partition", 0.0, everybody, 0.5, moment="stage", nth=1)
    kill = Fault("kill_all", 0.0, "", 0.1, moment="chain", nth=2)
    outcome, found = judged(SMALL.smaller(faults=(kill, lost)))
    assert [str(violation) for violation in found] == []
    assert outcome.history.reached["controller ended: RestoreFailed"] == 1


def test_what_no_seed_can_meet_is_tested_elsewhere() -> None:
    """Each code that a run is not expected to reach names a test that is there."""
    for _, path in ELSEWHERE.values():
        assert (Path(__file__).parents[1] / "participants" / path).is_file()


def test_a_sound_scenario_cannot_be_made_smaller() -> None:
    """What does not fail is left as it is."""
    small = SMALL.smaller(faults=())
    assert shrink(small, 3) == (small, [])


def test_a_scenario_follows_from_its_seed() -> None:
    """Drawn twice it is the same, and seeds differ."""
    assert draw(11) == draw(11)
    assert draw(11) != draw(12)
    assert len(set(EXPECTED)) == len(EXPECTED)


@pytest.mark.parametrize("late", [False, True])
def test_only_what_was_asked_before_the_end_may_be_generated_after_it(late: bool) -> None:
    """A generation that was under way is answered as stale and used by nobody; one that begins later is a violation."""
    history, life = History(), "r.0.0/1.0#0"
    call = {"process": "model.main-0", "incarnation": 3, "life": life, "call": "agent.main:0.0"}
    steps = [("asked", call), ("did", {**call, "effect": "generate"}), ("answered", {**call, "code": "stale_life"})]
    steps.insert(0 if late else 1, ("control", {**call, "operation": "release", "code": "ok", "lives": [life]}))
    for at, (what, facts) in enumerate(steps):
        history.add(float(at), what, **facts)
    assert len(list(only_the_newest_life(View(history)))) == late


def test_a_scenario_that_takes_very_long_is_told_of_as_far_as_it_was_made_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that does not come to its end would be tried for hours, and the run would say nothing."""
    monkeypatch.setattr(shrinking, "LONGEST_S", 0.0)
    stuck = SMALL.smaller(horizon_s=0.05)
    small, found = shrink(stuck, 4)
    assert (small, [violation.invariant for violation in found]) == (stuck, [4])
