"""The inference backend of the soak, which is killed now and then and comes back where it was."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from orchestrator.cli.backend import READY

from .fleets import END_S, environment


class Backend:
    """The deterministic one."""

    def __init__(self, folder: Path, tokens_per_s: float | None) -> None:
        """Starts it at a free port, and waits until it serves. Raises RuntimeError."""
        self._errors = folder / "backend.err"
        self._port = "0"
        self.process: subprocess.Popen[str]
        self.url = self.start(tokens_per_s)
        self._port = self.url.rpartition(":")[2]

    def start(self, tokens_per_s: float | None) -> str:
        """In its place, at this pace (None: as fast as it can); its URL."""
        command = [sys.executable, "-P", "-m", "orchestrator.cli.backend", "--port", self._port]
        command += [] if tokens_per_s is None else ["--tokens-per-s", str(tokens_per_s)]
        with self._errors.open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment(), start_new_session=True
            )
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line.startswith(READY):
            raise RuntimeError(f"the backend did not come up: {line!r} {self._errors.read_text()[-500:]}")
        return line.removeprefix(READY).strip()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(END_S)
        if self.process.stdout:
            self.process.stdout.close()
