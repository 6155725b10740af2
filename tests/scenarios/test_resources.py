"""Scenarios 8, 12 and 14: sessions that a crash must not lose, servers that export none, and tool calls in flight."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.errors import RestoreFailed
from orchestrator.links import Link
from orchestrator.rounds import Round
from participants import Message
from participants import Stage as StageCall
from store import Life, open_checkpoint
from tests.support.odd_counters import question
from tests.support.owners import Answer, FaultyLink

from .controller import Controller
from .looking import blocked_checkpoint, exported, state_of
from .stage import RESOURCES, Stage
from .tasks import Task, each, tasks
from .test_continuation import rewards
from .variants import one, one_and_two

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


class ForgettingLink(FaultyLink):
    """A link over which a restore brings nothing."""

    async def send(self, message: Message, answer: type[Answer]) -> Answer:
        forgotten = message.model_copy(update={"scope": ()}) if isinstance(message, StageCall) else message
        return await super().send(forgotten, answer)


def forget_sessions(controller: Controller) -> None:
    """Let the next restore bring resources servers nothing."""

    def link(kind: str, inner: Link) -> Link:
        return ForgettingLink(inner) if kind == "resources" else inner

    members = tuple(replace(member, link=link(member.kind, member.link)) for member in controller.fleet.members)
    controller.fleet = replace(controller.fleet, members=members)


async def crashed_after_one_addition(stage: Stage, task: Task) -> Life:
    """A checkpoint behind the first tool call, and a crash."""
    stage.hold(task, call=2)
    async with stage.epoch() as before:
        [life] = await before.submit([task])
        await stage.held(1)
        await before.checkpoint()
    stage.release()
    return life


@one
async def test_08_a_restore_without_the_resources_server_is_refused_by_name(stage: Stage) -> None:
    """Nothing is opened anywhere, and the whole fleet then restores."""
    task = Task(0)
    first = await crashed_after_one_addition(stage, task)
    async with stage.epoch(restore=False) as after:
        whole = after.fleet
        after.fleet = replace(whole, members=tuple(m for m in whole.members if m.kind != "resources"))
        with pytest.raises(RestoreFailed, match=RESOURCES):
            await after.restore_head()
        after.fleet = whole
        await after.restore_head()
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
    stage.seen().exactly(
        calls={first: [1, 2], second: [2, 3, 4]},
        tools={first: task.tools[:1], second: task.tools[1:]},
        verified=[second],
    )


@one_and_two
async def test_08_a_rollout_whose_session_was_not_restored_fails_and_touches_nothing(stage: Stage) -> None:
    """Its next tool call is refused; it is a typed failure that the rollout can be tried again after, and no reward."""
    task = Task(0)
    first = await crashed_after_one_addition(stage, task)
    async with stage.epoch(restore=False) as after:
        forget_sessions(after)
        await after.restore_head()
        [second] = await after.go_on([task])
        result = (await after.deliver())["r0"]
        assert result.row is None
        assert result.failure is not None
        assert (result.failure["class"], result.failure["stage"]) == ("session_lost", "agent")
        assert not result.failure["terminal"]
    stage.seen().exactly(calls={first: [1, 2], second: [2]}, tools={first: task.tools[:1]}, verified=[])


@one
async def test_08_with_the_refusal_bypassed_the_reward_is_wrong(stage: Stage) -> None:
    """A server that opens a session where none is: what was added before the crash is missing from the count."""
    stage.resources = "tests.support.odd_counters:CarelessCounter"
    task = Task(0)
    first = await crashed_after_one_addition(stage, task)
    async with stage.epoch(restore=False) as after:
        forget_sessions(after)
        await after.restore_head()
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"r0": 0.0}
    stage.seen().exactly(
        calls={first: [1, 2], second: [2, 3, 4]},
        tools={first: task.tools[:1], second: task.tools[1:]},
        verified=[second],
    )


async def three_in_flight(stage: Stage, controller: Controller) -> list[Life]:
    """One in a tool call, one in a model call, one in its verify."""
    every = tasks(3)
    stage.hold_tools(f"tool {every[0].amount(2)}", "verify")
    stage.hold(every[1], call=2)
    lives = await controller.submit(every)
    await stage.logged(6)
    await stage.logged(1, "verify")
    await stage.held(1)
    return lives


@one_and_two
async def test_12_rollouts_of_a_restart_only_server_block_nothing_and_start_over(stage: Stage) -> None:
    """Whatever they are in: reported by the prepare, in no record, listed in the manifest, and none of them lost."""
    stage.resources = "tests.support.odd_counters:RestartCounter"
    every = tasks(3)
    async with stage.epoch() as before:
        firsts = await three_in_flight(stage, before)
        taken = await before.checkpoint()
        assert taken.standstill.blocker_count == 0
        assert taken.restarts == set(firsts)
        assert await exported(before, taken) == {}
        assert taken.published is not None
        manifest = (await open_checkpoint(before.store, taken.published)).manifest
        assert (set(manifest.scope), set(manifest.restarts)) == (set(), set(firsts))
    stage.release()
    stage.let_tools_go()
    async with stage.epoch() as after:
        assert (after.restored, after.restarts) == ({}, {life.rollout_id: life for life in firsts})
        seconds = await after.submit(every)
        assert [life.attempt for life in seconds] == [1, 1, 1]
        await after.deliver()
        assert rewards(after) == {"r0": 1.0, "r1": 1.0, "r2": 1.0}
        assert await after.left() == {}
    r0, r1, r2 = firsts
    stage.seen().exactly(
        calls={r0: [1, 2], r1: [1, 2], r2: every[2].calls} | each(seconds, every[0].calls),
        tools={r0: every[0].tools[:2], r1: every[1].tools[:1], r2: every[2].tools}
        | each(seconds, {task.rollout_id: task.tools for task in every}),
        verified=[r2, *seconds],
    )


@one
async def test_12_rollouts_of_a_restart_only_server_go_on_after_a_checkpoint(stage: Stage) -> None:
    """Nothing of them is done again where nothing crashes."""
    stage.resources = "tests.support.odd_counters:RestartCounter"
    every = tasks(3)
    async with stage.epoch() as epoch:
        lives = await three_in_flight(stage, epoch)
        await epoch.checkpoint()
        stage.release()
        stage.let_tools_go()
        await epoch.deliver()
        assert rewards(epoch) == {"r0": 1.0, "r1": 1.0, "r2": 1.0}
        assert await epoch.left() == {}
    stage.seen().exactly(
        calls=each(lives, every[0].calls), tools=each(lives, {t.rollout_id: t.tools for t in every}), verified=lives
    )


async def blocked_by_second_tool(controller: Controller, life: Life, let_go: Callable[[], None]) -> Round:
    """A checkpoint that waits for the second tool call of this life, which then ends."""
    blockers, taken = await blocked_checkpoint(controller, let_go)
    assert blockers == {("agent.main", life, "tool:increment_counter")}
    return taken


@one_and_two
async def test_14_a_tool_call_in_flight_is_waited_for_and_never_run_twice(stage: Stage) -> None:
    """The agent's record has its result, and the session what it did."""
    task = Task(0)
    stage.hold(task, call=3)
    stage.hold_tools(f"tool {task.amount(2)}")
    async with stage.epoch() as before:
        [first] = await before.submit([task])
        await stage.logged(2)
        taken = await blocked_by_second_tool(before, first, stage.let_tools_go)
        await stage.held(1)
        [session] = (await state_of(before, taken, "resources"))["sessions"].values()
        assert session["state"] == {"count": sum(task.amount(k) for k in (1, 2))}
        assert (await state_of(before, taken, "agent"))["activation"]["state"]["steps"] == 2
    stage.release()
    async with stage.epoch() as after:
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
    stage.seen().exactly(
        calls={first: [1, 2, 3], second: [3, 4]},
        tools={first: task.tools[:2], second: task.tools[2:]},
        verified=[second],
    )


@one_and_two
@pytest.mark.parametrize("begun", [True, False])
async def test_14_a_tool_call_that_asks_the_model_is_waited_for_and_never_run_twice(stage: Stage, begun: bool) -> None:
    """What it asks is in flight when the checkpoint is prepared, or begins when the model is prepared already."""
    stage.resources = "tests.support.odd_counters:AskingCounter"
    stage.capture = True
    task = Task(0)
    stage.hold(task, call=3)
    asked = stage.backend.control.hold(substring=question(task.amount(2))) if begun else None
    if not begun:
        stage.hold_tools(f"tool {task.amount(2)}")
    async with stage.epoch() as before:
        [first] = await before.submit([task])
        await stage.logged(2)
        if begun:
            await stage.held(1)
        await blocked_by_second_tool(before, first, lambda: stage.release(asked) if begun else stage.let_tools_go())
        await stage.held(1)
    stage.release()
    async with stage.epoch() as after:
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
    stage.seen().exactly(  # The second and the fourth are those of its tools.
        calls={first: [1, 2, 3, 4, 5], second: [5, 6]},
        tools={first: task.tools[:2], second: task.tools[2:]},
        verified=[second],
    )
    assert await stage.lineage(second) == [first] * 4 + [second] * 2
