"""The checkpoints of a run: what they have after a restore, what is at risk between two, and what is tried again."""

from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from orchestrator.collect import checkpoints
from orchestrator.collect.checkpoints import LAST_TRIES, lasts
from orchestrator.collect.progress import facts_of
from orchestrator.collect.saved import Work
from orchestrator.collect.segments import Line, Writer
from orchestrator.errors import CommitFailed, CoordinationError
from participants.errors import Code, ParticipantError, from_store
from participants.telemetry import names
from store import (
    AccessDenied,
    CheckpointConflict,
    Controller,
    Life,
    NoSpace,
    OutcomeUnknown,
    Ref,
    StoreError,
    StoreUnavailable,
    open_checkpoint,
)
from tests.support.recording import Recording, recorded

from .inside import PATIENCE_S, Inside, Turns, inside
from .test_in_process import configured, named

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


async def scope_of(at: Inside, ref: Ref | None) -> list[Life]:
    """The scope of a checkpoint that there must be."""
    assert ref is not None, at.events
    return list((await open_checkpoint(at.store, ref)).manifest.scope)


async def finished(at: Inside) -> None:
    """Wait until every rollout has its row."""
    with anyio.fail_after(PATIENCE_S):
        while not at.collector.ledger.finished:
            await anyio.lowlevel.checkpoint()


async def at_risk(at: Inside) -> Work:
    """What no checkpoint has of the work in flight."""
    return at.checkpoints.at_risk(await at.collector.work_in_flight())


async def test_work_is_at_risk_from_its_boundary_until_the_next_checkpoint(tmp_path: Path) -> None:
    """All of it before the first checkpoint, none right after one, and then what was done since."""
    config = await anyio.to_thread.run_sync(configured, tmp_path)
    upstream = Turns(turns=3)
    async with inside(config, upstream) as at:
        await upstream.until_held(3)
        assert await at_risk(at) == Work(calls=3, tokens=6)
        assert await at.checkpoints.take()
        assert await at_risk(at) == Work()
        upstream.let_go()
        await upstream.until_held(2)
        await upstream.until_held(3)
        assert await at_risk(at) == Work(calls=1, tokens=2)
        assert (await facts_of(at.collector, at.checkpoints))["tokens_at_risk"] == 2
        assert await at.checkpoints.take()
        assert (await facts_of(at.collector, at.checkpoints))["tokens_at_risk"] == 0


async def test_the_head_and_what_is_at_risk_are_gauges(tmp_path: Path) -> None:
    """Nothing is known to be at risk before somebody asks, and nothing is right after a checkpoint."""
    config = await anyio.to_thread.run_sync(configured, tmp_path)
    upstream = Turns(turns=3)
    async with recorded() as recording, inside(config, upstream) as at, anyio.create_task_group() as group:
        group.start_soon(at.checkpoints.run)
        await upstream.until_held(3)
        before = await gauges(recording)
        await facts_of(at.collector, at.checkpoints)
        asked = await gauges(recording)
        assert await at.checkpoints.take()
        after = await gauges(recording)
        group.cancel_scope.cancel()
    assert before == {names.HEAD_EPOCH: 0, names.HEAD_ROUND: 0, names.CHECKPOINTS_BLOCKED: 0}
    assert asked == {**before, names.TOKENS_AT_RISK: 6}
    assert after == {names.HEAD_EPOCH: 1, names.HEAD_ROUND: 1, names.CHECKPOINTS_BLOCKED: 0, names.TOKENS_AT_RISK: 0}
    assert not await gauges(recording)


async def gauges(recording: Recording) -> dict[str, float]:
    """Those of the run as they stand, but the age, which must be one."""
    recording.values.clear()
    await recording.read_gauges()
    found = {value.name: value.value for value in recording.values if not value.labels}
    assert not found or 0 <= found.pop(names.CHECKPOINT_AGE) < PATIENCE_S
    return found


async def test_what_becomes_of_rollouts_is_counted(tmp_path: Path) -> None:
    """Continued by the start that goes on, started over where they were ended, delivered when their rows are there."""
    config = await anyio.to_thread.run_sync(configured, tmp_path)
    upstream = Turns(turns=2)
    async with recorded() as recording:
        async with inside(config, upstream) as first:
            await upstream.until_held(3)
            assert await first.checkpoints.take()
        await upstream.until_held(0)
        async with inside(config, upstream) as again:
            await upstream.until_held(3)
            life = next(iter(again.collector.ledger.open.values()))
            await again.world.end([life], 5)
            again.collector.start_over([life])
            again.collector.wake()
            upstream.let_go(100)
            await finished(again)
    ends = {value.labels["end"] for value in recording.values if value.name == names.ROLLOUTS}
    counts = {end: recording.total(names.ROLLOUTS, end=end) for end in ends}
    assert counts == {"continued": 3, "restarted": 1, "delivered": 3}


async def test_what_was_restored_is_not_at_risk(tmp_path: Path) -> None:
    """The checkpoint that it continues from has it; only what this start adds could be lost."""
    config = await anyio.to_thread.run_sync(configured, tmp_path)
    upstream = Turns(turns=3)
    async with inside(config, upstream) as first:
        await upstream.until_held(3)
        assert await first.checkpoints.take()
    await upstream.until_held(0)
    async with inside(config, upstream) as again:
        await upstream.until_held(3)
        assert await at_risk(again) == Work()
        upstream.let_go()
        await upstream.until_held(2)
        await upstream.until_held(3)
        assert await at_risk(again) == Work(calls=1, tokens=2)


async def test_a_checkpoint_after_a_restore_has_the_rollouts_that_were_restored(tmp_path: Path) -> None:
    """Taken up again or still parked, once and twice over: rounds go on in every epoch, and nothing runs again."""
    config = await anyio.to_thread.run_sync(configured, tmp_path)
    upstream = Turns(turns=3)
    async with inside(config, upstream) as first:
        await upstream.until_held(3)
        scope = await scope_of(first, await first.checkpoints.take())
        assert [(life.epoch, life.attempt) for life in scope] == [(1, 0)] * 3
    await upstream.until_held(0)
    one_at_a_time = config.model_copy(update={"run": config.run.model_copy(update={"concurrency": 1})})
    for epoch in (2, 3):
        async with inside(one_at_a_time, upstream) as again:
            await upstream.until_held(1)
            for _ in range(2):
                lives = await scope_of(again, await again.checkpoints.take())
                assert {life.rollout_id for life in lives} == {life.rollout_id for life in scope}
                [taken_up] = [life for life in lives if life.epoch == epoch]
                assert taken_up.attempt > 0
        assert not named(again.events, "checkpoint_failed")
        await upstream.until_held(0)
    upstream.let_go(9)
    async with inside(config, upstream) as last:
        await finished(last)
        assert last.collector.ledger.continued == 3
    assert upstream.calls == 3 * 4 + 3 + 1 + 1  # What was in flight at each of the three crashes is asked again.


async def test_a_checkpoint_has_the_output_as_long_as_it_is_and_no_delivered_rollout(tmp_path: Path) -> None:
    """The cursor never runs ahead of the work: its length is that of the bytes on the disk, its scope the rest."""
    config = await anyio.to_thread.run_sync(configured, tmp_path)
    upstream = Turns(turns=1)
    async with inside(config, upstream) as at:
        await upstream.until_held(3)
        upstream.let_go()
        with anyio.fail_after(PATIENCE_S):
            while not at.collector.tally.rows:
                await anyio.lowlevel.checkpoint()
        ref = await at.checkpoints.take()
        assert ref is not None
        manifest = (await open_checkpoint(at.store, ref)).manifest
        chunks = anyio.Path(tmp_path / "out.jsonl.segments" / at.store.run_id / "1").glob("*.jsonl")
        written = sum([(await chunk.stat()).st_size async for chunk in chunks])
        assert [(segment.name, segment.length) for segment in manifest.output] == [("1", written)]
        assert {life.rollout_id for life in manifest.scope} == at.collector.ledger.open.keys()
        assert len(manifest.scope) == 2


async def test_nothing_is_delivered_while_everything_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that comes meanwhile has its row only when the checkpoint lets go, and its place is filled only then."""
    begun: list[Sequence[Line]] = []
    append = Writer.append

    async def noted(writer: Writer, lines: Sequence[Line]) -> None:
        begun.append(lines)  # Before the disk has it, which may take any time.
        await append(writer, lines)

    monkeypatch.setattr(Writer, "append", noted)
    config = await anyio.to_thread.run_sync(configured, tmp_path)
    config = config.model_copy(update={"run": config.run.model_copy(update={"concurrency": 2})})
    upstream = Turns(turns=1)
    async with inside(config, upstream) as at:
        await upstream.until_held(2)
        async with at.collector.still:
            upstream.let_go()
            with anyio.fail_after(PATIENCE_S):
                while not at.world.environment._results:
                    await anyio.lowlevel.checkpoint()
            at.collector.wake()
            for _ in range(200):
                await anyio.lowlevel.checkpoint()
            assert (begun, at.collector.ledger.dispatched) == ([], 2)
        upstream.let_go(2)
        await finished(at)
        assert (at.collector.tally.rows, at.collector.ledger.dispatched) == (3, 3)


async def test_nothing_is_dispatched_while_everything_stands_still(tmp_path: Path) -> None:
    """There is room for all three, and none begins before the checkpoint lets go."""
    config = await anyio.to_thread.run_sync(configured, tmp_path)
    upstream = Turns(turns=1)
    async with inside(config, upstream) as at:
        at.collector.still.acquire_nowait()
        for _ in range(200):
            await anyio.lowlevel.checkpoint()
        assert at.collector.ledger.dispatched == 0
        at.collector.still.release()
        await upstream.until_held(3)


async def test_a_round_that_fails_leaves_the_next_one_possible(tmp_path: Path) -> None:
    """A checkpoint whose folder cannot be made is reported; the one after it has everything."""
    config = await anyio.to_thread.run_sync(configured, tmp_path)
    upstream = Turns(turns=1)
    folder = anyio.Path(tmp_path / "store" / "checkpoints")
    async with inside(config, upstream) as at:
        await upstream.until_held(3)
        await folder.write_text("a file where a folder should be")
        assert await at.checkpoints.take() is None
        assert named(at.events, "checkpoint_failed")
        assert await at_risk(at) == Work(calls=3, tokens=6)
        await folder.unlink()
        assert len(await scope_of(at, await at.checkpoints.take())) == 3


async def test_a_prune_that_fails_is_told_and_its_checkpoint_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no failure of the checkpoint, which was published before."""

    async def fail(*_: object, **__: object) -> None:
        await anyio.lowlevel.checkpoint()
        raise StoreUnavailable("delete", "key")

    monkeypatch.setattr(Controller, "prune", fail)
    config = await anyio.to_thread.run_sync(configured, tmp_path)
    upstream = Turns(turns=1)
    async with inside(config, upstream) as at:
        await upstream.until_held(3)
        assert len(await scope_of(at, await at.checkpoints.take())) == 3
        assert (len(named(at.events, "prune_failed")), named(at.events, "checkpoint_failed")) == (1, [])


@pytest.mark.parametrize(
    "fails_at", [lambda error: error, lambda error: CommitFailed({"agent.main": from_store(error)})]
)
@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        (NoSpace("create", "key"), True),
        (AccessDenied("create", "key"), True),
        (StoreUnavailable("create", "key"), False),
        (OutcomeUnknown("create", "key"), False),
        (CheckpointConflict("1.1", "other bytes"), False),
    ],
)
def test_only_what_somebody_has_to_mend_lasts(
    error: StoreError, lasting: bool, fails_at: Callable[[StoreError], StoreError | CoordinationError]
) -> None:
    """Whether the collector has met it or a participant has, whose answer came over a wire."""
    assert lasts(fails_at(error)) is lasting


def test_a_participant_that_is_slow_or_gone_may_come_back() -> None:
    """Also beside one whose disk is full, where nothing else helps."""
    slow: dict[str, BaseException | str] = {
        "agent.main": ParticipantError(Code.DEADLINE_EXCEEDED, "slow"),
        "model.main": "gone",
    }
    assert not lasts(CommitFailed(slow))
    body = from_store(NoSpace("create", "key")).to_body()
    assert lasts(CommitFailed({**slow, "resources.r": ParticipantError.from_body(502, body)}))


@pytest.mark.parametrize("mended", [False, True])
async def test_a_store_that_refuses_the_last_checkpoint_is_tried_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mended: bool
) -> None:
    """Not until the grace is over; whoever makes room between two tries has the checkpoint."""
    monkeypatch.setattr(checkpoints, "RETRY_S", 0.1)
    config = await anyio.to_thread.run_sync(configured, tmp_path)
    folder = anyio.Path(tmp_path / "store" / "checkpoints")

    async def mend(at: Inside) -> None:
        while len(named(at.events, "checkpoint_failed")) < LAST_TRIES - 1:
            await anyio.lowlevel.checkpoint()
        await folder.unlink()

    upstream = Turns(turns=1)
    async with inside(config, upstream) as at, anyio.create_task_group() as group:
        await upstream.until_held(3)
        await folder.write_text("a file where a folder should be")
        for _ in range(LAST_TRIES):  # Those that failed before say nothing of the last one.
            assert await at.checkpoints.take() is None
        at.events.clear()
        if mended:
            group.start_soon(mend, at)
        with anyio.fail_after(config.checkpoint.grace_s):
            ref = await at.checkpoints.stop()
        assert (ref is not None) is mended
        assert len(named(at.events, "checkpoint_failed")) == LAST_TRIES - mended
