"""Processes of servers: starting one, telling whether it lives, and ending it with all that it has started.

A pid alone names nothing: it is given to another process when its own has gone. Two things tell a server's processes:

- its first process by pid and start time, which together name one process of a boot;
- everything that descends from it by a mark in its environment, the folder of the fleet and the role. So workers whose
  supervisor was killed, and what a tool has put into a session of its own, are found as well, also by a controller that
  did not start them and where no state file was written any more.

A child is asked after without being reaped, until its group was killed: as long as it is a zombie nobody else gets its
pid, and so a signal to the group meets no stranger.
"""

import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "MIDFLIGHT_SERVER"
"""Name of the environment variable that every process of a server has: `<folder of the fleet>:<role>`."""
_PROC = Path("/proc")
_STARTED = 19
"""Field of /proc/<pid>/stat, counted behind the name: when the process began."""


def started_at(pid: int) -> int | None:
    """When a process that lives began, in clock ticks since the boot; None where there is none, or only a zombie."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[_STARTED])


@dataclass(slots=True)
class Process:
    """The first process of a server."""

    pid: int
    started: int
    child: "subprocess.Popen[bytes] | None" = None
    """Where this process has started it."""

    def ended(self) -> str | None:
        """How it ended, in words; None while it lives."""
        if self.child is None:
            return None if started_at(self.pid) == self.started else "is gone"
        if self.child.returncode is not None:
            return _how(self.child.returncode)
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return _how(found.si_status if found.si_code == os.CLD_EXITED else -found.si_status)

    def tell_to_end(self) -> None:
        """SIGTERM to it alone: it ends its workers itself."""
        if self.ended() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill_group(self) -> None:
        """SIGKILL to its group, and reap it; nothing where its pid may be somebody else's by now."""
        known = self.child.returncode is None if self.child is not None else started_at(self.pid) == self.started
        if known:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            if self.child is not None:
                self.child.wait()


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def launch(command: list[str], mark: str, environment: Mapping[str, str], out: Path, log: Path) -> Process:
    """Start a server in a session of its own, which signals of a terminal do not reach. Raises OSError.

    Its streams are files: a pipe would break, and fail it, when the process that starts it goes.
    """
    with out.open("wb") as stdout, log.open("ab") as stderr:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **environment, MARK: mark},
            start_new_session=True,
        )
    return Process(child.pid, started_at(child.pid) or 0, child)


def marked(prefix: str) -> Iterator[int]:
    """Processes of this user that live and whose mark begins so. Our own group is never among them."""
    begin, space, group = f"{MARK}={prefix}".encode(), _namespace("self"), os.getpgrp()
    for entry in os.scandir(_PROC):
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):  # It has ended, or is somebody else's.
            found = (_PROC / entry.name / "environ").read_bytes()
            if any(one.startswith(begin) for one in found.split(b"\0")):
                pid = int(entry.name)
                if os.getpgid(pid) != group and _namespace(entry.name) == space:
                    yield pid


def _namespace(pid: str) -> str:
    """Another container may have a folder of the same name."""
    return os.readlink(_PROC / pid / "ns" / "pid")


def kill(pids: Iterable[int]) -> list[int]:
    """SIGKILL; gives those that there were."""
    killed = []
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
    return killed
