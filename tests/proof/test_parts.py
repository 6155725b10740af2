"""The parts beside the simulation try what they say, stop when their time is over, and find what is planted."""

import math
from collections import Counter

import pytest

from tests.crash.mutants import NoFileSync
from tests.simulation.actors import claiming
from tests.simulation.planted import hasty_pruning
from tests.simulation.scenarios import LAST, OLD, SCENES, in_plain

from .__main__ import ENOUGH, main, missed, sentence
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


def test_of_a_part_that_has_tried_nothing_nothing_is_claimed(capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence names it, and the run does not pass; where all have tried nothing there is no word of violations."""
    some = {part.name: Report() for part in PARTS}
    some["kills"] = Report(counts=Counter(kills=3, checkpoints=2))
    told = sentence(PARTS, some)
    assert told == (
        "3 processes ended by SIGKILL in the middle of 2 checkpoints: no violations of twelve invariants; nothing was "
        "tried of crash states, schedules, simulation, for which there was not enough time."
    )
    none = sentence(PARTS[-1:], {SEEDED: Report()})
    assert none == "nothing was tried of simulation, for which there was not enough time."
    some["schedules"].violations.append("x")
    assert "1 violation of twelve invariants; nothing was tried of crash states" in sentence(PARTS, some)
    assert main(["--minutes", "1e-9", "--part", "kills", "--part", SEEDED, "--workers", "1"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("nothing was tried of kills, simulation")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--minutes", "0"], "argument --minutes: '0' is no number above 0"),
        (["--minutes", "nan"], "argument --minutes: 'nan' is no number above 0"),
        (["--seeds", "-1"], "argument --seeds: '-1' is no whole number from 1 on"),
        (["--seeds", "0"], "argument --seeds: '0' is no whole number from 1 on"),
        (["--workers", "0"], "argument --workers: '0' is no whole number from 1 on"),
        (["--part", "nosuch"], "invalid choice: 'nosuch'"),
        (["--part", "kills", "--seeds", "3"], "--seeds is for the part simulation, which --part leaves out"),
    ],
)
def test_what_would_try_nothing_is_refused(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence on stderr, and 2."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    told = capsys.readouterr().err
    assert (ended.value.code, told.count("\n")) == (2, 1)
    assert says in told
