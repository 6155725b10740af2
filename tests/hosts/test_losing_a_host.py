"""A run over three hosts loses one of them, and goes on over the two that are left; then over three again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from participants import CONTROL_PREFIX, Status
from store import Life, open_store, verify_store
from tests.orchestrator.collect.test_kill import fetch, s3_environment
from tests.orchestrator.deployment.programs import Program
from tests.scenarios.seen import Seen
from tests.scenarios.tasks import tasks
from tests.support.backend import RunningBackend
from tests.support.namespaces import Network, clock_library
from tests.support.seaweed import S3Server

from .fleets import CUT_AT, HostRun
from .places import CONTROLLER, HOSTS

pytestmark = pytest.mark.timeout(600)

ROLLOUTS = 12
"""So many that each of the three hosts has some."""
CLOCKS_ARE_WITHIN_S = 60.0


@pytest.mark.process
def test_a_host_of_three_is_lost_and_comes_back_and_a_shared_folder_has_every_row_once(
    network: Network, host_backend: RunningBackend, tmp_path: Path
) -> None:
    """With the collect on it; two go on from the checkpoint, which are then killed, and three go on from theirs."""
    host_backend.control.reset()
    run = _run(network, host_backend, tmp_path)
    _lose_c(run, collect_on="c")
    run.hosts = ("a", "b")
    run.hold_at(4)
    host_backend.control.release()
    run.hold_at(4)
    with run.up(), run.collect("b") as start:
        run.all_in_a_checkpoint(start)
        assert start.events("started")[0]["restored"] == ROLLOUTS
    network.bring_back("c")
    run.hosts = HOSTS
    host_backend.control.release()
    with run.up() as programs, run.collect("a") as start:
        start.wait(0)
        assert start.events("started")[0]["restored"] == ROLLOUTS
        _clocks_differ(run, programs)
    _check(run, tmp_path / "out.jsonl", [3, 4, 5])
    anyio.run(_check_store, run, None)


@pytest.mark.real
def test_a_host_of_three_is_lost_and_object_storage_has_every_row_once(
    network: Network, host_backend: RunningBackend, host_s3: S3Server, tmp_path: Path
) -> None:
    """The collect is elsewhere and is killed; two hosts go on from the checkpoint to the end."""
    host_backend.control.reset()
    s3 = replace(host_s3, prefix=tmp_path.name)
    run = _run(network, host_backend, tmp_path)
    run.checkpoint_url, run.output = f"{s3.url}/checkpoints", f"{s3.url}/out.jsonl"
    run.environment = s3_environment(s3)
    _lose_c(run, collect_on=CONTROLLER)
    run.hosts = ("a", "b")
    host_backend.control.release()
    with run.up(), run.collect("b") as start:
        start.wait(0)
        assert start.events("started")[0]["restored"] == ROLLOUTS
    _check(run, fetch(s3, "out.jsonl", tmp_path / "got"), [3, 5])
    anyio.run(_check_store, run, s3.options())


def _run(network: Network, backend: RunningBackend, folder: Path) -> HostRun:
    every = tasks(ROLLOUTS, adds=3, filler=20)
    checkpoint = {"interval_s": 0, "liveness_beat_s": 1}
    rows = [task.row for task in every]
    return HostRun(folder, backend, rows, checkpoint=checkpoint, network=network, tasks=every)


def _lose_c(run: HostRun, collect_on: str) -> None:
    """Hold every rollout in its third model call, with a checkpoint of that; then the host's power fails."""
    run.hold_at(3)
    with run.up() as programs, run.collect(collect_on) as start:
        run.all_in_a_checkpoint(start)
        lives = _lives(run, programs)
        assert sum(lives.values()) == ROLLOUTS
        assert all(lives.values()), f"some host has no rollout: {lives}"
        _clocks_differ(run, programs)
        run.network.lose("c")
    run.backend.control.wait(live_at_most=0)


def _servers(programs: Mapping[str, Program]) -> dict[str, dict[str, Any]]:
    """By host, role to what `up` says of the server there."""
    return {host: {s["role"]: s for s in each.said("up")[0]["servers"]} for host, each in programs.items()}


def _lives(run: HostRun, programs: Mapping[str, Program]) -> dict[str, int]:
    """How many rollouts each host's environment has."""
    found = {}
    with httpx.Client(headers={"authorization": f"Bearer {run.token}"}, timeout=10) as http:
        for host, servers in _servers(programs).items():
            answer = http.get(f"{servers['environment.main']['url']}{CONTROL_PREFIX}/status").raise_for_status()
            found[host] = Status.model_validate_json(answer.content).counts["lives"]
    return found


def _clocks_differ(run: HostRun, programs: Mapping[str, Program]) -> None:
    """What servers log at about the same time has the times of their hosts' clocks."""
    if not clock_library():
        return
    started = {}
    for host, servers in _servers(programs).items():
        lines = Path(servers["environment.main"]["log"]).read_text().splitlines()
        started[host] = datetime.fromisoformat(json.loads(lines[-1])["ts"]).timestamp()
    for host, at in started.items():
        apart = at - started[run.hosts[-1]] - (run.network.hosts[host].skew_s - run.network.hosts[run.hosts[-1]].skew_s)
        assert abs(apart) < CLOCKS_ARE_WITHIN_S, started


def _check(run: HostRun, output: Path, boundaries: Sequence[int]) -> None:
    """Every row is there once with its reward, and the lives share its calls: no step before a boundary came again.

    `boundaries` are the calls that each life but the first began with, and the last one of all.
    """
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(rows) == len({Life.parse(row["_midflight_life"]).rollout_id for row in rows}) == ROLLOUTS
    assert {row["reward"] for row in rows} == {1.0}
    seen = run.seen()
    lives: dict[str, list[Life]] = {}
    for life in sorted(seen.calls, key=lambda life: life.epoch):
        lives.setdefault(life.rollout_id, []).append(life)
    assert len(lives) == ROLLOUTS
    for own in lives.values():
        assert len(own) == len(boundaries), seen
        _check_rollout(seen, own, [1, *boundaries])


def _check_rollout(seen: Seen, lives: Sequence[Life], calls: Sequence[int]) -> None:
    for life, first, last in zip(lives, calls[:-1], calls[1:], strict=True):
        assert seen.calls[life] == list(range(first, last + 1)), f"{life}\n{seen}"
        assert seen.continued(life)[0] == (0 if first == 1 else CUT_AT), f"{life}\n{seen}"
    tools = [what for life in lives for what in seen.tools.get(life, [])]
    assert len(tools) == len(set(tools)) == calls[-1] - 1, f"{lives}\n{seen}"
    assert [life for life in seen.verified if life in lives] == [lives[-1]]


async def _check_store(run: HostRun, options: dict[str, Any] | None) -> None:
    url = str(run.folder / "checkpoints") if options is None else str(run.checkpoint_url)
    async with open_store(url, "read", storage_options=options) as store:
        report = await verify_store(store, deep=True)
    assert report.sound, report
