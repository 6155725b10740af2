"""Both ways of containment, what a hostile program aims at, and whether the machine is clean after it."""

import glob
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from participants.sandbox import Program, Ran, Sandbox, SandboxLimits
from tests.support.waiting import until

MARK = "SANDBOX_TEST"
"""A variable that all processes of one test inherit."""
SECRET = "the secret of the server"
GONE_S = 10.0


class WithoutBubblewrap(Sandbox):
    """As on a host that has none."""

    def _bubblewrap(self) -> str:
        return ""


WAYS: Mapping[str, Callable[..., Sandbox]] = {
    "bubblewrap": partial(Sandbox, require="bubblewrap"),
    "rlimits": WithoutBubblewrap,
}


@dataclass(frozen=True, slots=True)
class Target:
    """What of this process a program may go for; told to it in its environment."""

    mark: str
    secret: Path
    port: int
    unix: str
    abstract: str

    @property
    def environment(self) -> dict[str, str]:
        """For the program."""
        return {
            MARK: self.mark,
            "TARGET_PID": str(os.getpid()),
            "TARGET_FILE": str(self.secret),
            "TARGET_PORT": str(self.port),
            "TARGET_UNIX": self.unix,
            "TARGET_ABSTRACT": self.abstract,
        }

    def processes(self) -> list[int]:
        """Processes that carry the mark."""
        return processes_marked(self.mark)


def processes_marked(mark: str) -> list[int]:
    """Processes with this mark in their environment, which all below them inherit."""
    found = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            environment = Path(path).read_bytes()
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in environment.split(b"\0"):
            found.append(int(path.split("/")[2]))
    return found


@contextmanager
def target() -> Iterator[Target]:
    """A secret file that everybody may read, and three listening sockets of this process, until the block ends."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    secret = folder / "secret"
    secret.write_text(SECRET)
    mark = secrets.token_hex(8)
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix, socket.socket(socket.AF_UNIX) as abstract:
        tcp.bind(("127.0.0.1", 0))
        unix.bind(str(folder / "socket"))
        (folder / "socket").chmod(0o777)
        abstract.bind("\0" + mark)
        for listener in (tcp, unix, abstract):
            listener.listen()
            listener.set_inheritable(True)  # It must not reach a program all the same.
        yield Target(mark, secret, tcp.getsockname()[1], str(folder / "socket"), mark)
    shutil.rmtree(folder)


def left_of(mark: str, pid: int) -> list[str]:
    """Processes and folders that runs of this process have left behind."""
    return [*map(str, processes_marked(mark)), *glob.glob(f"{tempfile.gettempdir()}/midflight-{pid}-*")]


def descriptors() -> int:
    """How many this process has open."""
    return len(os.listdir("/proc/self/fd"))


async def run_hostile(sandbox: Sandbox, program: Program, limits: SandboxLimits, mark: str) -> Ran:
    """Run it once something harmless has run, and see that nothing is left: no process, no folder, no descriptor."""
    await sandbox.run(Program(command=["true"]))
    before = descriptors()
    ran = await sandbox.run(program, limits)
    assert not left_of(mark, os.getpid())
    assert descriptors() == before
    return ran


def wait_until_gone(mark: str) -> None:
    """Until no process carries the mark, which the kernel sees to after a kill."""
    until(lambda: not processes_marked(mark), GONE_S, lambda: f"left: {processes_marked(mark)}")
