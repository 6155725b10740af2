"""However a run over servers is left: they are ended, and what went wrong comes out as it is."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from orchestrator.collect.servers import ServedWorlds
from orchestrator.deployment import Deployment, FleetTable
from store import AccessDenied, Fenced, NoSpace

from .harness import ROOT
from .test_in_process import Events, configured, named

END_S = 120.0
LEAVING = """
from participants import ResourcesServer

class Leaving(ResourcesServer):
    def __init__(self, name):
        raise {raised}
"""


class Counting(Deployment):
    """Counts its ends; the end raises what it was told to."""

    def __init__(self, *given: Any, at_stop: Exception | None, **more: Any) -> None:
        super().__init__(*given, **more)
        self.stopped = self.killed = 0
        self._at_stop = at_stop

    async def stop(self) -> list[str]:
        self.stopped += 1
        if self._at_stop is not None:
            raise self._at_stop
        return []

    def kill_at_once(self) -> None:
        self.killed += 1


WAYS: list[BaseException | None] = [
    None,
    RuntimeError("a bug"),
    NoSpace("create", "claim"),
    AccessDenied("create", "claim"),
    Fenced(1, 2),
    ExceptionGroup("of a task group", [ValueError("inside")]),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
]


@pytest.mark.unit
@pytest.mark.anyio
@pytest.mark.parametrize("at_stop", [None, OSError(28, "No space left on device"), RuntimeError("a bug at the end")])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: type(way).__name__)
async def test_servers_are_ended_whatever_leaves_the_run(
    tmp_path: Path, way: BaseException | None, at_stop: Exception | None
) -> None:
    """Once; what their end fails of is told, they are killed then, and the error of the run is what comes out."""
    events, found = Events(), list[BaseException | None]()
    config = await anyio.to_thread.run_sync(configured, tmp_path)
    table = FleetTable(folder=str(tmp_path / "fleet"))
    deployment = Counting(config, table, at_stop=at_stop)

    def emit(name: str, facts: dict[str, Any]) -> None:
        events.append((name, facts))

    worlds = ServedWorlds(config, table, emit, path=None, patience_s=0.0, deployment=deployment)
    try:
        async with worlds.open(None):
            if way is not None:
                raise way
        found.append(None)
    except BaseException as error:
        found.append(error)
    assert found == [way]
    assert (deployment.stopped, deployment.killed) == (1, 1 if at_stop else 0)
    assert [str(at_stop) in facts["message"] for facts in named(events, "servers_not_ended")] == [True] * bool(at_stop)


@pytest.mark.unit
@pytest.mark.anyio
async def test_servers_are_ended_where_the_run_is_cancelled(tmp_path: Path) -> None:
    """The cancellation goes on to its scope."""
    config = await anyio.to_thread.run_sync(configured, tmp_path)
    table = FleetTable(folder=str(tmp_path / "fleet"))
    deployment = Counting(config, table, at_stop=OSError(28, "No space left on device"))
    worlds = ServedWorlds(config, table, lambda *_: None, path=None, patience_s=0.0, deployment=deployment)
    with anyio.CancelScope() as scope:
        async with worlds.open(None):
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert (deployment.stopped, deployment.killed) == (1, 1)


@pytest.mark.process
@pytest.mark.parametrize("raised", ["SystemExit(3)", "KeyboardInterrupt()", "BaseException('odd')"])
def test_the_last_event_says_that_a_run_failed_whatever_ended_it(tmp_path: Path, raised: str) -> None:
    """A server of one's own that ends the program from within: `failed`, a traceback and the code of a bug."""
    config = configured(tmp_path)
    (tmp_path / "leaving.py").write_text(LEAVING.format(raised=raised))
    (tmp_path / "run.toml").write_text(
        f'[run]\ninput = "{config.run.input}"\noutput = "{config.run.output}"\n'
        '[model]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\n[resources.counter]\nserver = "leaving:Leaving"\n'
    )
    command = [sys.executable, "-m", "midflight", "collect", str(tmp_path / "run.toml"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=END_S, cwd=ROOT)
    assert done.returncode == 70, done.stderr
    assert "Traceback" in done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["event"], last["error"], last["exit_code"]) == ("failed", raised.partition("(")[0], 70)
