"""Scenario 12 with a black box as the agent: programs in real servers, which are killed in the middle."""

import shutil

import anyio.to_thread
import pytest

from participants.sandbox import python_paths
from store import open_checkpoint
from tests.support import black_box
from tests.support.marks import MARK, marked
from tests.support.waiting import until

from .looking import exported
from .stage import Stage
from .tasks import each, tasks
from .test_continuation import rewards
from .test_resources import three_in_flight
from .variants import one, one_and_two

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
GONE_S = 10.0


def _with_programs(stage: Stage) -> str:
    """Let its agent run programs; gives the mark of their processes."""
    program = shutil.copy(black_box.__file__, stage.folder / "program.py")
    mark = str(stage.folder)
    stage.agent_server = "participants.harness_agent:HarnessAgent"
    command = [python_paths()[0], "program.py"]
    stage.agent = {"command": command, "files": [str(program)], "environment": {MARK: mark}}
    return mark


async def with_programs(stage: Stage) -> str:
    """The same, of a test."""
    return await anyio.to_thread.run_sync(_with_programs, stage)


async def none_left(mark: str) -> None:
    """Soon after the kill of their server nothing of its programs runs."""
    await anyio.to_thread.run_sync(until, lambda: not marked(mark), GONE_S)


@one_and_two
async def test_12_programs_block_nothing_are_in_no_record_and_start_over(stage: Stage) -> None:
    """One in a tool call of a server that exports, one in a model call, one in its verify; then all are killed."""
    mark = await with_programs(stage)
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
        assert await anyio.to_thread.run_sync(marked, mark)
    await none_left(mark)
    stage.release()
    stage.let_tools_go()
    async with stage.epoch() as after:
        assert (after.restored, after.restarts) == ({}, {life.rollout_id: life for life in firsts})
        seconds = await after.submit(every)
        await after.deliver()
        assert rewards(after) == {"r0": 1.0, "r1": 1.0, "r2": 1.0}
        assert await after.left() == {}
        assert await anyio.to_thread.run_sync(marked, mark) == []
    r0, r1, r2 = firsts
    stage.seen().exactly(
        calls={r0: [1, 2], r1: [1, 2], r2: every[2].calls} | each(seconds, every[0].calls),
        tools={r0: every[0].tools[:2], r1: every[1].tools[:1], r2: every[2].tools}
        | each(seconds, {task.rollout_id: task.tools for task in every}),
        verified=[r2, *seconds],
    )


@one
async def test_12_programs_go_on_after_a_checkpoint(stage: Stage) -> None:
    """What was in flight is answered once all stands open again, and nothing is done twice."""
    await with_programs(stage)
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


@one
async def test_12_a_killed_server_of_programs_leaves_none_of_them_behind(stage: Stage) -> None:
    """Its supervisor and workers are killed alone; each program, in a session of its own, ends all the same."""
    mark = await with_programs(stage)
    [task] = tasks(1)
    stage.hold(task, call=2)
    async with stage.epoch() as epoch:
        [life] = await epoch.submit([task])
        await stage.held(1)
        assert await anyio.to_thread.run_sync(marked, mark)
        await stage.kill("agent.main")
        await none_left(mark)
        await stage.wait(live_at_most=0)
    stage.release()
    assert stage.seen().calls[life] == [1, 2]


@one
async def test_12_a_retired_program_is_gone_before_the_answer(stage: Stage) -> None:
    """Over HTTP, in a server of its own."""
    mark = await with_programs(stage)
    [task] = tasks(1)
    stage.hold(task, call=2)
    async with stage.epoch() as epoch:
        [life] = await epoch.submit([task])
        await stage.held(1)
        assert not await epoch.retire(life)
        assert await anyio.to_thread.run_sync(marked, mark) == []
        assert all(kept == {"fenced": 1} for kept in (await epoch.left()).values())
