"""A stateful machine over the whole protocol: any order of operations, faults and crashes keeps the invariants.

Real planes, coordination and store run in one event loop whose clock is pushed; `tests.support.protocol` has the model
that judges them. Planted bugs must be found, or the machine proves nothing.
"""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, ClassVar

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from orchestrator.errors import CoordinationError
from participants import Book
from participants.errors import Code, ParticipantError
from participants.wire import ControlCall, RoundCall
from tests.support.owners import Notebook, PushedLoop
from tests.support.protocol import KINDS, World
from tests.support.tiers import with_slow

ROLLOUTS = st.sampled_from(["r0", "r1", "r2"])
KIND = st.sampled_from(KINDS)
HOW = st.sampled_from(["fails", "loses_reply"])


def idle(machine: "Protocol") -> bool:
    """No round is open, and everybody is there."""
    return machine.world.round is None and not machine.world.crashed


def in_checkpoint(machine: "Protocol") -> bool:
    """A checkpoint is prepared."""
    at = machine.world.round
    return at is not None and not at.restores and not machine.world.crashed


def committed(machine: "Protocol") -> bool:
    """It is committed, and not yet published."""
    at = machine.world.round
    return in_checkpoint(machine) and at is not None and at.answers is not None and not _is_published(machine)


def _is_published(machine: "Protocol") -> bool:
    at = machine.world.round
    return at is not None and any(ref.checkpoint == at.id for ref in machine.world.published)


class Protocol(RuleBasedStateMachine):
    """Rules are what controllers do and what happens to them; each is followed by the check."""

    book: ClassVar[type[Book]] = Book
    owner: ClassVar[type[Notebook]] = Notebook

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(start_blocking_portal("asyncio", {"loop_factory": PushedLoop}))
        self.world = World(self.book, self.owner)
        self._host, _ = self._portal.start_task(self.world.host)
        self._do(self.world.start)

    def _do(self, step: Callable[..., Awaitable[Any]], *arguments: Any, **named: Any) -> Any:
        return self._portal.call(lambda: step(*arguments, **named))

    # Work

    @precondition(idle)
    @rule(rollout=ROLLOUTS)
    def dispatch(self, rollout: str) -> None:
        self._do(self.world.dispatch, rollout)

    @precondition(lambda self: idle(self) and self.world.live)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        self._do(self.world.write, data.draw(st.sampled_from(sorted(self.world.live))))

    @precondition(idle)
    @rule(rollout=ROLLOUTS)
    def retire(self, rollout: str) -> None:
        self._do(self.world.retire, [rollout])

    @precondition(lambda self: self.world.dead and idle(self))
    @rule(data=st.data(), creates=st.booleans())
    def late_write(self, data: st.DataObject, creates: bool) -> None:
        self._do(self.world.late_write, data.draw(st.sampled_from(self.world.dead)), creates=creates)

    # Checkpoints

    @precondition(lambda self: idle(self) or in_checkpoint(self))
    @rule()
    def prepare(self) -> None:
        assert self._do(self.world.prepare)

    @precondition(lambda self: in_checkpoint(self) and self.world.round.snapshot)
    @rule()
    def commit(self) -> None:
        self._do(self.world.commit)

    @precondition(in_checkpoint)
    @rule()
    def renew(self) -> None:
        self._do(self.world.renew)

    @precondition(lambda self: committed(self) and self.world.round.proven)
    @rule()
    def publish(self) -> None:
        self._do(self.world.publish)
        self._do(self.world.check_store)

    @precondition(lambda self: self.world.round is not None and not self.world.crashed)
    @rule(ending=st.sampled_from(["resumed", "aborted"]))
    def end(self, ending: str) -> None:
        self._do(self.world.end, ending)

    @precondition(lambda self: idle(self) and (self.world.live or self.world.waiting))
    @rule()
    def whole_checkpoint(self) -> None:
        for step in (self.world.prepare, self.world.commit, self.world.renew, self.world.publish):
            self._do(step)
        self._do(self.world.end, "resumed")

    @precondition(idle)
    @rule(kind=KIND, how=HOW)
    def prepare_fails(self, kind: str, how: str) -> None:
        self._do(self.world.fails, "prepare", kind, how)

    @precondition(lambda self: in_checkpoint(self) and self.world.round.snapshot)
    @rule(kind=KIND, how=HOW, step=st.sampled_from(["commit", "renew"]))
    def commit_fails(self, kind: str, how: str, step: str) -> None:
        self._do(self.world.fails, step, kind, how)
        self._do(self.world.check_store)

    @precondition(lambda self: not self.world.crashed)
    @rule()
    def lease_runs_out(self) -> None:
        self._do(self.world.let_lease_pass)

    # Controllers and crashes

    @rule(keep=st.booleans())
    def take_over(self, keep: bool) -> None:
        self._do(self.world.take_over, keep=keep and not self.world.crashed)

    @precondition(lambda self: self.world.published)
    @rule(data=st.data(), fault=st.none() | st.tuples(KIND, st.sampled_from(["stage", "activate"]), HOW))
    def restore(self, data: st.DataObject, fault: tuple[str, str, str] | None) -> None:
        ref = data.draw(st.sampled_from(sorted(self.world.published, key=str)))
        self._do(self.world.restore, ref, fault)

    @rule(kind=KIND)
    def crash(self, kind: str) -> None:
        self._do(self.world.crash, kind)

    # What comes too late

    @precondition(lambda self: self.world.zombies)
    @rule(step=st.sampled_from(["prepare", "commit", "resume", "abort", "retire", "publish"]))
    def zombie(self, step: str) -> None:
        self._do(self.world.zombie, step)

    @precondition(lambda self: self.world.ended and not self.world.crashed)
    @rule(step=st.sampled_from(["prepared", "committed", "renewed", "resumed", "aborted"]))
    def late_round(self, step: str) -> None:
        self._do(self.world.late_round, step)

    @invariant()
    def holds(self) -> None:
        self._portal.call(self.world.check)

    def teardown(self) -> None:
        try:
            self._do(self.world.finish)
        finally:
            self._portal.call(self.world.close)
            self._host.result()
            self._stack.close()


def run(machine: type[Protocol], examples: int, steps: int, **changes: Any) -> None:
    """Run a machine; the same examples every time unless told otherwise."""
    chosen = {"derandomize": True, "database": None, "deadline": None, **changes}
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples, stateful_step_count=steps, suppress_health_check=checks, **chosen),
    )


@pytest.mark.unit
@pytest.mark.fault(38, 40, 41, 42, 43, 45, 47, 48, 49)
def test_any_order_of_operations_keeps_the_invariants() -> None:
    """A modest number of sequences; invariants 1, 2, 5, 6, 7 and 12 of the design after each step."""
    run(Protocol, 12, 30, phases=[Phase.generate])


@pytest.mark.scale
def test_many_orders_of_operations_keep_the_invariants() -> None:
    """As above with many sequences, other ones each time; a failing one is printed."""
    run(Protocol, 800, 50, derandomize=False, print_blob=True)


# Planted bugs


class LeaseIgnored(Book):
    def lease_ran_out(self, now: float) -> bool:
        return False


class StaleEpochAccepted(Book):
    def check_call(self, call: ControlCall) -> None:
        try:
            super().check_call(call)
        except ParticipantError as error:
            if error.code is not Code.STALE_EPOCH:
                raise


class RoundUnchecked(Book):
    def check_round(self, call: RoundCall) -> None:
        self.check_call(call)


class AbortWithoutDiscard(Notebook):
    async def discard(self) -> None:
        self.settle()


class FencesForgotten(Notebook):
    async def stop(self, life: Any) -> None:
        await super().stop(life)
        self.fences.__init__()  # type: ignore[misc]


PLANTED = {
    "the lease is ignored": (LeaseIgnored, Notebook),
    "a stale epoch is accepted": (StaleEpochAccepted, Notebook),
    "the round is not checked": (RoundUnchecked, Notebook),
    "abort does not discard": (Book, AbortWithoutDiscard),
    "fences are forgotten": (Book, FencesForgotten),
}


@pytest.mark.parametrize("bug", with_slow(PLANTED, {"a stale epoch is accepted", "abort does not discard"}))
def test_a_planted_bug_is_found(bug: str) -> None:
    """A machine that cannot fail is a defect: each of these makes it fail."""
    book, owner = PLANTED[bug]
    machine = type("Planted", (Protocol,), {"book": book, "owner": owner})
    with pytest.raises((AssertionError, CoordinationError, ParticipantError, TimeoutError, ExceptionGroup)):
        run(machine, 200, 30, phases=[Phase.generate])
