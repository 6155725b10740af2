"""Scenarios 9 to 11: a verify in flight, as the server declares it, and the end of an episode during a prepare."""

import pytest

from orchestrator.rounds import Round
from store import Life
from tests.support.waiting import let_run, until_asked

from .controller import Controller
from .looking import blocked_checkpoint, state_of
from .stage import Stage
from .tasks import Task
from .test_continuation import rewards
from .variants import one, one_and_two

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

LOOK_S = 0.3
"""How long what must not come is looked out for."""


async def verifying(stage: Stage, controller: Controller, task: Task) -> Life:
    """A rollout whose verify is in flight, and held."""
    stage.hold_tools("verify")
    [life] = await controller.submit([task])
    await stage.logged(1, "verify")
    return life


async def not_delivered(controller: Controller, life: Life) -> None:
    """No result of it comes."""
    let_run(LOOK_S)  # The time is the point.
    await controller.statuses()
    assert life not in controller.results


@one_and_two
@pytest.mark.parametrize("counter", ["logged_counter:LoggedCounter", "odd_counters:ConsumingCounter"])
async def test_09_a_verify_of_mode_replay_is_not_waited_for_and_runs_once_more(stage: Stage, counter: str) -> None:
    """Also where it has consumed the live session: the record has the frozen one."""
    stage.resources = f"tests.support.{counter}"
    task = Task(0)
    async with stage.epoch() as before:
        first = await verifying(stage, before, task)
        taken = await before.checkpoint()
        assert taken.standstill.blocker_count == 0
        assert (await state_of(before, taken, "environment"))["step"] == "verify"
        [session] = (await state_of(before, taken, "resources"))["sessions"].values()
        assert session["state"] == {"count": task.row["expected_count"]}
    stage.let_tools_go()
    async with stage.epoch() as after:
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
        assert await after.left() == {}
    stage.seen().exactly(calls={first: task.calls}, tools={first: task.tools}, verified=[first, second])


@one
async def test_09_without_a_crash_the_verify_in_flight_is_used(stage: Stage) -> None:
    """It ends while everything stands still; what it gave is delivered after the resume, and not before."""
    task = Task(0)
    async with stage.epoch() as epoch:
        life = await verifying(stage, epoch, task)

        async def standing(_: Round) -> None:
            stage.let_tools_go()
            await epoch.until_count("environment", "parked", 1)  # Behind its verify.
            await not_delivered(epoch, life)

        await epoch.checkpoint(standing)
        await epoch.deliver()
        assert rewards(epoch) == {"r0": 1.0}
    stage.seen().exactly(calls={life: task.calls}, tools={life: task.tools}, verified=[life])


@one_and_two
async def test_10_a_verify_of_mode_wait_blocks_and_its_result_is_in_the_record(stage: Stage) -> None:
    """The prepare names its episode until it has ended; after the crash it is not run again."""
    stage.resources = "tests.support.odd_counters:WaitingCounter"
    task = Task(0)
    async with stage.epoch() as before:
        first = await verifying(stage, before, task)
        blockers, taken = await blocked_checkpoint(before, stage.let_tools_go)
        assert blockers == {("environment.main", first, "verify")}
        episode = await state_of(before, taken, "environment")
        assert (episode["step"], episode["result"]["reward"]) == ("close", 1.0)
    async with stage.epoch() as after:
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
        assert await after.left() == {}
    assert second.attempt == 1
    stage.seen().exactly(calls={first: task.calls}, tools={first: task.tools}, verified=[first])


async def closing(stage: Stage, controller: Controller) -> None:
    """Until the only session is being closed."""
    await stage.logged(1, "verify")

    async def gone() -> bool:
        return await controller.count("resources", "sessions") == 0

    await until_asked(gone)


@one_and_two
@pytest.mark.parametrize("crashes", [True, False])
async def test_11_an_episode_that_finishes_during_prepare_is_neither_lost_nor_redone(
    stage: Stage, crashes: bool
) -> None:
    """Its last step is waited for, nothing is delivered while all stand still, and then its result is, once."""
    stage.resources = "tests.support.odd_counters:ClosingCounter"
    stage.hold_tools("close")
    task = Task(0)
    async with stage.epoch() as before:
        [first] = await before.submit([task])
        await closing(stage, before)

        async def standing(_: Round) -> None:
            await not_delivered(before, first)

        blockers, taken = await blocked_checkpoint(before, stage.let_tools_go, standing)
        assert blockers == {("environment.main", first, "close")}
        episode = await state_of(before, taken, "environment")
        assert (episode["step"], episode["result"]["reward"]) == ("done", 1.0)
        if not crashes:
            await before.deliver(first)
            assert rewards(before) == {"r0": 1.0}
            assert await before.left() == {}
    if crashes:
        async with stage.epoch() as after:
            [second] = await after.go_on([task])
            [result] = await after.wait(second)
            await after.deliver()
            assert rewards(after) == {"r0": 1.0}
            assert result.n == 1
            assert await after.left() == {}
    stage.seen().exactly(calls={first: task.calls}, tools={first: task.tools}, verified=[first])
