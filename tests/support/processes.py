"""Starting a server program for tests, waiting until it serves, and ending it with all its children."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

GRPC_OFFSET = 10_000
"""SeaweedFS opens a second port at this distance from each that it is given."""
END_S = 3.0
"""How long a server may take to end by itself; its data is thrown away in any case."""
_LOWEST, _HIGHEST = 20_000, 30_000
# Processes that run at once have pids close together; each has about the golden part of the range to itself.
_next_port = _LOWEST + os.getpid() * 6_181 % (_HIGHEST - _LOWEST)


def program(name: str) -> Path:
    """A program that was installed beside this Python."""
    return Path(sys.executable).parent / name


def free_port() -> int:
    """A port that is free, as is the one at GRPC_OFFSET from it; none twice from one process."""
    global _next_port  # noqa: PLW0603 - one sequence per process is the point
    while True:
        _next_port = _next_port + 1 if _next_port < _HIGHEST else _LOWEST
        if _is_free(_next_port) and _is_free(_next_port + GRPC_OFFSET):
            return _next_port


def free_block(length: int) -> int:
    """The first of so many free ports in a row."""
    while True:
        ports = [free_port() for _ in range(length)]
        if ports[-1] - ports[0] == length - 1:
            return ports[0]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextmanager
def running(
    command: Sequence[str | Path], log: Path, ready: Callable[[], bool], *, within_s: float = 45.0
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in a process group of its own until the block ends; enter once `ready` says so."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        _await(process, ready, within_s, log)
        yield process
    finally:
        _end(process)


def _await(process: subprocess.Popen[bytes], ready: Callable[[], bool], within_s: float, log: Path) -> None:
    deadline = time.monotonic() + within_s
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            tail = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{process.args!r} did not come up (exit {process.poll()}): {tail}")
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the whole group to end, then make it; return once it is gone."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, sign)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            continue
        return
