"""A process that has imported what `midflight serve` needs, and forks servers: they then start without importing.

What is forked runs the `main` of the installed script with a server's own arguments, in a session of its own, with its
own streams, folder and environment; only the start of the interpreter and the imports are shared. Orders are lines of
JSON: `{"fork": ...}` is answered with a process id, `{"wait": pid}` with its exit code as Popen has it, or null while
it runs.
"""

import atexit
import functools
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .waiting import PAUSE_S

ROOT = Path(__file__).parents[2]
PRELOADED = ("orchestrator.cli.commands", "participants.serving", "participants.serving.supervisor")


class Forked:
    """A server that the nursery has forked; as much of a Popen as servers of tests need."""

    def __init__(self, nursery: "Nursery", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        if self.returncode is None:
            self.returncode = self._nursery.ask({"wait": self.pid})
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Its exit code, once it has ended. Raises TimeoutExpired."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(PAUSE_S)
        return code


class Nursery:
    """The process, and how it is asked."""

    def __init__(self, environment: Mapping[str, str] = {}) -> None:
        """`environment` is beside the one here; servers are given their own."""
        environment = {**os.environ, "PYTHONWARNINGS": "default", **environment}
        command = [sys.executable, "-m", "tests.support.nursery"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )

    def fork(
        self, arguments: Sequence[str], *, out: Path, err: Path, folder: Path, environment: Mapping[str, str]
    ) -> Forked:
        """Run `midflight` with these arguments; `out` is written anew, `err` is added to."""
        order = {"arguments": arguments, "out": str(out), "err": str(err), "folder": str(folder)}
        return Forked(self, self.ask({"fork": {**order, "environment": dict(environment)}}))

    def ask(self, order: Mapping[str, Any]) -> Any:
        """One order, and its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        """No more forks; those there are go on."""
        self._process.kill()
        self._process.communicate()


@functools.cache
def nursery() -> Nursery:
    """The one of this process."""
    made = Nursery()
    atexit.register(made.end)
    return made


def _fork(order: Mapping[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        os.chdir(order["folder"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(os.open(order["err"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        os.closerange(3, 64)
        os.environ.clear()
        os.environ.update(order["environment"])
        sys.argv = ["midflight", *order["arguments"]]
        code = _run_script()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _run_script() -> int:
    from orchestrator.cli.app import main

    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def _wait(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _serve() -> None:
    for module in PRELOADED:
        importlib.import_module(module)
    while line := os.read(0, 1_000_000):
        order = json.loads(line)
        answer = _fork(order["fork"]) if "fork" in order else _wait(order["wait"])
        os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    _serve()
