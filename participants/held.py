"""What a participant holds of one life, and of a record that a restore has brought."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio
import anyio.lowlevel

from store import BlobRef, Life, RawRecord

from .errors import Code, ParticipantError
from .replies import Replies

State = TypeVar("State")
Item = TypeVar("Item")

BATCH = 64
"""Lives or records taken before other tasks get a turn."""


async def no_blobs(ref: BlobRef) -> bytes:
    """For records without blobs."""
    raise ParticipantError(Code.CORRUPT_CHECKPOINT, f"a record names blob {ref}, and there are none to be read")


async def in_turns(items: Iterable[Item]) -> AsyncIterator[Item]:
    """The items, with a turn for other tasks after each batch."""
    for number, item in enumerate(items, 1):
        yield item
        if number % BATCH == 0:
            await anyio.lowlevel.checkpoint()


@dataclass(slots=True)
class Held(Generic[State]):
    """One live life."""

    life: Life
    state: State
    replies: Replies = field(default_factory=Replies)
    waited: dict[tuple[str, str], int] = field(default_factory=dict)
    """(role of the peer, session) to the number of completed calls of mode `wait` with it, made or answered."""
    touched: set[str] = field(default_factory=set)
    """Roles of the peers that have been called for it, and so may hold something of it."""
    scopes: set[anyio.CancelScope] = field(default_factory=set)
    idle: anyio.Event = field(default_factory=anyio.Event)
    """Set once a stopped life has no work left."""
    stopped: bool = False
    freed: bool = False

    def stop(self) -> None:
        """Cancel what is going on, and let nothing new begin."""
        self.stopped = True
        for scope in list(self.scopes):
            scope.cancel()

    def leave(self, scope: anyio.CancelScope) -> None:
        """One piece of work has ended."""
        self.scopes.discard(scope)
        if self.stopped and not self.scopes:
            self.idle.set()

    def forget_peers(self) -> None:
        """Nothing is between this life and anybody any more."""
        self.waited.clear()
        self.touched.clear()

    def count_wait(self, peer: str, session: str) -> None:
        """One more call of mode `wait` with that peer is complete."""
        self.waited[peer, session] = self.waited.get((peer, session), 0) + 1


@dataclass(frozen=True, slots=True)
class Brought:
    """A record that a restore has brought, for the next life of its rollout to take up."""

    record: RawRecord
    epoch: int
    """Of the restore, and so of the life that may take it up."""
