"""Scenarios 1 to 7: rollouts go on after a crash from where the checkpoint has them, and nothing before is repeated."""

import pytest

from orchestrator.rounds import Round
from store import Life
from tests.support.waiting import let_run

from .controller import Controller
from .stage import Stage
from .tasks import Task, each, tasks
from .variants import counts, counts_and_s3, one

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


KINDS = ("environment", "agent", "model", "resources")


def rewards(controller: Controller) -> dict[str, float]:
    """Of all durable results. Raises AssertionError for a failure."""
    failed = {rollout_id: result.failure for rollout_id, result in controller.output.items() if result.row is None}
    assert not failed, failed
    return {rollout_id: result.row["reward"] for rollout_id, result in controller.output.items() if result.row}


@counts_and_s3
async def test_01_a_rollout_with_its_second_call_in_flight_continues_after_the_first_tool_result(stage: Stage) -> None:
    """Call 1 and the first tool call are behind it, and only what comes after them is done by the next life."""
    task = Task(0)
    stage.hold(task, call=2)
    async with stage.epoch() as before:
        [first] = await before.submit([task])
        await stage.held(1)
        await before.checkpoint()
    stage.release()
    async with stage.epoch() as after:
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
        assert await after.left() == {}
    stage.seen().exactly(
        calls={first: [1, 2], second: [2, 3, 4]},
        tools={first: task.tools[:1], second: task.tools[1:]},
        verified=[second],
    )


@counts
async def test_02_a_rollout_of_the_agents_own_run_continues(stage: Stage) -> None:
    """With a flat row the agent owns the whole episode; its next life answers `/run` with the verified row."""
    task = Task(0)
    stage.hold(task, call=2)
    async with stage.epoch() as before:
        [first] = await before.run_at_agent([task])
        await stage.held(1)
        await before.checkpoint()
    stage.release()
    async with stage.epoch() as after:
        [second] = await after.run_at_agent([task])
        answer = await after.answer(second)
        assert (answer.status_code, answer.json()["reward"]) == (200, 1.0)
        await after.release(second)
        assert await after.left() == {}
    stage.seen().exactly(
        calls={first: [1, 2], second: [2, 3, 4]},
        tools={first: task.tools[:1], second: task.tools[1:]},
        verified=[second],
    )


@counts
async def test_03_a_second_crash_after_a_checkpoint_of_what_was_restored_and_not_begun_continues(stage: Stage) -> None:
    """The records that nobody had taken up are exported again as they were."""
    task = Task(0)
    stage.hold(task, call=2)
    async with stage.epoch() as before:
        [first] = await before.submit([task])
        await stage.held(1)
        await before.checkpoint()
    stage.release()
    async with stage.epoch() as between:
        taken = await between.checkpoint()
        assert taken.scope == [first]
    async with stage.epoch() as after:
        assert after.claimed.head == taken.published
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
    assert second.attempt == 1
    stage.seen().exactly(
        calls={first: [1, 2], second: [2, 3, 4]},
        tools={first: task.tools[:1], second: task.tools[1:]},
        verified=[second],
    )


@counts
async def test_04_the_same_checkpoint_restores_again_after_its_replacement_has_crashed(stage: Stage) -> None:
    """From the checkpoint's boundary, in a new epoch; nothing of the dead replacement is in the lineage."""
    stage.capture = True
    task = Task(0)
    stage.hold(task, call=2)
    async with stage.epoch() as before:
        [first] = await before.submit([task])
        await stage.held(1)
        await before.checkpoint()
    stage.release()
    stage.hold(task, call=4)
    async with stage.epoch() as between:
        [dead] = await between.go_on([task])
        await stage.held(1)
    stage.release()
    async with stage.epoch() as after:
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
    assert (dead.epoch, second.epoch) == (first.epoch + 1, first.epoch + 2)
    stage.seen().exactly(
        calls={first: [1, 2], dead: [2, 3, 4], second: [2, 3, 4]},
        tools={first: task.tools[:1], dead: task.tools[1:], second: task.tools[1:]},
        verified=[second],
    )
    assert await stage.lineage(second) == [first, second, second, second]


@counts
async def test_05_sixteen_rollouts_on_every_worker_all_continue(stage: Stage) -> None:
    """The total of calls is exact: each one repeats the call that was in flight, and nothing else."""
    every = tasks(16)
    for task in every:
        stage.hold(task, call=2)
    async with stage.epoch() as before:
        firsts = await before.submit(every)
        await stage.held(16)
        assert all(status.counts["lives"] for status in (await before.statuses()).values())
        await before.checkpoint()
    stage.release()
    async with stage.epoch() as after:
        assert [await after.count(kind, "restored") for kind in KINDS] == [16] * len(KINDS)
        seconds = await after.go_on(every)
        await after.deliver()
        assert rewards(after) == {task.rollout_id: 1.0 for task in every}
        assert await after.left() == {}
    stage.seen().exactly(
        calls=each(firsts, [1, 2]) | each(seconds, [2, 3, 4]),
        tools=each(firsts, {task.rollout_id: task.tools[:1] for task in every})
        | each(seconds, {task.rollout_id: task.tools[1:] for task in every}),
        verified=seconds,
    )


@one
async def test_06_three_rounds_of_restore_two_turns_checkpoint_and_crash(stage: Stage) -> None:
    """Each life makes its two turns and the call in flight; the last one ends the rollout."""
    task = Task(0, adds=7)
    lives: list[Life] = []
    for last in (3, 5, 7):
        stage.hold(task, call=last)
        async with stage.epoch() as epoch:
            lives += await (epoch.go_on if lives else epoch.submit)([task])
            await stage.held(1)
            await epoch.checkpoint()
        stage.release()
    async with stage.epoch() as after:
        lives += await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
    stage.seen().exactly(
        calls=dict(zip(lives, ([1, 2, 3], [3, 4, 5], [5, 6, 7], [7, 8, 9]), strict=True)),
        tools=dict(zip(lives, (task.tools[:2], task.tools[2:4], task.tools[4:6], task.tools[6:]), strict=True)),
        verified=[lives[-1]],
    )


@one
async def test_07_a_restored_rollout_at_its_step_budget_makes_no_extra_action(stage: Stage) -> None:
    """Its two model calls and their tools are behind it: it ends, and is verified as it stands, again."""
    stage.agent = {"max_steps": 2}
    task = Task(0, adds=3)
    stage.hold_tools(f"tool {task.amount(2)}")
    async with stage.epoch() as before:
        [first] = await before.submit([task])
        await stage.logged(2)
        await before.checkpoint_while(lambda: stage.hold_tools("verify"))
        await stage.logged(1, "verify")
    stage.let_tools_go()
    async with stage.epoch() as after:
        [second] = await after.go_on([task])
        result = (await after.deliver())["r0"].row
        assert result is not None
        assert result["response"]["metadata"]["ng_termination_reason"] == "max_steps"
    stage.seen().exactly(calls={first: [1, 2]}, tools={first: task.tools[:2]}, verified=[first, second])


BUDGET_S = 3.0
"""Of active time: several times what the rollout needs."""


async def long_standstill(_: Round) -> None:
    """Longer than the budget."""
    let_run(BUDGET_S + 0.5)  # The time is the point.


@one
async def test_07_time_parked_and_downtime_are_not_counted_against_a_wall_time_budget(stage: Stage) -> None:
    """It is parked for longer than its budget, then dead, then parked again, and ends as if none of it had been."""
    stage.agent = {"max_wall_s": BUDGET_S}
    task = Task(0)
    stage.hold(task, call=2)
    async with stage.epoch() as before:
        [first] = await before.submit([task])
        await stage.held(1)
        await before.checkpoint(long_standstill)
    stage.release()
    stage.hold(task, call=3)
    async with stage.epoch() as after:
        [second] = await after.go_on([task])
        await stage.held(1)
        await after.checkpoint(long_standstill)
        stage.release()
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
    stage.seen().exact_calls({first: [1, 2], second: [2, 3, 4]})


@one
async def test_07_active_time_is_counted_over_a_crash(stage: Stage) -> None:
    """What was spent before the crash, in the call that was in flight, is not given back: the rest is soon used up."""
    budget_s, before_s, after_s = 3.0, 2.2, 1.6
    stage.agent = {"max_wall_s": budget_s}
    task = Task(0)
    stage.hold(task, call=2)
    async with stage.epoch() as before:
        await before.submit([task])
        await stage.held(1)
        let_run(before_s)  # The time is the point.
        await before.checkpoint()
    stage.release()
    stage.hold(task, call=3)
    async with stage.epoch() as after:
        await after.go_on([task])
        await stage.held(1)
        let_run(after_s)
        stage.release()
        result = (await after.deliver())["r0"].row
        assert result is not None
        assert result["response"]["metadata"].get("ng_termination_reason") == "wall_time"
