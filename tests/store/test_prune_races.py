"""Pruning while others work: another prune, or a publication, between any two of its requests."""

import anyio
import pytest

from store import (
    CheckpointId,
    Controller,
    Draft,
    MemoryBackend,
    Record,
    Retention,
    Store,
    claim,
    copy_checkpoint,
    open_checkpoint,
    prune,
)
from tests.support.checkpoints import AGENT, SMALL_PARTS, life, store_with
from tests.support.prunable import LAST, RUN, World, publish_cursors, unfinished, world_with
from tests.support.rounds import read_cursor

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


class Interrupted(MemoryBackend):
    """Lets something else happen right before its n-th call of a verb."""

    def __init__(self, world: World, verb: str, nth: int, act: "Act") -> None:
        super().__init__(space=world.space, clock=world.clock)
        self._left = nth
        self._verb = verb
        self._act = act

    async def get(self, key: str, *, max_bytes: int) -> bytes:
        await self._count("get")
        return await super().get(key, max_bytes=max_bytes)

    async def create(self, key: str, data: bytes) -> None:
        await self._count("create")
        await super().create(key, data)

    async def _count(self, verb: str) -> None:
        if verb == self._verb:
            self._left -= 1
            if self._left == 0:
                await self._act()


class Act:
    """Something that is done once, in between."""

    done = False

    async def __call__(self) -> None:
        """Do it."""
        self.done = True


class OtherPrune(Act):
    """A whole prune by another operator."""

    def __init__(self, world: World) -> None:
        self._store = world.client()[1]

    async def __call__(self) -> None:
        await super().__call__()
        await prune(self._store, LAST)


class Publish(Act):
    """A publication by the live controller."""

    def __init__(self, controller: Controller, draft: Draft) -> None:
        self._controller = controller
        self._draft = draft

    async def __call__(self) -> None:
        await super().__call__()
        await self._controller.publish(self._draft, timeout_s=5)


async def test_a_prune_amid_another_at_every_read_looks_again() -> None:
    """What the other one deletes meanwhile is no damage, and the outcome is the same."""
    nth = 1
    while True:
        world, refs = await world_with(3)
        act = OtherPrune(world)
        report = await prune(Store(Interrupted(world, "get", nth, act), RUN, SMALL_PARTS), LAST)
        assert report.failures == []
        assert await read_cursor(world.store, refs[2]) == 2
        assert (await world.store.chain()).state.plans == ()
        assert world.blob_owners() == {"1.1", "1.3"}
        if not act.done:
            break
        nth += 1
    assert nth > 10


@pytest.mark.parametrize("verb", ["get", "create"])
async def test_a_publication_amid_a_prune_is_never_harmed(verb: str) -> None:
    """At every read and every write of the prune: the new head is whole, and it is kept."""
    nth = 1
    while True:
        world = World()
        async with claim(world.store) as controller:
            await publish_cursors(world.store, controller, [0, 1])
            act = Publish(controller, await unfinished(world.store, controller, 2))
            await prune(Store(Interrupted(world, verb, nth, act), RUN, SMALL_PARTS), LAST)
            assert controller.head is not None
            assert await read_cursor(world.store, controller.head) == (2 if act.done else 1)
        if not act.done:
            break
        nth += 1
    assert nth > (2 if verb == "create" else 10)


@pytest.mark.parametrize("verb", ["get", "create"])
async def test_a_controller_publishes_while_it_prunes(verb: str) -> None:
    """At every read and every write of its own prune: neither waits for the other, and the new head is kept."""
    nth, met = 1, 0
    while True:
        world = World()
        act = LatePublish()
        store = Store(Interrupted(world, verb, nth, act), RUN, SMALL_PARTS)
        async with claim(store) as controller:
            await publish_cursors(world.store, controller, [0, 1])
            act.own = Publish(controller, await unfinished(world.store, controller, 2))
            with anyio.fail_after(2):
                await controller.prune(LAST)
            assert controller.head is not None
            assert await read_cursor(world.store, controller.head) == (2 if act.own.done else 1)
            met += act.own.done
        if not act.done:
            break
        nth += 1
    assert met >= 2


class LatePublish(Act):
    """A publication by the controller that prunes, once there is something to publish."""

    own: Publish | None = None

    async def __call__(self) -> None:
        await super().__call__()
        if self.own is not None:
            await self.own()


class Copy(Act):
    """An import of a checkpoint that needs a blob of an earlier one."""

    def __init__(self, source: Store, world: World) -> None:
        self._source = source
        self._store = world.client()[1]

    async def __call__(self) -> None:
        await super().__call__()
        await copy_checkpoint(self._source, self._store, CheckpointId(1, 2))


async def test_an_import_amid_a_prune_keeps_the_blobs_that_it_needs() -> None:
    """Right before the plan is written: the plan was made without it, so the prune has to look again."""
    shares = {AGENT: [Record(life("r0"), {"file": bytes(300)})]}
    source, world, first = await store_with(shares, shares), World(), CheckpointId(1, 1)
    await copy_checkpoint(source, world.store, first)
    act = Copy(source, world)
    await prune(Store(Interrupted(world, "create", 1, act), RUN, SMALL_PARTS), Retention(drop=frozenset({first})))
    assert act.done
    await (await open_checkpoint(world.store, CheckpointId(1, 2))).verify()


async def test_many_prunes_at_once_come_to_one_result() -> None:
    """All return, each plan has its end, and what is kept is whole."""
    world, refs = await world_with(4)
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(prune, world.client()[1], LAST)
    chain = await world.store.chain()
    assert chain.state.plans == ()
    assert await read_cursor(world.store, refs[3]) == 3
    assert world.blob_owners() == {"1.1", "1.4"}
