"""Off means off: without a checkpoint configuration none of its code runs, and nothing of it is there to be met."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest

from orchestrator.collect import Options, collect
from participants import CONTROL_PREFIX, OPERATIONS, EnvironmentServer, LocalPeer, ModelServer, SimpleAgent, data_app
from participants.servers import CounterServer

from .inside import Turns
from .test_in_process import OneTool, configured

pytestmark = [pytest.mark.unit, pytest.mark.anyio]
ROOT = str(Path(__file__).parents[3])
OF_CHECKPOINTS = {
    "participants/plane.py",
    "participants/book.py",
    "participants/tally.py",
    "orchestrator/coordination.py",
    "orchestrator/rounds.py",
    "orchestrator/fleet.py",
    "orchestrator/links.py",
    "orchestrator/collect/checkpoints.py",
    "store/chain.py",
    "store/alive.py",
    "store/commit.py",
    "store/publish.py",
    "store/root.py",
}
"""Files that only a run with checkpoints has a use for."""
TASKS_OF_CHECKPOINTS = ("_watch_lease", "Checkpoints.run", "_watch")


@contextmanager
def calls() -> Iterator[dict[str, int]]:
    """How many calls of this thread went into each of our files."""
    counts: dict[str, int] = {}

    def count(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(ROOT):
            counts[name[len(ROOT) + 1 :]] = counts.get(name[len(ROOT) + 1 :], 0) + 1

    sys.setprofile(count)
    try:
        yield counts
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("checkpoints", [False, True])
async def test_without_checkpoints_no_line_of_their_code_runs(tmp_path: Path, checkpoints: bool) -> None:
    """Not one call goes into it, so that it costs nothing; with them every one of these files is used."""
    config = await anyio.to_thread.run_sync(lambda: configured(tmp_path, checkpoints=checkpoints))
    if checkpoints:
        config = config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"interval_s": 0.05})})
    upstream, taken = Turns(turns=1), anyio.Event()

    def emit(name: str, facts: dict[str, Any]) -> None:
        if name == "checkpoint":
            taken.set()

    with calls() as counts:
        async with anyio.create_task_group() as group:
            group.start_soon(collect, config, Options(), emit, upstream)
            await upstream.until_held(3)
            if checkpoints:
                await taken.wait()
            upstream.let_go(3)
    used = OF_CHECKPOINTS & counts.keys()
    assert used == (OF_CHECKPOINTS if checkpoints else set())


@pytest.mark.parametrize("checkpoints", [False, True])
async def test_without_checkpoints_there_is_no_task_lock_or_file_of_theirs(tmp_path: Path, checkpoints: bool) -> None:
    """In the middle of a run: no lease is watched, no counter beats, no lock is held, and no folder was made."""
    config = await anyio.to_thread.run_sync(lambda: configured(tmp_path, checkpoints=checkpoints))
    upstream = Turns(turns=1)
    before = await anyio.to_thread.run_sync(locks)
    async with anyio.create_task_group() as group:
        group.start_soon(collect, config, Options(), lambda name, facts: None, upstream)
        await upstream.until_held(3)
        tasks = [str(task.name) for task in anyio.get_running_tasks()]
        assert any(name.endswith(TASKS_OF_CHECKPOINTS) for name in tasks) is checkpoints, tasks
        assert (await anyio.to_thread.run_sync(locks) > before) is checkpoints
        assert await anyio.Path(tmp_path / "store").exists() is checkpoints
        upstream.let_go(3)
    names = {path.name async for path in anyio.Path(tmp_path).iterdir()}
    assert names - {"store"} == {"rows.jsonl", "out.jsonl", "out.jsonl.segments"}


def locks() -> int:
    """Locks on files that this process holds."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return sum(fields[-4] == str(os.getpid()) for fields in lines if "->" not in fields)


async def test_a_server_without_a_control_plane_has_no_control_route() -> None:
    """Of no kind: every operation is answered as any unknown path is, and admission stays open."""
    resources = CounterServer("counter")
    peers = {resources.role: LocalPeer(resources)}
    model = ModelServer(OneTool())
    agent = SimpleAgent(LocalPeer(model), peers)
    environment = EnvironmentServer(LocalPeer(agent), peers)
    for holder in (resources, model, agent, environment):
        transport = httpx.ASGITransport(app=data_app(holder))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            unknown = await http.get("/no-such-thing")
            for name in ("status", "capabilities", "openapi.json"):
                assert (await http.get(f"{CONTROL_PREFIX}/{name}")).status_code == unknown.status_code
            for name in OPERATIONS:
                reply = await http.post(f"{CONTROL_PREFIX}/{name}", json={"timeout_s": 1, "lease_s": 2})
                assert reply.is_client_error, (holder, name, reply.text)
        assert not holder.gate.closed
