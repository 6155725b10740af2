"""Stores to prune: in memory, with a clock that moves when told to, and checkpoints that can be checked in full."""

import dataclasses
from collections.abc import Iterable

from store import Controller, Draft, MemoryBackend, Ref, Retention, Store, claim
from store.backends import MemorySpace
from store.layout import parse_blob_key

from .checkpoints import SMALL_PARTS
from .rounds import Round

LAST = Retention(keep_last=1)
DAY_S = 24 * 3600.0
RUN = "a" * 32


@dataclasses.dataclass(slots=True)
class Clock:
    """The store's own clock, which moves only when told to."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


class World:
    """A store in memory with a clock, and other clients of it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.space = MemorySpace()
        self.backend = MemoryBackend(space=self.space, clock=self.clock)
        self.store = Store(self.backend, RUN, SMALL_PARTS)

    def client(self) -> tuple[MemoryBackend, Store]:
        """Another process at the same objects."""
        backend = MemoryBackend(space=self.space, clock=self.clock)
        return backend, Store(backend, RUN, SMALL_PARTS)

    def keys(self, prefix: str = "") -> set[str]:
        """What there is below a prefix, counters apart."""
        return {key for key in self.space.objects if key.startswith(prefix) and not key.startswith("alive/")}

    def blob_owners(self) -> set[str]:
        """The checkpoints that wrote the blobs which are there."""
        found = (parse_blob_key(key) for key in self.keys("blobs/"))
        return {str(blob[1]) for blob in found if blob}

    async def wait(self, seconds: float = 2 * DAY_S) -> None:
        """Let the store's clock move on."""
        self.clock.now_s += seconds


async def publish_cursors(store: Store, controller: Controller, cursors: Iterable[int]) -> list[Ref]:
    """A checkpoint for each cursor; they share a blob, and each has blobs of its own."""
    return [await Round(store, controller, cursor).run() for cursor in cursors]


async def world_with(count: int) -> tuple[World, list[Ref]]:
    """Checkpoints 1.1, 1.2 and on, of a controller that ended."""
    world = World()
    async with claim(world.store) as controller:
        return world, await publish_cursors(world.store, controller, range(count))


async def unfinished(store: Store, controller: Controller, cursor: int) -> Draft:
    """What the participants of a round wrote, without its publication."""
    left = Round(store, controller, cursor)
    await left.commit()
    assert left.draft is not None
    return left.draft
