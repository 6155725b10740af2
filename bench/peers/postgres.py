"""A PostgreSQL server for the length of a block: its own folder, a Unix socket and no network, its usual durability."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .protocol import Missing

OWNER = "postgres"
"""Of databases, and the user of this machine that the server runs as if there is one; else `nobody`."""
TICKS = os.sysconf("SC_CLK_TCK")
END_S, READY_POLL_S = 60.0, 0.1


@dataclass(frozen=True, slots=True)
class Server:
    """One that runs."""

    pid: int
    binaries: Path
    socket: Path
    version: str

    def url(self, database: str) -> str:
        """Of a database of it."""
        return f"postgresql://{OWNER}@/{database}?host={self.socket}"

    def cpu_s(self) -> float:
        """Processor time of all its processes, those that have ended included."""
        total = _ticks(self.pid, waited=True)
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                if int(path.read_text().rpartition(")")[2].split()[1]) == self.pid:
                    total += _ticks(int(path.parent.name))
            except OSError:
                continue  # It has ended meanwhile.
        return total / TICKS

    def create(self, database: str) -> None:
        """A new, empty database."""
        self._run("createdb", database)

    def bytes(self, database: str) -> int:
        """What a database takes, without the log that is written ahead."""
        return int(self._run("psql", "-At", "-c", f"SELECT pg_database_size('{database}')", database))

    def _run(self, program: str, *arguments: str) -> str:
        command = [str(self.binaries / program), "-h", str(self.socket), "-U", OWNER, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _ticks(pid: int, *, waited: bool = False) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(value) for value in fields[11 : 15 if waited else 13])


def find_binaries() -> Path:
    """The folder of the newest that is installed. Raises Missing."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    found = [folder for folder in folders if (folder / "postgres").exists()]
    if found:
        return found[-1]
    on_path = shutil.which("initdb")
    if on_path is None:
        raise Missing("no PostgreSQL server: Debian's package is postgresql")
    return Path(on_path).resolve().parent


def _user() -> str | None:
    """The user to run as; None for one's own, where that is not the root user, whom the server refuses."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return OWNER if OWNER in names else "nobody"


@contextmanager
def postgres(folder: Path) -> Iterator[Server]:
    """Made anew in `folder`, and ended with the block. Raises Missing where it cannot be started."""
    binaries, user = find_binaries(), _user()
    who = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}
    folder.mkdir()
    socket = Path(tempfile.mkdtemp(prefix="peers-"))  # Apart, since the path of a socket must be short.
    try:
        for path in (folder, socket):
            path.chmod(0o700)
            if user:
                shutil.chown(path, user)
        made = [binaries / "initdb", "-D", folder / "data", "-A", "trust", "-U", OWNER, "-E", "UTF8", "--no-locale"]
        outcome = subprocess.run(made, check=False, cwd=socket, capture_output=True, text=True, **who)  # type: ignore[call-overload]
        if outcome.returncode != 0:
            raise Missing(f"no PostgreSQL server could be made: {outcome.stderr.strip().splitlines()[-1:]}")
        with _running(binaries, folder / "data", socket, who) as process:
            told = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, check=True)
            yield Server(process.pid, binaries, socket, told.stdout.split()[2])
    finally:
        shutil.rmtree(socket, ignore_errors=True)


@contextmanager
def _running(binaries: Path, data: Path, socket: Path, who: dict[str, object]) -> Iterator[subprocess.Popen[bytes]]:
    command = [binaries / "postgres", "-D", data, "-k", socket, "-c", "listen_addresses="]
    with (data.parent.parent / "postgres.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=socket, stderr=log, stdout=log, **who)  # type: ignore[call-overload]
        try:
            ready = [str(binaries / "pg_isready"), "-q", "-h", str(socket), "-U", OWNER, "-t", "2"]
            while subprocess.run(ready, check=False).returncode != 0:
                if process.poll() is not None:
                    raise Missing(f"PostgreSQL did not come up: {Path(log.name).read_text().splitlines()[-1:]}")
                time.sleep(READY_POLL_S)
            yield process
        finally:
            process.send_signal(signal.SIGINT)  # Ends although a client is left.
            process.wait(END_S)
