"""System calls that fail at the n-th one, write little at a time, or keep a log."""

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from store.backends import FileOp, FileOps, Handle

Matches = Callable[[FileOp], bool]


def every(op: FileOp) -> bool:
    """Match all calls."""
    return True


class RecordingOps(FileOps):
    """Keeps a log of the calls that succeeded, in the order in which they did; of a write, exactly what was written."""

    def __init__(self) -> None:
        self.log: list[FileOp] = []
        self._order = threading.RLock()
        """Else a thread could write down a folder that lies in one which another has made and not written down yet."""

    def step(self, op: FileOp) -> AbstractContextManager[None]:
        return self._recorded(op)

    @contextmanager
    def _recorded(self, op: FileOp) -> Iterator[None]:
        with self._order:
            yield
            if op.name != "write":
                self.log.append(op)

    def write(self, file: Handle, data: memoryview) -> int:
        with self._order:
            written = super().write(file, data)
            self.log.append(FileOp("write", file.path, data=bytes(data[:written])))
            return written


class FaultyOps(FileOps):
    """Raises an OSError instead of the n-th matching call, and then is well again."""

    def __init__(self, nth: int, code: int = errno.EIO, matches: Matches = every) -> None:
        self.left = nth
        self.code = code
        self.matches = matches
        self.struck: FileOp | None = None
        """The call that failed."""
        self.seen: list[FileOp] = []
        """All that matched, the failed one included."""

    def step(self, op: FileOp) -> AbstractContextManager[None]:
        if self.matches(op):
            self.seen.append(op)
            self.left -= 1
            if self.left == 0:
                self.struck = op
                raise OSError(self.code, "injected")
        return super().step(op)


class StingyOps(FileOps):
    """Writes and reads a few bytes per call, as a kernel may."""

    def write(self, file: Handle, data: memoryview) -> int:
        return super().write(file, data[:7])

    def read(self, file: Handle, length: int, offset: int) -> bytes:
        return super().read(file, min(length, 5), offset)
