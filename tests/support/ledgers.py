"""Ledgers for tests: small calls, chains of them over several lives, and disks that fail, die or keep a log."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio

from participants.cuts.prefix import Segment
from participants.ledger import Entry, Ledger
from participants.ledger.files import LOCKS, Disk, Layout, Place
from participants.ledger.ledger import LANES, MAX_BATCH
from store import Life

ROUTE = "/v1/chat/completions"
DIGEST = "d" * 64
Ids = Sequence[int] | None


def quick(root: Path) -> Ledger:
    """The ledgers below a root, in a process of their own."""
    return Ledger(str(root), disk=QuickDisk())


def life(attempt: int = 0, epoch: int = 1, n: int = 0, rollout: str = "r") -> Life:
    """A life of the rollout `r`."""
    return Life(rollout, epoch, attempt, n)


def entry(
    k: int, prompt: Sequence[int] | None = (1, 2, 3), output: Sequence[int] | None = (4, 5), **more: Any
) -> Entry:
    """The k-th call of an agent."""
    return Entry(call=f"agent.main:{k}.0", route=ROUTE, request_digest=DIGEST, prompt=prompt, output=output, **more)


def turn(k: int) -> Entry:
    """The k-th call of a conversation in which each prompt begins with all that was before; two tokens each time."""
    prompt = [token for j in range(k) for token in (10 + j, 90, 91)] + [10 + k]
    return entry(k, prompt, [90, 91], finish_reason="stop", segments=(Segment(0, 2, "7"),))


def record(k: int) -> Any:
    """The complete record of the k-th call."""
    return {"request": {"k": k}, "response": {"text": f"answer {k}"}}


async def conversation(ledger: Ledger, of: Life, turns: range) -> None:
    """Append these turns, with their records."""
    for k in turns:
        await ledger.append(of, turn(k), record(k))


async def lineage(ledger: Ledger, attempts: int, turns: int) -> list[Life]:
    """A conversation over several lives, each carrying over what was before; the lives, oldest first."""
    lives: list[Life] = []
    for attempt in range(attempts):
        carried = ledger.export(lives[-1]) if lives else []
        lives.append(life(attempt, attempt + 1))
        await ledger.begin(lives[-1], carried, lives[-2] if attempt else None)
        await conversation(ledger, lives[-1], range(attempt * turns, (attempt + 1) * turns))
    return lives


class QuickDisk(Disk):
    """Asks for no flush: a kill loses nothing without one, and a busy machine's disk takes long."""

    def flush(self, fd: int) -> None:
        """Nothing."""


class LoggingDisk(QuickDisk):
    """Keeps a log of (call, file name)."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []

    def step(self, name: str, path: str) -> None:
        self.log.append((name, os.path.basename(path)))


class FailingDisk(QuickDisk):
    """Raises an OSError instead of the n-th call, and then is well again, or `dead` for ever."""

    def __init__(self, nth: int, *, dead: bool = False, torn: bool = False) -> None:
        self.left = nth
        self.dead = dead
        self.torn = torn
        """Where the n-th call is a write, half of it is done."""
        self.struck = ""

    def step(self, name: str, path: str) -> None:
        self.left -= 1
        if self.left == 0 or (self.dead and self.left < 0):
            self.struck = self.struck or f"{name} {os.path.basename(path)}"
            raise OSError(errno.EIO, "injected")

    def write(self, fd: int, path: str, data: bytes) -> None:
        if self.torn and self.left == 1:
            os.write(fd, data[: len(data) // 2])
        super().write(fd, path, data)


def place(root: Path, of: Life) -> Place:
    """Where the files of a life are."""
    return Layout(str(root), Disk()).place(of)


def open_descriptors() -> int:
    """How many this process has."""
    return len(os.listdir("/proc/self/fd"))


def files_of(root: Path) -> list[str]:
    """Names of all files of lives below a root."""
    return sorted(path.name for path in root.glob("*/*/*"))


class WatchingDisk(QuickDisk):
    """Remembers the largest number of open descriptors that it saw."""

    peak = 0
    writes = 0

    def step(self, name: str, path: str) -> None:
        self.writes += name == "write"
        if name == "write" and self.writes % 20 == 0:
            self.peak = max(self.peak, open_descriptors())


async def many_lives(root: Path, count: int) -> None:
    """So many lives at once, a row each; asserts that locks and descriptors do not grow with them."""
    disk = WatchingDisk()
    ledger = Ledger(str(root), disk=disk)
    before = open_descriptors()

    async def live(n: int) -> None:
        own = life(rollout=f"r{n}", n=n)
        await ledger.begin(own)
        await ledger.append(own, turn(0), record(0))

    async with anyio.create_task_group() as group:
        for n in range(count):
            group.start_soon(live, n)
    assert open_descriptors() <= before
    assert disk.peak <= before + LANES * 2 * MAX_BATCH + LOCKS
    assert len(os.listdir(root / "locks")) <= LOCKS
    assert ledger.counts()["ledgers"] == count
