"""A run in which every row fails stops before all of them have, and says so; the next start has the others."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.collect import EXIT_NOTHING_WORKS, Ending, NothingWorks, Options, collect
from orchestrator.collect.ending import Act
from participants import Code, ParticipantError, Reply
from store import Life

from .harness import Run
from .test_in_process import Events, OneTool, configured, fail_always, named, run

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


class Later(OneTool):
    """Fails the first tasks at once, and the others when it is told to."""

    def __init__(self) -> None:
        """Not told yet."""
        super().__init__()
        self._now = anyio.Event()

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        """Always a failure."""
        self.calls += 1
        if int(body["input"][0]["content"].removeprefix("task ")) >= 3:
            await self._now.wait()
        raise ParticipantError(Code.INTERNAL, "the model is down")

    def hear(self, name: str, facts: Mapping[str, Any]) -> None:
        """The first failure that is durable tells it: the others fail while the run stops."""
        if name == "failure":
            self._now.set()


@pytest.mark.unit
@pytest.mark.anyio
@pytest.mark.parametrize("max_attempts", [1, 3])
async def test_a_failure_that_is_in_the_last_checkpoint_is_forgiven_too(tmp_path: Path, max_attempts: int) -> None:
    """It was not durable when the run stopped, and goes on from there as a failure: the next start asks again."""
    config = configured(tmp_path, rows=40, stop_after_failures=3, concurrency=40, max_attempts=max_attempts)
    upstream, events = Later(), Events()
    with pytest.raises(NothingWorks):
        await collect(config, Options(), upstream.hear, upstream)
    summary = await run(config, OneTool(), events, retry_failed=True)
    assert named(events, "started")[0]["restored"] > 3
    assert (summary.exit_code, summary.failures, named(events, "failure")) == (0, 0, [])
    assert rewards(tmp_path) == [1.0] * 40


@pytest.mark.unit
@pytest.mark.anyio
async def test_a_cause_that_is_still_there_stops_the_run_again(tmp_path: Path) -> None:
    """What goes on and fails is started over once; after that it is a failure like any other."""
    config = configured(tmp_path, rows=40, stop_after_failures=3, concurrency=40)
    for retry_failed in (False, True, True):
        upstream = Later()
        with pytest.raises(NothingWorks):
            await collect(config, Options(retry_failed=retry_failed), upstream.hear, upstream)


@pytest.mark.unit
@pytest.mark.anyio
@pytest.mark.parametrize("checkpoints", [True, False], ids=["checkpoints", "rows_only"])
async def test_it_says_what_is_left_and_whether_work_under_way_is_saved(tmp_path: Path, checkpoints: bool) -> None:
    """A summary like that of any other end, and in the message what becomes of episodes that were begun."""
    config = configured(tmp_path, checkpoints=checkpoints, rows=8, stop_after_failures=1, **ONCE)
    events = Events()
    with pytest.raises(NothingWorks, match=r"^1 row of the input") as caught:
        await run(config, OneTool(fail_always), events)
    assert ("what was under way goes on." in str(caught.value)) == checkpoints
    assert ("starts over, as there are no checkpoints" in str(caught.value)) == (not checkpoints)
    [summary] = named(events, "summary")
    told = {name: summary[name] for name in ("exit_code", "rollouts", "done", "failed_for_good")}
    assert told == {"exit_code": EXIT_NOTHING_WORKS, "rollouts": 8, "done": 1, "failed_for_good": 1}


class Telling(Ending):
    """Tells the run to end at a moment when it is ending already."""

    def __init__(self, moment: int) -> None:
        """After so many of the steps that a signal would have stopped otherwise."""
        super().__init__()
        self._left = moment

    @contextmanager
    def stopping_by(self, act: Act, within_s: float) -> Iterator[None]:
        """When that step is over, the signal does what it does during the step around it."""
        try:
            with super().stopping_by(act, within_s):
                yield
        finally:
            self._left -= 1
            if self._left == 0:
                self._stop[0]()


@pytest.mark.unit
@pytest.mark.anyio
@pytest.mark.parametrize("checkpoints", [True, False], ids=["checkpoints", "rows_only"])
@pytest.mark.parametrize("moment", [1, 2, 3])
async def test_a_signal_while_a_run_ends_by_itself_hides_nothing(
    tmp_path: Path, moment: int, checkpoints: bool
) -> None:
    """Why it stopped is still said: after the last checkpoint, while everything is closed, and at its very end."""
    config = configured(tmp_path, checkpoints=checkpoints, rows=8, stop_after_failures=1, **ONCE)
    ending = Telling(moment)
    with pytest.raises(NothingWorks):
        await collect(config, Options(), lambda name, facts: None, OneTool(fail_always), None, ending)
    assert ending._left <= 0


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
