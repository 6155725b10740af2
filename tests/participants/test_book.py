"""The book: who may call, which round is open, how rounds end, and what a lease allows; with a clock of our own."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from participants import Book, Closed, Code, Floor, ParticipantError, Phase
from participants.phases import CHECKPOINT_PHASES, RESTORE_PHASES, Event
from participants.wire import Activate, Adopt, Commit, Committed, Prepare, Renew, Resume, Stage
from store import CheckpointId, Life, ParticipantRef, Ref

pytestmark = pytest.mark.unit

RUN, SELF = "a" * 32, "self"
LIVES = (Life("r0", 1, 0, 0), Life("r1", 1, 0, 1))
REF = Ref(checkpoint=CheckpointId(1, 1), digest="d" * 64, run_id=RUN)
MANIFEST = ParticipantRef(kind="agent", name="main", process="w0", digest="d" * 64, size=1, records=0, bytes=0)
ANSWER = Committed(manifest=MANIFEST, bytes_written=1, tallies=())


def call(k: int = 2, *, epoch: int = 2, of: int | None = None, **other: Any) -> dict[str, Any]:
    """What a call of round `<of>.<k>` carries."""
    fields = {"run": RUN, "epoch": epoch, "incarnation": SELF, "round": CheckpointId(of or epoch, k)}
    return {**fields, **other}


def prepare(k: int = 2, *, timeout_s: float = 5, lease_s: float = 10, **other: Any) -> Prepare:
    return Prepare(**call(k, **other), timeout_s=timeout_s, lease_s=lease_s)


def commit(k: int = 2, *, scope: tuple[Life, ...] = LIVES, parent: Ref | None = None, **other: Any) -> Commit:
    return Commit(**call(k, **other), scope=scope, parent=parent)


def stage(k: int = 2, *, checkpoint: Ref = REF, scope: tuple[Life, ...] = LIVES, **other: Any) -> Stage:
    return Stage(**call(k, **other), checkpoint=checkpoint, scope=scope)


def resume(k: int = 2, **other: Any) -> Resume:
    return Resume(**call(k, **other))


def book(phase: Phase = Phase.IDLE, k: int = 2) -> Book:
    """A book of epoch 2 in a phase, reached by its own methods at time 0."""
    made = Book(SELF, RUN)
    made.adopt(Adopt(run=RUN, epoch=2))
    if phase in CHECKPOINT_PHASES:
        made.prepare(prepare(k), 0)
        if phase is not Phase.PREPARING:
            made.parked(frozenset())
        if phase is Phase.COMMITTING:
            made.commit(commit(k), 1)
    if phase in RESTORE_PHASES:
        _restore_to(made, phase, k)
    assert made.phase is phase
    return made


def _restore_to(made: Book, phase: Phase, k: int) -> None:
    made.stage(stage(k))
    if phase is Phase.RESTORE_FAILED:
        made.restore_moved(stage(k), Event.FAIL)
    elif phase is not Phase.STAGING:
        made.restore_moved(stage(k), Event.ALL_STAGED)
        if phase is not Phase.STAGED:
            made.activate(Activate(**call(k)))
        if phase is Phase.RESTORED:
            made.restore_moved(stage(k), Event.ACTIVATED)


def closed_by(end: str) -> Book:
    """A book whose round 2.2 is over."""
    made = book(Phase.PREPARED)
    made.ended(end)  # type: ignore[arg-type]
    return made


def refused(made: Book, ask: Callable[[Book], Any], code: Code) -> ParticipantError:
    """Ask, and require that it is refused and that nothing changed."""
    before = copy.deepcopy(vars(made))
    with pytest.raises(ParticipantError) as caught:
        ask(made)
    assert caught.value.code is code
    assert vars(made) == before
    return caught.value


# Who may call


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"run": "b" * 32}, Code.INVALID_REQUEST),
        ({"incarnation": "other"}, Code.WRONG_INCARNATION),
        ({"epoch": 1}, Code.STALE_EPOCH),
        ({"epoch": 3}, Code.STALE_EPOCH),
        ({"round": CheckpointId(1, 1)}, Code.INVALID_REQUEST),
        ({"floor": Floor(3, 0)}, Code.INVALID_REQUEST),
    ],
)
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.fault(43, 46)
def test_another_run_process_or_epoch_is_refused_in_every_phase(
    phase: Phase, change: dict[str, Any], code: Code
) -> None:
    """Nothing of another controller, or for another process, changes anything, also not the floor."""
    asked = Resume(**{**call(), "floor": Floor(2, 9), **change})
    made = book(phase)
    with pytest.raises(ParticipantError) as caught:
        made.resume(asked)
    assert (caught.value.code, made.phase) == (code, phase)
    assert made.floor == Floor()


def test_the_floor_only_rises() -> None:
    """Every call that is not refused brings the floor, and a lower one changes nothing."""
    made = book()
    for floor, after in ((Floor(2, 5), Floor(2, 5)), (Floor(2, 3), Floor(2, 5)), (Floor(2, 7), Floor(2, 7))):
        made.take_floor(prepare(floor=floor))
        assert made.floor == after


def test_adopt_takes_a_higher_epoch_and_repeats() -> None:
    """A higher epoch is taken, the same one again is fine, a lower one, another run or process is refused."""
    made = book()
    made.adopt(Adopt(run=RUN, epoch=5, floor=Floor(5, 0), incarnation=SELF))
    made.adopt(Adopt(run=RUN, epoch=5))
    assert (made.epoch, made.floor) == (5, Floor(5, 0))
    refused(made, lambda b: b.adopt(Adopt(run=RUN, epoch=4)), Code.STALE_EPOCH)
    refused(made, lambda b: b.adopt(Adopt(run="b" * 32, epoch=6)), Code.INVALID_REQUEST)
    refused(made, lambda b: b.adopt(Adopt(run=RUN, epoch=6, incarnation="other")), Code.WRONG_INCARNATION)


def test_the_first_adopt_names_the_run_of_a_process_without_a_store() -> None:
    """From then on another run is refused."""
    made = Book(SELF)
    made.adopt(Adopt(run=RUN, epoch=1))
    refused(made, lambda b: b.adopt(Adopt(run="b" * 32, epoch=2)), Code.INVALID_REQUEST)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.IDLE])
def test_an_adopt_owes_the_end_of_a_lower_epochs_round_until_it_has_ended(phase: Phase) -> None:
    """The first adopt may have died half way: a repeat of it still says that the round is to be aborted."""
    made = book(phase)
    assert not made.adopt(Adopt(run=RUN, epoch=2))
    assert made.adopt(Adopt(run=RUN, epoch=3))
    assert made.adopt(Adopt(run=RUN, epoch=3))
    made.ended("aborted")
    assert not made.adopt(Adopt(run=RUN, epoch=3))


# Rounds


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.fault(44)
def test_another_round_is_refused_while_one_is_open(phase: Phase) -> None:
    """A lower and a higher round are refused; nothing changes."""
    if phase is Phase.IDLE:
        return
    for k in (1, 3):
        for ask in (prepare, commit, stage, resume):
            refused(book(phase), sending(ask(k)), Code.INVALID_PHASE)


def sending(message: Any) -> Callable[[Book], Any]:
    """Asks for this message at time 1."""
    return lambda made: _send(made, message)


def _send(made: Book, message: Any) -> Any:
    match message:
        case Prepare():
            return made.prepare(message, 1)
        case Commit():
            return made.commit(message, 1)
        case Renew():
            return made.renew(message, 1)
        case Stage():
            return made.stage(message)
        case Activate():
            return made.activate(message)
    return made.resume(message)


@pytest.mark.parametrize("end", ["resumed", "aborted"])
@pytest.mark.fault(45, 56)
def test_a_closed_round_answers_its_own_ending_and_nothing_else(end: str) -> None:
    """The same ending is answered again; every other call at or below it is `stale_round`."""
    made = closed_by(end)
    same, other = (Book.resume, Book.abort) if end == "resumed" else (Book.abort, Book.resume)
    answer = same(made, resume())
    assert answer is not None
    assert answer.phase == "idle"
    error = refused(made, lambda b: other(b, resume()), Code.STALE_ROUND)
    assert error.details == {"round": "2.2", "ending": end}
    renew, activate = Renew(**call(), lease_s=1), Activate(**call())
    for message in (prepare(), commit(), stage(), renew, activate, prepare(1), resume(1)):
        refused(made, sending(message), Code.STALE_ROUND)


def test_a_round_that_ended_by_its_lease_says_so() -> None:
    """Its own calls are told `lease_expired`, those of lower rounds `stale_round`."""
    made = closed_by("lease_expired")
    for message in (prepare(), commit(), resume()):
        refused(made, sending(message), Code.LEASE_EXPIRED)
    refused(made, lambda b: b.abort(resume(1)), Code.STALE_ROUND)


@pytest.mark.parametrize("ask", [Book.resume, Book.abort])
@pytest.mark.fault(45)
def test_the_end_of_a_round_not_yet_seen_closes_it(ask: Callable[[Book, Resume], Any]) -> None:
    """A prepare that arrives after its own abort is stale, and the next round opens."""
    made = closed_by("resumed")
    assert ask(made, resume(4)).phase == "idle"
    assert ask(made, resume(4)).phase == "idle"
    for k in (3, 4):
        refused(made, sending(prepare(k)), Code.STALE_ROUND)
    assert made.prepare(prepare(5), 0)


def test_a_stale_epoch_cannot_repeat_an_ending() -> None:
    """The controller of a lower epoch gets no answer for its closed round."""
    made = closed_by("aborted")
    made.adopt(Adopt(run=RUN, epoch=3))
    refused(made, lambda b: b.abort(resume()), Code.STALE_EPOCH)


@pytest.mark.parametrize("timeout_s", [10, 10.5])
def test_a_lease_must_be_longer_than_the_timeout(timeout_s: float) -> None:
    """Otherwise a participant could reopen before it has answered."""
    refused(book(), lambda b: b.prepare(prepare(timeout_s=timeout_s), 0), Code.INVALID_REQUEST)


@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.PREPARED])
@pytest.mark.fault(44)
def test_a_repeated_prepare_renews_the_lease_and_is_not_new(phase: Phase) -> None:
    """No second drain: only the lease moves."""
    made = book(phase)
    assert not made.prepare(prepare(lease_s=30), 7)
    assert (made.phase, made.lease_until) == (phase, 37)


# Commits


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.PREPARED])
@pytest.mark.fault(45)
def test_a_commit_needs_prepared(phase: Phase) -> None:
    """In every other phase it is refused and changes nothing."""
    refused(book(phase), lambda b: b.commit(commit(), 1), Code.INVALID_PHASE)


def test_a_commit_repeats_its_answer_and_refuses_another_scope() -> None:
    """The same scope and parent get the answer again; another one is `checkpoint_conflict`."""
    made = book(Phase.COMMITTING)
    made.commit_ended(commit(), ANSWER)
    assert made.commit(commit(), 2) == ANSWER
    for other in (commit(scope=LIVES[:1]), commit(parent=REF)):
        refused(made, sending(other), Code.CHECKPOINT_CONFLICT)


def test_a_failed_commit_may_be_tried_again_with_another_scope() -> None:
    """Nothing was written, so nothing binds."""
    made = book(Phase.COMMITTING)
    made.commit_ended(commit(), None)
    assert made.phase is Phase.PREPARED
    assert made.commit(commit(scope=LIVES[:1]), 2) is None


def test_a_commit_that_ends_after_its_round_changes_nothing() -> None:
    """Its answer is not kept for the next round."""
    made = book(Phase.COMMITTING)
    made.ended("aborted")
    made.commit_ended(commit(), ANSWER)
    assert (made.phase, made.committed) == (Phase.IDLE, None)


def test_a_restart_in_the_scope_is_refused_and_named() -> None:
    """What cannot be captured must not be promised."""
    made = book(Phase.PREPARING)
    made.parked(frozenset(LIVES[:1]))
    error = refused(made, lambda b: b.commit(commit(), 1), Code.RESTART_IN_SCOPE)
    assert error.details == {"lives": [str(LIVES[0])]}
    assert made.commit(commit(scope=LIVES[1:]), 1) is None


def test_parked_counts_only_while_preparing() -> None:
    """A late report of a repeated prepare does not move another phase."""
    for phase in Phase:
        made = book(phase)
        made.parked(frozenset(LIVES))
        assert made.phase is (Phase.PREPARED if phase is Phase.PREPARING else phase)


# Leases


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.fault(40, 51)
def test_a_lease_runs_out_only_in_the_phases_of_a_checkpoint(phase: Phase) -> None:
    """At its very end it is over; a restore never runs out."""
    made = book(phase)
    assert not made.lease_ran_out(9.99)
    assert made.lease_ran_out(10) is (phase in CHECKPOINT_PHASES)


@pytest.mark.parametrize("phase", Phase)
def test_renew_extends_the_lease_of_a_checkpoint_only(phase: Phase) -> None:
    """In any other phase there is none."""
    made, renew = book(phase), Renew(**call(), lease_s=20)
    if phase in CHECKPOINT_PHASES:
        made.renew(renew, 5)
        assert made.lease_until == 25
    else:
        refused(made, lambda b: b.renew(renew, 5), Code.INVALID_PHASE)


@pytest.mark.fault(50)
def test_a_commit_after_the_lease_is_refused_although_nobody_noticed_yet() -> None:
    """The clock decides, not the task that watches it."""
    made = book(Phase.PREPARED)
    refused(made, lambda b: b.commit(commit(), 10), Code.LEASE_EXPIRED)
    refused(made, lambda b: b.check_lease(10), Code.LEASE_EXPIRED)
    made.check_lease(9.9)


# Restores


@pytest.mark.parametrize("phase", [Phase.STAGED, Phase.ACTIVATING, Phase.RESTORED])
@pytest.mark.fault(47)
def test_a_stage_repeats_and_another_one_conflicts(phase: Phase) -> None:
    """The very same stage is done already; another checkpoint, scope or share is `checkpoint_conflict`."""
    made = book(phase)
    assert made.stage(stage()) is False
    other = Ref(checkpoint=CheckpointId(1, 2), digest="e" * 64, run_id=RUN)
    for message in (stage(checkpoint=other), stage(scope=LIVES[:1]), stage(shard=(1, 2))):
        refused(made, sending(message), Code.CHECKPOINT_CONFLICT)


@pytest.mark.parametrize("phase", [Phase.STAGING, Phase.RESTORE_FAILED, *sorted(CHECKPOINT_PHASES)])
def test_a_stage_elsewhere_is_refused(phase: Phase) -> None:
    """While one is going on, after it failed, and in a checkpoint."""
    refused(book(phase), lambda b: b.stage(stage()), Code.INVALID_PHASE)


@pytest.mark.parametrize("phase", Phase)
def test_activate_needs_staged_and_repeats_once_restored(phase: Phase) -> None:
    """In every other phase it is refused and changes nothing."""
    made, activate = book(phase), Activate(**call())
    if phase in (Phase.STAGED, Phase.RESTORED):
        assert made.activate(activate) is (phase is Phase.STAGED)
    else:
        refused(made, lambda b: b.activate(activate), Code.INVALID_PHASE)


def test_a_step_of_an_aborted_restore_moves_nothing() -> None:
    """It may end after the abort was answered, and also in a later round."""
    made = book(Phase.STAGING)
    made.ended("aborted")
    made.restore_moved(stage(), Event.ALL_STAGED)
    phases = [made.phase]
    made.stage(stage(3))
    made.restore_moved(stage(), Event.ALL_STAGED)
    assert [*phases, made.phase] == [Phase.IDLE, Phase.STAGING]


def test_a_commit_that_ends_in_a_later_round_moves_nothing() -> None:
    """Work that did not listen to an abort says nothing of the commit that goes on."""
    made = book(Phase.COMMITTING)
    made.ended("lease_expired")
    made.prepare(prepare(3), 0)
    made.parked(frozenset())
    made.commit(commit(3), 1)
    made.commit_ended(commit(), None)
    assert made.phase is Phase.COMMITTING


@pytest.mark.parametrize("phase", Phase)
def test_resume_leaves_what_stands_still_and_abort_leaves_everything(phase: Phase) -> None:
    """Resume is refused while committing and before a restore is through; abort never is."""
    assert book(phase).abort(resume()) is None or phase is Phase.IDLE
    if phase in (Phase.PREPARING, Phase.PREPARED, Phase.RESTORED):
        assert book(phase).resume(resume()) is None
    elif phase is not Phase.IDLE:
        refused(book(phase), lambda b: b.resume(resume()), Code.INVALID_PHASE)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.fault(53, 54)
def test_what_needs_idle_is_told_what_to_do_first(phase: Phase) -> None:
    """Retire is refused in a round, by its name and phase."""
    if phase is Phase.IDLE:
        book(phase).check_idle()
    else:
        error = refused(book(phase), Book.check_idle, Code.INVALID_PHASE)
        assert "2.2" in error.message
        assert "resume or abort it first" in error.message


def test_the_end_of_a_round_leaves_nothing_of_it() -> None:
    """Only which round it was, and how it ended, is remembered."""
    for phase in set(Phase) - {Phase.IDLE}:
        made = book(phase)
        made.ended("aborted")
        assert (made.phase, made.round, made.lease_until, made.committed, made.staged) == (Phase.IDLE, *[None] * 4)
        assert made.closed == Closed(CheckpointId(2, 2), "aborted")
        assert made.restarts == frozenset()


def test_its_repr_is_the_operators_view() -> None:
    """Epoch, round and phase."""
    assert repr(book(Phase.COMMITTING)) == "<Book epoch 2, round 2.2 committing>"
