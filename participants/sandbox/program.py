"""What is asked of a sandbox and what it answers: a program, its limits, and how it ended."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Containment = Literal["bubblewrap", "rlimits"]
"""`bubblewrap`: namespaces of its own. `rlimits`: what the kernel offers without; docs/sandbox.md compares them."""
Ended = Literal["exited", "signalled", "timed_out", "output_limit", "stopped"]

WORK = "/work"
"""The working folder, as a program under bubblewrap sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """How much one run may use; bytes and seconds."""

    wall_s: float = 10.0
    """From the program's start to its end; waiting for a turn does not count."""
    cpu_s: float = 10.0
    """Processor time of all its processes together."""
    memory_bytes: int = 1 << 30
    """Address space of each process, and resident memory of all of them together."""
    processes: int = 64
    """Processes and threads at once."""
    output_bytes: int = 1 << 20
    """Of standard output and of standard error, each."""
    file_bytes: int = 64 << 20
    """Of any one file."""
    folder_bytes: int = 256 << 20
    """Of all that it may write to files; each file costs at least a KiB."""
    open_files: int = 256
    """Descriptors of one process."""

    def __post_init__(self) -> None:
        """Raises ValueError for what is no limit."""
        for name in self.__slots__:
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"the limit {name} is {getattr(self, name)!r}, and must be a finite number from 0 on")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A command line and what it may see."""

    command: Sequence[str]
    """The program, looked for on the fixed PATH, and its arguments."""
    stdin: bytes = b""
    """All of its standard input, which it finds as a file that cannot be changed."""
    folder: Path | None = None
    """Its working folder, the only one it may keep files in; None gives it a fresh one that is gone afterwards."""
    read_only: Mapping[str, Path] = field(default_factory=dict)
    """More that it may read: the path that it sees and the path outside. Without bubblewrap both must be the same."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Beside PATH, HOME, LANG, TMPDIR and MALLOC_ARENA_MAX; nothing is inherited."""
    network: bool = False
    """Whether it shares the network of this host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a program ended, and what it said and used."""

    ended: Ended
    """`timed_out`: more wall or processor time than it may use. `output_limit`: more output. `stopped`: more memory or
    files, or processes that could not be looked at any more."""
    exit_code: int | None
    """Only where it exited; 126 and 127 where it could not be started, as a shell has it."""
    signal: int | None
    """Only where a signal ended it."""
    stdout: bytes
    stderr: bytes
    wall_s: float
    """Seconds from its start to its end."""
    cpu_s: float
    """Processor seconds of all its processes together."""
    peak_bytes: int
    """The most resident memory that was seen, of one process exactly and of all together now and then."""
