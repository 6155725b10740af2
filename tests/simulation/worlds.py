"""The stores that the schedules start from, and one call to explore a scenario."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from store import (
    CheckpointId,
    Controller,
    Deletion,
    Draft,
    MemoryBackend,
    ObjectInfo,
    ParticipantCommit,
    Record,
    Ref,
    Retention,
    Store,
    claim,
    copy_checkpoint,
    open_checkpoint,
    prune,
)
from store.backends import MemorySpace
from store.layout import entry_key, parse_entry_key
from tests.support.checkpoints import AGENT, life, memory_store
from tests.support.rounds import PATIENT
from tests.support.scheduler import Actor, Fixed, Objects, Reply, Request, stepping_loop

from .actors import FOREVER_S, NumberedChain, Play, script
from .exploration import Exploration, Space, Tally
from .oracle import Oracle

RUN = "a" * 32
OTHER_RUN = "b" * 32
NOW_S = 1e9
"""The store's clock in every state: whatever may be swept for its age is old enough."""


@dataclass(slots=True)
class World:
    """Objects to start from, and what is known about them."""

    objects: dict[str, bytes]
    drafts: dict[str, Draft] = field(default_factory=dict)
    """Committed by their participants and not published, by checkpoint."""
    needs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Digest of a checkpoint to all keys that it cannot do without."""


def one_record(shared: bytes, own: bytes) -> list[Record]:
    """A record with a blob that others have too and one of its own."""
    return [Record(life("r0"), {"shared": shared * 100, "own": own * 100})]


async def commit(store: Store, controller: Controller, parent: Ref | None, own: bytes) -> Draft:
    """The next round of a controller, ready to be published."""
    checkpoint = controller.next_round()
    continued = (await open_checkpoint(store, parent)).as_parent() if parent else None
    share = one_record(b"s", own)
    receipt = await ParticipantCommit(store, checkpoint, AGENT, parent=continued).run(share)
    return Draft(
        checkpoint=checkpoint,
        parent=parent.checkpoint if parent else None,
        participants=(receipt.ref,),
        scope=[record.life for record in share],
        created_at="",
    )


async def keys_of(store: Store, ref: Ref) -> tuple[str, ...]:
    """Every key that a checkpoint cannot do without."""
    opened = await open_checkpoint(store, ref)
    prefix = f"checkpoints/{ref.checkpoint}/"
    own = [info.key for info in await store.backend.list(prefix)]
    return (*own, *(blob.key for blob in opened.blobs))


def copy_of(store: Store) -> Store:
    """The same objects again, to try something out on."""
    assert isinstance(store.backend, MemoryBackend)
    space = MemorySpace(objects=dict(store.backend.space.objects))
    return memory_store(MemoryBackend(space=space), store.run_id, PATIENT)


def objects_of(store: Store) -> dict[str, bytes]:
    """What a store holds, apart from counters and its format."""
    assert isinstance(store.backend, MemoryBackend)
    stored = store.backend.space.objects.items()
    return {key: value.data for key, value in stored if key.startswith(("chain/", "checkpoints/", "blobs/"))}


async def publish(store: Store, controller: Controller, draft: Draft, world: World) -> Ref:
    """Publish, and note what belongs to it."""
    ref = await controller.publish(draft, timeout_s=FOREVER_S)
    world.needs[ref.digest] = await keys_of(store, ref)
    return ref


async def plain_world(rounds: int = 2, pending: int = 1, claims: int = 1) -> World:
    """A run with a live controller: `rounds` published checkpoints, and `pending` more that only lack publication.

    The blob `s` was written by the first checkpoint and is shared by all; each has one of its own.
    """
    world = World({})
    store = memory_store(run_id=RUN, limits=PATIENT)
    for _ in range(claims - 1):
        async with claim(store):
            pass
    async with claim(store) as controller:
        for number in range(rounds):
            await publish(store, controller, await commit(store, controller, controller.head, b"%d" % number), world)
        trial, parent = copy_of(store), controller.head
        for number in range(pending):
            draft = await commit(store, controller, parent, b"p%d" % number)
            world.drafts[str(draft.checkpoint)] = draft
            trial = copy_of(store)
            await publish(trial, Controller(trial, await trial.chain(), controller.epoch), draft, world)
    world.objects = objects_of(store)
    return world


@dataclass(slots=True)
class Copyable:
    """A checkpoint in another root, and that root."""

    source: Store
    ref: Ref


async def foreign_checkpoint(world: World) -> Copyable:
    """A checkpoint 2.1 of another root, which continues a copy of this root's 1.1 and shares its blobs."""
    source = memory_store(run_id=OTHER_RUN, limits=PATIENT)
    first = await copy_checkpoint(await store_of(world), source, CheckpointId(1, 1))
    async with claim(source, first.checkpoint) as controller:
        ref = await controller.publish(await commit(source, controller, first, b"0"), timeout_s=FOREVER_S)
    world.needs[ref.digest] = await keys_of(source, ref)
    return Copyable(source, ref)


async def store_of(world: World) -> Store:
    """A store of its own with the objects of a world, all of them old."""
    backend = MemoryBackend(space=MemorySpace(), clock=lambda: 0.0)
    for key, data in world.objects.items():
        await backend.put(key, data)
    return memory_store(backend, RUN, PATIENT)


async def pruned(world: World, policy: Retention) -> None:
    """Prune a world before its schedules begin."""
    store = await store_of(world)
    await prune(store, policy)
    world.objects = objects_of(store)


async def planned(world: World, *names: str) -> None:
    """Leave a world as a prune does that died right after its plan."""
    store = await store_of(world)
    checkpoints = tuple(map(CheckpointId.parse, names))
    await (await store.chain()).append(None, lambda _: Deletion(checkpoints=checkpoints))
    world.objects = objects_of(store)


def fixed_replies(objects: Objects) -> Fixed:
    """What is the same in every state: entries that stand, a listing that is stale for ever, counters and the clock."""
    entries = {key: data for key, data in objects.items() if parse_entry_key(key)}
    listing = tuple(ObjectInfo(key, len(data), 0.0) for key, data in sorted(entries.items()))
    assert list(entries) == [entry_key(n + 1) for n in range(len(entries))]

    def reply(request: Request) -> Reply | None:
        if (request.key.startswith("alive/") and request.verb == "list") or request == Request("delete", ""):
            return Reply(())
        if request.key.startswith("alive/"):
            return Reply(ObjectInfo(request.key, 2, NOW_S) if request.verb == "stat" else b"{}")
        if request.verb == "list" and request.key == "chain/":
            return Reply(listing)
        if request.verb == "get" and request.key in entries:
            return Reply(entries[request.key])
        return None

    return reply


async def tokens_read(objects: Objects, stale: Objects) -> list[str]:
    """What a fresh reader finds on the chain, with a listing from before the schedules began."""
    space = MemorySpace()
    backend = MemoryBackend(space=space)
    for key, data in stale.items():
        await backend.put(key, data)
    backend.freeze_listing()
    space.objects.clear()
    for key, data in objects.items():
        await backend.put(key, data)
    return [entry.token for entry in (await memory_store(backend, RUN, PATIENT).chain()).entries]


@dataclass(slots=True)
class Explored:
    """One scenario, explored."""

    tally: Tally
    outcomes: int
    """Distinct sets of objects."""

    def __str__(self) -> str:
        return f"{self.tally}, {self.outcomes:,} distinct contents of the store"


def explore(
    world: World,
    plays: Mapping[str, Play],
    *,
    faults: int,
    kind: type[NumberedChain] = NumberedChain,
    until: float = math.inf,
) -> Explored:
    """Every schedule of these plays, as far as it is come until then; raises Violation at the first wrong state."""
    space = Space()
    fixed = fixed_replies(world.objects)
    with stepping_loop() as loop:

        def read(objects: Objects) -> list[str]:
            return loop.run_until_complete(tokens_read(objects, world.objects))

        oracle = Oracle(space, world.needs, read)
        scripts = {name: script(play, RUN, number, kind) for number, (name, play) in enumerate(plays.items())}
        actors = [Actor(name, run, fixed, loop) for name, run in scripts.items()]
        try:
            tally = Exploration(space, space.number(world.objects), actors, oracle, faults).run(until)
        finally:
            for actor in actors:
                actor.close()
    return Explored(tally, oracle.outcomes())
