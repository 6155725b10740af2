"""Where programs have their working folders: one place a process, which the next one clears if this one is killed.

The place is locked as long as its process lives, whatever sees the same file system: a place without a holder is of a
process that was killed.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread

PREFIX = "midflight-agent-"


@asynccontextmanager
async def locked_base() -> AsyncIterator[Path]:
    """A place of this process's own, and an end to those of killed ones."""
    base, lock = await anyio.to_thread.run_sync(_take)
    try:
        yield base
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(_give_up, base, lock)


def _take() -> tuple[Path, int]:
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # It is somebody else's, or has just gone.
            _give_up(left, _lock(left))
    while True:
        base = Path(tempfile.mkdtemp(prefix=PREFIX))
        with suppress(OSError):  # Another process took it for one that is left, before it was locked.
            lock = _lock(base)
            base.chmod(0o711)  # A program may be another user's, and must reach its own folder in it.
            return base, lock


def _lock(folder: Path) -> int:
    """A descriptor that holds the lock. Raises OSError where another one does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _give_up(base: Path, lock: int) -> None:
    try:
        remove(base)
    finally:
        os.close(lock)


def remove(folder: Path) -> None:
    """A folder and all in it, whatever rights a program has left there; what cannot go stays."""
    for path, folders, _ in os.walk(folder):
        for inner in (Path(path, name) for name in folders):
            with suppress(OSError):
                if not inner.is_symlink() and not os.access(inner, os.R_OK | os.W_OK | os.X_OK):
                    inner.chmod(0o700)  # Before it is walked into.
    shutil.rmtree(folder, ignore_errors=True)
