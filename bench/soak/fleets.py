"""A fleet and its collection run, as an operator keeps them: started, killed, started again, until every row is there.

What is killed in each fleet is what lets something else live:

    served      the controller alone. Its servers live from the beginning to the end, and obey hundreds of controllers.
    controlled  servers and workers. Its controller lives, and recovers from hundreds of losses.
    both        everybody, also all together; nobody lives for long.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from orchestrator.deployment.processes import kill_marked
from orchestrator.deployment.state import read_state

from .looking import fleet_pids

ROOT = Path(__file__).parents[2]
SERVERS_LOST = 77
"""Servers did not come back: an operator starts the same command again."""
LEAST_PAUSE_S = 0.3
"""Between an end and the next start, as supervisors have it."""
MOST_IN_VAIN = 20
"""Starts in a row without a new row, after which a fleet is given up."""
END_S = 30.0

VICTIMS: dict[str, dict[str, float]] = {
    "served": {"controller": 1.0},
    "controlled": {"worker": 0.6, "server": 0.4},
    "both": {"controller": 0.35, "worker": 0.2, "server": 0.15, "controller and server": 0.15, "everybody": 0.15},
}

CONFIG = """
[run]
input = "../rows.jsonl"
output = "out.jsonl"
concurrency = {concurrency}
[model]
base_url = "{base_url}"
model = "{model}"
[resources.counter]
server = "participants.servers.counter:CounterServer"
[checkpoint]
enabled = true
url = "{store}"
interval_s = {interval_s}
liveness_beat_s = 1
keep_last = 2
[fleet]
mode = "{mode}"
shutdown_s = 8
[fleet.servers."resources.counter"]
workers = {workers}
[fleet.servers."agent.main"]
workers = {workers}
"""


class Note(Protocol):
    """Where what happens is written."""

    def __call__(self, kind: str, **facts: Any) -> None:
        """One line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of every fleet's run."""

    base_url: str
    model: str
    concurrency: int
    interval_s: float
    workers: int


def midflight(*arguments: str | Path) -> list[str]:
    """The command line, of this copy of the repository: see `environment`."""
    return [sys.executable, "-P", "-m", "midflight", *map(str, arguments)]


def environment() -> dict[str, str]:
    """Of everything that is started: its modules are those that lie beside this one."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


class Events:
    """The events of one start, read as they come."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self.path = path
        self._at = 0

    def new(self) -> list[dict[str, Any]]:
        """Those that are whole and were not given before."""
        with self.path.open("rb") as file:
            file.seek(self._at)
            whole = file.read().rpartition(b"\n")
        self._at += len(whole[0]) + len(whole[1])
        return [json.loads(line) for line in whole[0].splitlines() if line]


class Fleet:
    """One fleet. `tick` is called often, blocks for nothing, and gives what happened to `note`."""

    def __init__(self, name: str, folder: Path, settings: Settings, store: str, note: Note) -> None:
        """Makes the folder; `store` is a URL or relative to it."""
        self.name, self.folder, self.store = name, folder, store
        self._settings, self._note = settings, note
        self.done = self.given_up = False
        self.rows = self.starts = 0
        self.mode = "attach" if name == "served" else "start"
        self.controller: subprocess.Popen[bytes] | None = None
        self.up: subprocess.Popen[bytes] | None = None
        self._events: Events | None = None
        self._lost_at: float | None = None
        self._ended_at = 0.0
        self._in_vain = 0
        self._struck = False
        folder.mkdir()

    @property
    def servers(self) -> Path:
        """The folder of its servers."""
        return self.folder / "fleet"

    def begin(self) -> None:
        """Start it for the first time."""
        self._write()
        if self.mode == "attach":
            self.up = self._open(midflight("up", "run.toml", "--json"), self.folder / "up.jsonl", "up.err")
        self._start()

    def tick(self, now: float) -> None:
        """Read what its controller says, and start it again where it has ended. `now` is of any steady clock."""
        if self.controller is None:
            if not self.done and not self.given_up and now - self._ended_at >= LEAST_PAUSE_S:
                self._start()
            return
        code = self.controller.poll()
        self._hear()
        if code is None:
            return
        self.controller, self._ended_at = None, now
        self._judge(code)

    def strike(self, victim: str, draw: float) -> bool:
        """Kill somebody; False where he is not there. The mode of the next start is drawn as well."""
        if self.done:
            return False
        if self.mode != "attach":
            self.mode = "adopt" if draw * 8 % 1 < 0.5 else "start"
        hit = False
        if victim in ("controller", "controller and server", "everybody"):
            hit |= self._kill_controller()
        if victim in ("server", "controller and server"):
            hit |= self._kill_server(draw)
        if victim == "worker":
            hit |= self._kill_worker(draw)
        if victim == "everybody":
            hit |= bool(kill_marked(Path(os.path.realpath(self.servers))))
        return hit

    def end_servers(self) -> None:
        """At the end: let `midflight up` end what it runs. What cannot be as it should is noted."""
        if self.up is not None:
            self.up.send_signal(signal.SIGTERM)
            code = self.up.wait(END_S)
            if code != 0:
                self._note("violation", fleet=self.name, what=f"midflight up ended with {code}: {self._said('up.err')}")
        left = fleet_pids(self.servers)
        if left:
            self._note("violation", fleet=self.name, what=f"of its servers there are left: {left}")

    def kill(self) -> None:
        """Everybody, whatever state it is in."""
        for process in (self.controller, self.up):
            if process is not None and process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(END_S)
        kill_marked(Path(os.path.realpath(self.servers)))

    # Starts and ends

    def _write(self) -> None:
        values = {"base_url": self._settings.base_url, "model": self._settings.model, "mode": self.mode}
        counts = {name: getattr(self._settings, name) for name in ("concurrency", "interval_s", "workers")}
        (self.folder / "run.toml").write_text(CONFIG.format(store=self.store, **values, **counts))

    def _start(self) -> None:
        self._write()
        self.starts += 1
        self._struck = False
        self._lost_at = None
        if self._events is not None:
            self._events.path.unlink()
        events = self.folder / f"events-{self.starts}.jsonl"
        self.controller = self._open(midflight("collect", "run.toml", "--json"), events, "collect.err")
        self._events = Events(events)

    def _open(self, command: list[str], stdout: Path, stderr: str) -> subprocess.Popen[bytes]:
        with stdout.open("wb") as out, (self.folder / stderr).open("ab") as err:
            return subprocess.Popen(
                command, stdout=out, stderr=err, cwd=self.folder, env=environment(), start_new_session=True
            )

    def _judge(self, code: int) -> None:
        """What an end of the controller means."""
        if code == 0:
            self.done = True
            self._note("finished", fleet=self.name, starts=self.starts)
            return
        self._in_vain += 1
        if not (code == -signal.SIGKILL and self._struck) and code != SERVERS_LOST:
            said = self._said("collect.err")
            self._note("violation", fleet=self.name, what=f"midflight collect ended with {code}: {said}")
        elif code == SERVERS_LOST:
            self._note("servers_lost_for_good", fleet=self.name)
        if self._in_vain >= MOST_IN_VAIN:
            self.given_up = True
            self._note("violation", fleet=self.name, what=f"{self._in_vain} starts in a row without a new row")

    def _said(self, name: str) -> str:
        return (self.folder / name).read_text(errors="replace")[-500:]

    # What the controller says

    def _hear(self) -> None:
        for event in self._events.new() if self._events is not None else []:
            act = _HEARD.get(event["event"])
            if act is not None:
                act(self, event)

    def _row(self, event: Mapping[str, Any]) -> None:
        self.rows += 1
        self._in_vain = 0

    def _checkpoint(self, event: Mapping[str, Any]) -> None:
        self._note("commit", fleet=self.name, took_s=event["took_s"], held_s=event["held_s"], n=event["rollouts"])

    def _began(self, event: Mapping[str, Any]) -> None:
        self.rows = event["done"]
        if self.starts > 1:
            self._restored("started", event["time_s"], event)

    def _lost(self, event: Mapping[str, Any]) -> None:
        self._lost_at = event["time_s"] if self._lost_at is None else self._lost_at

    def _went_on(self, event: Mapping[str, Any]) -> None:
        if self._lost_at is not None:
            self._restored("went_on", event["time_s"] - self._lost_at, event)
        self._lost_at = None

    def _restored(self, how: str, took_s: float, event: Mapping[str, Any]) -> None:
        counts = {"restored": event["restored"], "adopted": event.get("adopted", 0)}
        self._note("restore", fleet=self.name, how=how, took_s=round(took_s, 3), **counts)

    def _wrong(self, event: Mapping[str, Any]) -> None:
        facts = {key: value for key, value in event.items() if key not in ("event", "time_s")}
        self._note("told", fleet=self.name, event=event["event"], facts=str(facts)[:400])

    # Kills

    def _kill_controller(self) -> bool:
        if self.controller is None or self.controller.poll() is not None:
            return False
        self._struck = True
        os.killpg(self.controller.pid, signal.SIGKILL)
        return True

    def _kill_server(self, draw: float) -> bool:
        state = read_state(self.servers)
        if state is None or not state.servers:
            return False
        server = state.servers[int(draw * len(state.servers))]
        if server.pid not in [pid for _, pid in fleet_pids(self.servers)]:
            return False
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
            return True
        return False

    def _kill_worker(self, draw: float) -> bool:
        state = read_state(self.servers)
        heads = {server.pid for server in state.servers} if state is not None else set()
        workers = [pid for _, pid in fleet_pids(self.servers) if pid not in heads]
        if not workers:
            return False
        with suppress(ProcessLookupError):
            os.kill(workers[int(draw * len(workers))], signal.SIGKILL)
            return True
        return False


_HEARD: dict[str, Callable[[Fleet, Mapping[str, Any]], None]] = {
    "row": Fleet._row,
    "checkpoint": Fleet._checkpoint,
    "started": Fleet._began,
    "server_lost": Fleet._lost,
    "went_on": Fleet._went_on,
    **dict.fromkeys(
        ("failure", "checkpoint_failed", "prune_failed", "retire_failed", "output_failed", "dropped", "blocked",
         "servers_not_ended", "failed", "state_not_written"),
        Fleet._wrong,
    ),
}  # fmt: skip
