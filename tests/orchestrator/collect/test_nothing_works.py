"""A run in which every row fails stops before all of them have, and says so; the next start has the others."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.collect import NothingWorks
from participants import Code, ParticipantError, Reply
from store import Life

from .harness import Run
from .test_in_process import OneTool, configured, fail_always, run

ONCE: dict[str, Any] = {"concurrency": 1, "max_attempts": 1}


def failing(*calls: int) -> OneTool:
    """A model that fails at these calls, counted from 1."""

    def before(call: int) -> None:
        if call in calls:
            fail_always(call)

    return OneTool(before)


def rewards(folder: Path) -> list[float]:
    """Of the output, one a row."""
    return [json.loads(line)["reward"] for line in (folder / "out.jsonl").read_text().splitlines()]


@pytest.mark.unit
@pytest.mark.anyio
@pytest.mark.parametrize("checkpoints", [True, False], ids=["checkpoints", "rows_only"])
async def test_a_run_stops_when_so_many_rows_have_failed_and_none_has_worked(tmp_path: Path, checkpoints: bool) -> None:
    """The error has the number, the last failure and what to do; the rows that were never begun are still to come."""
    config = configured(tmp_path, checkpoints=checkpoints, rows=8, stop_after_failures=3, **ONCE)
    broken = OneTool(fail_always)
    with pytest.raises(NothingWorks, match=r"^3 rows .*step_failed: .*the model is down.*--retry-failed"):
        await run(config, broken)
    assert broken.calls == 3
    assert not (tmp_path / "out.jsonl").exists()
    working = OneTool()
    assert (await run(config, working)).exit_code == 1, "the three are not forgiven without being asked for"
    assert working.calls == 2 * 5
    summary = await run(config, working, retry_failed=True)
    assert (summary.exit_code, summary.rows) == (0, 3)
    assert rewards(tmp_path) == [1.0] * 8


@pytest.mark.unit
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("told", "calls"),
    [
        # A call that fails is its episode's only one; one that works is the first of two.
        ({}, (1, 2, 5, 6, 9, 10)),
        ({"max_attempts": 4, "rows": 2}, (1, 2, 3, 4, 5, 6)),
        ({"max_attempts": 4, "rows": 2, "repeats": 3}, tuple(range(1, 11))),
        ({"stop_after_failures": 0}, tuple(range(1, 9))),
        ({"rows": 3}, (1, 2, 3)),
    ],
    ids=["never_three_in_a_row", "two_rows_again_and_again", "repeats_of_two_rows", "told_not_to", "all_have_failed"],
)
async def test_a_run_goes_on_to_its_end_otherwise(tmp_path: Path, told: dict[str, Any], calls: tuple[int, ...]) -> None:
    """Where rows work in between, fail again and again, have repeats, or are all done; and where 0 says so."""
    config = configured(tmp_path, **{"rows": 8, "stop_after_failures": 3, **ONCE, **told})
    upstream = failing(*calls)
    summary = await run(config, upstream)
    assert summary.failures == len(calls)
    assert summary.done == summary.rollouts


class Waiting(OneTool):
    """Task 0 is held in its second call, and every other task fails as soon as it is."""

    def __init__(self) -> None:
        """Nobody is held yet."""
        super().__init__()
        self._held = anyio.Event()

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        """Answer, hold or fail, by whose call it is."""
        [first, *more] = body["input"]
        if first["content"] == "task 0" and more:
            self._held.set()
            await anyio.sleep_forever()
        if first["content"] != "task 0":
            await self._held.wait()
            raise ParticipantError(Code.INTERNAL, "the model is down")
        return await super().complete(route, body, life)


@pytest.mark.unit
@pytest.mark.anyio
async def test_what_was_under_way_when_the_run_stopped_is_in_a_last_checkpoint(tmp_path: Path) -> None:
    """Its first call is not made again."""
    config = configured(tmp_path, rows=6, stop_after_failures=3, concurrency=2, max_attempts=1)
    with pytest.raises(NothingWorks):
        await run(config, Waiting())
    working = OneTool()
    summary = await run(config, working, retry_failed=True)
    assert (summary.exit_code, summary.continued, summary.saved_calls, summary.rows) == (0, 1, 1, 6)
    assert working.calls == 2 * 6 - 1


@pytest.mark.process
@pytest.mark.parametrize("served", [False, True], ids=["embedded", "servers"])
def test_a_key_that_is_refused_ends_the_command_with_78(run: Run, served: bool) -> None:
    """And one line on stderr; with another model's name put right, the same command finishes everything."""
    run.run = {"stop_after_failures": 2, "concurrency": 1}
    run.fleet = {"mode": "start"} if served else None
    right = run.backend.model
    run.model = {"model": "no-such-model"}
    ended = run.finish(code=78)
    [failed] = ended.events("failed")
    assert (failed["error"], failed["exit_code"]) == ("NothingWorks", 78)
    assert "no-such-model" in failed["message"]
    assert failed["message"] in ended.errors.read_text()
    run.model = {"model": right}
    run.finish("--accept", "model", "--retry-failed")
    assert rewards(run.folder) == [1.0] * 4
