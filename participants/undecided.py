"""Which calls of older lives wait at a process that was started anew, until a controller has decided who goes on.

Such a process knows nothing of lives from before its first adopt. A call that may be the first of a life anywhere, such
as a model call, may also be the repeat of one that the process before has carried out; any other has nothing to go on
from. Only the controller sees from all answers which lives have lost something, and ends those: by a retire, after
which every other life goes on. A controller that dies between its adopt and that retire has decided nothing, and
the next one does.
"""

import anyio

from store import Life

from .fences import Fences
from .telemetry.operations import refusing


class Undecided:
    """What one process knows of that decision."""

    def __init__(self) -> None:
        """There is nothing to decide: every life goes on."""
        self._below = 0
        self._changed = anyio.Event()

    def adopted(self, epoch: int) -> None:
        """The first controller has come to a process of a server: what began later than it has lost nothing here."""
        self._below = epoch

    def decided(self) -> None:
        """What is to be ended was named: everything else goes on."""
        self._below = 0
        self.look_again()

    def look_again(self) -> None:
        """Fences have changed: who waits may be over."""
        self._changed.set()
        self._changed = anyio.Event()

    async def wait(self, life: Life, fences: Fences, role: str) -> None:
        """Until a call of this life to `role` may go on. Raises `stale_life` where it never will."""
        while life.epoch < self._below:
            with refusing(role):
                fences.check_not_stale(life)
            await self._changed.wait()
