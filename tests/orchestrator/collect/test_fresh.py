"""`--fresh` is decided once and holds; and what is said where the store of an output went or was replaced."""

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from orchestrator.collect import Config, ConfigError, Options, collect
from orchestrator.collect.config import ForeignHead, OtherRun, StoreGone
from store import claim, open_store
from tests.support.checkpoints import AGENT, publish, records

from .test_in_process import Events, OneTool, configured, run

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


@pytest.fixture
async def config(tmp_path: Path) -> Config:
    """Of a run that is finished."""
    found = configured(tmp_path)
    assert (await run(found, OneTool())).rows == 3
    return found


async def remove(folder: Path) -> None:
    """A whole folder."""
    await anyio.to_thread.run_sync(shutil.rmtree, folder)


def elsewhere(config: Config, name: str) -> Config:
    """The same with another store."""
    url = str(Path(str(config.checkpoint.url)).with_name(name))
    return config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"url": url})})


def without_checkpoints(config: Config) -> Config:
    """The same with none."""
    return config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"enabled": False})})


async def test_a_fresh_start_after_the_store_was_removed_can_be_continued(config: Config, tmp_path: Path) -> None:
    """The refusal says what to do; `--fresh` does it; the same command without it then continues, and so on."""
    await remove(tmp_path / "store")
    with pytest.raises(StoreGone, match=r"holds no checkpoint store, .*Put its store .*back, or start anew with "):
        await run(config, OneTool())
    assert not (tmp_path / "store").exists()
    assert (await run(config, OneTool(), fresh=True)).rows == 3
    for _ in range(2):
        upstream = OneTool()
        summary = await run(config, upstream)
        assert (summary.exit_code, summary.found_done, upstream.calls) == (0, 3, 0)


@pytest.mark.enumerated(2)
@pytest.mark.parametrize("change", [lambda c: elsewhere(c, "other"), without_checkpoints])
async def test_the_last_fresh_start_decides_which_run_goes_on(
    config: Config, change: Callable[[Config], Config]
) -> None:
    """Another store, or none: refused, then fresh, then continued; the earlier one is the other run from then on."""
    changed = change(config)
    with pytest.raises(OtherRun if not changed.checkpoint.enabled else StoreGone):
        await run(changed, OneTool())
    assert (await run(changed, OneTool(), fresh=True)).rows == 3
    assert (await run(changed, OneTool())).found_done == 3
    with pytest.raises(OtherRun, match="has rows of another run"):
        await run(config, OneTool())
    assert (await run(config, OneTool(), fresh=True)).rows == 3
    assert (await run(config, OneTool())).found_done == 3


async def test_a_store_that_is_older_than_the_output_is_refused_before_anything_is_claimed(
    config: Config, tmp_path: Path
) -> None:
    """As where a copy of before was put back: its epochs would be taken twice, and no `--fresh` mends that."""
    await anyio.to_thread.run_sync(shutil.copytree, tmp_path / "store", tmp_path / "copy")
    await run(config, OneTool())
    await remove(tmp_path / "store")
    await anyio.Path(tmp_path / "copy").rename(tmp_path / "store")
    for fresh in (False, True):
        with pytest.raises(StoreGone, match="epoch 1 where the output has epoch 2"):
            await run(config, OneTool(), fresh=fresh)
    await remove(tmp_path / "store")
    assert (await run(config, OneTool(), fresh=True)).rows == 3


async def test_a_checkpoint_of_another_controller_is_told_as_such(tmp_path: Path) -> None:
    """It says nothing of what its run means, so no field of it could be accepted; nothing is claimed."""
    async with open_store(str(tmp_path / "store"), "write") as store, claim(store) as controller:
        await publish(store, controller, {AGENT: records(1)})
    with pytest.raises(ForeignHead, match="this checkpoint is not one of midflight collect") as refused:
        await run(configured(tmp_path), OneTool())
    assert "--accept" not in str(refused.value)
    async with open_store(str(tmp_path / "store")) as store:
        assert (await store.chain()).state.epoch == 1


class Removing(OneTool):
    """Removes a folder at its third call."""

    def __init__(self, remove: Callable[[], Awaitable[None]]) -> None:
        """`remove` does it."""
        super().__init__()
        self._remove = remove

    async def complete(self, *args: object, **options: object) -> object:  # type: ignore[override]
        """As ever."""
        if self.calls == 3:
            await self._remove()
        return await super().complete(*args, **options)  # type: ignore[arg-type]


async def test_a_store_that_goes_while_the_run_goes_costs_its_checkpoints_and_no_row(tmp_path: Path) -> None:
    """The output is whole; the next start says that the store is gone, and `--fresh` begins another run."""
    config, events = configured(tmp_path), Events()
    upstream = Removing(lambda: remove(tmp_path / "store"))
    summary = await run(config, upstream, events)
    assert (summary.exit_code, summary.rows) == (0, 3)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 3
    with pytest.raises(StoreGone):
        await run(config, OneTool())
    assert (await run(config, OneTool(), fresh=True)).rows == 3


async def test_a_refusal_leaves_the_output_as_it_was(config: Config, tmp_path: Path) -> None:
    """Neither rows nor segments change where a start is refused."""
    await remove(tmp_path / "store")
    before = sorted(path.name for path in (tmp_path / "out.jsonl.segments").rglob("*"))
    with pytest.raises(ConfigError):
        await collect(config, Options(), lambda *_: None, OneTool())
    assert sorted(path.name for path in (tmp_path / "out.jsonl.segments").rglob("*")) == before
