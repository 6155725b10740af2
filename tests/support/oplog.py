"""Recorded system calls that fail at one call, or that end at one as in a killed process."""

import errno
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from store.backends import FileOp

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


def killed(error: BaseException) -> bool:
    """Whether this is the end of a killed process, and nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(killed(inner) for inner in error.exceptions)
    return isinstance(error, Killed)
