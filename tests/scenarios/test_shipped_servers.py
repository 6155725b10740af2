"""Scenarios 8, 11 and 14 with servers that ship: a shell, whose session is a folder, and an office of tables.

No server that ships has a verify of mode `wait`, so scenario 10 has none of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from orchestrator.rounds import Round
from participants.servers.shell import ShellServer
from store import Life
from tests.support.waiting import until

from .controller import Controller
from .looking import blocked_checkpoint, said, state_of
from .shipped import (
    BODIES,
    SUPPORT,
    Shipped,
    at_a_shell,
    at_an_office,
    office_task,
    run,
    shell_folders,
    shell_task,
    told,
)
from .stage import Stage
from .tasks import each
from .test_continuation import rewards
from .test_resources import crashed_after_one_addition, forget_sessions
from .test_resources_verify import closing, not_delivered
from .variants import one, one_and_two

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


@dataclass(frozen=True, slots=True)
class Played:
    """A server, and what is done there."""

    at: Callable[[Stage], object]
    task: Callable[[int, str], Shipped]
    finds: Callable[[Any], object]
    """What of the first two calls its last tool's answer has."""
    wanted: object


SHELL = Played(at_a_shell, shell_task, lambda answer: answer["content"].splitlines()[2:], ["two"])
OFFICE = Played(at_an_office, office_task, lambda answer: sorted(each["body"] for each in answer["output"]), BODIES)
both = pytest.mark.parametrize("played", [pytest.param(SHELL, id="shell"), pytest.param(OFFICE, id="office")])
APART = (0, 4)
"""Numbers of rollouts that two different workers of two have."""


@one_and_two
@both
async def test_08_a_restored_session_of_a_server_that_ships_is_what_it_was(stage: Stage, played: Played) -> None:
    """A call after the restore finds what one before it did, and the row is that of a rollout that nothing stopped."""
    played.at(stage)
    wholes = [played.task(number, f"whole{number}") for number in APART]
    every = [played.task(number, "") for number in APART]
    async with stage.epoch() as before:
        uncut = await before.submit(wholes)
        await before.deliver()
        for task in every:
            stage.hold(task, call=2)
        first = await before.submit(every)
        await stage.held(len(every))
        await before.checkpoint()
    stage.release()
    async with stage.epoch() as after:
        second = await after.go_on(every)
        await after.deliver()
        assert set(rewards(after).values()) == {1.0}
        for task, whole in zip(every, wholes, strict=True):
            assert said(after, task) == said(after, whole)
            assert played.finds(told(after, task)[-1]) == played.wanted
        assert await after.left() == {}
        assert shell_folders(stage.folder / "shell") == []
    [one_of, *_] = every
    stage.seen().exactly(
        calls=each(uncut, one_of.calls) | each(first, [1, 2]) | each(second, [2, 3, 4]),
        tools=each(uncut, one_of.tools) | each(first, one_of.tools[:1]) | each(second, one_of.tools[1:]),
        verified=[*uncut, *second],
    )


@one_and_two
async def test_08_a_shell_refuses_a_session_that_was_not_restored(stage: Stage) -> None:
    """No command is run, and the failure is typed and no reward."""
    at_a_shell(stage)
    task = shell_task(0)
    first = await crashed_after_one_addition(stage, task)
    async with stage.epoch(restore=False) as after:
        forget_sessions(after)
        await after.restore_head()
        [second] = await after.go_on([task])
        result = (await after.deliver())["r0"]
        assert (result.row, result.failure and result.failure["class"]) == (None, "session_lost")
    stage.seen().exactly(calls={first: [1, 2], second: [2]}, tools={first: task.tools[:1]}, verified=[])


@one
async def test_08_with_an_empty_folder_in_place_of_the_restored_one_the_reward_is_wrong(stage: Stage) -> None:
    """The same calls as in a rollout that gets 1.0."""
    at_a_shell(stage)
    stage.resources = f"{SUPPORT}:EmptyShell"
    task = shell_task(0)
    first = await crashed_after_one_addition(stage, task)
    async with stage.epoch() as after:
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"r0": 0.0}
    stage.seen().exactly(
        calls={first: [1, 2], second: [2, 3, 4]},
        tools={first: task.tools[:1], second: task.tools[1:]},
        verified=[second],
    )


@one_and_two
@pytest.mark.parametrize("crashes", [True, False])
async def test_11_a_shell_session_that_closes_during_prepare_is_neither_lost_nor_redone(
    stage: Stage, crashes: bool
) -> None:
    """Its folder is gone, its result is delivered once, and not before all stand open again."""
    root = at_a_shell(stage)
    stage.hold_tools("close")
    task = shell_task(0)
    async with stage.epoch() as before:
        [first] = await before.submit([task])
        await closing(stage, before)

        async def standing(_: Round) -> None:
            await not_delivered(before, first)
            assert shell_folders(root) == []

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
            await after.deliver(second)
            assert rewards(after) == {"r0": 1.0}
            assert await after.left() == {}
            assert shell_folders(root) == []
    stage.seen().exactly(calls={first: task.calls}, tools={first: task.tools}, verified=[first])


WAITS = "echo once >> runs; touch started; until [ -e go ]; do sleep 0.02; done; rm started go; cat runs"
"""A command that ends when it is told to, and counts how often it was begun."""


async def command_in_flight(root: Path) -> Path:
    """Until it runs, contained; gives what lets it go on."""

    def started() -> list[Path]:
        return [*root.glob("server-*/*/started")]

    await anyio.to_thread.run_sync(until, started)
    [found] = await anyio.to_thread.run_sync(started)
    return found.with_name("go")


async def waited_for(stage: Stage, controller: Controller, life: Life, tool: str, let_go: Callable[[], None]) -> None:
    """A checkpoint that waits for the second tool call of this life: its record has what it answered."""
    blockers, taken = await blocked_checkpoint(controller, let_go)
    assert blockers == {("agent.main", life, f"tool:{tool}")}
    await stage.held(1)
    assert (await state_of(controller, taken, "agent"))["activation"]["state"]["steps"] == 2


@one_and_two
async def test_14_a_shell_command_in_flight_is_waited_for_and_never_run_twice(stage: Stage) -> None:
    """The folder counts how often it ran; what it printed is in the record, and is what the model is told."""
    root = at_a_shell(stage)
    made = [run("echo none > runs"), run(WAITS), run("cat runs")]
    task = Shipped(0, made=made, fields={"expected_files": {"runs": "none\nonce\n", "go": None}}, server=ShellServer)
    stage.hold(task, call=3)
    async with stage.epoch() as before:
        [first] = await before.submit([task])
        go = await command_in_flight(root)
        await waited_for(stage, before, first, "run_command", go.touch)
    stage.release()
    async with stage.epoch() as after:
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
        assert [answer["stdout"] for answer in told(after, task)] == ["", "none\nonce\n", "none\nonce\n"]
    stage.seen().exactly(
        calls={first: [1, 2, 3], second: [3, 4]},
        tools={first: task.tools[:2], second: task.tools[2:]},
        verified=[second],
    )


@one_and_two
async def test_14_a_call_of_the_office_in_flight_is_waited_for_and_never_run_twice(stage: Stage) -> None:
    """Each mail was sent once, on whichever side of the crash, and the last call finds both."""
    at_an_office(stage)
    task = office_task(0)
    hold = stage.hold(task, call=2)
    async with stage.epoch() as before:
        [first] = await before.submit([task])
        await stage.held(1)
        stage.hold_tools("tool email_send_email")
        stage.hold(task, call=3)
        stage.release(hold)
        await stage.logged(2)
        await waited_for(stage, before, first, "email_send_email", stage.let_tools_go)
    stage.release()
    async with stage.epoch() as after:
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
        assert OFFICE.finds(told(after, task)[-1]) == OFFICE.wanted
    stage.seen().exactly(
        calls={first: [1, 2, 3], second: [3, 4]},
        tools={first: task.tools[:2], second: task.tools[2:]},
        verified=[second],
    )
