"""Where working folders lie: below one root, in a folder of each server process, and removed with it or after it.

    <root>/.lock                    held while a process looks for dead ones and makes its own
    <root>/server-<random>/.lock    held as long as that process lives
    <root>/server-<random>/<session>-<random>

A lock is of the kernel and ends with its process, however that ends. So a folder whose lock can be had is one of a dead
process, and is removed by the next one that starts below the same root. Anything else below the root is left alone.
"""

import fcntl
import mmap
import os
import re
import secrets
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from .beneath import remove_tree

_OWN = re.compile(r"server-[0-9a-f]{16}")
_ODD = re.compile(r"[^A-Za-z0-9.-]+")
LOCK = ".lock"
_TICK_S = 0.02
"""Twice the longest tick of a file system's clock."""


class Place:
    """The folder of one server process. Every method blocks."""

    def __init__(self, root: Path) -> None:
        """Take a folder below `root`, which is made, and remove those of dead processes.

        Raises PermissionError where others than this user could write to the root.
        """
        root.mkdir(mode=0o711, parents=True, exist_ok=True)
        _check_ours(root)
        self._folder = root / f"server-{secrets.token_hex(8)}"
        lock = _locked(root / LOCK, os.O_CREAT, 0)
        try:
            dead = _dead(root)
            self._folder.mkdir(mode=0o711)  # A contained program of another user has to find its own below it.
            self._lock: int | None = _locked(self._folder / LOCK, os.O_CREAT, fcntl.LOCK_NB)
        finally:
            os.close(lock)
        self.times_tell = times_tell(self._folder)
        """Whether a file that was changed here can be told by its times, however it was changed."""
        for folder, held in dead:
            _remove(folder, held)

    def __repr__(self) -> str:
        return f"<Place {self._folder}>"

    @property
    def folder(self) -> Path:
        """Where all of it is."""
        return self._folder

    def fresh(self, name: str) -> Path:
        """A new empty folder, whose name begins with what can be kept of `name`."""
        folder = self._folder / f"{_ODD.sub('_', name)[:60]}-{secrets.token_hex(8)}"
        folder.mkdir(mode=0o700)
        return folder

    def close(self) -> None:
        """Remove everything."""
        if self._lock is not None:
            _remove(self._folder, self._lock)
            self._lock = None


def times_tell(folder: Path) -> bool:
    """Whether the file system notes every change in a file's times, found by trying, which blocks for a moment.

    One in memory misses those of a mapped file that was read first.
    """
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(bytes(1))
        before = os.fstat(file.fileno()).st_ctime_ns
        time.sleep(_TICK_S)
        with mmap.mmap(file.fileno(), 1) as mapped:
            mapped[0] = mapped[0] + 1
        return os.fstat(file.fileno()).st_ctime_ns != before


def _check_ours(root: Path) -> None:
    facts = root.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise PermissionError(f"{root} must be a folder that this user alone may write to")


def _dead(root: Path) -> list[tuple[Path, int]]:
    """Folders of processes that are gone, with their locks, which are held from here on."""
    found = []
    for folder in root.iterdir():
        if not _OWN.fullmatch(folder.name) or not stat.S_ISDIR(folder.lstat().st_mode):
            continue
        try:
            found.append((folder, _locked(folder / LOCK, 0, fcntl.LOCK_NB)))
        except BlockingIOError:
            continue  # It lives.
        except FileNotFoundError:
            with suppress(OSError):
                folder.rmdir()  # Whoever removed the rest of it died before this.
    return found


def _locked(path: Path, create: int, how: int) -> int:
    """A descriptor that holds the lock. Raises BlockingIOError where it is not to wait and another process has it."""
    fd = os.open(path, os.O_RDWR | create | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | how)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _remove(folder: Path, lock: int) -> None:
    """The lock goes last. One who waited at the door for it finds nothing more."""
    try:
        with suppress(FileNotFoundError):
            for each in folder.iterdir():
                if each.name != LOCK:
                    remove_tree(each)
            (folder / LOCK).unlink()
            folder.rmdir()
    finally:
        os.close(lock)
