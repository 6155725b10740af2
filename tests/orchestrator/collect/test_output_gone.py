"""A store whose rows are not in the output any more is refused: nothing delivered is done again, nothing continued."""

from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from orchestrator.collect import Config, Segments
from orchestrator.collect.config import OutputGone
from store import LocalBackend, NoSpace, open_store

from .test_fresh import remove
from .test_from import epoch_of, gone, often
from .test_in_process import FullDisk, OneTool, configured, run

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


def renamed(config: Config, name: str) -> Config:
    """The same with another output."""
    output = str(Path(config.run.output).with_name(name))
    return config.model_copy(update={"run": config.run.model_copy(update={"output": output})})


async def assert_refused(config: Config, match: str) -> None:
    """Before a claim, and before a call."""
    upstream, before = OneTool(), await epoch_of(config)
    with pytest.raises(OutputGone, match=match) as refused:
        await run(config, upstream)
    assert "Put the output and its segments back" in str(refused.value)
    assert "--fresh" in str(refused.value)
    assert (upstream.calls, await epoch_of(config)) == (0, before)


async def test_a_finished_run_whose_output_was_removed_is_refused(tmp_path: Path) -> None:
    """Also where no checkpoint was ever taken; put back, all rows are done; a fresh start does them anew."""
    config, upstream = configured(tmp_path), OneTool()
    await run(config, upstream)
    segments = anyio.Path(tmp_path / "out.jsonl.segments")
    await segments.rename(tmp_path / "kept")
    await assert_refused(config, r"no segments of this run, which was started before \(epoch 1\)")
    await remove(tmp_path / "out.jsonl.segments")
    await anyio.Path(tmp_path / "kept").rename(segments)
    assert (await run(config, upstream)).found_done == 3
    assert upstream.calls == 6
    await remove(tmp_path / "out.jsonl.segments")
    assert (await run(config, upstream, fresh=True)).rows == 3
    assert (await run(config, upstream)).found_done == 3


async def test_a_run_whose_output_was_renamed_in_its_file_is_refused(tmp_path: Path) -> None:
    """Neither continues it in the other output, nor is anything of the first one lost by the try."""
    config = often(tmp_path)
    await gone(config)
    other = renamed(config, "other.jsonl")
    for _ in range(2):
        await assert_refused(other, r"other\.jsonl\.segments lacks rows .*segment 1 has 0 of \d+ bytes")
    summary = await run(config, OneTool())
    assert (summary.found_done, summary.continued, summary.rows) == (1, 2, 2)
    await assert_refused(other, "segment 1 has 0 of")
    assert (await run(other, OneTool(), fresh=True)).rows == 3
    assert (await run(other, OneTool())).found_done == 3


@pytest.mark.parametrize("starts", [1, 2])
async def test_an_output_that_is_shorter_than_its_run_says_is_refused(tmp_path: Path, starts: int) -> None:
    """One chunk of a segment is gone: the head says that it counts, or after another start a seal."""
    config = often(tmp_path)
    await gone(config)
    if starts == 2:
        await run(config, OneTool())
    [chunk] = [path async for path in anyio.Path(tmp_path).glob("out.jsonl.segments/*/1/00000001.jsonl")]
    await chunk.rename(tmp_path / "kept")
    await assert_refused(config, r"segment 1 has [1-9]\d* of \d+ bytes")
    await anyio.Path(tmp_path / "kept").rename(chunk)
    assert (await run(config, OneTool())).done == 3


@pytest.mark.parametrize("writes", [1, 2])
async def test_a_run_that_was_killed_before_its_first_row_goes_on(tmp_path: Path, writes: int) -> None:
    """It was claimed, and ended before its segment was begun, or just after: there is nothing that could be gone."""
    config = configured(tmp_path)
    (tmp_path / "out.jsonl.segments").mkdir()
    async with open_store(str(config.checkpoint.url), "write") as store:
        run_id = store.run_id
    full = Segments(LocalBackend(tmp_path / "out.jsonl.segments", FullDisk(writes=writes)), run_id)
    with pytest.raises(NoSpace):
        await run(config, OneTool(lambda call: None), segments=full)
    found = [path.name async for path in anyio.Path(tmp_path / "out.jsonl.segments" / run_id).iterdir()]
    assert sorted(found) == ["0", "1"][:writes]
    assert await epoch_of(config) == 1
    assert (await run(config, OneTool())).rows == 3
