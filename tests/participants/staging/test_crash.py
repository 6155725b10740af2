"""What a crash leaves of a token store: after every operation, and after every system call that fails."""

import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio.to_thread
import pytest

from participants.staging import Key, Stager, StagingRefused, TokenStore
from store import CheckpointId, LocalBackend, StoreError
from store.backends import FileOp, Handle
from tests.crash.explore import UnsyncedOps, folder_like
from tests.support.crash_states import QUICK, THOROUGH, Disk, Effort, Image, read_image
from tests.support.file_ops import FaultyOps, RecordingOps

from .made import CONTEXT, RUN, SMALL, all_staged, entry, keys_of, opened, tokens_at, wanted

pytestmark = pytest.mark.anyio

FIRST, SECOND = CheckpointId(1, 1), CheckpointId(1, 2)


@dataclass(slots=True)
class Promise:
    """Tokens that somebody relies on."""

    keys: list[Key]
    since: int
    """The number of operations when it was given."""
    until: int | None = None
    """The number of operations when it began to be taken back."""

    def holds(self, position: int) -> bool:
        """Whether it must hold after so many operations."""
        return self.since <= position and (self.until is None or position <= self.until)


@dataclass(slots=True)
class History:
    """A day in the life of a token store, with what was promised when."""

    ops: RecordingOps = field(default_factory=RecordingOps)
    staged: list[Promise] = field(default_factory=list)
    pinned: list[Promise] = field(default_factory=list)
    """These must outlive a sweep too."""

    @property
    def now(self) -> int:
        """Operations so far."""
        return len(self.ops.log)

    async def stage(self, stager: Stager, tokens: int) -> Promise:
        """Stage all of some new calls."""
        buffers = opened(stager, 4, tokens)
        promise = Promise(keys_of(all_staged(await stager.stage(wanted(buffers)))), self.now)
        self.staged.append(promise)
        return promise

    async def pin(self, store: TokenStore, checkpoint: CheckpointId, keys: Sequence[Key]) -> Promise:
        """Pin them."""
        await store.pin(RUN, checkpoint, keys)
        promise = Promise(list(keys), self.now)
        self.pinned.append(promise)
        return promise

    async def live(self, root: Path) -> None:
        """Stage, pin, stage more, sweep, hand over to a second checkpoint, and let that go too."""
        store = tokens_at(root, self.ops)
        stager = Stager(store, context_length=CONTEXT)
        kept = await self.stage(stager, 5)
        first = await self.pin(store, FIRST, kept.keys)
        free = await self.stage(stager, 6)
        free.until = self.now
        await store.sweep(0)
        await self.pin(store, SECOND, kept.keys[:1])
        first.until = kept.until = self.now
        await store.unpin(RUN, FIRST)
        await store.sweep(0)
        self.pinned[-1].until = self.now
        await store.unpin(RUN, SECOND)
        await store.sweep(0)


async def is_readable(store: TokenStore, key: Key) -> bool:
    """Whether the tokens under a key are there, whole; anything torn is a failure of the test."""
    try:
        found = await store.read(key)
    except StagingRefused as refused:
        if refused.reason == "unknown_key":
            return False
        raise
    return list(found.ids) == list(entry(int(found.source.life.rollout_id[1:]), found.count).ids)


async def judge(root: Path, history: History, position: int, keys: set[Key]) -> None:
    """Every promise that holds is kept; a sweep leaves what is pinned and nothing else; and the store works on."""
    store = tokens_at(root, UnsyncedOps())
    for promise in [each for each in (*history.staged, *history.pinned) if each.holds(position)]:
        for key in promise.keys:
            assert await is_readable(store, key), (position, key)
    await store.sweep(0)
    pinned = {key for promise in history.pinned if promise.holds(position) for key in promise.keys}
    for key in keys:
        assert await is_readable(store, key) or key not in pinned, (position, key)
    buffers = opened(stager := Stager(store, context_length=CONTEXT), 2, 3)
    [one, _] = keys_of(all_staged(await stager.stage(wanted(buffers))))
    await store.pin(RUN, CheckpointId(9, 9), [one])
    for checkpoint in await store.pinned(RUN):
        if checkpoint != CheckpointId(9, 9):
            await store.unpin(RUN, checkpoint)
    await store.sweep(0)
    assert await is_readable(store, one)
    image = await anyio.to_thread.run_sync(read_image, root)
    files = [path for path, content in image.items() if content is not None]
    assert len(files) == 3, files  # the pack, its pin and the lock: no mark, clock or temporary file stays


async def explore(tmp_path: Path, effort: Effort, each: int = 1) -> int:
    """Judge the states that a power loss may leave after each operation, every one or each so many; how many."""
    root = tmp_path / "root"
    root.mkdir()
    history = History()
    await history.live(root)
    log = list(history.ops.log)
    disk, tried, seen = Disk({"": None}), 0, set()
    keys = {key for promise in history.staged for key in promise.keys}
    for position in range(len(log) + 1):
        if position and not disk.apply(log[position - 1]):
            continue
        for image in disk.states(effort):
            promised = tuple(promise.holds(position) for promise in (*history.staged, *history.pinned))
            known = (promised, frozenset(image.items()))
            if known in seen:
                continue
            seen.add(known)
            if len(seen) % each:
                continue
            tried += 1
            async with folder_like(image, tmp_path / f"state-{tried}") as state:
                await judge(state, history, position, keys)
    return tried


@pytest.mark.unit
async def test_a_crash_at_any_moment_loses_nothing_that_was_promised(tmp_path: Path) -> None:
    """What was acknowledged is there, what was confirmed outlives a sweep, and no litter stays, in every state."""
    tried = await explore(tmp_path, QUICK, each=10)
    assert tried > 30


@pytest.mark.scale
@pytest.mark.timeout(600)
async def test_a_crash_at_any_moment_with_many_more_states(tmp_path: Path) -> None:
    """The same with every subset of what was in the air."""
    assert await explore(tmp_path, THOROUGH) > 500


@pytest.mark.unit
async def test_the_exploration_finds_a_write_that_is_not_synced(tmp_path: Path) -> None:
    """Planted fault: without the sync of the folder some state has lost what was acknowledged."""

    class Hasty(RecordingOps):
        def fsync(self, handle: Handle) -> None:
            pass

    root = tmp_path / "root"
    root.mkdir()
    history = History(Hasty())
    await history.live(root)
    disk, lost = Disk({"": None}), 0
    promise = history.staged[0]
    for op in history.ops.log[: promise.since]:
        disk.apply(op)
    for number, image in enumerate(disk.states(QUICK)):
        async with folder_like(image, tmp_path / f"state-{number}") as state:
            try:
                lost += not await is_readable(tokens_at(state), promise.keys[0])
            except StagingRefused:
                lost += 1
    assert lost > 0


Work = Callable[[TokenStore, Stager, list[Key]], Awaitable[None]]


async def do_stage(_store: TokenStore, stager: Stager, _keys: list[Key]) -> None:
    """Stage calls in two packs; each item is answered, and what is acknowledged is there."""
    buffers = opened(stager, 5)
    outcomes = await stager.stage(wanted(buffers))
    healthy = TokenStore(LocalBackend(stager.store.url.removeprefix("file://")), SMALL)
    for key in keys_of(outcomes):
        assert await is_readable(healthy, key)
    if len(keys_of(outcomes)) < len(outcomes):
        raise StagingRefused(next(each for each in outcomes if hasattr(each, "reason")).reason, "not all")


async def do_pin(store: TokenStore, _stager: Stager, keys: list[Key]) -> None:
    """Pin under a second checkpoint."""
    await store.pin(RUN, SECOND, keys)


async def do_unpin(store: TokenStore, _stager: Stager, _keys: list[Key]) -> None:
    """Let the first checkpoint go."""
    await store.unpin(RUN, FIRST)


async def do_sweep(store: TokenStore, _stager: Stager, _keys: list[Key]) -> None:
    """Sweep what is free."""
    await store.sweep(0)


WORKS: dict[str, Work] = {"stage": do_stage, "pin": do_pin, "unpin": do_unpin, "sweep": do_sweep}


def open_files() -> int:
    """Descriptors that this process holds."""
    return len(os.listdir("/proc/self/fd"))


async def base_of(root: Path) -> tuple[Image, list[Key]]:
    """A store with pinned tokens and free ones; its folder, and the keys of both."""
    ops = UnsyncedOps()
    await anyio.to_thread.run_sync(ops.make_root, str(root))
    store = tokens_at(root, ops)
    stager = Stager(store, context_length=CONTEXT)
    pinned = keys_of(all_staged(await stager.stage(wanted(opened(stager, 2)))))
    await store.pin(RUN, FIRST, pinned)
    await stager.stage(wanted(opened(stager, 2, 4)))
    return await anyio.to_thread.run_sync(read_image, root), pinned


class UnsyncedFaultyOps(FaultyOps):
    """Fails as told; a sync that does not fail is not made."""

    def fsync(self, handle: Handle) -> None:
        with self.step(FileOp("fsync", handle.path)):
            pass


async def fail_each(name: str, tmp_path: Path, step: int) -> int:
    """Let each so many-th system call of a work fail; how many were tried."""
    image, keys = await base_of(tmp_path / "base")
    nth, tried = 1, 0
    while await fails_at(nth, name, image, keys, tmp_path / str(nth)):
        nth += step
        tried += 1
    return tried


async def fails_at(nth: int, name: str, image: Image, keys: list[Key], scratch: Path) -> bool:
    """Do the work while its n-th call fails, then again; False where it makes fewer."""
    async with folder_like(image, scratch) as root:
        ops = UnsyncedFaultyOps(nth, matches=lambda op: op.name != "close")
        store, before = tokens_at(root, ops), await anyio.to_thread.run_sync(open_files)
        stager = Stager(store, context_length=CONTEXT)
        with suppress(StoreError, StagingRefused):
            await WORKS[name](store, stager, keys)
        assert await anyio.to_thread.run_sync(open_files) == before, ops.struck
        healthy = tokens_at(root, UnsyncedOps())
        await WORKS[name](healthy, Stager(healthy, context_length=CONTEXT), keys)
        await healthy.sweep(0)
        kept = [await is_readable(healthy, key) for key in keys]
        assert kept == [name != "unpin"] * len(keys), ops.struck
    return ops.struck is not None


@pytest.mark.unit
@pytest.mark.parametrize("name", WORKS)
async def test_a_system_call_that_fails_loses_nothing(name: str, tmp_path: Path) -> None:
    """Every few calls: typed error or success, no descriptor left, what is pinned is there, and a repeat works."""
    assert await fail_each(name, tmp_path, step=5) > 3


@pytest.mark.scale
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", WORKS)
async def test_every_system_call_that_fails_loses_nothing(name: str, tmp_path: Path) -> None:
    """The same for each call."""
    assert await fail_each(name, tmp_path, step=1) > 15
