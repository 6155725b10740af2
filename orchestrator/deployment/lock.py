"""One live controller a folder: a lock that ends with its process, however that ends."""

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread

from .failures import FolderTaken
from .state import LOCK

_POLL_S = 0.1


class FolderLock:
    """The lock of a fleet's folder; servers do not inherit it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = -1

    async def take(self, patience_s: float, waits: Callable[[str], None] = lambda holder: None) -> None:
        """Take it, or wait so long for it; `waits` is told once who has it. Raises FolderTaken, OSError."""
        deadline, told = time.monotonic() + patience_s, False
        while not await anyio.to_thread.run_sync(self.try_to_take):
            if time.monotonic() >= deadline:
                raise FolderTaken(self._folder, await anyio.to_thread.run_sync(self._holder))
            if not told:
                waits(await anyio.to_thread.run_sync(self._holder))
                told = True
            await anyio.sleep(_POLL_S)

    def try_to_take(self) -> bool:
        """Take it unless another process has it."""
        file = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._file = file
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()}".encode())
        return True

    def _holder(self) -> str:
        return (self._folder / LOCK).read_text(errors="replace") or "another process"

    def release(self) -> None:
        """Let another process take it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
