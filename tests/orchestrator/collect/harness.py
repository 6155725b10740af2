"""A run in a folder: its configuration, its child processes, and what the backend and the counter saw of it."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.deployment.processes import kill_marked
from participants.servers.counter import CounterServer
from participants.tools import tools_of
from store import Life
from tests.support.backend import RunningBackend
from tests.support.processes import program

ROOT = Path(__file__).parents[3]
END_S = 150.0
TOOLS = [found.schema for found in tools_of(CounterServer).values()]


def counter_row(number: int, adds: int = 3) -> dict[str, Any]:
    """A row of the counter that is like no other: `adds` + 2 model calls, `adds` + 1 tool calls, one verify."""
    amounts = [number + 1 + n for n in range(adds)]
    asked = " then ".join(f"add {amount}" for amount in amounts)
    message = {"role": "user", "content": f"Task {number}: {asked} then get the count"}
    return {
        "responses_create_params": {"input": [message], "tools": TOOLS},
        "initial_count": number,
        "expected_count": number + sum(amounts),
    }


@dataclass(slots=True)
class Run:
    """One run of the collector, whose starts share a folder."""

    folder: Path
    backend: RunningBackend
    rows: list[dict[str, Any]]
    checkpoint_url: str | None = "checkpoints"
    """None for a run without checkpoints."""
    output: str = "out.jsonl"
    checkpoint: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    capture: dict[str, Any] = field(default_factory=dict)
    telemetry: dict[str, Any] = field(default_factory=dict)
    fleet: dict[str, Any] | None = None
    """The table, with the workers of each role under `workers`; None for participants in the run's own process."""
    server: str = "tests.support.logged_counter:LoggedCounter"
    options: dict[str, Any] = field(default_factory=dict)
    """Of the server, beside those that are always there."""
    pause_s: float = 0.0
    environment: dict[str, str] = field(default_factory=dict)
    starts: int = 0

    @property
    def log(self) -> Path:
        """What the counter did."""
        return self.folder / "counter.log"

    @property
    def hold(self) -> Path:
        """While it exists, tool calls wait."""
        return self.folder / "hold"

    def tables(self) -> dict[str, dict[str, Any]]:
        """What the file of the run says."""
        options = {"log": str(self.log), "pause_s": self.pause_s, "hold": str(self.hold), **self.options}
        tables: dict[str, dict[str, Any]] = {
            "run": {"input": "rows.jsonl", "output": self.output, "concurrency": 16, **self.run},
            "model": {"base_url": self.backend.base_url, "model": self.backend.model, **self.model},
            "model.parameters": self.parameters,
            "resources.counter": {"server": self.server},
            "resources.counter.options": options,
        }
        if self.capture:
            tables["capture"] = self.capture
        if self.telemetry:
            tables["telemetry"] = self.telemetry
        if self.checkpoint_url:
            beats = {"interval_s": 0.3, "liveness_beat_s": 0.2}
            tables["checkpoint"] = {"enabled": True, "url": self.checkpoint_url, **beats, **self.checkpoint}
        if self.fleet is not None:
            tables["fleet"] = {key: value for key, value in self.fleet.items() if key != "workers"}
            workers = self.fleet.get("workers", {})
            tables |= {f'fleet.servers."{role}"': {"workers": count} for role, count in workers.items()}
        return tables

    def write(self) -> Path:
        """The files of the run."""
        lines = [json.dumps(row) for row in self.rows]
        (self.folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
        path = self.folder / "run.toml"
        path.write_text("\n".join(_table(name, values) for name, values in self.tables().items()))
        return path

    def start(self, *options: str) -> "Start":
        """`midflight collect` in a process group of its own."""
        self.starts += 1
        events = self.folder / f"events-{self.starts}.jsonl"
        command = [str(program("midflight")), "collect", str(self.write()), "--json", *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default", **self.environment}
        with events.open("wb") as stdout, (self.folder / f"err-{self.starts}").open("wb") as stderr:
            process = subprocess.Popen(
                command, stdout=stdout, stderr=stderr, cwd=self.folder, env=environment, start_new_session=True
            )
        return Start(process, events, self.folder / f"err-{self.starts}")

    def finish(self, *options: str, code: int = 0) -> "Start":
        """Start, and wait for the end."""
        with self.start(*options) as start:
            start.wait(code)
        return start

    def servers(self) -> dict[str, int]:
        """Role to pid of the servers that its fleet says of."""
        state = self.folder / "fleet" / "fleet.json"
        found = json.loads(state.read_text())["servers"] if state.exists() else []
        return {server["role"]: server["pid"] for server in found}

    def workers(self, role: str) -> list[int]:
        """Pids of the workers of a server that lives."""
        pid = self.servers()[role]
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def end_servers(self) -> dict[int, str]:
        """Kill what is left of its fleet; gives pids and roles of what was."""
        return kill_marked(Path(os.path.realpath(self.folder / "fleet")))

    def seen_tools(self) -> list[dict[str, Any]]:
        """What the counter did, in order."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def seen_calls(self) -> list[tuple[Life, str]]:
        """The model calls that the backend saw, in order: for whom, and the digest of the prompt; no probes."""
        calls = [call for event, call in self.backend.logged() if event == "begin"]
        return [(Life.parse(call.life), call.prompt_sha256) for call in calls if call.life]


def _table(name: str, values: dict[str, Any]) -> str:
    return "\n".join([f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()), ""])


@dataclass(slots=True)
class Start:
    """One start of a run; leaving its block kills what is left of it."""

    process: subprocess.Popen[bytes]
    _events: Path
    errors: Path

    def __enter__(self) -> "Start":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """SIGKILL the whole group, and wait until it is gone."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(END_S)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the collector."""
        os.kill(self.process.pid, number)

    def wait(self, code: int) -> None:
        """Until it has ended, as it should."""
        found = self.process.wait(END_S)
        assert found == code, f"exit {found}, not {code}: {self.told()}"

    def lives(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def told(self) -> str:
        """The last of what it said."""
        return f"{self._events.read_text()[-3000:]}\n{self.errors.read_text(errors='replace')[-3000:]}"

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """What it has reported so far."""
        lines = self._events.read_bytes().split(b"\n")[:-1]
        found = [json.loads(line) for line in lines]
        return [event for event in found if name in ("", event["event"])]

    @property
    def summary(self) -> dict[str, Any]:
        """Its last word."""
        [found] = self.events("summary")
        return found


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of an output without what differs between two runs: lives, and the time."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["response"].pop("created_at", None)
    return [{key: value for key, value in row.items() if key not in LIFE_KEYS} for row in rows]


LIFE_KEYS = {"_midflight_life", "_ng_attempt_index"}


@contextmanager
def running(run: Run, *options: str) -> Iterator[Start]:
    """A start for the length of a block."""
    with run.start(*options) as start:
        yield start
