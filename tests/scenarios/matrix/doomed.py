"""The controller as the victim: it drives a phase in a process of its own, and kills itself at the point."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import orjson

from tests.support.backend import Control, RunningBackend
from tests.support.fleet import Server

from ..doomed import die
from .phases import PHASES, Phase
from .plot import Plot

ROOT = Path(__file__).parents[3]
DOOMED_S = 120.0


async def drive_and_die(plot: Plot, phase: Phase) -> str:
    """Run one that takes over, until it has killed itself; how it ended."""
    order = {
        "folder": str(plot.folder),
        "token": plot.token,
        "backend": plot.backend.url,
        "ports": {role: server.port for role, server in plot.servers.items()},
        "phase": phase.name,
    }
    command = [sys.executable, "-m", "tests.scenarios.matrix.doomed", orjson.dumps(order).decode()]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=DOOMED_S, check=False)

    ended = await anyio.to_thread.run_sync(run)
    return "" if ended.returncode == -9 else f"it ended with {ended.returncode}\n{ended.stdout}\n{ended.stderr}"


def _plot(order: Mapping[str, Any]) -> Plot:
    """The parent's, as far as a controller needs it."""
    folder = Path(order["folder"])
    url = order["backend"]
    backend = RunningBackend(url, None, Control(url), folder)  # type: ignore[arg-type]
    servers = {role: Server(role, {}, folder, port=port) for role, port in order["ports"].items()}
    return Plot(folder, backend, servers=servers, token=order["token"])


async def main(order: Mapping[str, Any]) -> None:
    """Take over, and die."""
    [phase] = [phase for phase in PHASES if phase.name == order["phase"]]
    plot = _plot(order)
    async with plot.controller(restore=False) as controller:
        await phase.drive(plot, controller, die)


if __name__ == "__main__":
    anyio.run(main, orjson.loads(sys.argv[1]))
