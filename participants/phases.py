"""The phases of a participant, as a table: what each event leads to, and nothing else is allowed.

A lease guards `preparing` to `prepared`; when it runs out the participant reopens by itself. The phases of a restore
have none: they stay closed until resume, abort, or an adopt by a higher epoch.
"""

from collections.abc import Mapping
from enum import StrEnum

from .errors import Code, ParticipantError


class Phase(StrEnum):
    """Where a participant stands."""

    IDLE = "idle"
    PREPARING = "preparing"
    PREPARED = "prepared"
    COMMITTING = "committing"
    STAGING = "staging"
    STAGED = "staged"
    ACTIVATING = "activating"
    RESTORED = "restored"
    RESTORE_FAILED = "restore_failed"


class Event(StrEnum):
    """What moves it."""

    PREPARE = "prepare"
    PARKED = "parked"
    COMMIT = "commit"
    COMMITTED = "committed"
    RESUME = "resume"
    ABORT = "abort"
    LEASE_EXPIRED = "lease_expired"
    STAGE = "stage"
    ALL_STAGED = "all_staged"
    ACTIVATE = "activate"
    ACTIVATED = "activated"
    FAIL = "fail"


TRANSITIONS: Mapping[tuple[Phase, Event], Phase] = {
    (Phase.IDLE, Event.PREPARE): Phase.PREPARING,
    (Phase.PREPARING, Event.PREPARE): Phase.PREPARING,
    (Phase.PREPARING, Event.PARKED): Phase.PREPARED,
    (Phase.PREPARING, Event.LEASE_EXPIRED): Phase.IDLE,
    (Phase.PREPARING, Event.RESUME): Phase.IDLE,
    (Phase.PREPARING, Event.ABORT): Phase.IDLE,
    (Phase.PREPARED, Event.PREPARE): Phase.PREPARED,
    (Phase.PREPARED, Event.COMMIT): Phase.COMMITTING,
    (Phase.PREPARED, Event.LEASE_EXPIRED): Phase.IDLE,
    (Phase.PREPARED, Event.RESUME): Phase.IDLE,
    (Phase.PREPARED, Event.ABORT): Phase.IDLE,
    (Phase.COMMITTING, Event.COMMITTED): Phase.PREPARED,
    (Phase.COMMITTING, Event.FAIL): Phase.PREPARED,
    (Phase.COMMITTING, Event.LEASE_EXPIRED): Phase.IDLE,
    (Phase.COMMITTING, Event.ABORT): Phase.IDLE,
    (Phase.IDLE, Event.STAGE): Phase.STAGING,
    (Phase.STAGING, Event.ALL_STAGED): Phase.STAGED,
    (Phase.STAGING, Event.FAIL): Phase.RESTORE_FAILED,
    (Phase.STAGING, Event.ABORT): Phase.IDLE,
    (Phase.STAGED, Event.ACTIVATE): Phase.ACTIVATING,
    (Phase.STAGED, Event.FAIL): Phase.RESTORE_FAILED,
    (Phase.STAGED, Event.ABORT): Phase.IDLE,
    (Phase.ACTIVATING, Event.ACTIVATED): Phase.RESTORED,
    (Phase.ACTIVATING, Event.FAIL): Phase.RESTORE_FAILED,
    (Phase.ACTIVATING, Event.ABORT): Phase.IDLE,
    (Phase.RESTORED, Event.RESUME): Phase.IDLE,
    (Phase.RESTORED, Event.ABORT): Phase.IDLE,
    (Phase.RESTORE_FAILED, Event.ABORT): Phase.IDLE,
}

CHECKPOINT_PHASES = frozenset({Phase.PREPARING, Phase.PREPARED, Phase.COMMITTING})
RESTORE_PHASES = frozenset({Phase.STAGING, Phase.STAGED, Phase.ACTIVATING, Phase.RESTORED, Phase.RESTORE_FAILED})


def advance(phase: Phase, event: Event) -> Phase:
    """The next phase. Raises `invalid_phase`, naming both, where the table has no such pair."""
    try:
        return TRANSITIONS[phase, event]
    except KeyError:
        raise ParticipantError(
            Code.INVALID_PHASE, f"{event} is not possible while {phase}", {"phase": phase.value, "event": event.value}
        ) from None
