"""What keeps two collectors of one run apart, and what a delivered rollout leaves behind: nothing."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from orchestrator.collect import Collector, Config, Line, Options, RunLedger, Segments, load_rollouts, open_world
from orchestrator.collect.embedded import EmbeddedWorlds, ModelToCome, Parts
from orchestrator.collect.epoch import Run, finish
from orchestrator.collect.segments import Header, Writer, open_segments
from orchestrator.collect.start import Wishes, seal_and_read
from store import Fenced, Seal, Store, claim, open_store

from .test_in_process import OneTool, configured

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """That of a run."""
    async with open_store(str(tmp_path / "store"), "write") as opened:
        yield opened


@pytest.fixture
async def segments(tmp_path: Path, store: Store) -> AsyncIterator[Segments]:
    """Those of the same run."""
    opened = await open_segments(str(tmp_path / "out.jsonl"), store.run_id)
    yield opened
    await opened.aclose()


async def begun(segments: Segments, epoch: int) -> Writer:
    """A segment with one row, of rollout `on-time`."""
    writer = Writer(segments, epoch)
    await writer.begin(Header({"model": "m"}))
    await writer.append([row("on-time", epoch)])
    return writer


def row(rollout_id: str, epoch: int) -> Line:
    """A finished rollout."""
    return Line(rollout_id, f"{rollout_id}/{epoch}.0#0", {"reward": 1.0})


async def read_as_next(store: Store, segments: Segments, **wishes: Any) -> list[str]:
    """What counts for the next one who claims the run."""
    async with claim(store, take_over=True) as controller:
        below = await seal_and_read(controller, segments, Wishes(**wishes))
    return [kept.rollout_id for kept in below.lines]


async def test_late_rows_of_a_fenced_writer_count_for_nobody_who_claims_later(store: Store, segments: Segments) -> None:
    """What was written before the seal counts for every later epoch; what came after it for none."""
    async with claim(store):
        fenced = await begun(segments, 1)
    assert await read_as_next(store, segments) == ["on-time"]
    await fenced.append([row("late", 1)])
    assert await read_as_next(store, segments) == ["on-time"]


async def test_each_segment_is_sealed_once_however_often_a_run_is_claimed(store: Store, segments: Segments) -> None:
    """A chain that names all of them each time grows with the square of the claims; it was 17 MB an hour of losses."""
    for epoch in range(1, 6):
        await read_as_next(store, segments)
        await begun(segments, epoch)
    sealed = [
        [(segment.name, segment.length > 0) for segment in entry.action.segments]
        for entry in (await store.chain()).entries
        if isinstance(entry.action, Seal)
    ]
    assert sealed == [[("1", True)], [("2", True)], [("3", True)], [("4", True)]]
    assert await read_as_next(store, segments, fresh=True) == []
    assert await read_as_next(store, segments) == []


async def test_a_fresh_start_seals_what_was_before_for_good(store: Store, segments: Segments) -> None:
    """Its seal at nothing holds for the starts after it, too."""
    async with claim(store):
        await begun(segments, 1)
    assert await read_as_next(store, segments, fresh=True) == []
    assert await read_as_next(store, segments) == []


async def test_a_collector_that_was_taken_over_merges_nothing(tmp_path: Path, store: Store, segments: Segments) -> None:
    """Fenced between its last row and the merge, it leaves the output to the one who has the run."""
    config = await anyio.to_thread.run_sync(configured, tmp_path)
    rollouts = await anyio.to_thread.run_sync(load_rollouts, config)
    ledger = RunLedger.begin(1, rollouts, [rollout.rollout_id for rollout in rollouts])
    async with claim(store) as controller:
        writer = Writer(segments, controller.epoch)
        await writer.append([row(rollout.rollout_id, 1) for rollout in rollouts])
        worlds = EmbeddedWorlds(
            config, Parts({"model.main": OneTool()}, {"model.main": ModelToCome("model.main")}, {}, [])
        )
        begun_run = Run(config, Options(), lambda *_: None, rollouts, {}, segments, worlds, store, controller)
        async with claim(store, take_over=True):
            with pytest.raises(Fenced):
                await finish(begun_run, ledger, writer.lines)
    assert not await anyio.Path(tmp_path / "out.jsonl").exists()


async def test_a_delivered_rollout_is_held_by_no_participant(tmp_path: Path) -> None:
    """The environment, agent, model and resources servers all free its state once its row is durable."""
    config: Config = await anyio.to_thread.run_sync(configured, tmp_path)
    rollouts = await anyio.to_thread.run_sync(load_rollouts, config)
    segments = await open_segments(config.run.output, "run")
    async with open_world(config, None, OneTool()) as world:
        await Collector(config, world, RunLedger.begin(1, rollouts, ()), Writer(segments, 1)).run()
        holders = {holder.role: holder.held() for holder in world.holders}
    await segments.aclose()
    assert holders == {f"{role}.main": [] for role in ("environment", "agent", "model")} | {"resources.counter": []}
