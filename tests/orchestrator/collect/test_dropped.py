"""A record that fails at first use after a restore costs its rollout a start, and nobody else anything."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from orchestrator.collect import Collector, EmbeddedWorld, RunLedger, load_rollouts, open_segments
from orchestrator.collect.segments import Writer
from participants import Code, EnvironmentServer, LocalPeer, ModelServer, ParticipantError, Result, SimpleAgent
from participants.servers.counter import CounterServer
from store import CorruptCheckpoint, Life

from .test_in_process import Events, OneTool, configured, named, run

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


class Refusing(EnvironmentServer):
    """Cannot take up what the first life is to continue from."""

    broken: Exception | None = None

    async def dispatch(self, life: Life, row: Mapping[str, Any]) -> None:
        """Refuse once."""
        error, self.broken = self.broken, None
        if error is not None:
            await self.enter(life, creates=True)
            raise error
        await super().dispatch(life, row)


@asynccontextmanager
async def refusing_world(error: Exception) -> AsyncIterator[EmbeddedWorld]:
    """Participants of which the environment server refuses a first dispatch."""
    model, counter = ModelServer(OneTool()), CounterServer("counter")
    peers = {"resources.counter": LocalPeer(counter)}
    agent = SimpleAgent(LocalPeer(model), peers, dialect="responses")
    environment = Refusing(LocalPeer(agent), peers)
    environment.broken = error
    async with environment.run():
        yield EmbeddedWorld(environment, model, agent, {"resources.counter": counter}, None)


async def collect_refused(folder: Path, error: Exception, **run: Any) -> tuple[Events, RunLedger]:
    """Three rollouts, of which the first dispatch is refused."""
    events: Events = []
    config = configured(folder, checkpoints=False, **run)
    segments = await open_segments(config.run.output, "run")
    async with refusing_world(error) as world:
        ledger = RunLedger.begin(1, await anyio.to_thread.run_sync(load_rollouts, config), ())
        writer = Writer(segments, 1)
        await Collector(config, world, ledger, writer, lambda name, facts: events.append((name, facts))).run()
    await segments.aclose()
    return events, ledger


@pytest.mark.parametrize(
    "error",
    [ParticipantError(Code.CORRUPT_CHECKPOINT, "the record is malformed"), CorruptCheckpoint("part", "it is no JSON")],
)
async def test_a_record_that_cannot_be_used_is_a_failure_and_its_rollout_starts_over(
    tmp_path: Path, error: Exception
) -> None:
    """It is reported with the reason; every rollout is delivered, that one by its second attempt."""
    events, ledger = await collect_refused(tmp_path, error)
    [failure] = named(events, "failure")
    assert failure["life"].rpartition("/")[2] == "1.0#0"
    assert (failure["final"], failure["_ng_failure_class"]) == (False, "step_failed")
    assert str(error) in failure["_ng_failure_message"]
    assert sorted(facts["life"].rpartition("/")[2] for facts in named(events, "row")) == ["1.0#1", "1.0#2", "1.1#3"]
    assert set(ledger.failures.values()) == {1}


async def test_a_dispatch_that_fails_uses_up_an_attempt(tmp_path: Path) -> None:
    """Where a rollout has one start, a refused dispatch is its last; the other rollouts are delivered."""
    events, ledger = await collect_refused(tmp_path, CorruptCheckpoint("part", "it is no JSON"), max_attempts=1)
    assert [failure["final"] for failure in named(events, "failure")] == [True]
    assert (len(named(events, "row")), len(ledger.done)) == (2, 3)


class Stuttering(EnvironmentServer):
    """Tells each result twice, and before it one of a life that is over."""

    async def results(self) -> AsyncIterator[Result]:
        """As often as that."""
        async for result in super().results():
            yield replace(result, life=replace(result.life, n=result.life.n + 1000))
            yield result
            yield result


async def test_a_result_of_another_life_and_one_that_comes_again_are_ignored(tmp_path: Path) -> None:
    """What is late or repeated writes no row and ends no rollout: three rows, of the three lives dispatched."""
    events: Events = []
    config = configured(tmp_path, checkpoints=False)
    segments = await open_segments(config.run.output, "run")
    counter = CounterServer("counter")
    peers = {"resources.counter": LocalPeer(counter)}
    model = ModelServer(OneTool())
    agent = SimpleAgent(LocalPeer(model), peers, dialect="responses")
    async with Stuttering(LocalPeer(agent), peers).run() as environment:
        world = EmbeddedWorld(environment, model, agent, {"resources.counter": counter}, None)
        ledger = RunLedger.begin(1, await anyio.to_thread.run_sync(load_rollouts, config), ())
        writer = Writer(segments, 1)
        await Collector(config, world, ledger, writer, lambda name, facts: events.append((name, facts))).run()
    await segments.aclose()
    assert sorted(Life.parse(facts["life"]).n for facts in named(events, "row")) == [0, 1, 2]
    assert (len(writer.lines), len(ledger.done)) == (3, 3)


@pytest.mark.parametrize(
    "wrong", [{"task_id": {"taskset": "counter", "task_id": "1", "x": 1}, "task_input": {}}, {"task_input": 5}]
)
async def test_a_row_that_is_no_task_fails_for_good_at_its_first_dispatch(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    """It is one failure of class invalid_request, whatever attempts are left; the other rows are delivered."""
    config, events = configured(tmp_path), Events()
    row = {"task_id": {"taskset": "counter", "task_id": "1"}, **wrong}
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write(f"\n{json.dumps(row)}\n")
    summary = await run(config, OneTool(), events)
    assert (summary.exit_code, summary.rows, summary.failures, summary.failed_for_good) == (1, 3, 1, 1)
    [failure] = [json.loads(line) for line in (tmp_path / "out_failures.jsonl").read_text().splitlines()]
    assert (failure["_ng_failure_class"], failure["_ng_failure_terminal"]) == ("invalid_request", True)
    assert named(events, "failure")[0]["final"]
