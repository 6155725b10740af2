"""`--from`: where the head is damaged, a start goes on from an older checkpoint, and from none that was not named."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.collect import Config, ConfigError, Options, collect
from orchestrator.collect.base import DamagedBase, NotABase, bases
from participants import Reply
from store import CheckpointId, Life, Retention, copy_checkpoint, open_store, prune
from tests.support.damage import flipped

from .test_in_process import Events, OneTool, configured, named, run

pytestmark = [pytest.mark.unit, pytest.mark.anyio]
PATIENCE_S = 20.0


class Told:
    """The events of a start, to be waited for."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.events: Events = []
        self._more = anyio.Event()

    def __call__(self, name: str, facts: dict[str, Any]) -> None:
        """One more."""
        self.events.append((name, facts))
        more, self._more = self._more, anyio.Event()
        more.set()

    async def until_checkpoint(self, rollouts: int) -> None:
        """Until there is one with so many rollouts."""
        with anyio.fail_after(PATIENCE_S):
            while all(each["rollouts"] != rollouts for each in named(self.events, "checkpoint")):
                await self._more.wait()


class Staged(OneTool):
    """Task 0 ends after a first checkpoint; after a second one, which has the other two, the collector is gone."""

    def __init__(self, told: Told, gone: anyio.CancelScope) -> None:
        """`gone` is cancelled then."""
        super().__init__()
        self._told = told
        self._gone = gone

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        """First calls at once, second ones in their time."""
        reply = await super().complete(route, body, life)
        if body["input"][-1].get("type") == "function_call_output":
            await self._told.until_checkpoint(3)
            if body["input"][0]["content"] != "task 0":
                await self._told.until_checkpoint(2)
                self._gone.cancel()
                await anyio.sleep_forever()
        return reply


class OnceMore(OneTool):
    """Answers once a checkpoint has both rollouts that are left."""

    def __init__(self, told: Told) -> None:
        """Of the start."""
        super().__init__()
        self._told = told

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        """As ever."""
        reply = await super().complete(route, body, life)
        await self._told.until_checkpoint(2)
        return reply


def often(folder: Path) -> Config:
    """Three rows, with a checkpoint at any time, of which many are kept."""
    config = configured(folder)
    table = config.checkpoint.model_copy(update={"interval_s": 0.02, "keep_last": 1000})
    return config.model_copy(update={"checkpoint": table})


async def gone(config: Config) -> tuple[CheckpointId, CheckpointId]:
    """A start that is gone: a row is there; gives an older checkpoint with all three rollouts, and the head."""
    told = Told()
    with anyio.CancelScope() as scope:
        await collect(config, Options(), told, Staged(told, scope))
    found = {each["rollouts"]: CheckpointId.parse(each["checkpoint"]) for each in named(told.events, "checkpoint")}
    async with open_store(str(config.checkpoint.url)) as store:
        head = (await store.chain()).state.head
    assert head is not None
    return found[3], head.checkpoint


async def epoch_of(config: Config) -> int:
    """How often the run was claimed."""
    async with open_store(str(config.checkpoint.url)) as store:
        return (await store.chain()).state.epoch


async def flip(config: Config, checkpoint: CheckpointId, pattern: str) -> Path:
    """One bit in the middle of the first object of a checkpoint that has such a name."""
    folder = anyio.Path(str(config.checkpoint.url)) / "checkpoints" / str(checkpoint)
    path = min([each async for each in folder.rglob(pattern)], key=lambda each: (len(each.parts), each))
    data = await path.read_bytes()
    await path.write_bytes(flipped(data, len(data) * 4))
    return Path(path)


MANIFEST, PART = "manifest.json", "00000-*"


@pytest.mark.parametrize("pattern", [MANIFEST, PART])
async def test_a_damaged_head_is_refused_by_name_and_an_older_one_is_continued_from_when_named(
    tmp_path: Path, pattern: str
) -> None:
    """Rows that are done stay done, what the older one has goes on, and checkpoints are taken and pruned again."""
    config = often(tmp_path)
    older, head = await gone(config)
    await flip(config, head, pattern)
    upstream = OneTool()
    with pytest.raises(DamagedBase, match=rf"continue from an older checkpoint with --from .*older than {head} ") as no:
        await run(config, upstream)
    assert str(older) in str(no.value)
    assert upstream.calls == 0
    told = Told()
    upstream = OnceMore(told)
    summary = await collect(config, Options(base=older), told, upstream)
    assert (summary.exit_code, summary.found_done, summary.continued, summary.rows) == (0, 1, 2, 2)
    assert (upstream.calls, summary.saved_calls) == (2, 2)  # What stood behind the boundary is not asked for again.
    assert not named(told.events, "checkpoint_failed")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["reward"] for row in rows] == [1.0] * 3
    assert len({row["_ng_rollout_id"] for row in rows}) == 3
    assert (await run(config, OneTool())).found_done == 3
    async with open_store(str(config.checkpoint.url), "write") as store:
        await prune(store, Retention(keep_last=1, drop=frozenset({head})))
        chain = await store.chain()
    assert head in chain.known.deleted
    assert [ref.checkpoint for ref in bases(chain)] == [chain.state.head and chain.state.head.checkpoint]


async def test_only_a_checkpoint_that_counts_can_be_named(tmp_path: Path) -> None:
    """None that is not there, was deleted, or is of before a fresh start; each is refused before a claim."""
    config = often(tmp_path)
    older, head = await gone(config)
    upstream = OneTool()
    with pytest.raises(NotABase, match=rf"--from 9\.9: there is no such checkpoint .*There are .*{older}, .*{head}; "):
        await run(config, upstream, base=CheckpointId(9, 9))
    with pytest.raises(ConfigError, match="--from continues from a checkpoint, and --fresh from none"):
        await run(config, upstream, base=older, fresh=True)
    async with open_store(str(config.checkpoint.url), "write") as store:
        await prune(store, Retention(drop=frozenset({older})))
    with pytest.raises(NotABase, match=rf"--from {older}: this checkpoint was deleted by chain entry \d+ "):
        await run(config, upstream, base=older)
    assert await epoch_of(config) == 1
    assert (await run(config, OneTool(), fresh=True)).rows == 3
    with pytest.raises(NotABase, match=rf"--from {head}: this checkpoint is of before the last --fresh"):
        await run(config, upstream, base=head)
    assert (upstream.calls, await epoch_of(config)) == (0, 2)


async def test_a_checkpoint_of_another_run_cannot_be_named(tmp_path: Path) -> None:
    """It was copied in; the rows of its run are elsewhere."""
    (tmp_path / "other").mkdir()
    other, config = often(tmp_path / "other"), configured(tmp_path)
    older, _ = await gone(other)
    for _ in range(2):
        await run(config, OneTool())
    async with (
        open_store(str(other.checkpoint.url)) as source,
        open_store(str(config.checkpoint.url), "write") as target,
    ):
        await copy_checkpoint(source, target, older)
    with pytest.raises(NotABase, match=rf"--from {older}: this checkpoint was copied in from another run "):
        await run(config, OneTool(), base=older)
    assert await epoch_of(config) == 2


async def test_a_checkpoint_cannot_be_named_where_there_are_none(tmp_path: Path) -> None:
    """A run without checkpoints says so, and begins nothing."""
    with pytest.raises(ConfigError, match=r"--from needs \[checkpoint\]"):
        await run(configured(tmp_path, checkpoints=False), OneTool(), base=CheckpointId(1, 1))
    assert not (tmp_path / "out.jsonl.segments").exists()


async def test_where_no_older_checkpoint_is_left_the_error_says_so(tmp_path: Path) -> None:
    """It names what helps: a copy of the file, or a fresh start."""
    config = often(tmp_path)
    _, head = await gone(config)
    async with open_store(str(config.checkpoint.url), "write") as store:
        await prune(store, Retention(keep_last=1))
    await flip(config, head, MANIFEST)
    with pytest.raises(DamagedBase, match=rf"no checkpoint older than {head}, start anew with --fresh") as refused:
        await run(config, OneTool())
    assert "--from" not in str(refused.value)
