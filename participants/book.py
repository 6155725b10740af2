"""What one participant process knows of epochs and rounds: pure; the plane carries out what it decides.

Rules, each in one place: `check_call` (run, incarnation, epoch, floor), `check_round` (open, closed, stale), the
leases, and the table of `participants.phases`. A refusal raises a ParticipantError and changes nothing.
"""

from dataclasses import dataclass
from typing import Literal

from store import CheckpointId, Life

from .errors import Code, ParticipantError
from .fences import Floor
from .phases import CHECKPOINT_PHASES, RESTORE_PHASES, Event, Phase, advance
from .wire import Adopt, Commit, Committed, ControlCall, Done, Prepare, Renew, RoundCall, Stage

Ending = Literal["resumed", "aborted", "lease_expired"]


@dataclass(frozen=True, slots=True)
class Closed:
    """The highest round that is over, and how it ended."""

    round: CheckpointId
    ending: Ending


class Book:
    """The state machine of one participant process."""

    def __init__(self, incarnation: str, run: str | None = None) -> None:
        """`run` is None until the first adopt names it."""
        self.incarnation = incarnation
        self.run = run
        self.epoch = 0
        self.floor = Floor()
        self.phase = Phase.IDLE
        self.round: CheckpointId | None = None
        self.closed: Closed | None = None
        self.lease_until: float | None = None
        self.committed: tuple[Commit, Committed] | None = None
        """The commit of the open round, and its answer."""
        self.staged: Stage | None = None
        self.restarts: frozenset[Life] = frozenset()

    def __repr__(self) -> str:
        return f"<Book epoch {self.epoch}, round {self.round or '-'} {self.phase}>"

    # Who may call

    def check_call(self, call: ControlCall) -> None:
        """Refuse another run, process or epoch, and a floor that this epoch cannot have."""
        self._check_run(call.run)
        if call.incarnation != self.incarnation:
            raise ParticipantError(
                Code.WRONG_INCARNATION, f"this is {self.incarnation}, and the call is for {call.incarnation}"
            )
        if call.epoch != self.epoch:
            raise ParticipantError(
                Code.STALE_EPOCH, f"the epoch here is {self.epoch}, and the call's {call.epoch}", {"epoch": self.epoch}
            )
        _check_floor(call)

    def take_floor(self, call: ControlCall | Adopt) -> None:
        """A call that nothing refused: its floor is known from here on."""
        self.floor = max(self.floor, call.floor)

    def _check_run(self, run: str) -> None:
        if self.run is not None and run != self.run:
            raise ParticipantError(
                Code.INVALID_REQUEST, f"this process serves run {self.run}, and the call is of {run}"
            )

    def adopt(self, call: Adopt) -> bool:
        """Take a higher epoch; True while a round of a lower one is open, which is to be aborted."""
        self._check_run(call.run)
        if call.incarnation not in (None, self.incarnation):
            raise ParticipantError(
                Code.WRONG_INCARNATION, f"this is {self.incarnation}, and the call is for {call.incarnation}"
            )
        if call.epoch < self.epoch:
            raise ParticipantError(Code.STALE_EPOCH, f"the epoch here is {self.epoch}", {"epoch": self.epoch})
        _check_floor(call)
        self.run, self.epoch, self.floor = call.run, call.epoch, max(self.floor, call.floor)
        return self.round is not None and self.round.epoch < self.epoch

    # Rounds

    def check_round(self, call: RoundCall) -> None:
        """Refuse a closed round, another run or epoch, and a round other than the open one."""
        self.check_call(call)
        if call.round.epoch != call.epoch:
            raise ParticipantError(Code.INVALID_REQUEST, f"round {call.round} is not of epoch {call.epoch}")
        if self.closed and call.round <= self.closed.round:
            raise ParticipantError(
                Code.LEASE_EXPIRED if self._expired(call.round) else Code.STALE_ROUND,
                f"round {self.closed.round} was {self.closed.ending}",
                {"round": str(self.closed.round), "ending": self.closed.ending},
            )
        if self.round is not None and call.round != self.round:
            raise ParticipantError(
                Code.INVALID_PHASE, f"round {self.round} is {self.phase}", {"round": str(self.round)}
            )

    def _expired(self, round_: CheckpointId) -> bool:
        return self.closed is not None and self.closed == Closed(round_, "lease_expired")

    def _move(self, event: Event) -> None:
        self.phase = advance(self.phase, event)

    def prepare(self, call: Prepare, now: float) -> bool:
        """Open the round or renew its lease; True where it is new, so that admission is to be closed."""
        self.check_round(call)
        if call.lease_s <= call.timeout_s:
            raise ParticipantError(Code.INVALID_REQUEST, "the lease must be longer than the timeout")
        new = self.phase is Phase.IDLE
        self._move(Event.PREPARE)
        self.round = call.round
        self.lease_until = now + call.lease_s
        return new

    def parked(self, restarts: frozenset[Life]) -> None:
        """All work is parked."""
        if self.phase is Phase.PREPARING:
            self._move(Event.PARKED)
            self.restarts = restarts

    def renew(self, call: Renew, now: float) -> None:
        """Extend the lease."""
        self.check_round(call)
        if self.phase not in CHECKPOINT_PHASES:
            raise ParticipantError(Code.INVALID_PHASE, f"there is no lease to renew while {self.phase}")
        self.lease_until = now + call.lease_s

    def check_lease(self, now: float) -> None:
        """Refuse where the lease ran out, whether or not that was noticed yet."""
        if self.lease_until is None or now >= self.lease_until:
            raise ParticipantError(Code.LEASE_EXPIRED, f"the lease of round {self.round} ran out")

    def commit(self, call: Commit, now: float) -> Committed | None:
        """Begin to commit, or give the answer that was given before."""
        self.check_round(call)
        if self.committed is not None:
            before = self.committed[0]
            if (before.scope, before.parent, before.left_out) != (call.scope, call.parent, call.left_out):
                raise ParticipantError(Code.CHECKPOINT_CONFLICT, f"round {self.round} committed another scope")
            return self.committed[1]
        advance(self.phase, Event.COMMIT)
        self.check_lease(now)
        restarts = [str(life) for life in call.scope if life in self.restarts]
        if restarts:
            raise ParticipantError(
                Code.RESTART_IN_SCOPE, f"{len(restarts)} lives of the scope are restarts", {"lives": restarts[:20]}
            )
        self._move(Event.COMMIT)
        return None

    def commit_ended(self, call: Commit, answer: Committed | None) -> None:
        """Keep the answer; None where the commit failed."""
        if self.phase is Phase.COMMITTING and self.round == call.round:
            self._move(Event.COMMITTED if answer else Event.FAIL)
            self.committed = (call, answer) if answer else None

    # Restores

    def stage(self, call: Stage) -> bool:
        """Begin to stage; False where this very stage is done already."""
        self.check_round(call)
        if self.staged is not None and self.phase in (Phase.STAGED, Phase.ACTIVATING, Phase.RESTORED):
            if self.staged != call:
                raise ParticipantError(Code.CHECKPOINT_CONFLICT, f"round {self.round} staged another checkpoint")
            return False
        self._move(Event.STAGE)
        self.round, self.staged = call.round, call
        return True

    def activate(self, call: RoundCall) -> bool:
        """Begin to activate; False where it is done already."""
        self.check_round(call)
        if self.phase is Phase.RESTORED:
            return False
        self._move(Event.ACTIVATE)
        return True

    def restore_moved(self, call: RoundCall, event: Event) -> None:
        """A step of a restore ended; nothing where it was aborted meanwhile."""
        if self.phase in RESTORE_PHASES and self.round == call.round:
            self._move(event)

    # Endings

    def resume(self, call: RoundCall) -> Done | None:
        """End the round by resuming; the answer where it had ended so already."""
        return self._end(call, Event.RESUME, "resumed")

    def abort(self, call: RoundCall) -> Done | None:
        """End the round by aborting; the answer where it had ended so already."""
        return self._end(call, Event.ABORT, "aborted")

    def _end(self, call: RoundCall, event: Event, ending: Ending) -> Done | None:
        if self.closed == Closed(call.round, ending):
            self.check_call(call)
            return Done(phase=self.phase)
        self.check_round(call)
        if self.round is None:
            self.closed = Closed(call.round, ending)
            return Done(phase=self.phase)
        advance(self.phase, event)
        return None

    def ended(self, ending: Ending) -> None:
        """The round is over."""
        if self.round is not None:
            self.closed = Closed(self.round, ending)
        self.phase, self.round, self.lease_until = Phase.IDLE, None, None
        self.committed, self.staged, self.restarts = None, None, frozenset()

    def lease_ran_out(self, now: float) -> bool:
        """Whether the participant must reopen by itself now."""
        return self.phase in CHECKPOINT_PHASES and self.lease_until is not None and now >= self.lease_until

    def check_idle(self) -> None:
        """Refuse what is not possible while a checkpoint or restore is open."""
        if self.phase is not Phase.IDLE:
            raise ParticipantError(
                Code.INVALID_PHASE,
                f"round {self.round} is {self.phase}: resume or abort it first",
                {"round": str(self.round), "phase": self.phase.value},
            )


def _check_floor(call: ControlCall | Adopt) -> None:
    if call.floor.epoch > call.epoch:
        raise ParticipantError(Code.INVALID_REQUEST, f"the floor {call.floor} is above the call's epoch {call.epoch}")
