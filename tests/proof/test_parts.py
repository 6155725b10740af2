"""The parts beside the simulation try what they say, stop when their time is over, and find what is planted."""

import math
from collections import Counter

import pytest

from tests.crash.mutants import NoFileSync
from tests.simulation.actors import claiming
from tests.simulation.planted import hasty_pruning
from tests.simulation.scenarios import LAST, OLD, SCENES, in_plain

from .__main__ import ENOUGH, missed
from .enumerations import crashed, scheduled
from .part import SEEDED, Report
from .parts import PARTS

pytestmark = pytest.mark.unit


def test_crash_states_are_counted_and_a_skipped_sync_is_a_violation() -> None:
    """Of one scene all states are tried; a backend that does not sync what it wrote leaves one that is refused."""
    sound = crashed("seal", 0, math.inf)
    assert sound.counts["crash states"] > sound.counts["crash points"] > 1
    assert (sound.violations, sound.reached) == ([], Counter({"all of seal": 1}))
    assert crashed("seal", 0, math.inf, NoFileSync()).violations


def test_schedules_are_counted_and_a_deletion_before_its_plan_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every schedule of a sound scene passes; of one with a hasty pruner the first wrong one is shown."""
    sound = scheduled("seal against claim", 0, math.inf)
    assert sound.counts["schedules"] > 1
    assert (sound.violations, sound.reached) == ([], Counter({"every schedule of seal against claim": 1}))
    monkeypatch.setitem(SCENES, "planted", lambda: in_plain(claim=claiming(OLD), prune=hasty_pruning(LAST)))
    assert "1.1 exists and" in scheduled("planted", 0, math.inf).violations[0]


def test_what_had_to_stop_counts_as_not_reached() -> None:
    """A task whose time is over comes back at once, and says of nothing that it tried all of it."""
    assert crashed("seal", 0, 0.0).reached == scheduled("seal against claim", 0, 0.0).reached == Counter()


def test_a_long_run_that_misses_something_does_not_pass() -> None:
    """Of few seeds nobody expects that they meet everything; of many it is an error."""
    few, many = (Report(counts=Counter(seeds=seeds)) for seeds in (ENOUGH - 1, ENOUGH))
    simulation = PARTS[-1]
    assert "fault: kill" in simulation.not_reached(many)
    assert not missed({SEEDED: few}, {SEEDED: ["fault: kill"]})
    assert missed({SEEDED: many}, {SEEDED: ["fault: kill"]})
    assert not missed({SEEDED: many}, {SEEDED: []})
