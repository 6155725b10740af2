"""A trainer over real servers: the trainer, the servers or both are killed with SIGKILL at seeded random times."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import anyio.from_thread
import pytest

from participants.inference import Backend, Pace, Settings, serving
from store import open_store
from tests.support.waiting import let_run, until

from .trainer import check_chain, check_finished

ROOT = Path(__file__).parents[3]
ROWS = 20
LATENCY_S = 0.05
LONGEST_S = 0.5
"""How long after a checkpoint, at most, somebody is killed: about as long as it takes until the next one."""
PATIENCE_S = 120.0
KILLS = {"trainer": 4, "servers": 3, "both": 3}
SERVERS = """
model = {{ base_url = "{url}/v1", model = "midflight-deterministic" }}
resources.counter = {{ server = "participants.servers.counter:CounterServer" }}
checkpoint = {{ enabled = true, url = "checkpoints" }}
fleet = {{ mode = "adopt" }}
"""


@contextmanager
def place(folder: Path) -> Iterator[Path]:
    """A folder with a configuration, and a model that outlives everybody; at the end no server is left."""
    backend = Backend(Settings(pace=Pace(latency_s=LATENCY_S)))
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serving(backend)) as url,
    ):
        (folder / "run.toml").write_text(SERVERS.format(url=url))
        (folder / "weights").mkdir()
        try:
            yield folder
        finally:
            kill_servers(folder)


def kill_servers(folder: Path) -> None:
    """All of them, whole groups."""
    with suppress(FileNotFoundError):
        for server in json.loads((folder / "fleet" / "fleet.json").read_bytes())["servers"]:
            with suppress(ProcessLookupError):
                os.killpg(server["pid"], signal.SIGKILL)


class Child:
    """One start of the trainer's process after the other, and what it has said."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "said.txt"
        self.starts = 0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        command = [sys.executable, "-m", "tests.orchestrator.training.child", str(self._folder), str(ROWS)]
        with self._log.open("ab") as output:
            return subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)

    def told(self) -> str:
        return self._log.read_text()[-3000:]

    def count(self, what: str) -> int:
        """How often it has said this."""
        return self._log.read_text().count(what)

    def until_it_has_saved(self, times: int) -> bool:
        """Until it has taken so many checkpoints more, in this start or a later one; False where it has ended."""
        wanted = self.count("saved") + times
        until(lambda: self.count("saved") >= wanted or self.process.poll() is not None, PATIENCE_S, self.told)
        return self.process.poll() is None

    def kill(self) -> None:
        """The trainer alone."""
        self.process.kill()
        self.process.wait()

    def start_again(self) -> None:
        """As whoever watches over it does."""
        self.process = self._start()


async def judge(folder: Path) -> int:
    """Every checkpoint is of one moment, and the last of the end; gives how many there are."""
    async with open_store(folder / "checkpoints") as store:
        check_finished(await check_chain(store, ROWS), ROWS)
        return len((await store.chain()).known.refs)


@pytest.mark.process
@pytest.mark.timeout(400)
@pytest.mark.parametrize("victims", list(KILLS))
def test_whoever_is_killed_no_row_is_skipped_and_none_trained_on_twice(tmp_path: Path, victims: str) -> None:
    """Over servers that are adopted, lost, or started anew; in no checkpoint is the cursor ahead of the work."""
    rng = random.Random(victims)
    with place(tmp_path) as folder:
        child, kills = Child(folder), 0
        try:
            while kills < KILLS[victims] and child.until_it_has_saved(1):
                let_run(rng.uniform(0.0, LONGEST_S))
                kills += 1
                if victims != "trainer":
                    kill_servers(folder)
                if victims != "servers":
                    child.kill()
                    child.start_again()
            until(lambda: child.process.poll() is not None, PATIENCE_S, child.told)
            assert child.process.returncode == 0, child.told()
            assert "done" in child.told()
        finally:
            child.kill()
        assert anyio.run(judge, folder) >= ROWS // 2
        assert child.count("began at") - child.count("began at None") >= min(kills, 2), child.told()
