"""The token store: pins outlive sweeps in every order of calls, sweeps take only what is old and free."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from participants.staging import Key, Reason, StagingRefused, Swept, TokenStore
from store import CheckpointId, InvalidName, MemoryBackend
from store.backends import MemorySpace
from tests.support.interposed import InterposedBackend

from .made import RUN, SMALL, entry, memory_tokens

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

FIRST, SECOND = CheckpointId(1, 1), CheckpointId(1, 2)


async def written(store: TokenStore, count: int = 1, start: int = 0) -> list[Key]:
    """Keys of so many prefixes."""
    keys = await store.write([8] * count, lambda position: entry(start + position))
    assert all(isinstance(key, Key) for key in keys)
    return [key for key in keys if isinstance(key, Key)]


async def stands(store: TokenStore, key: Key) -> bool:
    """Whether its tokens are there."""
    try:
        await store.read(key)
    except StagingRefused as refused:
        return refused.reason is not Reason.UNKNOWN_KEY
    return True


async def test_a_pin_keeps_tokens_until_its_checkpoint_is_unpinned() -> None:
    """Two checkpoints that share a key keep it until both are gone; pinning and unpinning again change nothing."""
    store = memory_tokens()
    keys = await written(store, 9)
    assert await store.pin(RUN, FIRST, keys) == 9
    assert await store.pin(RUN, FIRST, reversed(keys)) == 9
    assert await store.pin(RUN, SECOND, keys[:1]) == 1
    assert (await store.sweep(0)).packs == 0
    assert await store.pinned(RUN) == [FIRST, SECOND]
    assert await store.unpin(RUN, FIRST) == 1
    assert await store.unpin(RUN, FIRST) == 0
    swept = await store.sweep(0)
    assert (swept.packs, swept.leftovers, swept.kept) == (2, 0, 0)
    assert [await stands(store, key) for key in keys] == [True] * 3 + [False] * 6
    await store.unpin(RUN, SECOND)
    assert (await store.sweep(0)).packs == 1
    assert await store.sweep(0) == Swept()
    assert await store.pinned(RUN) == []


async def test_checkpoints_of_other_runs_are_others() -> None:
    """The same number in another run pins and unpins for itself."""
    store = memory_tokens()
    [key] = await written(store)
    await store.pin("run-a", FIRST, [key])
    await store.pin("run-b", FIRST, [key])
    await store.unpin("run-a", FIRST)
    await store.sweep(0)
    assert await stands(store, key)
    assert (await store.pinned("run-a"), await store.pinned("run-b")) == ([], [FIRST])
    for wrong in ("", "../up", "A", "a" * 64, "a/b"):
        with pytest.raises(InvalidName):
            await store.pin(wrong, FIRST, [key])


async def test_several_pins_of_one_checkpoint_add_up() -> None:
    """Each request is a pin of its own; unpinning takes them all, and none of a checkpoint with a longer number."""
    store = memory_tokens()
    keys = await written(store, 6)
    await store.pin(RUN, FIRST, keys[:3])
    await store.pin(RUN, FIRST, keys[3:])
    await store.pin(RUN, CheckpointId(1, 11), keys[3:])
    assert (await store.sweep(0)).packs == 0
    assert await store.unpin(RUN, FIRST) == 2
    assert (await store.sweep(0)).packs == 1
    assert [await stands(store, key) for key in keys] == [False] * 3 + [True] * 3


@pytest.mark.parametrize("wrong", ["no such pack", "past the end"])
async def test_a_pin_of_tokens_that_are_not_there_is_refused(wrong: str) -> None:
    """Nothing is confirmed; what it leaves goes with the checkpoint's other pins."""
    store = memory_tokens()
    [key] = await written(store)
    bad = Key("0" * 32, 0, 10) if wrong == "no such pack" else Key(key.pack, key.offset, key.length + 1)
    with pytest.raises(StagingRefused) as refused:
        await store.pin(RUN, FIRST, [key, bad])
    assert refused.value.reason is Reason.UNKNOWN_KEY
    await store.unpin(RUN, FIRST)
    assert (await store.sweep(0)).packs == 1


async def test_a_pin_of_nothing_is_nothing() -> None:
    """A checkpoint without staged tokens leaves no trace."""
    store = memory_tokens()
    assert await store.pin(RUN, FIRST, []) == 0
    assert await store.pinned(RUN) == []


async def test_only_what_is_old_is_swept() -> None:
    """By the store's own clock: a pack that was staged a moment ago may be about to be pinned."""
    now = [1_000.0]
    store = TokenStore(MemoryBackend(space=MemorySpace(), clock=lambda: now[0]), SMALL)
    [old] = await written(store)
    now[0] += SMALL.sweep_after_s - 1
    [young] = await written(store)
    assert (await store.sweep()).packs == 0
    now[0] += 1
    assert (await store.sweep()).packs == 1
    assert [await stands(store, key) for key in (old, young)] == [False, True]


async def test_a_pin_that_cannot_be_read_stops_every_sweep() -> None:
    """What it keeps is unknown, so nothing is removed; it can be unpinned."""
    space = MemorySpace()
    store = memory_tokens(space)
    [key] = await written(store)
    await store.pin(RUN, FIRST, [key])
    backend = MemoryBackend(space=space)
    [name] = [info.key for info in await backend.list("pins/")]
    await backend.put(name, b'{"keys":[]}')
    with pytest.raises(StagingRefused) as refused:
        await store.sweep(0)
    assert refused.value.reason is Reason.DAMAGED
    assert await stands(store, key)
    await store.unpin(RUN, FIRST)
    assert (await store.sweep(0)).packs == 1


async def test_one_sweep_runs_at_a_time() -> None:
    """A second one does nothing, and says so."""
    space = MemorySpace()
    seen: list[Swept] = []

    async def other() -> None:
        seen.append(await memory_tokens(space).sweep(0))

    await written(memory_tokens(space))
    store = TokenStore(InterposedBackend(MemoryBackend(space=space), 5, other), SMALL)
    assert (await store.sweep(0)).packs == 1
    assert seen == [Swept()]


Work = Callable[[TokenStore, list[Key]], Awaitable[Any]]


async def pin_second(store: TokenStore, keys: list[Key]) -> bool:
    """Pin under the second checkpoint, as a parked rollout's key is; whether it was confirmed."""
    try:
        await store.pin(RUN, SECOND, keys)
    except StagingRefused:
        return False
    return True


async def hand_over(store: TokenStore, keys: list[Key]) -> bool:
    """Pin under the second checkpoint, and once that is confirmed let the first go."""
    confirmed = await pin_second(store, keys)
    if confirmed:
        await store.unpin(RUN, FIRST)
    return confirmed


async def interleaved(nth: int, *, sweep_waits: bool, pinned_first: bool) -> tuple[bool, bool]:
    """One of a pin and a sweep waits before its n-th call until the other is done; (was so, the pin was confirmed)."""
    space, confirmed = MemorySpace(), []
    plain = memory_tokens(space)
    keys = await written(plain, 3)
    if pinned_first:
        await plain.pin(RUN, FIRST, keys)
    work = hand_over if pinned_first else pin_second

    async def pin() -> None:
        confirmed.append(await work(plain, keys))

    async def sweep() -> None:
        await plain.sweep(0)

    backend = InterposedBackend(MemoryBackend(space=space), nth, pin if sweep_waits else sweep)
    waiting = TokenStore(backend, SMALL)
    if sweep_waits:
        await waiting.sweep(0)
    else:
        confirmed.append(await work(waiting, keys))
    if backend.left > 0:
        return False, False
    for _ in range(2):
        if confirmed[0]:
            assert [await stands(plain, key) for key in keys] == [True] * 3
        await plain.sweep(0)
    return True, confirmed[0]


@pytest.mark.parametrize("pinned_first", [True, False])
@pytest.mark.parametrize("sweep_waits", [True, False])
async def test_no_order_of_a_pin_and_a_sweep_loses_what_was_confirmed(sweep_waits: bool, pinned_first: bool) -> None:
    """Each stops before each of its calls while the other runs whole; also where a checkpoint hands over to another."""
    nth, outcomes = 1, []
    while True:
        happened, confirmed = await interleaved(nth, sweep_waits=sweep_waits, pinned_first=pinned_first)
        if not happened:
            break
        outcomes.append(confirmed)
        nth += 1
    assert len(outcomes) >= 3
    assert True in outcomes
    assert all(outcomes) or not pinned_first or sweep_waits


async def test_the_check_of_orders_finds_a_sweep_that_reads_pins_once() -> None:
    """Planted fault: without the marks some order loses a confirmed pin, and the check above would see it."""

    class Careless(TokenStore):
        async def _is_marked(self, pack: str) -> bool:
            return False

    lost = 0
    for nth in range(1, 30):
        space = MemorySpace()
        confirmed: list[bool] = []
        store = Careless(MemoryBackend(space=space), SMALL)
        keys = await written(store, 3)

        async def pin(store: TokenStore = store, keys: list[Key] = keys, confirmed: list[bool] = confirmed) -> None:
            confirmed.append(await pin_second(store, keys))

        backend = InterposedBackend(MemoryBackend(space=space), nth, pin)
        await TokenStore(backend, SMALL).sweep(0)
        lost += confirmed == [True] and not await stands(store, keys[0])
    assert lost > 0


async def test_a_pack_with_the_mark_of_a_dead_sweep_is_swept_or_freed_by_the_next() -> None:
    """Pinned or not, no mark stays, and a pin that was refused meanwhile goes through afterwards."""
    space = MemorySpace()
    store = memory_tokens(space)
    keys = [*await written(store), *await written(store)]
    backend = MemoryBackend(space=space)
    for key in keys:
        await backend.put(f"swept/{key.pack}", b"{}")
    await backend.put("swept/" + "0" * 32, b"{}")
    with pytest.raises(StagingRefused) as refused:
        await store.pin(RUN, FIRST, keys[:1])
    assert refused.value.reason is Reason.SWEPT
    swept = await store.sweep(10_000)
    assert (swept.packs, swept.kept) == (1, 1)
    assert await store.pin(RUN, FIRST, keys[:1]) == 1
    assert await backend.list("swept/") == []
    assert [await stands(store, key) for key in keys] == [True, False]


async def test_packs_are_written_several_at_a_time_and_keys_keep_their_order() -> None:
    """Positions and keys belong together whatever finishes first."""
    store = memory_tokens()
    keys = await written(store, 20)
    assert len({key.pack for key in keys}) == 7
    assert [(await store.read(key)).source.life.rollout_id for key in keys] == [f"r{n}" for n in range(20)]
    assert await store.standing([*(key.pack for key in keys), "0" * 32]) == {key.pack for key in keys}
    assert await store.write([], lambda _: entry()) == []
    assert re.fullmatch(r"memory://", store.url)
    await anyio.lowlevel.checkpoint()
