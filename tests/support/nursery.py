"""A process that has imported what `midflight serve` needs, and forks servers: they then start without importing.

What is forked runs the `main` of the installed script with a server's own arguments, in a session of its own, with its
own streams, folder and environment; only the start of the interpreter and the imports are shared. Orders are lines of
JSON: `{"fork": ...}` is answered with a process id, `{"wait": pid}` with its exit code as Popen has it, or null while
it runs; `{"failed": ...}` says why an order could not be carried out. One that has died is replaced by the next fork:
only the test that it died under fails.
"""

import atexit
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
        self._turn = threading.Lock()
        """An order and its answer belong together, whichever threads ask."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  `end` closes it
        self.told = ""
        """What it had said on stderr when it ended."""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )

    @property
    def lives(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def fork(
        self, arguments: Sequence[str], *, out: Path, err: Path, folder: Path, environment: Mapping[str, str]
    ) -> Forked:
        """Run `midflight` with these arguments; `out` is written anew, `err` is added to."""
        order = {"arguments": arguments, "out": str(out), "err": str(err), "folder": str(folder)}
        return Forked(self, self.ask({"fork": {**order, "environment": dict(environment)}}))

    def ask(self, order: Mapping[str, Any]) -> Any:
        """One order, and its answer. Raises AssertionError where it cannot be carried out, and says why."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._turn:
            try:
                self._process.stdin.write(json.dumps(order).encode() + b"\n")
                self._process.stdin.flush()
                answer = self._process.stdout.readline()
            except (BrokenPipeError, ValueError):  # The second of one that `end` has closed.
                answer = b""
            except BaseException:  # The test has been stopped: the answer that comes yet would be taken for the next.
                self.end()
                raise
        if not answer:
            code = self._process.wait()
            self.end()
            raise AssertionError(f"the nursery has ended with {code}, asked {order}: {self.told}")
        said = json.loads(answer)
        assert not isinstance(said, dict), f"the nursery could not carry out {order}: {said['failed']}"
        return said

    def end(self) -> None:
        """No more forks; those there are go on."""
        self._process.kill()
        self._process.wait()
        if not self._errors.closed:
            self._errors.seek(0)
            self.told = self._errors.read().decode(errors="replace")
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]


_own: list[Nursery] = []


def nursery() -> Nursery:
    """The one of this process."""
    if not _own or not _own[-1].lives:
        _own.append(Nursery())
        atexit.register(_own[-1].end)
    return _own[-1]


_ended: dict[int, int] = {}
"""Exit codes of those waited for; two threads may ask for the same one."""


def _fork(order: Mapping[str, Any]) -> int:
    pid = os.fork()
    if pid:
        _ended.pop(pid, None)
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
    if pid not in _ended:
        found, status = os.waitpid(pid, os.WNOHANG)
        if not found:
            return None
        _ended[pid] = os.waitstatus_to_exitcode(status)
    return _ended[pid]


def _serve() -> None:
    for module in PRELOADED:
        importlib.import_module(module)
    while line := os.read(0, 1_000_000):
        order = json.loads(line)
        try:
            answer: Any = _fork(order["fork"]) if "fork" in order else _wait(order["wait"])
        except OSError:
            answer = {"failed": traceback.format_exc()}
        os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    _serve()
