"""Controllers of fleets as child processes, what they say, and what is left of their servers."""

import json
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestrator.deployment.processes import kill_marked, marked
from tests.support.waiting import until

PATIENCE_S = 45.0
"""How long a controller may take for what it has to say, on a busy machine."""


@dataclass(slots=True)
class Program:
    """A controller that runs, and prints an event a line."""

    process: subprocess.Popen[str]
    events: list[dict[str, Any]] = field(default_factory=list)
    """All that it has said, as far as it was waited for."""
    _lines: "queue.SimpleQueue[str]" = field(default_factory=queue.SimpleQueue)

    def wait_for(self, event: str, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next event of this name; what comes before it is kept. Each may take that long."""
        while True:
            line = self._lines.get(timeout=patience_s)
            assert line, f"it ended and did not say {event}: {self.events}"
            found: dict[str, Any] = json.loads(line)
            self.events.append(found)
            if found["event"] == event:
                return found

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal it, and give its exit code when it has ended."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        code = self.process.wait(PATIENCE_S)
        while line := self._lines.get(timeout=PATIENCE_S):
            self.events.append(json.loads(line))
        return code

    def said(self, event: str) -> list[dict[str, Any]]:
        """The events of this name."""
        return [found for found in self.events if found["event"] == event]

    def read(self) -> None:
        """Runs in a thread; an empty line is the end."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[Program]:
    """A program for the length of a block, in this environment or another; it is killed at the end, and its servers
    are not.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    program = Program(process)
    reader = threading.Thread(target=program.read, daemon=True)
    reader.start()
    try:
        yield program
    finally:
        process.kill()
        process.wait()
        reader.join()
        if process.stdout is not None:
            process.stdout.close()


def standing(file: Path, mode: str = "start") -> list[str]:
    """A controller of stand-ins."""
    return [sys.executable, "-m", "tests.support.standing", str(file), mode]


def up(file: Path, *options: str) -> list[str]:
    """The command itself, with real servers."""
    return [sys.executable, "-m", "midflight", "up", str(file), "--json", *options]


def left(folder: Path) -> dict[int, str]:
    """Processes of a fleet that live: pid to role."""
    return dict(marked(folder))


@contextmanager
def folder_of(file: Path) -> Iterator[Path]:
    """The folder of a file's fleet; whatever a failed test leaves running is killed."""
    folder = file.parent / "fleet"
    try:
        yield folder
    finally:
        kill_marked(folder)


def refuses(url: str) -> bool:
    """Whether nobody listens there."""
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def nothing_is_left(folder: Path, servers: Sequence[dict[str, Any]]) -> None:
    """No process, and no socket of any of these. Raises AssertionError."""
    until(lambda: not left(folder), within_s=10, told=lambda: str(left(folder)))
    assert [server["url"] for server in servers if not refuses(server["url"])] == []
