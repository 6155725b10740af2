"""What the server tells a keeper to run, decided in pure functions: containment, limits, mounts, environment."""

import functools
import math
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import Code, ParticipantError
from .filters import call_filter
from .program import WORK, Program, SandboxLimits

PATH = "/usr/local/bin:/usr/bin:/bin"
OTHER_IDS = 1 << 30
"""Where this server is root, each run has a user id of its own from here on, below 2**31."""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SETTINGS = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime")
"""Read by the linker, by links to compilers, and by clocks; nothing secret among them."""
NETWORK_SETTINGS = ("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/ssl", "/etc/ca-certificates")
STAGE = "/tmp"
"""Where the keeper mounts what bubblewrap shall find; only the keeper and bubblewrap see it there."""
PRLIMIT = "/usr/bin/prlimit"
"""By its path: a program may be given a PATH that does not lead to it."""
READY_FD, FILTER_FD = 9, 8
_READY = f'printf + >&{READY_FD}; exec {READY_FD}>&-; exec "$@"'
"""Says from inside that containment stands: what ends after that is the program, and not bubblewrap."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
FEW_ARENAS = {"MALLOC_ARENA_MAX": "2"}
"""Else glibc reserves 64 MiB of address space for each thread, and a dozen threads are all that fit."""
SMALL_BYTES = 64 << 20
"""At most so much shared memory: multiprocessing wants a little of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One run, as the keeper reads it: plain values, and nothing left to decide."""

    argv: Sequence[str]
    """What to execute, bubblewrap's arguments included."""
    environment: Mapping[str, str]
    bubblewrap: bool
    filter: str
    """The filter of system calls in hex: bubblewrap reads it from FILTER_FD, else the keeper's child installs it."""
    network: bool
    uid: int | None
    """The user id to take; None keeps that of the server."""
    staged: Sequence[tuple[str, str]]
    """Sources and targets of mounts that the keeper makes first, which nobody else sees: another user may be unable to
    reach the sources, and bubblewrap with it."""
    folder: str | None
    """The working folder if it is on disk."""
    fresh: bool
    """Whether the keeper makes that folder, and removes it."""
    in_memory: Sequence[str]
    """Mounts of the program's namespace that count as written."""
    readable: Sequence[str]
    """Without bubblewrap: what may be read."""
    devices: Sequence[str]
    """Without bubblewrap: what may be read and written beside the folder."""
    rlimits: Mapping[str, int]
    """By their names in the module resource."""
    processes: int
    wall_s: float
    cpu_s: float
    memory_bytes: int
    folder_bytes: int


def make_order(
    program: Program, limits: SandboxLimits, *, bubblewrap: str, uid: int | None, fresh: str, python: Sequence[str] = ()
) -> Order:
    """The order for a program.

    `bubblewrap` is the path of that program, or empty; `fresh` a path for a working folder where one on disk is needed;
    `python` names what of the interpreter lies outside the system's folders.
    """
    _check(program)
    if not bubblewrap and any(inside != str(outside) for inside, outside in program.read_only.items()):
        raise ParticipantError(
            Code.EXECUTOR_FAILED, "without bubblewrap a program sees a read-only path only under its own name"
        )
    folder = str(program.folder) if program.folder else None if bubblewrap else fresh
    readable = [*SYSTEM, *SETTINGS, *(NETWORK_SETTINGS if program.network else ())]
    more = [(path, path) for path in python] + [(inside, str(path)) for inside, path in program.read_only.items()]
    home = WORK if bubblewrap else str(folder)
    fixed = {"PATH": PATH, "HOME": home, "LANG": "C.UTF-8", "TMPDIR": "/tmp" if bubblewrap else home, **FEW_ARENAS}
    mounts = _mounts(folder, more, stage=bubblewrap != "" and uid is not None)
    filter_code = call_filter(platform.machine(), sockets=program.network or bubblewrap != "")
    prefix = []
    if bubblewrap:
        prefix = [
            bubblewrap,
            *_arguments(readable, mounts, limits, network=program.network, filtered=filter_code != b""),
        ]
        prefix += ["/bin/sh", "-c", _READY, "sh", PRLIMIT, f"--nproc={limits.processes}", "--"]
    return Order(
        argv=[*prefix, *program.command],
        environment={**fixed, **program.environment},
        bubblewrap=bubblewrap != "",
        filter=filter_code.hex(),
        network=program.network,
        uid=uid,
        staged=[(mount.source, mount.shown) for mount in mounts if mount.source != mount.shown],
        folder=folder,
        fresh=program.folder is None,
        in_memory=[*([WORK] if folder is None else []), "/tmp", "/dev/shm"] if bubblewrap else [],
        readable=[*readable, *(path for _, path in more)],
        devices=DEVICES,
        rlimits=_rlimits(limits),
        processes=limits.processes,
        wall_s=limits.wall_s,
        cpu_s=limits.cpu_s,
        memory_bytes=limits.memory_bytes,
        folder_bytes=limits.folder_bytes,
    )


@dataclass(frozen=True, slots=True)
class _Mount:
    """A path outside, under which name bubblewrap finds it, and where the program does."""

    source: str
    shown: str
    inside: str
    writable: bool


def _mounts(folder: str | None, more: Sequence[tuple[str, str]], *, stage: bool) -> list[_Mount]:
    wanted = [(path, inside, False) for inside, path in more]
    wanted += [(folder, WORK, True)] if folder is not None else []
    return [
        _Mount(path, f"{STAGE}/{number}" if stage else path, inside, writable)
        for number, (path, inside, writable) in enumerate(wanted)
    ]


def _check(program: Program) -> None:
    """Refuse what no process can be started with."""
    texts = [*program.command, *program.environment, *program.environment.values(), *program.read_only]
    if not program.command or any("\0" in text for text in texts):
        raise ParticipantError(Code.INVALID_REQUEST, "a program needs a command, and none of its words may hold a NUL")
    if any("=" in name for name in program.environment):
        raise ParticipantError(Code.INVALID_REQUEST, "a name in a program's environment holds an equals sign")
    paths = [program.folder, *program.read_only.values(), *map(Path, program.read_only)]
    if not all(path is None or path.is_absolute() for path in paths):
        raise ParticipantError(Code.INVALID_REQUEST, "a program's folder and read-only paths must be absolute")


def _arguments(
    readable: Sequence[str], mounts: Sequence[_Mount], limits: SandboxLimits, *, network: bool, filtered: bool
) -> list[str]:
    """The arguments of bubblewrap up to the program."""
    small = str(min(limits.folder_bytes, SMALL_BYTES))
    words = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    words += ["--uid", "1000", "--gid", "1000", "--hostname", "sandbox"]
    words += ["--share-net"] if network else []
    for path in readable:
        link = os.readlink(path) if path in SYSTEM and os.path.islink(path) else ""
        words += ["--symlink", link, path] if link else ["--ro-bind-try", path, path]
    words += ["--proc", "/proc", "--dev", "/dev", "--size", small, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    words += ["--size", str(limits.folder_bytes), "--tmpfs", "/tmp"]
    if not any(mount.writable for mount in mounts):
        words += ["--size", str(limits.folder_bytes), "--tmpfs", WORK]
    for mount in sorted(mounts, key=lambda mount: not mount.writable):
        words += ["--bind" if mount.writable else "--ro-bind", mount.shown, mount.inside]
    words += ["--seccomp", str(FILTER_FD)] if filtered else []
    return [*words, "--remount-ro", "/", "--chdir", WORK, "--"]


def _rlimits(limits: SandboxLimits) -> dict[str, int]:
    """The rlimits of every process, by the names of the module resource; that of processes is not among them."""
    return {
        "RLIMIT_AS": limits.memory_bytes,
        "RLIMIT_CPU": math.ceil(limits.cpu_s) + 1,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_CORE": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_MEMLOCK": 64 << 10,
        "RLIMIT_NICE": 0,
        "RLIMIT_RTPRIO": 0,
    }


@functools.cache
def python_paths() -> tuple[str, tuple[str, ...]]:
    """The interpreter for programs, and what of it lies outside the system's folders.

    The one below the virtual environment, or the system's; the packages of the environment are not seen.
    """
    base = Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()
    candidates = [base, *(Path(folder) / "python3" for folder in PATH.split(":"))]
    system = [path for path in candidates if path.resolve().is_relative_to("/usr") and os.access(path, os.X_OK)]
    return (str(system[0]), ()) if system else (str(base), (str(Path(sys.base_prefix).resolve()),))
