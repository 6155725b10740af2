"""Servers of `midflight serve` for tests: each in a process group of its own, killed as a whole or by the worker."""

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .nursery import Forked, Nursery, nursery
from .processes import free_port, program
from .waiting import until

ROOT = Path(__file__).parents[2]
READY = "ready: "
"""The first line on stdout begins with this; the URL follows."""
START_S = 30.0
END_S = 10.0
TOLD_CHARS = 3000


@dataclass(slots=True)
class Server:
    """One server: a supervisor and its workers, and what is to be said to start it again."""

    role: str
    spec: Mapping[str, Any]
    """As `midflight serve --spec` reads it, without kind, name and listen."""
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    forked: bool = False
    """By the nursery, which is quick; else the installed script is started."""
    host: str = "127.0.0.1"
    """The address that it listens at."""
    nursery: Nursery | None = None
    """That of its host; the one of this process if there is none."""
    starts: int = 0
    process: subprocess.Popen[bytes] | Forked | None = None

    @property
    def url(self) -> str:
        """Where it listens; a restart keeps it."""
        return f"http://{self.host}:{self.port}"

    @property
    def log(self) -> Path:
        """What it says, a JSON object a line, of all its starts."""
        return self.folder / f"{self.role}.log"

    @property
    def _out(self) -> Path:
        return self.folder / f"{self.role}-{self.starts}.out"

    def begin(self) -> None:
        """Start it, and do not wait."""
        self.starts += 1
        kind, _, name = self.role.partition(".")
        spec = {"kind": kind, "name": name, "listen": f"{self.host}:{self.port}", "path": str(ROOT), **self.spec}
        path = self.folder / f"{self.role}.json"
        path.write_text(json.dumps(spec))
        arguments = ["serve", "--spec", str(path)]
        environment = {**os.environ, "PYTHONWARNINGS": "default", **self.environment}
        if self.forked:
            places = {"out": self._out, "err": self.log, "folder": self.folder}
            self.process = (self.nursery or nursery()).fork(arguments, environment=environment, **places)
            return
        command = [str(program("midflight")), *arguments]
        with self._out.open("wb") as stdout, self.log.open("ab") as stderr:
            self.process = subprocess.Popen(
                command, stdout=stdout, stderr=stderr, cwd=self.folder, env=environment, start_new_session=True
            )

    def await_ready(self) -> None:
        """Return once all its workers serve. Raises AssertionError, with the end of its log, where they do not."""
        until(lambda: self._ready or not self.lives, START_S, self.told)
        assert self.lives, f"{self.role} did not come up: {self.told()}"

    @property
    def _ready(self) -> bool:
        return self._out.exists() and self._out.read_text().startswith(READY)

    @property
    def lives(self) -> bool:
        """Whether its supervisor has not ended."""
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its supervisor."""
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """SIGKILL the whole group, and wait until nothing of it runs; twice is fine."""
        if self.process is None:
            return
        workers = [int(event["pid"]) for event in self.events("worker_started")]
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(END_S)
        until(lambda: not any(_runs(pid, self.process.pid) for pid in workers), END_S)  # type: ignore[union-attr]

    def worker(self, number: int) -> int:
        """The process id of a worker, as the log has it."""
        process = f"w{number}"
        started = [event for event in self.events("worker_started") if event["process"] == process]
        assert started, f"{self.role} has not started {process}: {self.told()}"
        return int(started[-1]["pid"])

    def kill_worker(self, number: int) -> None:
        """SIGKILL one worker, and return once its supervisor has another one in its place."""
        before = len(self.events("worker_started"))
        os.kill(self.worker(number), signal.SIGKILL)
        until(lambda: len(self.events("worker_started")) > before, told=self.told)

    def events(self, name: str) -> list[dict[str, Any]]:
        """What it has logged under this name."""
        said = self.log.read_bytes() if self.log.exists() else b""
        lines = [line for line in said.split(b"\n")[:-1] if line.startswith(b"{")]
        return [event for event in map(json.loads, lines) if event.get("event") == name]

    def told(self) -> str:
        """The end of its log."""
        said = self.log.read_text(errors="replace") if self.log.exists() else ""
        return f"{self.role}: {said[-TOLD_CHARS:]}"


def _runs(pid: int, group: int) -> bool:
    """Whether a process of this group runs; one that nobody has waited for yet does not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return fields[0] not in "ZX" and int(fields[2]) == group
