"""A program whose workers are killed at random moments, and what they had said until then."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

PATIENCE_S = 40.0
"""How long a worker may take for its first lines, on a busy machine."""


@dataclass(slots=True)
class Nursery:
    """Starts one worker after another, in processes of their own."""

    process: subprocess.Popen[str]
    lines: "queue.SimpleQueue[str]"

    def life(self, until: str, delay_s: float) -> list[str]:
        """Start a worker, kill it so long after it said `until`, and give all that it said."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        said = self._listen(time.monotonic() + PATIENCE_S, until)
        said += self._listen(time.monotonic() + delay_s, "gone")
        if said[-1] != "gone":
            os.kill(int(said[0].removeprefix("pid ")), signal.SIGKILL)
            said += self._listen(time.monotonic() + PATIENCE_S, "gone")
        return said

    def _listen(self, deadline: float, until: str) -> list[str]:
        """The lines that come in before the deadline, up to one that begins with `until`."""
        said: list[str] = []
        while not (said and said[-1].startswith((until, "gone"))):
            try:
                said.append(self.lines.get(timeout=max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                break
        return said


@contextmanager
def nursery(module: str, url: str, options: Mapping[str, Any]) -> Iterator[Nursery]:
    """Run `python -m module url options` until the block ends."""
    command = [sys.executable, "-m", module, url, json.dumps(options)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    assert process.stdout is not None
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    try:
        yield Nursery(process, lines)
    finally:
        process.kill()
        process.wait()
        reader.join()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _read(process: subprocess.Popen[str], lines: "queue.SimpleQueue[str]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line.rstrip("\n"))
