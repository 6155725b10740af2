"""The table of phases: every pair of phase and event, and the rules that the design states in words."""

from itertools import product

import pytest

from participants import Code, Event, ParticipantError, Phase, advance
from participants.phases import CHECKPOINT_PHASES, RESTORE_PHASES, TRANSITIONS
from tests.support.control_page import PAGE, current, rendered

pytestmark = pytest.mark.unit

LEGAL = {
    ("idle", "prepare"): "preparing",
    ("preparing", "prepare"): "preparing",
    ("prepared", "prepare"): "prepared",
    ("preparing", "parked"): "prepared",
    ("prepared", "commit"): "committing",
    ("committing", "committed"): "prepared",
    ("committing", "fail"): "prepared",
    ("idle", "stage"): "staging",
    ("staging", "all_staged"): "staged",
    ("staged", "activate"): "activating",
    ("activating", "activated"): "restored",
    **{(phase, "fail"): "restore_failed" for phase in ("staging", "staged", "activating")},
    **{(phase, "lease_expired"): "idle" for phase in ("preparing", "prepared", "committing")},
    **{(phase, "resume"): "idle" for phase in ("preparing", "prepared", "restored")},
    **{(phase.value, "abort"): "idle" for phase in Phase if phase is not Phase.IDLE},
}
"""Written down once more from the design, not from the table under test."""

PAIRS = list(product(Phase, Event))


@pytest.mark.parametrize(("phase", "event"), [pair for pair in PAIRS if pair in LEGAL])
def test_a_legal_pair_leads_to_its_phase(phase: Phase, event: Event) -> None:
    """Each pair that the design allows leads where the design says."""
    assert advance(phase, event) == LEGAL[phase.value, event.value]


@pytest.mark.fault(45)
@pytest.mark.parametrize(("phase", "event"), [pair for pair in PAIRS if pair not in LEGAL])
def test_an_illegal_pair_is_refused_and_names_both(phase: Phase, event: Event) -> None:
    """Each other pair raises `invalid_phase` with the phase and the event in message and details."""
    with pytest.raises(ParticipantError) as caught:
        advance(phase, event)
    assert caught.value.code is Code.INVALID_PHASE
    assert caught.value.details == {"phase": phase.value, "event": event.value}
    assert phase.value in caught.value.message
    assert event.value in caught.value.message


def test_every_pair_was_tried() -> None:
    """The two tests above share out all pairs between them."""
    assert len(LEGAL) + sum(pair not in LEGAL for pair in PAIRS) == len(Phase) * len(Event)


def test_every_phase_can_be_reached_and_left() -> None:
    """No phase is a dead end, and every one but idle ends by abort."""
    assert set(TRANSITIONS.values()) == set(Phase)
    assert {phase for phase, event in TRANSITIONS if event is Event.ABORT} == set(Phase) - {Phase.IDLE}


def test_only_a_checkpoint_has_a_lease() -> None:
    """A lease guards exactly the phases of a checkpoint, and none of a restore."""
    assert {phase for phase, event in TRANSITIONS if event is Event.LEASE_EXPIRED} == CHECKPOINT_PHASES
    assert CHECKPOINT_PHASES | RESTORE_PHASES | {Phase.IDLE} == set(Phase)
    assert not CHECKPOINT_PHASES & RESTORE_PHASES


@pytest.mark.parametrize("block", ["phases", "transitions"])
def test_the_diagram_in_the_docs_is_drawn_from_the_table(block: str) -> None:
    """docs/control.md holds what the script draws; `python -m tests.support.control_page` brings it up to date."""
    assert current(PAGE.read_text(encoding="utf-8"), block) == rendered()[block]
