"""A record that fails at first use after a restore costs its rollout a start, and nobody else anything."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from orchestrator.collect import Collector, RunLedger, World, load_rollouts, open_segments
from orchestrator.collect.segments import Writer
from participants import Code, EnvironmentServer, LocalPeer, ModelServer, ParticipantError, SimpleAgent
from participants.servers.counter import CounterServer
from store import CorruptCheckpoint, Life

from .test_in_process import Events, OneTool, configured, named

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
async def refusing_world(error: Exception) -> AsyncIterator[World]:
    """Participants of which the environment server refuses a first dispatch."""
    model, counter = ModelServer(OneTool()), CounterServer("counter")
    peers = {"resources.counter": LocalPeer(counter)}
    agent = SimpleAgent(LocalPeer(model), peers, dialect="responses")
    environment = Refusing(LocalPeer(agent), peers)
    environment.broken = error
    async with environment.run():
        yield World(environment, model, agent, {"resources.counter": counter}, None)


@pytest.mark.parametrize(
    "error",
    [ParticipantError(Code.CORRUPT_CHECKPOINT, "the record is malformed"), CorruptCheckpoint("part", "it is no JSON")],
)
async def test_a_record_that_cannot_be_used_is_dropped_and_its_rollout_starts_over(
    tmp_path: Path, error: Exception
) -> None:
    """It is reported with the reason; every rollout is delivered, that one by its second attempt."""
    events: Events = []
    config = configured(tmp_path, checkpoints=False)
    segments = await open_segments(config.run.output, "run")
    async with refusing_world(error) as world:
        ledger = RunLedger.begin(1, await anyio.to_thread.run_sync(load_rollouts, config), ())
        collector = Collector(
            config,
            world,
            ledger,
            Writer(segments, 1),
            lambda name, facts: events.append((name, facts)),
        )
        await collector.run()
    await segments.aclose()
    assert [facts["life"].rpartition("/")[2] for facts in named(events, "dropped")] == ["1.0#0"]
    assert sorted(facts["life"].rpartition("/")[2] for facts in named(events, "row")) == ["1.0#1", "1.0#2", "1.1#3"]
    assert ledger.restarted == 1
