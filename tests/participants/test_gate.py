"""The gate: who parks, what a prepare waits for, and the clock that stands still meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from participants import Code, Gate, ParticipantError
from store import Life
from tests.support.owners import ON_PUSHED_LOOP, Pause, push, settle

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LIFE, OTHER = Life("r0", 1, 0, 0), Life("r1", 1, 0, 1)


@pytest.fixture
def anyio_backend() -> Any:
    """A clock to push."""
    return ON_PUSHED_LOOP


@dataclass
class Clock:
    """Stands still until it is set."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def working(gate: Gate, pause: Pause, *, life: Life = LIFE, **step: Any) -> Callable[[], Any]:
    """A step that goes on until its pause is released."""

    async def work() -> None:
        async with gate.step(life, "tool", **{"mode": "wait", **step}):
            await pause()

    return work


async def begun(group: TaskGroup, gate: Gate, **step: Any) -> Pause:
    """A step that is in flight."""
    pause = Pause()
    group.start_soon(working(gate, pause, **step))
    await pause.reached.wait()
    return pause


@pytest.mark.parametrize("mode", ["wait", "replay"])
async def test_no_step_begins_while_the_gate_is_closed(mode: str) -> None:
    """It parks at the boundary before it, is counted, and begins once the gate opens."""
    gate, pause = Gate(), Pause()
    gate.close()
    gate.close()
    async with anyio.create_task_group() as group:
        group.start_soon(working(gate, pause, mode=mode))
        await settle()
        assert (gate.parked, pause.reached.is_set()) == (1, False)
        assert repr(gate) == "<Gate closed, 0 waited for, 1 parked>"
        gate.reopen()
        gate.reopen()
        await pause.reached.wait()
        assert gate.parked == 0
        pause.released.set()


async def test_a_parked_step_stays_parked_when_the_gate_only_blinks() -> None:
    """Opened and closed again before it came to run, it waits for the next opening."""
    gate, pause = Gate(), Pause()
    gate.close()
    async with anyio.create_task_group() as group:
        group.start_soon(working(gate, pause))
        await settle()
        gate.reopen()
        gate.close()
        await settle()
        assert (gate.parked, pause.reached.is_set()) == (1, False)
        gate.reopen()
        await pause.reached.wait()
        pause.released.set()


@pytest.mark.fault(36)
async def test_a_prepare_waits_for_steps_of_mode_wait_and_names_them() -> None:
    """Until the last of them has ended; each is named with its life, what it is, why, and since when."""
    clock = Clock()
    gate, quiet = Gate(clock=clock), anyio.Event()

    async def wait_quiet() -> None:
        await gate.wait_quiet()
        quiet.set()

    async with anyio.create_task_group() as group:
        first = await begun(group, gate, reason="a slow tool")
        clock.now = 105.0
        second = await begun(group, gate, life=OTHER)
        gate.close()
        group.start_soon(wait_quiet)
        steps, count = gate.in_flight(10)
        assert [(s.life, s.what, s.reason, s.since) for s in steps] == [
            (LIFE, "tool", "a slow tool", 100.0),
            (OTHER, "tool", "it runs to its end", 105.0),
        ]
        first.released.set()
        await settle()
        assert (count, quiet.is_set(), gate.in_flight(10)[1]) == (2, False, 1)
        second.released.set()
        await quiet.wait()
    assert gate.in_flight(10) == ([], 0)


@pytest.mark.fault(55)
async def test_a_prepare_does_not_wait_for_a_replay_step() -> None:
    """Its episode counts as parked at the boundary before it."""
    gate = Gate()
    async with anyio.create_task_group() as group:
        pause = await begun(group, gate, mode="replay")
        gate.close()
        with anyio.fail_after(1):
            await gate.wait_quiet()
        assert gate.in_flight(10) == ([], 0)
        pause.released.set()


async def test_a_step_made_inside_a_waited_one_is_always_admitted() -> None:
    """The outer one cannot end without it; both hold the prepare back."""
    gate = Gate()
    async with anyio.create_task_group() as group:
        outer = await begun(group, gate)
        gate.close()
        inner = await begun(group, gate, inside_wait=True)
        assert gate.in_flight(10)[1] == 2
        outer.released.set()
        inner.released.set()
        await gate.wait_quiet()


async def test_wait_quiet_sees_a_step_that_begins_meanwhile() -> None:
    """A nested step that starts just as the first one ends is waited for too."""
    gate, quiet = Gate(), anyio.Event()

    async def wait_quiet() -> None:
        await gate.wait_quiet()
        quiet.set()

    async with anyio.create_task_group() as group:
        first = await begun(group, gate)
        group.start_soon(wait_quiet)
        await settle()
        first.released.set()
        second = await begun(group, gate, inside_wait=True)
        await settle()
        assert not quiet.is_set()
        second.released.set()
        await quiet.wait()


@pytest.mark.fault(57)
async def test_the_list_of_steps_is_bounded_and_the_count_is_not() -> None:
    """The oldest few, and the number of all."""
    gate = Gate()
    async with anyio.create_task_group() as group:
        for n in range(30):
            await begun(group, gate, reason=f"number {n}")
        steps, count = gate.in_flight(3)
        assert ([step.reason for step in steps], count) == (["number 0", "number 1", "number 2"], 30)
        group.cancel_scope.cancel()
    assert gate.in_flight(3) == ([], 0)


async def test_too_many_parked_calls_are_refused() -> None:
    """They are told to come back; those that are parked stay."""
    gate = Gate(max_parked=2)
    gate.close()
    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(gate.wait_open)
        await settle()
        with pytest.raises(ParticipantError) as caught:
            await gate.wait_open()
        assert (caught.value.code, caught.value.details) == (Code.ADMISSION_CLOSED, {"retry_after_s": 1})
        assert gate.parked == 2
        gate.reopen()
    assert gate.parked == 0


@pytest.mark.parametrize("nth", [0, 1])
@pytest.mark.parametrize("mode", ["wait", "replay"])
async def test_a_cancel_at_either_await_leaves_nothing_behind(mode: str, nth: int) -> None:
    """Cancelled while parked or inside the step, it is neither parked nor waited for."""
    gate, pause = Gate(), Pause()
    async with anyio.create_task_group() as group:
        if nth == 0:
            gate.close()
        group.start_soon(working(gate, pause, mode=mode))
        await settle()
        assert pause.reached.is_set() is bool(nth)
        group.cancel_scope.cancel()
    assert (gate.parked, gate.in_flight(1)) == (0, ([], 0))
    with anyio.fail_after(1):
        await gate.wait_quiet()


async def test_a_step_that_fails_is_over() -> None:
    """Its error comes out as it is."""
    gate = Gate()
    with pytest.raises(ZeroDivisionError):
        async with gate.step(LIFE, "tool", "wait"):
            raise ZeroDivisionError
    assert gate.in_flight(1) == ([], 0)


@pytest.mark.fault(51)
async def test_active_time_stands_still_while_closed() -> None:
    """Every closing is taken out, and it never runs backwards."""
    clock = Clock()
    gate = Gate(clock=clock)
    seen = []
    for step, act in ((2, gate.close), (50, gate.close), (3, gate.reopen), (1, gate.close), (9, gate.reopen), (1, int)):
        clock.now += step
        act()
        seen.append(gate.active_time())
    assert seen == [102, 102, 102, 103, 103, 104]


async def test_a_time_limit_counts_active_time_only() -> None:
    """What was parked does not count; then the block ends with `deadline_exceeded`."""
    gate, failed = Gate(clock=anyio.current_time), anyio.Event()

    async def limited() -> None:
        with pytest.raises(ParticipantError) as caught:
            async with gate.time_limit(10, "the episode"):
                await anyio.sleep_forever()
        assert (caught.value.code, "the episode" in caught.value.message) == (Code.DEADLINE_EXCEEDED, True)
        failed.set()

    async with anyio.create_task_group() as group:
        group.start_soon(limited)
        await push(6)
        gate.close()
        await push(1000)
        gate.reopen()
        await push(3.5)
        assert not failed.is_set()
        await push(0.6)
        await failed.wait()


async def test_a_time_limit_is_no_parked_call() -> None:
    """Its clock neither counts as parked, nor is refused where no more may park."""
    gate, pause = Gate(clock=anyio.current_time, max_parked=0), Pause()

    async def limited() -> None:
        async with gate.time_limit(10, "the episode"):
            await pause()

    async with anyio.create_task_group() as group:
        group.start_soon(limited)
        await settle()
        gate.close()
        await push(11)
        assert gate.parked == 0
        pause.released.set()


@pytest.mark.parametrize("left_s", [None, 10])
async def test_a_block_under_a_limit_ends_as_it_is(left_s: float | None) -> None:
    """Its result, and its error bare and not in a group of errors."""
    gate = Gate(clock=anyio.current_time)
    async with gate.time_limit(left_s, "the episode"):
        pass
    with pytest.raises(ParticipantError) as caught:
        async with gate.time_limit(left_s, "the episode"):
            raise ParticipantError(Code.STALE_LIFE, "it was retired")
    assert caught.value.code is Code.STALE_LIFE


async def test_a_spent_limit_ends_its_block_at_the_first_await() -> None:
    """A continued episode may have nothing left."""
    gate = Gate(clock=anyio.current_time)
    with pytest.raises(ParticipantError) as caught:
        async with gate.time_limit(0, "the episode"):
            await anyio.sleep_forever()
    assert caught.value.code is Code.DEADLINE_EXCEEDED


async def test_a_step_of_a_life_that_did_not_stop_is_waited_for_no_more() -> None:
    """Once it is forgotten a prepare is quiet without it, and its late end changes nothing."""
    gate, pause = Gate(clock=anyio.current_time), Pause()

    async def stubborn() -> None:
        async with gate.step(LIFE, "tool", "wait"):
            await pause()

    async with anyio.create_task_group() as group:
        group.start_soon(stubborn)
        await settle()
        assert gate.in_flight(10)[1] == 1
        gate.forget({OTHER})
        assert gate.in_flight(10)[1] == 1
        gate.forget({LIFE})
        await gate.wait_quiet()
        pause.released.set()
    assert gate.in_flight(10) == ([], 0)


async def test_a_prepare_that_waits_for_a_life_hears_that_it_is_forgotten() -> None:
    """A retire that began before the round may give a life up while the prepare waits for its step alone."""
    gate = Gate()
    async with anyio.create_task_group() as group:
        pause = await begun(group, gate)
        gate.close()
        quiet = anyio.Event()

        async def wait_quiet() -> None:
            await gate.wait_quiet()
            quiet.set()

        group.start_soon(wait_quiet)
        await settle()
        assert not quiet.is_set()
        gate.forget({LIFE})
        await settle()
        assert quiet.is_set()
        pause.released.set()
