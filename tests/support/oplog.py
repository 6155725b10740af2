"""Recorded system calls that fail at one call, or that end at one as in a killed process."""

import errno
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from store.backends import FileOp, Handle

from .file_ops import FaultyOps, Matches, RecordingOps, every


class Killed(BaseException):
    """The process is gone; nothing that it would still have done happens."""


class MortalOps(RecordingOps):
    """Records until so many operations were made; every one after that raises Killed."""

    def __init__(self, lives_for: int, log: list[FileOp]) -> None:
        super().__init__()
        self.log = log
        self._end = len(log) + lives_for

    def step(self, op: FileOp) -> AbstractContextManager[None]:
        if len(self.log) >= self._end:
            raise Killed
        return super().step(op)


class FaultyRecordingOps(RecordingOps):
    """Records what succeeds; the n-th matching call fails, before it does anything."""

    def __init__(self, nth: int = 0, code: int = errno.EIO, matches: Matches = every) -> None:
        super().__init__()
        self.faults = FaultyOps(nth, code, matches)

    def step(self, op: FileOp) -> AbstractContextManager[None]:
        return self._both(op)

    @contextmanager
    def _both(self, op: FileOp) -> Iterator[None]:
        with self.faults.step(op), super().step(op):
            yield


class SerialRecordingOps(RecordingOps):
    """Records the calls of several threads in the order in which they took effect."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = threading.RLock()

    def step(self, op: FileOp) -> AbstractContextManager[None]:
        return self._in_turn(op)

    @contextmanager
    def _in_turn(self, op: FileOp) -> Iterator[None]:
        with self._turn, super().step(op):
            yield

    def write(self, file: Handle, data: memoryview) -> int:
        with self._turn:
            return super().write(file, data)


def killed(error: BaseException) -> bool:
    """Whether this is the end of a killed process, and nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(killed(inner) for inner in error.exceptions)
    return isinstance(error, Killed)
