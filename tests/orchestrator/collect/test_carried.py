"""What one start hands to the next, to its participants and to the store: failures, floors, restores, and an end."""

from pathlib import Path
from typing import Any

import anyio.lowlevel
import anyio.to_thread
import pytest

from orchestrator.collect import (
    Collector,
    Config,
    Options,
    RunLedger,
    collect,
    load_rollouts,
    open_segments,
    open_world,
)
from orchestrator.collect.collector import FLOOR_STEP
from orchestrator.collect.segments import Writer
from participants import Floor
from store import Fenced, claim

from .inside import PATIENCE_S, Inside, Turns, inside
from .test_in_process import Events, OneTool, configured, fail_always, named, run

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


def with_checkpoint(config: Config, **changes: Any) -> Config:
    """The same with other checkpoints."""
    return config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update=changes)})


async def until_rows(at: Inside, count: int) -> None:
    """Until so many rows are durable."""
    with anyio.fail_after(PATIENCE_S):
        while at.collector.tally.rows < count:
            await anyio.lowlevel.checkpoint()


async def test_failed_starts_are_counted_over_crashes(tmp_path: Path) -> None:
    """Of two attempts one failed before the crash, so that one more failure is final."""

    config = await anyio.to_thread.run_sync(lambda: configured(tmp_path, max_attempts=2))
    with anyio.CancelScope() as process:

        def fail_then_crash(call: int) -> None:
            if call > 3:
                process.cancel()
            fail_always(call)

        await run(config, OneTool(fail_then_crash))
    assert process.cancelled_caught
    again = OneTool(fail_always)
    summary = await run(config, again)
    assert (summary.failed_for_good, again.calls) == (3, 3)


async def test_what_has_a_row_is_restored_by_nobody(tmp_path: Path) -> None:
    """A rollout that was delivered after the checkpoint is not brought to any participant, and not dispatched."""
    config = await anyio.to_thread.run_sync(configured, tmp_path)
    upstream = Turns(turns=1)
    async with inside(config, upstream) as at:
        await upstream.until_held(3)
        assert await at.checkpoints.take()
        upstream.let_go()
        await until_rows(at, 1)
    await upstream.until_held(0)
    async with inside(config, upstream) as again:
        again.collector.closing = True
        holders = again.world.holders
        assert {holder.counts()["restored"] for holder in holders} == {2}


async def test_a_checkpoint_tells_everybody_the_floor(tmp_path: Path) -> None:
    """What was dispatched first and is delivered stands below it from then on."""
    config = await anyio.to_thread.run_sync(configured, tmp_path)
    upstream = Turns(turns=1)
    async with inside(config, upstream) as at:
        await upstream.until_held(3)
        upstream.let_go(2)
        await until_rows(at, 2)
        floor = at.collector.ledger.floor
        assert await at.checkpoints.take()
        holders = at.world.holders
        assert {holder.fences.floor for holder in holders} == {max(floor, Floor(1, 0))}


async def test_without_checkpoints_the_floor_rises_too(tmp_path: Path) -> None:
    """Fences of what is done do not pile up over a long run."""
    config: Config = await anyio.to_thread.run_sync(lambda: configured(tmp_path, checkpoints=False, repeats=60))
    rollouts = await anyio.to_thread.run_sync(load_rollouts, config)
    segments = await open_segments(config.run.output, "run")
    async with open_world(config, None, OneTool()) as world:
        await Collector(config, world, RunLedger.begin(1, rollouts, ()), Writer(segments, 1)).run()
        assert all(holder.fences.floor >= Floor(1, FLOOR_STEP) for holder in world.holders)
        assert all(len(holder.fences.fenced) < len(rollouts) - FLOOR_STEP // 2 for holder in world.holders)
    await segments.aclose()


async def test_a_stop_dispatches_nobody_any_more(tmp_path: Path) -> None:
    """A place that becomes free while the last checkpoint is taken stays free."""
    config = await anyio.to_thread.run_sync(configured, tmp_path)
    config = config.model_copy(update={"run": config.run.model_copy(update={"concurrency": 2})})
    upstream = Turns(turns=1)
    async with inside(config, upstream) as at:
        await upstream.until_held(2)
        assert await at.checkpoints.stop()
        upstream.let_go(2)
        await until_rows(at, 2)
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        assert (at.collector.ledger.dispatched, len(at.collector.ledger.waiting)) == (2, 1)


async def test_a_collector_that_was_taken_over_hears_of_it_between_checkpoints(tmp_path: Path) -> None:
    """It looks at the chain at every beat, although no checkpoint is due."""
    config = with_checkpoint(await anyio.to_thread.run_sync(configured, tmp_path), liveness_beat_s=0.05)
    upstream = Turns(turns=1)
    async with inside(config, upstream) as at, claim(at.store, take_over=True):
        with anyio.fail_after(PATIENCE_S), pytest.RaisesGroup(Fenced, allow_unwrapped=True, flatten_subgroups=True):
            await at.checkpoints.run()


@pytest.mark.parametrize("keep_last", [1, 2])
async def test_at_its_end_a_run_has_as_many_checkpoints_as_it_was_told_to_keep(tmp_path: Path, keep_last: int) -> None:
    """Those that it took more often than it pruned are gone, too."""
    config = await anyio.to_thread.run_sync(configured, tmp_path)
    config = with_checkpoint(config, interval_s=0.02, keep_last=keep_last)
    upstream, events, many = Turns(turns=1), Events(), anyio.Event()

    def emit(name: str, facts: dict[str, Any]) -> None:
        events.append((name, facts))
        if len(named(events, "checkpoint")) > 3:
            many.set()

    async with anyio.create_task_group() as group:
        group.start_soon(collect, config, Options(), emit, upstream)
        await many.wait()
        upstream.let_go(3)
    assert len(list((tmp_path / "store" / "checkpoints").iterdir())) == keep_last
