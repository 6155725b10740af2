"""Scenarios 30 to 32: stragglers, leases that run out, and rollouts that a later checkpoint leaves out."""

import anyio
import pytest

from orchestrator.coordination import commit, prepare, renew, resume
from orchestrator.errors import CommitFailed, RenewFailed
from orchestrator.rounds import Blocked, Round, RoundLimits, checkpoint
from participants import ParticipantError, Renew, Renewed
from participants.ledger import Ledger
from store import CheckpointId, Draft, ProcessName
from store.layout import participant_key

from .breaking import gated, going_on, total, until_phase
from .controller import LIMITS, Controller
from .stage import RESOURCES, ROLES, Stage
from .tasks import Task, each
from .test_continuation import rewards
from .variants import one, one_and_two

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

SOON = RoundLimits(prepare_timeout_s=1.0, more_time_s=0, lease_s=60)


@one
async def test_30_a_straggler_past_the_deadline_is_named_retired_and_dispatched_again(stage: Stage) -> None:
    """Nothing was written for it, all others work on, and the next checkpoint has it and them."""
    straggler, other = Task(0), Task(1)
    stage.hold_tools(f"tool {straggler.amount(2)}")
    stage.hold(other, call=2)
    async with stage.epoch() as before:
        late, beside = await before.submit([straggler, other])
        await stage.held(1)
        await stage.logged(3)
        with pytest.raises(Blocked) as blocked:
            await before.checkpoint(limits=SOON)
        assert set(blocked.value.failures) == {f"agent.main {late}", f"{RESOURCES} {late}"}
        assert before.claimed.head is None
        await until_phase(before, "idle")
        assert await before.retire(late) == frozenset()
        stage.let_tools_go()
        before.restarts[straggler.rollout_id] = late
        stage.hold(straggler, call=3)
        [again] = await before.submit([straggler])
        await stage.held(2)
        taken = await before.checkpoint()
        assert taken.scope == [beside, again]
    stage.release()
    async with stage.epoch() as after:
        seconds = await after.go_on([straggler, other])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0, "r1": 1.0}
    stage.seen().exactly(
        calls={late: [1, 2], again: [1, 2, 3], beside: [1, 2], seconds[0]: [3, 4], seconds[1]: [2, 3, 4]},
        tools={
            late: straggler.tools[:2],
            again: straggler.tools[:2],
            beside: other.tools[:1],
            seconds[0]: straggler.tools[2:],
            seconds[1]: other.tools[1:],
        },
        verified=seconds,
    )


@one
async def test_30_with_more_time_the_same_prepare_goes_on(stage: Stage) -> None:
    """The straggler's tool runs once, its result is in the checkpoint, and nothing is drained a second time."""
    task = Task(0)
    stage.hold_tools(f"tool {task.amount(2)}")
    async with stage.epoch() as before:
        [first] = await before.submit([task])
        await stage.logged(2)
        round_id = before.claimed.next_round()
        blocked = await prepare(before.fleet, round_id, timeout_s=0.5, lease_s=60)
        assert not blocked.prepared
        assert {blocker.life for blocker in blocked.blockers} == {first}
        stage.let_tools_go()
        still = await prepare(before.fleet, round_id, timeout_s=10, lease_s=60)
        assert (still.prepared, still.blocker_count) == (True, 0)
        answers = await commit(before.fleet, round_id, [first], None, timeout_s=30)
        await renew(before.fleet, round_id, lease_s=60)
        parts = [answer.manifest for answer in answers]
        await before.claimed.publish(
            Draft(checkpoint=round_id, parent=None, participants=parts, scope=[first]), timeout_s=30
        )
        stage.hold(task, call=3)
        await resume(before.fleet, round_id)
        await stage.held(1)
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


@one
@pytest.mark.parametrize("how", ["wait", "block"])
async def test_31_a_participant_whose_lease_runs_out_in_a_long_commit_writes_no_manifest(
    stage: Stage, how: str
) -> None:
    """Whether it notices in time or hangs and comes back: nothing is published, and everybody accepts work."""
    gates, task = gated(stage), Task(0)
    stage.hold(task, call=2)
    async with stage.epoch() as controller:
        [life] = await controller.submit([task])
        await stage.held(1)
        gates.shut("commit", how)

        rounds: list[CheckpointId] = []

        async def standing(opened: Round) -> None:
            rounds.append(opened.id)
            await renew(controller.fleet, opened.id, lease_s=1.5)

        async def come_back() -> None:
            await gates.reached("commit")
            await until_phase(controller, "idle", *(["resources"] if how == "block" else []))
            gates.open("commit")

        async with anyio.create_task_group() as group:
            group.start_soon(come_back)
            with pytest.raises(CommitFailed) as failed:
                await controller.checkpoint(standing)
        refusal = failed.value.failures[f"{RESOURCES}/w0"]
        assert isinstance(refusal, ParticipantError)
        assert refusal.code in ("lease_expired", "stale_round")
        assert controller.claimed.head is None
        await until_phase(controller, "idle")
        written = {
            name: (stage.folder / "checkpoints" / participant_key(rounds[0], name)).exists()
            for name in (ProcessName("environment", "main", "w0"), ProcessName("resources", "counter", "w0"))
        }
        assert list(written.values()) == [True, False]
        stage.release()
        await controller.deliver()
        assert rewards(controller) == {"r0": 1.0}
    stage.seen().exactly(calls={life: task.calls}, tools={life: task.tools}, verified=[life])


@one
async def test_31_leases_that_run_out_while_another_one_commits_refuse_the_publication(stage: Stage) -> None:
    """All have committed, some of them before they worked on: nothing proves that all stood still together."""
    gates, task = gated(stage), Task(0)
    stage.hold(task, call=2)
    async with stage.epoch() as controller:
        [life] = await controller.submit([task])
        await stage.held(1)
        gates.shut("commit")
        short = [member for member in controller.fleet.members if member.kind != "resources"]

        async def standing(opened: Round) -> None:
            for member in short:
                await controller.ask(member, Renew, Renewed, round=opened.id, lease_s=1.5)

        async def come_back() -> None:
            await gates.reached("commit")
            await until_phase(controller, "idle", "resources")
            gates.open("commit")

        async with anyio.create_task_group() as group:
            group.start_soon(come_back)
            with pytest.raises(RenewFailed, match="lease_expired") as failed:
                await controller.checkpoint(standing)
        assert set(failed.value.failures) == {member.name for member in short}
        assert controller.claimed.head is None
        assert not list((stage.folder / "checkpoints" / "checkpoints").glob("*/manifest.json"))
        await until_phase(controller, "idle")
        stage.release()
        await controller.deliver()
        assert rewards(controller) == {"r0": 1.0}
    stage.seen().exactly(calls={life: task.calls}, tools={life: task.tools}, verified=[life])


async def leave_out(controller: Controller, name: str) -> None:
    """A checkpoint of all that was restored but one, which is retired then, as a controller's duty is."""
    dropped = controller.restored.pop(name)
    async with checkpoint(controller.fleet, controller.claimed, LIMITS) as opened:
        opened.take(scope=list(controller.restored.values()), dropped={dropped: "nobody wants it"})
    await controller.retire(dropped)


@one_and_two
async def test_32_what_a_checkpoint_left_out_of_what_was_restored_is_gone_everywhere(stage: Stage) -> None:
    """Its sessions, kept replies and ledger; the two that nobody had taken up yet are exported again."""
    gates, every = gated(stage), [Task(0), Task(1), Task(4)]
    stage.capture = True
    for task in every:
        stage.hold(task, call=2)
    async with stage.epoch() as before:
        firsts = await before.submit(every)
        await stage.held(3)
        await before.checkpoint()
    stage.release()
    async with stage.epoch() as between:
        assert await total(between, "restored") == 3 * len(ROLES)
        await leave_out(between, "r1")
        assert await total(between, "restored") == 2 * len(ROLES)
        assert all(set(counts) == {"restored"} for counts in (await going_on(between)).values())
        assert gates.closed() == [str(firsts[1])]
        ended = (await Ledger(str(stage.ledger)).manifest("r1")).end
        assert ended is not None
        assert ended.reason == "retired"
    async with stage.epoch() as after:
        assert after.restored == {"r0": firsts[0], "r4": firsts[2]}
        seconds = await after.go_on([every[0], every[2]])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0, "r4": 1.0}
    stage.seen().exactly(
        calls=each(firsts, [1, 2]) | each(seconds, [2, 3, 4]),
        tools=each(firsts, {task.rollout_id: task.tools[:1] for task in every})
        | each(seconds, {task.rollout_id: task.tools[1:] for task in every}),
        verified=seconds,
    )
