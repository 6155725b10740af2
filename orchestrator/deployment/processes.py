"""Processes of servers: starting one, telling whether it lives, and ending it with all that it has started.

A pid alone names nothing: it is given to another process when its own has gone. So

- of a server that this process has started, the child is not reaped until its group was killed: as long as it is a
  zombie nobody else gets its pid, and a signal to the group meets no stranger;
- of one that it has not, the first process is held by a pidfd, which is opened before pid and start time are compared;
- everything that descends from a server is told by a mark in its environment, the folder of the fleet and the role. So
  workers whose supervisor was killed, and what a tool has put into a session of its own, are found as well, also where
  their controller was killed before it had written them down.
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "MIDFLIGHT_SERVER"
"""Name of the environment variable that every process of a server has: `<folder of the fleet>:<role>`."""
_PROC = Path("/proc")
_STARTED = 19
"""Field of /proc/<pid>/stat, counted behind the name: when the process began."""
KILL_S = 5.0
"""How long the end of a killed process is waited for: one that hangs in the kernel may take for ever."""
_POLL_S = 0.01


def started_at(pid: int) -> int | None:
    """When a process began, in clock ticks since the boot; None where there is none, or only a zombie."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[_STARTED])


@dataclass(slots=True)
class Process:
    """The first process of a server, which leads its session and its process group."""

    pid: int
    started: int
    child: "subprocess.Popen[bytes] | None" = None
    """Where this process has started it."""
    pidfd: int = -1
    """Where it has not."""

    def ended(self) -> str | None:
        """How it ended, in words; None while it lives. Touches no file and does not block."""
        if self.child is None:
            return "is gone" if _has_ended(self.pidfd) else None
        code = self.exit_code()
        return None if code is None else _how(code)

    def exit_code(self) -> int | None:
        """With which it ended, minus the signal that ended it; None while it lives, or where it is no child."""
        if self.child is None:
            return None
        if self.child.returncode is not None:
            return self.child.returncode
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def tell_to_end(self) -> None:
        """SIGTERM to it alone: it ends its workers itself."""
        if self.ended() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill_at_once(self) -> bool:
        """SIGKILL to its group, and wait for nothing; False where its pid may be somebody else's by now."""
        ours = not _has_ended(self.pidfd) if self.child is None else self.child.returncode is None
        if ours:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        return ours

    def kill_group(self) -> None:
        """SIGKILL to its group, and reap it; nothing where its pid may be somebody else's by now."""
        ours = self.kill_at_once()
        if self.child is not None:
            with suppress(subprocess.TimeoutExpired):
                self.child.wait(KILL_S)
        elif ours:
            _has_ended(self.pidfd, KILL_S)

    def close(self) -> None:
        """Hold it no longer."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def _has_ended(pidfd: int, within_s: float = 0.0) -> bool:
    if pidfd < 0:
        return True
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def hold(pid: int, started: int) -> Process | None:
    """A process that somebody else has started; None where it has ended, whoever has its pid now."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    if started_at(pid) != started or _has_ended(pidfd):
        os.close(pidfd)
        return None
    return Process(pid, started, pidfd=pidfd)


def launch(command: Sequence[str], mark: str, environment: Mapping[str, str], out: Path, log: Path) -> Process:
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


def marked(folder: Path) -> Iterator[tuple[int, str]]:
    """Pid and role of the processes of a folder's fleet that live. Our own process group is never among them."""
    begin, space, group = f"{MARK}={folder}:".encode(), _namespace("self"), os.getpgrp()
    for entry in os.scandir(_PROC):
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):  # It has ended, or is somebody else's.
            found = (_PROC / entry.name / "environ").read_bytes()
            mark = next((one for one in found.split(b"\0") if one.startswith(begin)), None)
            if mark is not None and os.getpgid(int(entry.name)) != group and _namespace(entry.name) == space:
                yield int(entry.name), mark[len(begin) :].decode(errors="replace")


def _namespace(pid: str) -> str:
    """Another container may have a folder of the same name."""
    return os.readlink(_PROC / pid / "ns" / "pid")


def kill_marked(folder: Path, *, but: Sequence[str] = ()) -> dict[int, str]:
    """SIGKILL to the processes of all roles `but` some, until there is none; gives pid and role of those killed."""
    killed: dict[int, str] = {}
    deadline = time.monotonic() + KILL_S
    while found := {pid: role for pid, role in marked(folder) if role not in but}:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= found  # What they have started meanwhile is found in the next round.
        while any(started_at(pid) is not None for pid in found) and time.monotonic() < deadline:
            time.sleep(_POLL_S)  # Their sockets close before they become zombies, and after their environment goes.
        if time.monotonic() >= deadline:
            break
    return killed
