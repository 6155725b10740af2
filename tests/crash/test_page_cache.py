"""What another process, or another try, finds in the page cache is made durable before it is relied on."""

import itertools
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio
import pytest

from store import Retention, Store, StoreError, claim, prune
from store.backends import FileOp, Retrying
from tests.support.crash_states import Effort
from tests.support.file_ops import RecordingOps
from tests.support.oplog import FaultyRecordingOps, MortalOps, killed
from tests.support.rounds import Round, on_backend
from tests.support.tiers import sampled

from .conftest import Tally
from .explore import Verdicts, explore
from .scenes import ONE, PRUNED, TWO
from .stage import Stage, on_stage, plain_backend

pytestmark = pytest.mark.anyio

TRIES = 3
UNLINKS = 2
"""A plan that is not durable by then never was before the first deletion."""


async def until_it_works(work: Callable[[], Awaitable[object]]) -> None:
    """Do it again after a typed error, as a caller would."""
    for _ in range(TRIES - 1):
        try:
            await work()
        except StoreError:
            continue
        return
    await work()


async def publish_despite(nth: int, folder: Path) -> tuple[Stage, FaultyRecordingOps]:
    """Publish on top of a published checkpoint; the n-th sync fails, and what failed is repeated."""
    ops = FaultyRecordingOps(matches=lambda op: op.name == "fsync")
    async with on_stage(folder / "stage", ops) as stage, claim(stage.store) as controller:
        await Round(stage.store, controller, 1).run()
        await stage.begin()
        ops.faults.left = nth
        second = Round(stage.store, controller, 2)
        await until_it_works(second.commit)
        await until_it_works(second.publish)
        stage.mark("published")
        await stage.end()
    return stage, ops


@sampled(5)
async def test_a_publication_that_was_repeated_after_a_failed_sync_is_durable(
    step: int, tmp_path: Path, tally: Tally
) -> None:
    """Whichever sync failed before, once publish has returned the checkpoint survives a power loss."""
    tried_syncs, states = 0, 0
    for nth in itertools.count(1, step):
        folder = anyio.Path(tmp_path / str(nth))
        await folder.mkdir()
        stage, ops = await publish_despite(nth, Path(folder))
        struck = ops.faults.struck is not None
        tried = await explore(
            stage, Verdicts([ONE, TWO], {"published": 1}), Path(folder), _nothing, start=len(stage.log)
        )
        states += tried.states
        assert not tried.problems, f"sync {nth}, {ops.faults.struck}: {tried.problems}"
        if not struck:
            break
        tried_syncs += 1
    assert tried_syncs
    tally("failed syncs, repeated, then a power loss", f"{tried_syncs} syncs, {states} states")


async def prune_twice(lives_for: int, folder: Path) -> tuple[Stage, bool]:
    """Prune in a process that is killed after so many operations, then in another one."""
    async with on_stage(folder / "stage") as stage:
        async with claim(stage.store) as controller:
            await Round(stage.store, controller, 1).run()
            await Round(stage.store, controller, 2).run()
        await stage.begin()
        policy = Retention(keep_last=1)
        died = await _runs_out(prune(store_on(stage, MortalOps(lives_for, stage.ops.log)), policy))
        stage.mark("killed")
        second = RecordingOps()
        second.log = stage.ops.log
        await prune(store_on(stage, second), policy)
        stage.mark("pruned")
        await stage.end()
    return stage, died


def store_on(stage: Stage, ops: RecordingOps) -> Store:
    """The same store in another process."""
    return on_backend(Retrying(plain_backend(stage.root, ops)), stage.store.run_id)


async def _runs_out(work: Awaitable[object]) -> bool:
    """Whether the process was killed before the work was done."""
    try:
        await work
    except BaseException as error:
        if not killed(error):
            raise
        return True
    return False


@sampled(3)
async def test_a_prune_that_takes_over_a_plan_makes_the_plan_durable_first(
    step: int, tmp_path: Path, tally: Tally
) -> None:
    """A pruner killed right after it named its plan leaves a plan that may still be lost; the next one deletes nothing
    before it cannot be.
    """
    views = Verdicts([TWO, PRUNED, PRUNED.later(1)], {"killed": 0, "pruned": 2})
    effort = Effort(exhaustive=3, sample=0, go_on_each=1)
    whole, _ = await prune_twice(sys.maxsize, tmp_path)
    states, kills = 0, plan_in_the_air(whole.log)[::step]
    assert kills
    for kill in kills:
        folder = anyio.Path(tmp_path / str(kill))
        await folder.mkdir()
        stage, died = await prune_twice(kill, Path(folder))
        assert died
        start = stage.marks["killed"]
        unlinks = [at for at, op in enumerate(stage.log, 1) if at > start and op.name == "unlink"]
        tried = await explore(stage, views, Path(folder), _nothing, effort, start=start, end=unlinks[UNLINKS])
        states += tried.states
        assert not tried.problems, f"killed after operation {kill}: {tried.problems}"
    tally("prunes killed, taken over, then a power loss", f"{len(kills)} kills, {states} states")


def plan_in_the_air(log: Sequence[FileOp]) -> range:
    """After which operations the first chain entry has its name and may still lose it."""
    named = next(at for at, op in enumerate(log, 1) if op.name == "link" and op.target.startswith("chain/"))
    return range(named, next(at for at, op in enumerate(log, 1) if at > named and op == FileOp("fsync", "chain")))


async def _nothing(root: Path, found: object) -> None:
    """Look only."""
