"""Folders that are gone once they are not needed, however that comes.

All those of a process lie in one folder, with a file that the process holds a lock on. A process that is killed leaves
its folder behind and loses the lock; the next one that wants a folder on this host removes what it finds unlocked.
"""

import atexit
import fcntl
import functools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

PREFIX = "midflight-verify-"
_LOCK = "lock"


@asynccontextmanager
async def scratch_folder() -> AsyncIterator[Path]:
    """An empty folder of this process's own; removed also where its user is cancelled."""
    path = await anyio.to_thread.run_sync(_make)
    try:
        yield path
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(lambda: shutil.rmtree(path, ignore_errors=True))


def remove_abandoned(where: Path) -> None:
    """Remove the folders of processes that are gone."""
    for folder in where.glob(f"{PREFIX}*"):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # Just being made, just being removed, or another user's.
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)


def own_folder() -> Path:
    """The folder of this process, where all of its scratch folders are; made at first use, which blocks."""
    return _made_by(os.getpid())


def _make() -> Path:
    """Without bubblewrap a program has a user id of its own, and only passes through, to what is its own."""
    path = Path(tempfile.mkdtemp(dir=own_folder()))
    path.chmod(0o711)
    return path


@functools.lru_cache(maxsize=1)
def _made_by(pid: int) -> Path:
    remove_abandoned(Path(tempfile.gettempdir()))
    base = Path(tempfile.mkdtemp(prefix=PREFIX))
    base.chmod(0o711)
    lock = os.open(base / f"{_LOCK}-{pid}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (base / f"{_LOCK}-{pid}").rename(base / _LOCK)  # Nobody finds it before it is locked.
    atexit.register(shutil.rmtree, base, ignore_errors=True)
    return base
