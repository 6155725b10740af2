"""Liveness: who counts as alive, after how long, and what a controller leaves when it ends."""

import dataclasses
from typing import Any

import anyio
import anyio.lowlevel
import orjson
import pytest

from store import (
    AccessDenied,
    ControllerAlive,
    MemoryBackend,
    Store,
    StoreUnavailable,
    Traits,
    keep_alive,
    refuse_if_alive,
)
from store.alive import LONGEST_BEAT_S, Beat, host_identity, lock_key
from store.backends import Fault, MemorySpace
from store.layout import alive_key
from tests.support.checkpoints import SMALL_PARTS

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

QUICK_S = 0.01
SEEN_S = 0.1
"""A beat that comes between two looks on a busy machine, too."""
NEVER_S = 3600.0
"""A beat so long that a test which waits for one fails at its timeout."""
EPOCH = 3
HERE = host_identity()


class Remote(MemoryBackend):
    """A store without locks, as object storage is."""

    @property
    def traits(self) -> Traits:
        return Traits(scheme="memory")


class Watched(Remote):
    """Opens `seen` once a counter of at least two was written."""

    def __init__(self) -> None:
        super().__init__(space=MemorySpace())
        self.seen = anyio.Event()

    async def put(self, key: str, data: bytes) -> None:
        await super().put(key, data)
        if orjson.loads(data)["count"] >= 2:
            self.seen.set()


class Scripted(Remote):
    """Answers each read of a counter with the next of these contents; None is no counter."""

    def __init__(self, *contents: bytes | None) -> None:
        super().__init__(space=MemorySpace())
        self._contents = list(contents)

    async def get(self, key: str, *, max_bytes: int) -> bytes:
        content = self._contents.pop(0)
        await (self.delete([key]) if content is None else self.put(key, content))
        return await super().get(key, max_bytes=max_bytes)


def store_on(backend: MemoryBackend, beat_s: float = QUICK_S) -> Store:
    """A store whose controllers beat this often."""
    return Store(backend, "a" * 32, dataclasses.replace(SMALL_PARTS, liveness_beat_s=beat_s))


def beat(count: int = 5, beat_s: float = QUICK_S, host: str = "elsewhere/boot", **fields: Any) -> bytes:
    """A counter as another controller wrote it."""
    return Beat(epoch=EPOCH, count=count, beat_s=beat_s, host=host, process="1-x", **fields).model_dump_json().encode()


async def counter(store: Store) -> Beat:
    """The counter as it stands."""
    return Beat.model_validate_json(await store.backend.get(alive_key(EPOCH), max_bytes=10_000))


async def test_before_the_first_claim_nobody_is_asked() -> None:
    """Epoch 0 was never claimed, so nobody can hold it."""
    backend = MemoryBackend(space=MemorySpace())
    await refuse_if_alive(store_on(backend, NEVER_S), 0)
    assert backend.calls == []


async def test_a_held_lock_is_a_live_controller_at_once() -> None:
    """On one host nobody waits for a counter."""
    backend = MemoryBackend(space=MemorySpace())
    async with backend.lock(lock_key(EPOCH)) as free:
        assert free
        with pytest.raises(ControllerAlive, match="lock of epoch 3 is held"):
            await refuse_if_alive(store_on(backend, NEVER_S), EPOCH)


@pytest.mark.parametrize("backend", [MemoryBackend(space=MemorySpace()), Remote(space=MemorySpace())])
async def test_a_closed_counter_is_dead_at_once(backend: MemoryBackend) -> None:
    """Who ended in order is waited for by nobody, on any store."""
    await backend.put(alive_key(EPOCH), beat(closed=True, beat_s=NEVER_S))
    await refuse_if_alive(store_on(backend, NEVER_S), EPOCH)


async def test_a_counter_can_end_before_its_context() -> None:
    """A process that holds a later epoch says so there alone; the end is still told."""
    backend = Watched()
    async with keep_alive(store_on(backend), EPOCH) as beating:
        await backend.seen.wait()
        beating.cancel()
        await anyio.lowlevel.checkpoint()
        await refuse_if_alive(store_on(backend), EPOCH)
    assert b'"closed":true' in await backend.get(alive_key(EPOCH), max_bytes=10_000)


async def test_a_free_lock_on_the_counters_own_host_is_dead_at_once() -> None:
    """The operating system releases the lock of a process that dies."""
    backend = MemoryBackend(space=MemorySpace())
    await backend.put(alive_key(EPOCH), beat(host=HERE, beat_s=NEVER_S))
    await refuse_if_alive(store_on(backend, NEVER_S), EPOCH)


async def test_a_free_lock_says_nothing_about_another_host() -> None:
    """A counter that moves on another host is alive, whatever lock there is here."""
    backend = Watched()
    async with keep_alive(store_on(backend, SEEN_S), EPOCH):
        await backend.seen.wait()
        with pytest.raises(ControllerAlive, match="counter of epoch 3 moved"):
            await refuse_if_alive(store_on(backend, SEEN_S), EPOCH)


class WithLocks(Scripted):
    """The same in a folder that several hosts share, each with locks of its own."""

    @property
    def traits(self) -> Traits:
        return Traits(scheme="memory", host_lock=True)


async def test_a_free_lock_of_this_host_is_no_death_on_another() -> None:
    """Where there are locks, too, only the counter tells of a controller elsewhere."""
    with pytest.raises(ControllerAlive, match="counter of epoch 3 moved"):
        await refuse_if_alive(store_on(WithLocks(beat(5), beat(6))), EPOCH)


@pytest.mark.parametrize(
    ("contents", "alive"),
    [
        ((beat(5), beat(6)), True),
        ((beat(5), beat(5)), False),
        ((None, beat(0)), True),
        ((None, None), False),
        ((beat(5), None), False),
        ((beat(5), beat(6, closed=True)), False),
        ((b"", b""), False),
        ((beat(5)[:20], beat(5)[:20]), False),
        ((beat(5)[:20], beat(6)), True),
        ((b"\0" * 200, None), False),
        ((b"x" * 10_000_000, b"x" * 10_000_000), False),
        ((beat(5), beat(6)[:-1]), False),
    ],
)
async def test_a_counter_is_alive_if_it_moved_between_two_reads(
    contents: tuple[bytes | None, ...], alive: bool
) -> None:
    """A missing or torn counter is no sign of life, and no error either."""
    store = store_on(Scripted(*contents))
    if not alive:
        return await refuse_if_alive(store, EPOCH)
    with pytest.raises(ControllerAlive, match="counter of epoch 3 moved"):
        await refuse_if_alive(store, EPOCH)
    return None


@pytest.mark.parametrize("beat_s", [b"1e12", b"1e999", b"-1", b"0", b'"5"'])
async def test_a_counter_with_an_absurd_beat_keeps_nobody_waiting(beat_s: bytes) -> None:
    """It counts as torn, and the wait is that of our own limits."""
    content = beat(beat_s=2.5).replace(b"2.5", beat_s)
    await refuse_if_alive(store_on(Scripted(content, content)), EPOCH)


async def test_the_counter_says_who_lives_and_rises() -> None:
    """Host, process, beat and epoch are in it, and the count goes up."""
    backend = Watched()
    store = store_on(backend)
    async with keep_alive(store, EPOCH):
        await backend.seen.wait()
        found = await counter(store)
        assert (found.epoch, found.beat_s, found.host, found.closed) == (EPOCH, QUICK_S, HERE, False)
        assert found.count >= 2


async def test_a_beat_has_a_longest_length() -> None:
    """A controller never asks others to wait for longer than an hour, whatever its limits say."""
    store = store_on(Remote(space=MemorySpace()), 1e9)
    async with keep_alive(store, EPOCH):
        assert (await counter(store)).beat_s == LONGEST_BEAT_S


async def test_the_lock_is_held_for_the_time_of_the_context() -> None:
    """Another process of the host sees it taken, and free afterwards."""
    backend = MemoryBackend(space=MemorySpace())
    async with keep_alive(store_on(backend, NEVER_S), EPOCH), backend.lock(lock_key(EPOCH)) as free:
        assert not free
    async with backend.lock(lock_key(EPOCH)) as free:
        assert free


async def test_a_judge_in_the_way_delays_a_lock_and_does_not_take_it() -> None:
    """Whoever judges us holds our lock for a moment; we wait for it and then hold it."""
    backend = MemoryBackend(space=MemorySpace())
    async with anyio.create_task_group() as group:
        async with backend.lock(lock_key(EPOCH)):
            entered = anyio.Event()

            async def live() -> None:
                async with keep_alive(store_on(backend, NEVER_S), EPOCH):
                    entered.set()
                    await anyio.sleep_forever()

            group.start_soon(live)
            await anyio.wait_all_tasks_blocked()
            assert not entered.is_set()
        await entered.wait()
        async with backend.lock(lock_key(EPOCH)) as free:
            assert not free
        group.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["returns", "raises", "is cancelled"])
async def test_the_counter_is_marked_closed_however_the_context_ends(how: str) -> None:
    """So the next claim need not wait."""
    store = store_on(MemoryBackend(space=MemorySpace()), NEVER_S)
    with anyio.CancelScope() as scope:
        try:
            async with keep_alive(store, EPOCH):
                if how == "raises":
                    raise LookupError
                if how == "is cancelled":
                    scope.cancel()
                    await anyio.sleep_forever()
        except LookupError:
            assert how == "raises"
    assert (await counter(store)).closed
    await refuse_if_alive(store, EPOCH)


@pytest.mark.parametrize("error", [AccessDenied, StoreUnavailable])
async def test_a_counter_that_cannot_be_written_stops_nobody(error: type[AccessDenied | StoreUnavailable]) -> None:
    """It only guards against a mistake; the epoch protects the run."""
    backend = MemoryBackend(space=MemorySpace())
    backend.inject(Fault(verb="put", times=10**9, error=lambda call: error(call.verb, call.key)))
    async with keep_alive(store_on(backend), EPOCH):
        pass
    assert backend.count("put") >= 2


async def test_a_store_that_hangs_delays_the_end_by_a_beat_at_most() -> None:
    """Neither the first counter nor the closing one is waited for without a limit."""
    backend = MemoryBackend(space=MemorySpace())
    backend.inject(Fault(verb="put", times=10**9))
    async with keep_alive(store_on(backend), EPOCH):
        pass
    assert backend.space.objects == {}
