"""Where a training run begins: fresh, from the head, over servers that outlived the trainer, or not at all."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from midflight import (
    CheckpointId,
    CorruptCheckpoint,
    Draft,
    ForeignHead,
    ForeignObject,
    Life,
    Retention,
    ServersLost,
    TrainingRun,
    UnusableFile,
    UnusableState,
    claim,
    files_in_use,
    open_checkpoint,
    prune,
    training_run,
)
from tests.support.owners import Pause, settle

from .stage import LIMITS, Stage, Strike, StruckLink, row

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


@asynccontextmanager
async def over(stage: Stage, links: Sequence[Any], **more: Any) -> AsyncIterator[TrainingRun]:
    """A trainer over participants that outlive it."""
    async with training_run(links, stage.store(), limits=LIMITS, **more) as run:
        yield run


async def save(run: TrainingRun, state: Any = "saved", **files: Path) -> None:
    """A whole checkpoint."""
    async with run.checkpoint() as saving:
        saving.state = state
        for name, path in files.items():
            saving.file(name, path)


async def results(run: TrainingRun, count: int) -> dict[str, Life]:
    """The lives of the next results, by rollout."""
    return {result.rollout_id: result.life for result in [await run.next() for _ in range(count)]}


async def test_servers_that_outlived_the_trainer_go_on_with_what_the_head_has_and_end_everything_else() -> None:
    """Undelivered lives come as they are, once; a delivered one is released; what the head lacks is dispatched anew."""
    stage = Stage()
    async with stage.participants() as links:
        async with over(stage, links) as run:
            await run.dispatch({"a": row(), "b": row(), "c": row()}, after=None, cursor=3)
            first = await results(run, 1)
            await save(run, sorted(first))
            await results(run, 1)  # Given, and in no checkpoint: it comes again.
            await run.dispatch({"d": row()}, after=3, cursor=4)
        async with over(stage, links) as run:
            assert (run.state, run.cursor, set(run.undelivered)) == (["a"], 3, {"b", "c"})
            await run.dispatch({"d": row()}, after=3, cursor=4)
            found = await results(run, 3)
            assert {name: (life.epoch, life.attempt) for name, life in found.items()} == {
                "b": (1, 0), "c": (1, 0), "d": (2, 0)
            }  # fmt: skip
            await save(run)
            assert not stage.environments[0].held()


async def test_without_adopting_every_rollout_goes_on_exactly_from_the_head() -> None:
    """What servers had beyond it is ended, so that weights and rollouts are of one moment."""
    stage = Stage()
    async with stage.participants() as links:
        async with over(stage, links) as run:
            await run.dispatch({"a": row(), "b": row()}, after=None, cursor=2)
            await save(run)
        async with over(stage, links, adopt_running=False) as run:
            found = await results(run, 2)
            assert {(life.epoch, life.attempt) for life in found.values()} == {(2, 1)}


@pytest.mark.parametrize("outlives", [True, False])
async def test_a_trainer_that_dies_between_publication_and_release_gives_nothing_twice(outlives: bool) -> None:
    """The next start releases what the head has delivered, and gives only the rest."""
    stage, strike = Stage(), Strike(mode="dies")
    async with stage.participants() as links:
        with strike.life:
            struck = [StruckLink(link, strike) for link in links]
            async with over(stage, struck) as run:
                await run.dispatch({"a": row(), "b": row()}, after=None, cursor=2)
                first = await results(run, 1)
                strike.strikes_at("Release")
                await save(run, list(first))
        assert strike.calls[-1].startswith("Release")
        assert len(stage.environments[0].held()) == 2
        if outlives:
            async with over(stage, links) as run:
                assert (run.state, run.undelivered, len(stage.environments[0].held())) == (["a"], ("b",), 1)
                assert set(await results(run, 1)) == {"b"}
    if not outlives:
        async with stage.participants() as links, over(stage, links) as run:
            assert (run.state, run.undelivered) == (["a"], ("b",))
            assert set(await results(run, 1)) == {"b"}


async def test_restored_rollouts_stay_parked_until_the_trainer_asks_for_something() -> None:
    """It has its weights in place by then. A checkpoint before that has them as they were."""
    stage = Stage(holds={"a": Pause()})
    async with stage.participants() as links, over(stage, links) as run:
        await run.dispatch({"a": row()}, after=None, cursor=1)
        await save(run, "first")
    stage.holds.clear()
    async with stage.participants() as links, over(stage, links) as run:
        await settle()
        assert (stage.environments[1].held(), stage.environments[1].counts()["restored"]) == ([], 1)
        await save(run, "second")
        manifest = (await open_checkpoint(stage.store())).manifest
        assert [str(life) for life in manifest.scope] == ["a/1.0#0"]
        assert {name: str(life) for name, life in (await results(run, 1)).items()} == {"a": "a/2.1#0"}


async def test_what_no_checkpoint_captures_starts_over_from_its_row() -> None:
    """It is named, and comes once."""
    stage = Stage(holds={"a": Pause()})
    async with stage.participants() as links, over(stage, links) as run:
        await run.dispatch({"a": row(restart=True), "b": row()}, after=None, cursor=2)
        await settle()
        async with run.checkpoint() as saving:
            saving.state = 1
            assert [life.rollout_id for life in saving.restarts] == ["a"]
    stage.holds.clear()
    async with stage.participants() as links, over(stage, links) as run:
        assert run.started_over.keys() == {"a"}
        assert {name: life.attempt for name, life in (await results(run, 2)).items()} == {"a": 1, "b": 1}


async def test_a_lost_server_is_named_and_the_next_start_continues_from_the_head() -> None:
    """Whoever waits hears of it, and so does every later call; here it does not answer any more."""
    stage, strike = Stage(holds={"a": Pause()}), Strike()
    async with stage.participants() as links, over(stage, [StruckLink(link, strike) for link in links]) as run:
        await run.dispatch({"a": row()}, after=None, cursor=1)
        await save(run, "before")
        strike.dead = True
        with pytest.raises(ServersLost, match=r"environment\.main/w0.*enter training_run again"):
            await run.next()
        with pytest.raises(ServersLost):
            await save(run, "after")
    stage.holds.clear()
    async with stage.participants() as links, over(stage, links) as run:
        assert (run.state, set(await results(run, 1))) == ("before", {"a"})


async def test_files_are_checked_before_anything_is_opened_and_known_while_a_checkpoint_names_them(
    tmp_path: Path,
) -> None:
    """One that differs is named; those of pruned checkpoints are in use no more."""
    stage, old, new = Stage(), tmp_path / "old", tmp_path / "new"
    for path in (old, new):
        path.write_bytes(path.name.encode())
    async with stage.participants() as links, over(stage, links) as run:
        await run.dispatch({"a": row()}, after=None, cursor=1)
        await save(run, 1, weights=old)
        await save(run, 2, weights=new)
        assert await files_in_use(stage.store()) == {old, new}
        await prune(stage.store(), Retention(keep_last=1))
        assert await files_in_use(stage.store()) == {new}
    async with stage.participants() as links:
        async with over(stage, links) as run:
            assert (run.state, run.files) == (2, {"weights": new})
        os.truncate(new, 1)
        with pytest.raises(CorruptCheckpoint, match="new is damaged: it has 1 bytes"):
            async with over(stage, links):
                raise AssertionError


async def test_a_file_that_the_last_checkpoint_names_is_not_to_be_written_again(tmp_path: Path) -> None:
    """A trainer with one name for all its weights hears of it at once, and not when it has to be restored."""
    stage, path = Stage(), tmp_path / "weights"
    path.write_bytes(b"one")
    async with stage.participants() as links, over(stage, links) as run:
        for state in (1, 2):
            await save(run, state, weights=path)
        path.write_bytes(b"two")
        with pytest.raises(UnusableFile, match="was written again although the last checkpoint names it"):
            await save(run, 3, weights=path)
        await run.dispatch({"a": row()}, after=None, cursor=1)
        path.write_bytes(b"one")
        await save(run, 4, weights=path)
    async with stage.participants() as links, over(stage, links) as run:
        assert run.state == 4
        path.write_bytes(b"two")
        with pytest.raises(UnusableFile, match="of its own"):
            await save(run, 5, weights=path)
        await save(run, 6)
        await save(run, 7, weights=path)


async def test_a_run_that_means_something_else_and_a_foreign_head_are_refused() -> None:
    """By the field that differs, and before servers hear anything."""
    stage = Stage()
    async with stage.participants() as links:
        async with over(stage, links, fingerprint={"data": "one"}) as run:
            await run.dispatch({"a": row()}, after=None, cursor=1)
            await save(run)
        with pytest.raises(UnusableState, match=r"fingerprint\['rate'\] is no text but 0.1"):
            async with over(stage, links, fingerprint={"rate": 0.1}):
                raise AssertionError
        with pytest.raises(ForeignObject, match="data"):
            async with over(stage, links, fingerprint={"data": "two"}):
                raise AssertionError
        async with claim(stage.store()) as controller:
            draft = Draft(
                checkpoint=controller.next_round(),
                parent=CheckpointId(1, 1),
                participants=(),
                scope=(),
                state={"cursor": 1},
            )
            await controller.publish(draft, timeout_s=5)
        with pytest.raises(ForeignHead, match="another controller"):
            async with over(stage, links):
                raise AssertionError
        assert stage.environments[0].epoch == 1
