"""Who gives way where a server runs out of descriptors, so that whoever has the token is still heard.

    from SPARE of the limit on           each new connection ends the one that has kept its server waiting longest: that
                                         has not sent a head, else not all of a body, else nothing since its last answer
    calls and channels, from BUSY on     a further one is told to come again, unless one with half a body gives way;
                                         control plane and health are answered always

One that calls nobody, as a backend, needs hardly any for anything else: there both are nearly all of the limit.

What else has descriptors, calls to others and files, is counted once a second where there are many connections.
"""

import os
import resource
from collections import OrderedDict
from typing import Protocol

from uvicorn.server import ServerState

SPARE = 4 / 5
BUSY = 2 / 5
"""A call may need a descriptor of its own, for calling somebody else."""
SPARE_ALONE, BUSY_ALONE = 19 / 20, 9 / 10
"""Of a server that calls nobody."""


class Evictable(Protocol):
    """A connection."""

    def evict(self) -> None:
        """End it at once."""


class Crowd(ServerState):
    """The connections of a server."""

    def __init__(self, *, calls_others: bool = True) -> None:
        """There are none."""
        super().__init__()
        self._spare, self._busy = (SPARE, BUSY) if calls_others else (SPARE_ALONE, BUSY_ALONE)
        self._silent: OrderedDict[Evictable, None] = OrderedDict()
        self._sending: OrderedDict[Evictable, None] = OrderedDict()
        self._idle: OrderedDict[Evictable, None] = OrderedDict()
        self._others = 0
        """Descriptors of all but connections, when they were counted last."""

    def __repr__(self) -> str:
        return f"<Crowd of {len(self.connections)}, {self._asking()} ask>"

    @property
    def many(self) -> bool:
        """Whether it is worth while to count descriptors."""
        return len(self.connections) > _limit() / 8

    def counted(self, descriptors: int) -> None:
        """So many are open."""
        self._others = max(0, descriptors - len(self.connections))
        for _ in range(int(descriptors - _limit() * self._spare)):
            self._evict(self._silent, self._sending, self._idle)

    def came(self, connection: Evictable) -> None:
        """A new one, which has said nothing yet."""
        if len(self.connections) + self._others > _limit() * self._spare:
            self._evict(self._silent, self._sending, self._idle)
        self._silent[connection] = None

    def asks(self, connection: Evictable) -> bool:
        """It has sent a head; whether it may ask, if it is not of those who always may."""
        may = self.has_room()
        self.gone(connection)
        self._sending[connection] = None
        return may

    def has_room(self) -> bool:
        """Whether one more may ask."""
        return self._asking() < _limit() * self._busy or self._evict(self._sending)

    def has_asked(self, connection: Evictable) -> None:
        """All of its request is there: it does not end before its answer."""
        self.gone(connection)

    def has_answer(self, connection: Evictable) -> None:
        """It may ask again, or give way."""
        self.gone(connection)
        self._idle[connection] = None

    def gone(self, connection: Evictable) -> None:
        """Nothing is waited for."""
        for waiting in (self._silent, self._sending, self._idle):
            waiting.pop(connection, None)

    def _asking(self) -> int:
        return len(self.connections) - len(self._silent) - len(self._idle)

    def _evict(self, *kinds: OrderedDict[Evictable, None]) -> bool:
        for waiting in kinds:
            if waiting:
                oldest, _ = waiting.popitem(last=False)
                self.connections.discard(oldest)  # It is lost in a moment.
                oldest.evict()
                return True
        return False


def _limit() -> float:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if soft == resource.RLIM_INFINITY else soft


def open_descriptors() -> int:
    """How many this process has."""
    return len(os.listdir("/proc/self/fd"))
