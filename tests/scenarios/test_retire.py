"""Scenarios 20 to 24: what was retired or superseded stops, and never acts again; what outlived its controller."""

from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from orchestrator.coordination import abort
from orchestrator.errors import ControlFailed
from orchestrator.rounds import Round
from participants import Done, Message, ParticipantError, Retire, Retired
from participants import Stage as StageCall
from participants.ledger import Ledger
from participants.wire import OPERATIONS, Dispatched
from store import CheckpointId, Life, Ref

from .breaking import going_on, late_calls, phases, said_to, suspend, total, wake
from .controller import Controller
from .stage import RESOURCES, Stage
from .tasks import Task
from .test_continuation import rewards
from .variants import one, one_and_two, two

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

STALE = (409, "stale_life")


@one_and_two
async def test_20_rollouts_retired_in_mid_flight_stop_everywhere(stage: Stage) -> None:
    """One of the environment's `/run`, one of the agent's: both are answered, nothing of them goes on, others do."""
    stage.capture = True
    native, flat, beside = Task(0), Task(1), Task(2)
    for task in (native, flat, beside):
        stage.hold(task, call=2)
    async with stage.epoch() as controller:
        retired = [
            *await controller.run_at_agent([native], "environment"),
            *await controller.run_at_agent([flat], "agent"),
        ]
        [other] = await controller.submit([beside])
        await stage.held(3)
        assert await controller.retire(*retired) == frozenset()
        answers = [await controller.answer(life) for life in retired]
        assert [(answer.status_code, answer.headers["x-midflight-error"]) for answer in answers] == [STALE, STALE]
        await stage.wait(live_at_most=1)  # While they are held: the backend was told.
        assert stage.backend.control.counts()["disconnected"] == 2
        stage.release()
        await controller.deliver(other)
        assert await going_on(controller) == {}
    stage.seen().exactly(
        calls={retired[0]: [1, 2], retired[1]: [1, 2], other: beside.calls},
        tools={retired[0]: native.tools[:1], retired[1]: flat.tools[:1], other: beside.tools},
        verified=[other],
    )
    ledger = Ledger(str(stage.ledger))
    for life in retired:
        ended = (await ledger.manifest(life.rollout_id)).end
        assert ended is not None
        assert ended.reason == "retired"
    assert (await ledger.manifest(other.rollout_id)).end is None


@one_and_two
async def test_21_a_late_call_of_a_retired_or_superseded_life_is_refused_and_touches_nothing(stage: Stage) -> None:
    """Of whatever kind, at every server, at once and long after; what remembers it is bounded by the floor."""
    first, second = Task(0), Task(4)
    for task in (first, second):
        stage.hold(task, call=2)
    async with stage.epoch() as controller:
        retired, superseded = await controller.submit([first, second])
        await stage.held(2)
        await controller.retire(retired)
        controller.restarts[second.rollout_id] = superseded
        [newer] = await controller.submit([second])
        await stage.wait(total=6)  # It has superseded the other one everywhere.
        for life, task in ((retired, first), (superseded, second)):
            expected = dict.fromkeys(late_calls(stage, life, task), STALE)
            assert await said_to(stage, controller, life, task) == expected
            [refused] = await controller.dispatch({life: task.row})
            assert refused.code == "stale_life"
        assert await total(controller, "fenced") > 0
        stage.release()
        await controller.deliver(newer)
        assert await total(controller, "fenced") == 0
        for life, task in ((retired, first), (superseded, second), (newer, second)):
            expected = dict.fromkeys(late_calls(stage, life, task), STALE)
            assert await said_to(stage, controller, life, task) == expected
        assert await going_on(controller) == {}
        assert await total(controller, "fenced") == 0
        assert rewards(controller) == {second.rollout_id: 1.0}
    stage.seen().exactly(
        calls={retired: [1, 2], superseded: [1, 2], newer: second.calls},
        tools={retired: first.tools[:1], superseded: second.tools[:1], newer: second.tools},
        verified=[newer],
    )


async def refused_to_retire(controller: Controller, life: Life) -> None:
    """Everybody at the first step says that a round is open, and what to do about it."""
    with pytest.raises(ControlFailed) as failed:
        await controller.retire(life)
    assert set(failed.value.failures) == {"environment.main/w0"}
    for member in controller.fleet.members:
        with pytest.raises(ParticipantError, match="resume or abort it first") as refused:
            await controller.ask(member, Retire, Retired, lives=(life,), timeout_s=1)
        assert refused.value.code == "invalid_phase"


@one
async def test_22_a_retire_while_a_checkpoint_or_restore_is_open_is_refused_and_says_what_to_do(stage: Stage) -> None:
    """Afterwards it is done; again, or of a life that nobody knows, it is fine."""
    task = Task(0)
    stage.hold(task, call=2)
    async with stage.epoch() as controller:
        [life] = await controller.submit([task])
        await stage.held(1)

        async def standing(_: Round) -> None:
            await refused_to_retire(controller, life)

        taken = await controller.checkpoint(standing)
        assert taken.published is not None
        assert controller.open == {life.rollout_id: life}
        round_id = controller.claimed.next_round()
        await stage_everywhere(controller, round_id, taken.published, life)
        await refused_to_retire(controller, life)
        await abort(controller.fleet, round_id)
        for lives in ([life], [life], [Life("nobody", controller.epoch, 0, 7)]):
            assert await controller.retire(*lives) == frozenset()
        await stage.wait(live_at_most=0)
        stage.release()
        assert await going_on(controller) == {}
    stage.seen().exactly(calls={life: [1, 2]}, tools={life: task.tools[:1]}, verified=[])


async def stage_everywhere(controller: Controller, round_id: CheckpointId, ref: Ref, *scope: Life) -> None:
    """Open a restore by hand."""
    for member in controller.fleet.members:
        await controller.ask(member, StageCall, Done, round=round_id, checkpoint=ref, scope=scope)
    assert await phases(controller) == {"staged"}


@one
async def test_22_a_life_that_cannot_stop_its_work_in_time_stays_fenced(stage: Stage, tmp_path: Path) -> None:
    """A tool that listens to nobody is said to be not stopped; its rollout starts over beside it."""
    stage.resources = "tests.support.stubborn_counter:StubbornCounter"
    stage.counter = {"how": "swallow", "once": str(tmp_path / "hung")}
    task = Task(0)
    async with stage.epoch() as controller:
        [deaf] = await controller.submit([task])
        await stage.logged(1)
        assert await controller.retire(deaf, timeout_s=1.0) == {deaf}
        assert await controller.count("resources", "stopping") == 1
        expected = dict.fromkeys(late_calls(stage, deaf, task), STALE)
        assert await said_to(stage, controller, deaf, task) == expected
        await controller.checkpoint()  # It is nobody's blocker.
        controller.restarts[task.rollout_id] = deaf
        [again] = await controller.submit([task])
        await controller.deliver(again)
        assert rewards(controller) == {"r0": 1.0}
        assert await going_on(controller) == {f"{RESOURCES}/w0": {"stopping": 1}}
    stage.seen().exactly(
        calls={deaf: [1], again: task.calls}, tools={deaf: task.tools[:1], again: task.tools}, verified=[again]
    )


def of_old(controller: Controller, kind: type[Message], **envelope: Any) -> Message:
    """A message of any operation, as the controller would send it."""
    life = Life("r9", controller.epoch, 0, 9)
    ref = Ref(checkpoint=CheckpointId(controller.epoch, 1), digest="0" * 64, run_id=controller.store.run_id)
    every = {
        "round": CheckpointId(controller.epoch, 5),
        "timeout_s": 1.0,
        "lease_s": 2.0,
        "scope": (life,),
        "parent": None,
        "checkpoint": ref,
        "lives": (life,),
        "episodes": (Dispatched(life=life, row=Task(9).row),),
    }
    return kind(**envelope, **{name: value for name, value in every.items() if name in kind.model_fields})


@one_and_two
async def test_23_a_server_that_outlived_a_controller_refuses_what_that_one_still_says(stage: Stage) -> None:
    """Every control operation, and a dispatch over `/run`: nothing of it happens."""
    await stage.start()
    async with stage.controller(restore=False) as old, stage.controller(restore=False) as new:
        for member in old.fleet.members:
            for name, (message, answer) in OPERATIONS.items():
                with pytest.raises(ParticipantError) as refused:
                    await member.link.send(of_old(old, message, **old.fleet.envelope(member)), answer)
                assert refused.value.code == "stale_epoch", name
        for member in old.fleet.of_kind("environment"):
            with pytest.raises(ParticipantError, match="epoch"):
                await old.read_results(member)
        dispatched = await said_to(stage, old, Life("r9", old.epoch, 0, 9), Task(9))
        assert set(dispatched.values()) == {STALE}
        assert await phases(new) == {"idle"}
        task = Task(0)
        [life] = await new.submit([task])
        await new.deliver(life)
        assert await going_on(new) == {}
    stage.seen().exactly(calls={life: task.calls}, tools={life: task.tools}, verified=[life])


@one
async def test_23_the_calls_of_a_zombie_participant_are_refused_by_life(stage: Stage) -> None:
    """An agent that hung, and was replaced, comes back with a model's reply in hand, and may act on it nowhere."""
    task = Task(0)
    stage.hold(task, call=2)
    await stage.start()
    async with stage.controller() as before:
        [first] = await before.submit([task])
        await stage.held(1)
        await before.checkpoint()
    zombie = stage.servers["agent.main"]
    suspend(zombie)
    stage.release()
    await stage.wait(live_at_most=0)
    await stage.kill("environment.main")
    await stage.supplant("environment.main", "agent.main")
    stage.hold(task, call=3)
    async with stage.controller() as after:
        [second] = await after.go_on([task])
        await stage.held(1)
        wake(zombie)
        await after.until_count("resources", "refused", 1)
        stage.release()
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
        assert await going_on(after) == {}
    stage.seen().exactly(
        calls={first: [1, 2], second: [2, 3, 4]},
        tools={first: task.tools[:1], second: task.tools[1:]},
        verified=[second],
    )


async def begun(stage: Stage, controller: Controller, life: Life) -> list[tuple[int, str]]:
    """How the two servers at which episodes begin answer one of this life."""
    answers = await said_to(stage, controller, life, Task(9), "/run")
    return list(answers.values())


@one
async def test_24_a_controller_that_comes_to_living_servers_adopts_what_goes_on_there(stage: Stage) -> None:
    """Nothing is restored or done again, what nobody had acknowledged is delivered once, and no older life begins."""
    slow, quick = Task(0), Task(1)
    stage.hold(slow, call=2)
    await stage.start()
    async with stage.controller() as before:
        lives = await before.submit([slow, quick])
        await stage.held(1)
        await before.wait(lives[1])
        await before.checkpoint()
    async with stage.controller(adopts=True) as after:
        assert after.open == {life.rollout_id: life for life in lives}
        assert await total(after, "restored") == 0
        never = Life("r9", before.epoch, 0, 9)
        assert await begun(stage, after, never) == [(409, "stale_epoch")] * 2
        [refused] = await after.dispatch({never: Task(9).row})
        assert refused.code == "stale_epoch"
        await after.deliver(lives[1])
        stage.release()
        await after.deliver()
        assert rewards(after) == {"r0": 1.0, "r1": 1.0}
        assert after.dispatched == 0
        assert await going_on(after) == {}
    stage.seen().exactly(
        calls=dict.fromkeys(lives, slow.calls), tools={lives[0]: slow.tools, lives[1]: quick.tools}, verified=lives
    )
    async with stage.controller(adopts=True) as last:
        assert (last.open, last.restored) == ({}, {})
        [life] = await last.submit([Task(2)])
        await last.deliver()
        assert set(last.results) == {life}  # The others' results are not sent again.


@two
@pytest.mark.parametrize("role", [RESOURCES, "agent.main", "model.main"])
async def test_24_what_a_dead_worker_had_is_retired_and_restored_beside_what_is_adopted(
    stage: Stage, role: str
) -> None:
    """Two rollouts, each with its own worker of each server: one worker died with the controller."""
    broken, whole = Task(0), Task(4)
    for task in (broken, whole):
        stage.hold(task, call=2)
    await stage.start()
    async with stage.controller() as before:
        [dead, alive] = await before.submit([broken, whole])
        await stage.held(2)
        await before.checkpoint()
    await anyio.to_thread.run_sync(stage.servers[role].kill_worker, 1)
    await anyio.to_thread.run_sync(stage.servers[role].await_ready)
    async with stage.controller(adopts=True) as after:
        assert after.open == {"r4": alive}
        [again] = await after.go_on([broken])
        stage.release()
        await after.deliver()
        assert rewards(after) == {"r0": 1.0, "r4": 1.0}
        assert await going_on(after) == {}
    stage.seen().exactly(
        calls={dead: [1, 2], again: [2, 3, 4], alive: whole.calls},
        tools={dead: broken.tools[:1], again: broken.tools[1:], alive: whole.tools},
        verified=[again, alive],
    )
