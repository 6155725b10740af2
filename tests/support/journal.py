"""What really happened in a world of participants, over all its lives, and what of it must never happen again.

Every model call, tool call, seed and verification that runs writes `begin` and `end` here, whatever world it runs in.
A checkpoint marks what has ended by then: that must not begin again in any later world that continues from it. Within
one world nothing begins twice. Both together are the exact counts that a boundary demands.
"""

from collections import Counter
from dataclasses import dataclass, field

import anyio


@dataclass(slots=True)
class Journal:
    """One for all worlds of a test."""

    world: int = 0
    begun: Counter[str] = field(default_factory=Counter)
    """How often each event began, over all worlds."""
    ended: Counter[str] = field(default_factory=Counter)
    order: list[str] = field(default_factory=list)
    """Events as they began."""
    violations: list[str] = field(default_factory=list)
    _here: set[str] = field(default_factory=set)
    """Begun in this world."""
    _ended_here: set[str] = field(default_factory=set)
    _done: frozenset[str] = frozenset()
    """Ended at or before the boundaries that this world continues from."""
    _saved: frozenset[str] = frozenset()
    """Ended by the last checkpoint."""
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def new_world(self) -> None:
        """The world before is dead, and another one continues from the last checkpoint."""
        self.world += 1
        self._done, self._here, self._ended_here = self._saved, set(), set()

    def begin(self, event: str) -> None:
        """It runs, for real."""
        if event in self._done:
            self.violations.append(f"{event} was done before the checkpoint, and began again in world {self.world}")
        if event in self._here:
            self.violations.append(f"{event} began twice in world {self.world}")
        self._here.add(event)
        self.begun[event] += 1
        self.order.append(event)
        self._wake()

    def end(self, event: str) -> None:
        """It has come to its end."""
        self.ended[event] += 1
        self._ended_here.add(event)
        self._wake()

    def checkpoint(self) -> None:
        """Everything stands still, and is being saved as it is."""
        self._saved = self._done | self._ended_here

    async def wait(self, event: str, *, ended: bool = False) -> None:
        """Until it has begun, or ended, in this world."""
        while event not in (self._ended_here if ended else self._here):
            await self._changed.wait()

    def unsaved(self) -> set[str]:
        """What has begun in this world, and no checkpoint has: it is what a crash now does again."""
        return self._here - self._saved

    def repeated(self) -> dict[str, int]:
        """Events that began more than once, and how often."""
        return {event: count for event, count in self.begun.items() if count > 1}

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
