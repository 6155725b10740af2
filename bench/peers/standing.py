"""What it costs a peer to have so many episodes in flight restorable, and to restore them after SIGKILL."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from .child import Order
from .postgres import Server


class ChildFailed(RuntimeError):
    """A peer's process ended before it had done what it was to do."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds by the clock, and of processor time: the peer's process, and of a database server the bench started."""

    wall_s: float
    cpu_s: float

    def less(self, other: "Spent") -> "Spent":
        """Without what the other one took; never below zero, since both are measured."""
        return Spent(max(0.0, self.wall_s - other.wall_s), max(0.0, self.cpu_s - other.cpu_s))

    def plus(self, other: "Spent") -> "Spent":
        """Both."""
        return Spent(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)

    def per(self, count: int) -> dict[str, float]:
        """In microseconds, of one of so many."""
        return {"wall_us": round(self.wall_s / count * 1e6, 1), "cpu_us": round(self.cpu_s / count * 1e6, 1)}


@dataclass(frozen=True, slots=True)
class Size:
    """What is in flight."""

    episodes: int = 16_000
    turns: int = 4
    """That each has made when it is held."""
    record_bytes: int = 1_000
    """Of text, in each turn."""
    longest_s: float = 1_800.0
    """That each of a peer's runs may take: bare, durable, restored."""


@dataclass(frozen=True, slots=True)
class Stood:
    """What one peer came to."""

    bare: Spent
    """All turns of all episodes with nothing made durable."""
    added: Spent
    """What being durable adds to that while turns are made."""
    settling: Spent
    """The checkpoint at the end, of a peer that takes one."""
    restore: Spent
    """From imported libraries until all are held again."""
    bytes: int
    calls_again: int
    """Turns that were made a second time by then."""
    equal: bool
    """Whether every message of every episode is the same one after the restore."""

    @property
    def durable(self) -> Spent:
        """All that being durable costs."""
        return self.added.plus(self.settling)


@contextmanager
def started(order: Order) -> Iterator[subprocess.Popen[str]]:
    """A child, that is killed at the end of the block."""
    command = [sys.executable, "-m", "bench.peers.child", json.dumps(asdict(order))]
    with (Path(order.folder) / "child.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@contextmanager
def limited(process: subprocess.Popen[str], longest_s: float) -> Iterator[None]:
    """Kill a child that is not through by then. Raises ChildFailed, which then says so."""
    late: list[bool] = []

    def end() -> None:
        late.append(True)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(longest_s, end)
    timer.start()
    try:
        yield
    except ChildFailed:
        if late:
            raise ChildFailed(f"it was not through after {longest_s:g} s") from None
        raise
    finally:
        timer.cancel()


def told(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    """The next line of a child, which is to have that mark. Raises ChildFailed."""
    stream: IO[str] | None = process.stdout
    line = stream.readline() if stream else ""
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:
        found = {}
    if found.get("mark") != name:
        raise ChildFailed(f"its process said {line!r} instead of {name}; its folder has child.log, with --folder")
    return found


def _between(earlier: dict[str, Any], later: dict[str, Any], server_s: float = 0.0) -> Spent:
    return Spent(later["wall_s"] - earlier["wall_s"], later["cpu_s"] - earlier["cpu_s"] + server_s)


@dataclass(frozen=True, slots=True)
class Phase:
    """One child: until begun, until held, until settled, and what it said when all were held."""

    opening: Spent
    running: Spent
    settling: Spent
    calls: int
    digest: int


def phase(order: Order, server: Server | None, longest_s: float) -> Phase:
    """Run a child until all is restorable, and kill it. Raises ChildFailed."""
    with started(order) as process, limited(process, longest_s):
        ready = told(process, "ready")
        spent_before = server.cpu_s() if server else 0.0
        begun, held, seen = (told(process, name) for name in ("begun", "held", "seen"))
        server_s = server.cpu_s() - spent_before if server else 0.0
        settled = told(process, "settled")
        return Phase(
            _between(ready, begun),
            _between(begun, held, server_s),
            _between(seen, settled),
            held["calls"],
            held["digest"],
        )


def measure(peer: str, size: Size, folder: Path, server: Server | None) -> Stood:
    """Bare, durable and restored, each in a process of its own."""
    folder.mkdir()
    order = Order(peer, str(folder), episodes=size.episodes, turns=size.turns, record_bytes=size.record_bytes)
    bare, empty = phase(replace(order, durable=False), None, size.longest_s), 0
    if server is not None:
        server.create("standing")
        empty = server.bytes("standing")
        order = replace(order, database_url=server.url("standing"))
    durable = phase(order, server, size.longest_s)
    restored = phase(replace(order, again=True), server, size.longest_s)
    return Stood(
        bare=bare.running,
        added=durable.running.less(bare.running),
        settling=durable.settling,
        restore=restored.opening.plus(restored.running),
        bytes=server.bytes("standing") - empty if server else stored(folder),
        calls_again=restored.calls,
        equal=durable.digest == restored.digest == bare.digest,
    )


def stored(folder: Path) -> int:
    """Bytes of files; of a SQLite database once what was written ahead is in it."""
    for path in folder.glob("*.sqlite"):
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.name != "child.log")
