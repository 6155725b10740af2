"""What the processes of one server know of each other without asking: memory that they share.

The supervisor makes it before the first fork and is the only one that counts starts; each worker says of itself alone
whether it is ready. A number is four bytes, written at once.
"""

import mmap
from enum import IntEnum


class Stage(IntEnum):
    """Where a worker stands."""

    STARTING = 0
    READY = 1
    CLOSING = 2


class Board:
    """A stage and a count of starts for each worker of one server, by its number among those of the role."""

    def __init__(self, workers: int, first: int = 0) -> None:
        """All are starting, for the first time; the first of them has the number `first`."""
        self._memory = mmap.mmap(-1, 8 * workers)  # It begins with zeros.
        self._numbers = memoryview(self._memory).cast("I")
        self.workers = workers
        self._first = first

    def begin(self, number: int) -> None:
        """A worker is started, once more."""
        self._numbers[2 * (number - self._first)] = Stage.STARTING
        self._numbers[2 * (number - self._first) + 1] += 1

    def put(self, number: int, stage: Stage) -> None:
        """A worker stands there now."""
        self._numbers[2 * (number - self._first)] = stage

    def stage(self, number: int) -> Stage:
        """Where a worker stands."""
        return Stage(self._numbers[2 * (number - self._first)])

    @property
    def ready(self) -> int:
        """Workers that serve."""
        return sum(self._numbers[2 * place] == Stage.READY for place in range(self.workers))

    @property
    def replaced(self) -> int:
        """Workers that were started in the place of one that died."""
        return sum(self._numbers[2 * place + 1] for place in range(self.workers)) - self.workers
