"""Scenarios 25 to 29: participants and controllers that die in the middle of a checkpoint or a restore."""

from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from orchestrator.errors import CommitFailed, RestoreFailed
from orchestrator.rounds import Round
from participants import Activate, ParticipantError
from store import CheckpointId, Life, ProcessName
from store.layout import process_prefix
from tests.support.waiting import until_asked

from .breaking import acting, doom, gated, going_on, phases, standing, until_phase
from .controller import Controller
from .stage import RESOURCES, Stage
from .tasks import Task, each
from .test_continuation import rewards
from .variants import one, two

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

COUNTER = f"{RESOURCES}/w0"


async def two_calls(stage: Stage, controller: Controller, *every: Task) -> list[Life]:
    """Rollouts whose second calls are held, and a checkpoint of them."""
    for task in every:
        stage.hold(task, call=2)
    lives = await controller.submit(every)
    await stage.held(len(every))
    await controller.checkpoint()
    return lives


@one
@pytest.mark.parametrize(("role", "point"), [("agent.main", "prepared"), (RESOURCES, "committing")])
async def test_25_a_participant_killed_before_it_has_committed_fails_the_commit_everywhere(
    stage: Stage, role: str, point: str
) -> None:
    """The others work on, nothing is published, and the older checkpoint restores."""
    gates, task = gated(stage), Task(0, adds=3)
    async with stage.epoch() as before:
        [first] = await two_calls(stage, before, task)
        older = before.claimed.head

        async def standing(_: Round) -> None:
            if point == "prepared":
                await stage.kill(role)

        async def kill_in_the_commit() -> None:
            if point == "committing":
                await gates.reached("commit")
                await stage.kill(role)

        if point == "committing":
            gates.shut("commit")
        async with anyio.create_task_group() as group:
            group.start_soon(kill_in_the_commit)
            with pytest.raises(CommitFailed) as failed:
                await before.checkpoint(standing)
        assert set(failed.value.failures) == {f"{role}/w0"}
        assert isinstance(failed.value.failures[f"{role}/w0"], ConnectionError)
        assert await phases(before, role.partition(".")[0]) == {"idle"}
        assert before.claimed.head == older
        stage.release()
        await stage.wait(live_at_most=0)
    if point == "committing":
        gates.open("commit")
    async with stage.epoch() as after:
        assert after.claimed.head == older
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
    stage.seen().exactly(
        calls={first: [1, 2], second: [2, 3, 4, 5]},
        tools={first: task.tools[:1], second: task.tools[1:]},
        verified=[second],
    )


@one
async def test_26_of_a_controller_killed_after_prepare_every_participant_reopens_within_its_lease(stage: Stage) -> None:
    """By itself, and the rollout goes on to its end; the next controller has its result."""
    task = Task(0)
    stage.hold(task, call=2)
    await stage.start()
    await doom(stage, "prepared")
    dead = Life("r0", 1, 0, 0)

    async def reopened() -> bool:
        return {status.phase for status in (await standing(stage)).values()} == {"idle"}

    await until_asked(reopened)
    for status in (await standing(stage)).values():
        assert [error for error in status.last_errors if "the lease of round 1.1 ran out; reopened" in error], status
    stage.release()
    await stage.logged(1, "verify")
    async with stage.controller(adopts=True) as after:
        assert after.claimed.head is None
        assert after.open == {"r0": dead}
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
        assert await going_on(after) == {}
    stage.seen().exactly(calls={dead: task.calls}, tools={dead: task.tools}, verified=[dead])


@one
async def test_26_the_checkpoint_of_a_controller_killed_after_the_chain_entry_is_found_and_used(stage: Stage) -> None:
    """The controller itself never heard of it."""
    task = Task(0)
    stage.hold(task, call=2)
    await stage.start()
    await doom(stage, "entry")
    await stage.crash()
    stage.release()
    dead = Life("r0", 1, 0, 0)
    async with stage.epoch() as after:
        assert after.claimed.head is not None
        assert after.claimed.head.checkpoint == CheckpointId(1, 1)
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
    stage.seen().exactly(
        calls={dead: [1, 2], second: [2, 3, 4]},
        tools={dead: task.tools[:1], second: task.tools[1:]},
        verified=[second],
    )


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


async def nothing_opened(stage: Stage, controller: Controller, calls: int) -> None:
    """Everybody is idle, and nobody has anything of the restore."""
    await until_phase(controller, "idle")
    assert await going_on(controller) == {}
    assert stage.backend.control.counts()["total"] == calls


@one
async def test_27_a_corrupted_record_activates_nothing_anywhere_and_a_good_checkpoint_still_restores(
    stage: Stage,
) -> None:
    """Participant and record are named, where bytes are damaged as where an author's hook cannot read a session."""
    gates, task, other = gated(stage), Task(0), Task(1)
    async with stage.epoch() as before:
        first, beside = await two_calls(stage, before, task, other)
        good = before.claimed.head
        bad = (await before.checkpoint()).published
    assert good is not None
    assert bad is not None
    stage.release()
    folder = process_prefix(bad.checkpoint, ProcessName("agent", "main", "w0"))
    [part] = (stage.folder / "checkpoints" / folder).glob("[0-9]*.jsonl.zst")
    flip(part)
    made = stage.backend.control.counts()["total"]
    async with stage.epoch(restore=False) as after:
        with pytest.raises(RestoreFailed, match=part.name) as failed:
            await after.restore_head(bad)
        assert set(failed.value.failures) == {"agent.main/w0"}
        await nothing_opened(stage, after, made)
        gates.refuse("r1")
        with pytest.raises(RestoreFailed, match=str(beside)) as failed:
            await after.restore_head(good)
        assert set(failed.value.failures) == {COUNTER}
        await nothing_opened(stage, after, made)
        assert sorted(gates.closed()) == sorted(2 * [str(first), str(beside)])  # What had been imported was freed.
        gates.refuse()
        await after.restore_head(good)
        seconds = await after.go_on([task, other])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0, "r1": 1.0}
    stage.seen().exactly(
        calls={first: [1, 2], beside: [1, 2]} | each(seconds, [2, 3, 4]),
        tools={
            first: task.tools[:1],
            beside: other.tools[:1],
            seconds[0]: task.tools[1:],
            seconds[1]: other.tools[1:],
        },
        verified=seconds,
    )


async def checkpointed(stage: Stage, task: Task) -> Life:
    """A rollout with its second call in flight, a checkpoint of it, and a crash."""
    async with stage.epoch() as before:
        [life] = await two_calls(stage, before, task)
    stage.release()
    return life


async def finishes(stage: Stage, task: Task, first: Life) -> None:
    """A fresh restore, by a new controller over these servers, works."""
    async with stage.controller() as after:
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
        assert await going_on(after) == {}
    stage.seen().exactly(
        calls={first: [1, 2], second: [2, 3, 4]},
        tools={first: task.tools[:1], second: task.tools[1:]},
        verified=[second],
    )


@one
@pytest.mark.parametrize("point", ["staging", "staged", "activating"])
async def test_28_a_participant_killed_between_stage_and_activate_or_in_the_middle_opens_nothing(
    stage: Stage, point: str
) -> None:
    """The restore fails, naming it; the others give back what they had staged and activated; a fresh restore works."""
    gates, task = gated(stage), Task(0)
    first = await checkpointed(stage, task)
    await stage.start()
    async with stage.controller(restore=False) as controller:

        async def kill() -> None:
            await stage.kill(RESOURCES)

        async def kill_in_the_middle() -> None:
            gate = {"staging": "stage", "activating": "activate"}[point]
            await gates.reached(gate)
            if point == "activating":
                await until_phase(controller, "restored", "resources")
            await kill()

        if point == "staged":
            acting(controller, Activate, before={COUNTER: kill})
        async with anyio.create_task_group() as group:
            if point != "staged":
                gates.shut(*{"staging": ("stage", "wait"), "activating": ("activate", "block")}[point])
                group.start_soon(kill_in_the_middle)
            with pytest.raises(RestoreFailed) as failed:
                await controller.restore_head()
        assert set(failed.value.failures) == {COUNTER}
        await until_phase(controller, "idle", "resources")
        assert await going_on(controller) == {}
    for gate in gates.folder.glob("*"):
        gate.unlink()
    await stage.restart(RESOURCES)
    await finishes(stage, task, first)


@one
@pytest.mark.parametrize(("point", "left"), [("staged", {"staged"}), ("activating", {"staged", "restored"})])
async def test_28_a_controller_killed_between_stage_and_activate_or_in_the_middle_opens_nothing(
    stage: Stage, point: str, left: set[str]
) -> None:
    """Everybody stays closed to the rollout until another controller comes, who restores afresh."""
    task = Task(0)
    first = await checkpointed(stage, task)
    await stage.start()
    await doom(stage, point)
    assert {status.phase for status in (await standing(stage)).values()} == left
    await finishes(stage, task, first)


@two
@pytest.mark.parametrize("role", [RESOURCES, "agent.main"])
async def test_29_one_worker_that_was_killed_and_replaced_while_prepared_refuses_the_commit(
    stage: Stage, role: str
) -> None:
    """By its incarnation; all others work on, and the older checkpoint restores what both workers had."""
    on_each = [Task(0), Task(4)]
    for task in on_each:
        stage.hold(task, call=2)
    async with stage.epoch() as before:
        firsts = await before.submit(on_each)
        await stage.held(2)
        older = (await before.checkpoint()).published

        async def standing(_: Round) -> None:
            await anyio.to_thread.run_sync(stage.servers[role].kill_worker, 1)
            await anyio.to_thread.run_sync(stage.servers[role].await_ready)

        with pytest.raises(CommitFailed) as failed:
            await before.checkpoint(standing)
        assert set(failed.value.failures) == {f"{role}/w1"}
        refusal = failed.value.failures[f"{role}/w1"]
        assert isinstance(refusal, ParticipantError)
        assert refusal.code == "wrong_incarnation"
        assert await phases(before) == {"idle"}
        assert before.claimed.head == older
    stage.release()
    async with stage.epoch() as after:
        seconds = await after.go_on(on_each)
        await after.deliver()
        assert rewards(after) == {"r0": 1.0, "r4": 1.0}
    stage.seen().exactly(
        calls=each(firsts, [1, 2]) | each(seconds, [2, 3, 4]),
        tools={life: task.tools[:1] for life, task in zip(firsts, on_each, strict=True)}
        | {life: task.tools[1:] for life, task in zip(seconds, on_each, strict=True)},
        verified=seconds,
    )
