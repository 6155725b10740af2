"""Scenario 40: rollouts of a real language model, checkpointed in mid-generation, killed, and continued.

The model is the project's own worker, a small Llama in a process of its own that outlives the run; and any other
endpoint, where MIDFLIGHT_MODEL_URL and MIDFLIGHT_MODEL name one.
"""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import pytest

from participants import OpenAIEndpoint
from participants.backends import probe
from participants.ledger import Ledger, check
from store import Life
from tests.support.backend import Call, RunningBackend, start_backend
from tests.support.waiting import until

from .harness import TOOLS, Run, read_rows

URL, MODEL = "MIDFLIGHT_MODEL_URL", "MIDFLIGHT_MODEL"
"""Environment variables that name another endpoint; one that ends in `/v1`."""
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="the extra worker is not installed")

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

ROLLOUTS = 16
CUT = 6
"""Tokens of each call when the checkpoint is taken."""
HELD_S = 120.0
"""For all calls to come there; servers take long to come up on a busy machine."""


def talking_row(number: int) -> dict[str, Any]:
    """A row whose turns begin with words of the model's own, then use the counter, then say so."""
    turns = [
        {"filler": 14, "call": {"name": "increment_counter", "arguments": {"count": number + 2}}},
        {"filler": 8, "call": {"name": "get_counter_value", "arguments": {}}},
        {"filler": 8, "text": "done"},
    ]
    content = f"Story {number} <script>{json.dumps(turns)}</script>"
    return {
        "responses_create_params": {"input": [{"role": "user", "content": content}], "tools": TOOLS},
        "initial_count": 1,
        "expected_count": number + 3,
    }


def run_in(folder: Path, backend: Any) -> Run:
    """A run of all rollouts at once, greedy, captured, with checkpoints when asked for."""
    folder.mkdir()
    run = Run(folder, backend, [talking_row(number) for number in range(ROLLOUTS)], checkpoint={"interval_s": 0})
    run.parameters = {"temperature": 0}
    run.run = {"concurrency": ROLLOUTS}
    run.capture = {"folder": "ledger"}
    return run


@pytest.fixture(params=[False, True], ids=["inline", "staged"])
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningBackend]:
    """A worker of its own, with or without a token store."""
    store = ["--token-store", str(tmp_path / "tokens")] if request.param else []
    with start_backend(tmp_path, "--real", *store) as backend:
        yield backend


def calls_of(backend: RunningBackend, since: int) -> list[Call]:
    """Calls of rollouts, without those of probes."""
    return [call for call in backend.control.calls(since) if call.life]


async def problems(folder: Path, lives: list[Life]) -> list[Any]:
    """What the independent checker says of these rollouts' ledgers."""
    ledger, found = Ledger(str(folder)), []
    for life in lives:
        key = life.rollout_id + (f"-a{life.attempt}" if life.attempt else "")
        manifest = await ledger.manifest(key)
        rows = [row.to_json() for row in await ledger.rows(key)]
        assert len(rows) == 3
        found += check(rows, lives=[*manifest.origins, manifest.life], count=manifest.rows, last=manifest.last)
    return found


def killed_in_mid_generation(killed: Run, worker: RunningBackend) -> None:
    """A start with a checkpoint of all rollouts in the middle of their first calls, killed, and one that finishes."""
    worker.control.hold(after_tokens=CUT, substring="Story")
    with killed.start() as start:
        until(lambda: worker.control.counts()["held"] == ROLLOUTS or not start.lives(), HELD_S, start.told)
        start.signal(signal.SIGUSR1)
        until(lambda: bool(start.events("checkpoint")) or not start.lives(), told=start.told)
        start.kill()
        killed.end_servers()
    worker.control.wait(live_at_most=0)
    worker.control.release()
    assert killed.finish().summary["continued"] == ROLLOUTS


def check_ended_as_if_never_cut(worker: RunningBackend, folder: Path, fleet: dict[str, Any] | None) -> None:
    """Rows equal an uninterrupted run's; no token before the cut is generated again; each ledger is one sound chain."""
    alone = run_in(folder / "alone", worker)
    alone.finish()
    whole = calls_of(worker, 0)
    since = worker.control.counts()["total"]
    killed = run_in(folder / "killed", worker)
    killed.fleet = fleet
    try:
        killed_in_mid_generation(killed, worker)
    finally:
        killed.end_servers()
    assert read_rows(killed.folder / "out.jsonl") == read_rows(alone.folder / "out.jsonl")
    calls = calls_of(worker, since)
    again = [call for call in calls if call.continued]
    assert [call.continued for call in again] == [CUT] * ROLLOUTS
    assert sum(call.generated for call in calls) == sum(call.generated for call in whole)
    lines = (killed.folder / "out.jsonl").read_text().splitlines()
    lives = [Life.parse(json.loads(line)["_midflight_life"]) for line in lines]
    assert anyio.run(problems, killed.folder / "ledger", lives) == []


@needs_torch
def test_rollouts_cut_in_mid_generation_end_as_if_never_cut(worker: RunningBackend, tmp_path: Path) -> None:
    """In the collector's own process."""
    check_ended_as_if_never_cut(worker, tmp_path, None)


@needs_torch
@pytest.mark.parametrize("worker", [False], indirect=True, ids=["inline"])
def test_rollouts_cut_over_servers_end_as_if_never_cut(worker: RunningBackend, tmp_path: Path) -> None:
    """Every server is killed with the collector; the model's has two workers."""
    check_ended_as_if_never_cut(worker, tmp_path, {"mode": "start", "workers": {"model.main": 2}})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Another model than our own."""

    base_url: str
    model: str

    async def is_bit_equal(self) -> bool:
        """Whether its greedy output is the same after a cut, as declared and seen."""
        async with OpenAIEndpoint(self.base_url) as endpoint:
            return (await probe(endpoint, self.model)).capabilities.bit_equal


def story_run(folder: Path, endpoint: Endpoint) -> Run:
    """Long answers, greedy, all at once, with a checkpoint each second."""
    run = run_in(folder, endpoint)
    run.checkpoint = {"interval_s": 1.0}
    run.parameters = {"temperature": 0, "max_tokens": 400}
    for number, row in enumerate(run.rows):
        told = f"Tell the story of the number {number} in four hundred words."
        row["responses_create_params"] = {"input": [{"role": "user", "content": told}]}
    return run


@pytest.mark.skipif(URL not in os.environ, reason=f"{URL} names no endpoint")
def test_rollouts_of_any_other_model_continue(tmp_path: Path) -> None:
    """Killed after a checkpoint: every row once, some continued; and equal to an uninterrupted run where declared."""
    endpoint = Endpoint(os.environ[URL], os.environ.get(MODEL, ""))
    alone, killed = story_run(tmp_path / "alone", endpoint), story_run(tmp_path / "killed", endpoint)
    alone.finish()
    with killed.start() as start:
        until(lambda: bool(start.events("checkpoint")) or not start.lives(), told=start.told)
        assert start.lives(), f"it was through before its first checkpoint: {start.told()}"
        start.kill()
    summary = killed.finish().summary
    rows, expected = (read_rows(run.folder / "out.jsonl") for run in (killed, alone))
    assert summary["continued"] > 0
    assert len(rows) == len(expected) == ROLLOUTS
    if anyio.run(endpoint.is_bit_equal):
        assert rows == expected
