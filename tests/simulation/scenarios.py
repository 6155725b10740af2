"""The scenarios: who meets at the store, and what the store holds when they do."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from store import CheckpointId, Retention

from .actors import Play, claiming, importing, pruning, publishing, sealing
from .worlds import Copyable, World, foreign_checkpoint, plain_world, planned

LAST = Retention(keep_last=1)
OLD = CheckpointId(1, 1)


@dataclass(frozen=True, slots=True)
class Scene:
    """A store to start from and who meets there."""

    world: World
    plays: Mapping[str, Play]


@cache
def plain() -> tuple[World, Copyable]:
    """Epoch 1 lives; 1.1 and 1.2 are published, 1.3 is committed. Another root has 2.1, which needs blobs of 1.1."""

    async def build() -> tuple[World, Copyable]:
        world = await plain_world()
        return world, await foreign_checkpoint(world)

    return asyncio.run(build())


@cache
def interrupted() -> tuple[World, Copyable]:
    """The same, and a prune died right after its plan to delete 1.1."""

    async def build() -> tuple[World, Copyable]:
        world = await plain_world()
        copyable = await foreign_checkpoint(world)
        await planned(world, str(OLD))
        return world, copyable

    return asyncio.run(build())


@cache
def two_pending() -> World:
    """Epoch 1 lives; 1.1 is published, and both 1.2 and 1.3 are committed as its followers."""
    return asyncio.run(plain_world(rounds=1, pending=2))


def publish() -> Play:
    """The live controller publishes 1.3."""
    return publishing(1, plain()[0].drafts["1.3"])


def imports() -> Play:
    """An operator copies 2.1 in."""
    copyable = plain()[1]
    return importing(copyable.source, copyable.ref.checkpoint)


def in_plain(**plays: Play) -> Scene:
    """These actors at the plain store."""
    return Scene(plain()[0], plays)


SCENES: dict[str, Callable[[], Scene]] = {
    "claim against claim": lambda: in_plain(first=claiming(), second=claiming("none")),
    "three claims": lambda: in_plain(first=claiming(), second=claiming(then_publish=True), third=claiming("none")),
    "publish against takeover": lambda: in_plain(publish=publish(), claim=claiming(then_publish=True)),
    "publish against fork": lambda: in_plain(publish=publish(), claim=claiming(OLD)),
    "two publications against takeover": lambda: Scene(
        two_pending(), {"publish": publishing(1, *two_pending().drafts.values()), "claim": claiming()}
    ),
    "one draft twice": lambda: in_plain(first=publish(), second=publish()),
    "seal against claim": lambda: in_plain(seal=sealing(1, 7), claim=claiming()),
    "publish against prune": lambda: in_plain(publish=publish(), prune=pruning(LAST)),
    "fork against prune": lambda: in_plain(claim=claiming(OLD), prune=pruning(LAST)),
    "import against prune": lambda: in_plain(imports=imports(), prune=pruning(LAST)),
    "prune against prune": lambda: in_plain(first=pruning(LAST), second=pruning(LAST)),
    "an interrupted prune, twice": lambda: Scene(interrupted()[0], {"first": pruning(LAST), "second": pruning(LAST)}),
    "publish, fork and prune": lambda: in_plain(publish=publish(), claim=claiming(OLD), prune=pruning(LAST)),
    "publish, takeover and prune": lambda: in_plain(
        publish=publish(), claim=claiming(then_publish=True), prune=pruning(LAST)
    ),
    "import and an interrupted prune, twice": lambda: Scene(
        interrupted()[0], {"imports": imports(), "first": pruning(LAST), "second": pruning(LAST)}
    ),
}
SMALL = {
    "claim against claim": 2,
    "publish against takeover": 1,
    "publish against fork": 1,
    "two publications against takeover": 1,
    "one draft twice": 1,
    "seal against claim": 2,
    "fork against prune": 1,
    "import against prune": 0,
    "prune against prune": 0,
    "an interrupted prune, twice": 1,
}
"""How many faults there may be in one schedule, of the scenes that are over soon."""
LARGE = {
    "claim against claim": 5,
    "three claims": 1,
    "publish against takeover": 2,
    "publish against fork": 3,
    "two publications against takeover": 3,
    "one draft twice": 2,
    "seal against claim": 5,
    "publish against prune": 2,
    "fork against prune": 3,
    "import against prune": 2,
    "prune against prune": 2,
    "an interrupted prune, twice": 2,
    "publish, fork and prune": 0,
    "publish, takeover and prune": 0,
    "import and an interrupted prune, twice": 0,
}
"""The same with more of them, also of those that take longer."""
