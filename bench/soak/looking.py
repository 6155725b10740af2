"""What a look at processes and folders gives; whoever goes meanwhile is left out."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.deployment.processes import marked

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Seen:
    """One process."""

    role: str
    pid: int
    age_s: float
    rss: int
    """Bytes."""
    descriptors: int
    threads: int
    cpu_s: float
    """That it has used in its life."""


def see(role: str, pid: int) -> Seen | None:
    """One process; None where it is gone."""
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[19]) / _TICKS
        cpu_s = (int(stat[11]) + int(stat[12])) / _TICKS
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        if stat[0] not in "ZX":
            return Seen(role, pid, round(age_s, 1), int(stat[21]) * _PAGE, descriptors, int(stat[17]), cpu_s)
    return None


def fleet_pids(folder: Path) -> list[tuple[str, int]]:
    """Role and pid of every process of the servers of a fleet's folder."""
    return sorted((role, pid) for pid, role in marked(Path(os.path.realpath(folder))))


@dataclass(frozen=True, slots=True)
class Files:
    """Those below a folder."""

    count: int = 0
    size: int = 0
    """Bytes, as their lengths say."""

    def __add__(self, other: "Files") -> "Files":
        return Files(self.count + other.count, self.size + other.size)


def files(folder: Path) -> Files:
    """All below a folder."""
    total = Files()
    for path in _below(folder):
        with suppress(OSError):
            total += Files(1, os.stat(path, follow_symlinks=False).st_size)
    return total


def _below(folder: Path) -> Iterator[str]:
    for parent, _, names in os.walk(folder):  # It passes over what cannot be read.
        for name in names:
            yield os.path.join(parent, name)
