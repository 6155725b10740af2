"""Committing: the same records give the same manifest, nothing half done counts, and memory stays small."""

import asyncio
import dataclasses
import gc
import os
import random
import shutil
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from store import (
    BackendError,
    CheckpointConflict,
    CheckpointId,
    CommitStopped,
    DuplicateRollout,
    InvalidRecord,
    IOFailed,
    Life,
    MemoryBackend,
    NoSpace,
    ParticipantCommit,
    RawRecord,
    Receipt,
    Record,
    Store,
    claim,
    open_checkpoint,
    open_store,
    verify_store,
)
from store.backends import MemorySpace
from store.backends.memory import Call, Fault
from store.commit import Parent
from store.layout import participant_key
from tests.support.checkpoints import AGENT, SMALL_PARTS, TOOLS, life, memory_store, publish, records, store_with
from tests.support.damage import FIRST, backend_of, keys, read, write

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

RUN = "0" * 32
MANIFEST = participant_key(FIRST, AGENT)


async def commit(store: Store, share: Any, **more: Any) -> Receipt:
    return await ParticipantCommit(store, FIRST, AGENT, **more).run(share)


class SlowBackend(MemoryBackend):
    """Answers after a random number of turns of the event loop, so that requests overtake each other."""

    def __init__(self, seed: int) -> None:
        super().__init__(space=MemorySpace())
        self._random = random.Random(seed)

    async def put(self, key: str, data: bytes) -> None:
        for _ in range(self._random.randrange(30)):
            await anyio.lowlevel.checkpoint()
        await super().put(key, data)


async def asynchronous(share: list[Record], seed: int) -> AsyncIterator[Record]:
    """The same records, handed over at an uneven pace."""
    pace = random.Random(seed)
    for record in share:
        for _ in range(pace.randrange(3)):
            await anyio.lowlevel.checkpoint()
        yield record


async def test_the_same_records_give_the_same_objects_whatever_the_timing() -> None:
    """Uneven stores, threads and iterators change no byte of any object, nor the receipt."""
    share = [*records(150), Record(life("b"), bytes(300)), *records(80, start=200, turns=1)]
    expected = memory_store(run_id=RUN)
    receipt = await commit(expected, share)
    assert len(receipt.manifest.parts) > 5
    for seed in range(12):
        store = memory_store(SlowBackend(seed), run_id=RUN)
        assert await commit(store, asynchronous(share, seed) if seed % 2 else iter(share)) == receipt
        assert [read(store, key) for key in keys(store)] == [read(expected, key) for key in keys(expected)]


async def test_a_commit_repeated_changes_nothing_and_gives_the_same_receipt() -> None:
    """The second time nothing is written or deleted, and the answer is equal."""
    store = memory_store()
    first = await commit(store, records(50))
    before = dict(backend_of(store).space.objects)
    assert await commit(store, records(50)) == first
    assert backend_of(store).space.objects == before
    assert backend_of(store).count("put") == len(first.manifest.parts) + 1


@pytest.mark.parametrize(
    "share", [[], records(49), records(51), records(50, turns=2), [*records(49), *records(1, start=77)]]
)
async def test_a_different_commit_of_the_same_round_is_a_conflict(share: list[Record]) -> None:
    """Other records under the same id are refused, and what stands stays as it is."""
    store = memory_store()
    await commit(store, records(50))
    before = dict(backend_of(store).space.objects)
    with pytest.raises(CheckpointConflict, match=MANIFEST):
        await commit(store, share)
    assert backend_of(store).space.objects == before
    assert (await commit(store, records(50))).manifest.records == 50


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 64, 65, 150])
@pytest.mark.parametrize("limits", [(1, 1), (100, 1), (1, 100_000), (400, 900), (10**6, 10**6)])
async def test_any_number_of_records_is_packed_into_parts_of_bounded_size(size: int, limits: tuple[int, int]) -> None:
    """Whatever the limits, no part is longer than the limit and one frame, and everything is read back."""
    frame_bytes, part_bytes = limits
    small = dataclasses.replace(SMALL_PARTS, frame_bytes=frame_bytes, part_bytes=part_bytes)
    store = await store_with({AGENT: records(size, turns=1)}, limits=small)
    checkpoint = await open_checkpoint(store)
    await checkpoint.verify()
    async with checkpoint.records() as found:
        assert [record async for record in found] == records(size, turns=1)
    [process] = checkpoint.processes
    largest = max((frame.size for frame in process.frames), default=0)
    assert all(part.size <= part_bytes + largest for part in process.manifest.parts)
    assert all(frame.raw_size <= frame_bytes + 300 for frame in process.frames)
    assert len(keys(store, "jsonl.zst")) == len(process.manifest.parts) + 1


class Payload(list[int]):
    """A payload that can be watched."""


async def test_memory_holds_a_bounded_number_of_records_however_many_come() -> None:
    """While thousands of records stream through, only those of a few batches are alive."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = 0

    class Watched(RawRecord):
        """A raw record that can be referred to weakly."""

        __slots__ = ("__weakref__",)

    def stream() -> Iterator[RawRecord]:
        nonlocal most
        for n in range(6000):
            own = life(f"r{n}")
            record = Watched(own, b'{"life":"%s","payload":"%s"}' % (str(own).encode(), b"x" * 300))
            alive.add(record)
            if n % 50 == 0:
                gc.collect(0)
                most = max(most, len(alive))
            yield record

    limits = dataclasses.replace(SMALL_PARTS, frame_bytes=8000, part_bytes=64_000)
    receipt = await commit(memory_store(limits=limits), stream())
    assert receipt.manifest.records == 6000
    assert most < 400


async def test_a_duplicate_rollout_is_refused_wherever_it_comes() -> None:
    """Two records of one rollout, near or far, under the same life or another, end the commit without a manifest."""
    for first, second in ((0, 1), (0, 99), (40, 90)):
        share = records(100)
        share[second] = Record(Life(share[first].life.rollout_id, 1, 1, second), {})
        store = memory_store()
        with pytest.raises(DuplicateRollout, match=share[first].life.rollout_id):
            await commit(store, share)
        assert keys(store) == []


@pytest.mark.parametrize("at", [0, 1, 30, 99])
@pytest.mark.fault(10)
async def test_a_record_that_is_refused_or_an_iterator_that_raises_leaves_nothing(at: int) -> None:
    """The error comes out as it is, what was written is removed again, and the same commit may be tried again."""

    async def breaking() -> AsyncIterator[Record]:
        for record in records(at):
            yield record
        raise ZeroDivisionError

    store = memory_store()
    spoiled = [*records(at), Record(life("bad"), {"x": float("nan")}), *records(5, start=200)]
    with pytest.raises(InvalidRecord, match="bad"):
        await commit(store, spoiled)
    with pytest.raises(ZeroDivisionError):
        await commit(store, breaking())
    assert keys(store) == []
    assert (await commit(store, records(at))).manifest.records == at


@pytest.mark.fault(10, 11, 12, 21)
async def test_a_write_that_fails_at_any_point_leaves_no_manifest_and_may_be_tried_again() -> None:
    """For every n, the n-th request fails: no manifest stands, no task is left, and the second try succeeds."""

    def full(call: Call) -> BackendError:
        return NoSpace(call.verb, call.key)

    share = [*records(20), Record(life("b"), bytes(300))]
    counted = memory_store(run_id=RUN)
    receipt = await commit(counted, share)
    for nth in range(1, len(backend_of(counted).calls) + 1):
        store = memory_store(run_id=RUN)
        backend_of(store).inject(Fault(nth=nth, error=full))
        before = asyncio.all_tasks()
        with pytest.raises(NoSpace):
            await commit(store, share)
        assert asyncio.all_tasks() == before
        assert MANIFEST not in keys(store)
        assert not keys(store, "checkpoints/")
        assert await commit(store, share) == receipt


@pytest.mark.fault(19)
async def test_what_an_earlier_try_left_is_never_mixed_in() -> None:
    """Parts and an index of a try that died stay outside the next one, whatever they hold."""
    store = memory_store()

    def gone(call: Call) -> BackendError:
        return IOFailed(call.verb, call.key)

    async with claim(store) as controller:
        backend_of(store).inject(Fault(verb="delete", error=gone))
        backend_of(store).inject(Fault(verb="create", key_part="manifest", error=gone))
        with pytest.raises(IOFailed):
            await commit(store, [*records(40, turns=5), Record(life("dead"), bytes(300))])
        left = set(keys(store, "1.1"))
        for index in keys(store, "/index-"):
            write(store, index, b"rubbish")
        receipt = await commit(store, records(10))
        named = {part.name for part in receipt.manifest.parts}
        assert left
        assert not any(name in key for name in named for key in left)
        assert (await publish(store, controller, {AGENT: records(10)})).checkpoint == FIRST
    async with (await open_checkpoint(store)).records() as found:
        assert [record async for record in found] == records(10)


async def test_another_commit_of_a_published_round_overwrites_nothing_of_it() -> None:
    """It began before the first one was published, ends after it, and meets a conflict; the checkpoint stays sound."""
    store = memory_store()
    async with claim(store) as controller:

        async def overtaken() -> AsyncIterator[Record]:
            yield Record(life("other"), {"turns": ["other"]})
            await publish(store, controller, {AGENT: records(5)})

        with pytest.raises(CheckpointConflict, match=MANIFEST):
            await commit(store, overtaken())
    assert (await verify_store(store, deep=True)).sound
    checkpoint = await open_checkpoint(store)
    await checkpoint.verify()
    async with checkpoint.records() as found:
        assert [record async for record in found] == records(5)


async def test_a_commit_that_fails_late_takes_nothing_from_the_one_that_stands() -> None:
    """Two tries of one commit at once: the one that is stopped does not delete what the other's manifest names."""
    store = memory_store()
    late = ParticipantCommit(store, FIRST, AGENT)

    async def interrupted() -> AsyncIterator[Record]:
        for record in records(300):
            yield record
        await commit(store, records(300))
        late.stop()

    with pytest.raises(CommitStopped):
        await late.run(interrupted())
    receipt = await commit(store, records(300))
    assert len(keys(store, ".jsonl.zst")) == len(receipt.manifest.parts) + 1


async def test_a_commit_that_is_stopped_within_its_guard_writes_no_manifest() -> None:
    """The guard is the last that happens before the manifest is sent; a stop from inside it still counts."""
    store = memory_store()

    def guard() -> None:
        stopped.stop()

    stopped = ParticipantCommit(store, FIRST, AGENT, guard=guard)
    with pytest.raises(CommitStopped):
        await stopped.run(records(3))
    assert keys(store) == []


async def test_a_commit_that_is_stopped_writes_no_manifest() -> None:
    """Before, and at every record: the commit ends, cleans up, and never publishes."""
    for at in (None, 0, 1, 20, 39):
        store = memory_store()
        running = ParticipantCommit(store, FIRST, AGENT)
        if at is None:
            running.stop()

        def stream(running: ParticipantCommit = running, at: int | None = at) -> Iterator[Record]:
            for n, record in enumerate(records(40)):
                if n == at:
                    running.stop()
                yield record

        with pytest.raises(CommitStopped, match=r"1\.1 of agent\.solver/p0"):
            await running.run(stream())
        assert keys(store) == []
        assert "stopped" in repr(running)


async def test_stopping_a_commit_that_is_through_changes_nothing() -> None:
    """What stands stands: the receipt was given, and the manifest is there."""
    store = memory_store()
    running = ParticipantCommit(store, FIRST, AGENT)
    receipt = await running.run(records(3))
    running.stop()
    assert MANIFEST in keys(store)
    assert await commit(store, records(3)) == receipt


@pytest.mark.parametrize(("call", "stands"), [(1, False), (2, True)])
async def test_a_lease_that_ran_out_is_noticed_before_and_after_the_manifest(call: int, stands: bool) -> None:
    """The guard is asked on both sides of the write, so a commit that took too long never answers as if it had not."""
    store = memory_store()
    asked: list[bool] = []

    def guard() -> None:
        asked.append(MANIFEST in keys(store))
        if len(asked) == call:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        await commit(store, records(3), guard=guard)
    assert asked == [False, True][:call]
    assert (MANIFEST in keys(store)) == stands


async def test_a_blob_is_written_once_and_shared_with_the_parent() -> None:
    """One payload in many records is one object, and the next checkpoint names the parent's instead of its own."""
    payload = {"image": bytes(range(256))}
    share = [Record(life(f"r{n}"), payload) for n in range(30)]
    store = memory_store()
    async with claim(store) as controller:
        await publish(store, controller, {AGENT: share})
        [key] = keys(store, "blobs/")
        await publish(store, controller, {AGENT: share, TOOLS: share})
        assert keys(store, "blobs/") == [key]
        assert [call.key for call in backend_of(store).calls if call.verb == "put" and "blobs" in call.key] == [key]
        later = await open_checkpoint(store)
        assert [process.manifest.blob_bytes for process in later.processes] == [0, 0]
        async with later.records() as found:
            assert [record.payload async for record in found] == [payload] * 60


async def test_lines_are_committed_again_as_they_are() -> None:
    """A checkpoint read raw and committed again, under the next lives, is the same but for the lives."""
    share = [Record(life(f"r{n}"), {"n": n, "b": bytes(n * 7)}) for n in range(30)]
    store = await store_with({AGENT: share})
    async with (await open_checkpoint(store)).raw_records() as lines:
        moved = [raw.with_life(Life(raw.life.rollout_id, 2, 1, raw.life.n)) async for raw in lines]
    async with claim(store) as controller:
        await publish(store, controller, {AGENT: moved})
    async with (await open_checkpoint(store)).records() as found:
        assert [record.payload async for record in found] == [record.payload for record in share]
    assert all("1.1" in key for key in keys(store, "blobs/"))


async def test_a_reference_is_committed_only_where_the_parent_names_it() -> None:
    """References read from the parent go on; without that parent they are refused."""
    store = await store_with({AGENT: [Record(life("r"), bytes(300))]})
    checkpoint = await open_checkpoint(store)
    async with checkpoint.records(load_blobs=False) as found:
        named = [record async for record in found]
    second = CheckpointId(1, 2)
    receipt = await ParticipantCommit(store, second, AGENT, parent=checkpoint.as_parent()).run(named)
    assert receipt.manifest.blobs == 1
    for parent in (None, Parent(FIRST, ())):
        with pytest.raises(InvalidRecord, match="parent"):
            await ParticipantCommit(store, CheckpointId(1, 3), AGENT, parent=parent).run(named)


@pytest.mark.parametrize("what", ["jsonl.zst", "00001-"])
@pytest.mark.fault(18)
async def test_an_object_deleted_while_committing_fails_the_commit(what: str) -> None:
    """Before the manifest is written each object is looked at once more; one that is gone ends the commit."""
    store = memory_store()

    def guard() -> None:
        raise AssertionError("the manifest must not be reached")

    class Deleting(MemoryBackend):
        async def stat(self, key: str) -> Any:
            for found in [k for k in self.space.objects if what in k]:
                del self.space.objects[found]
            return await super().stat(key)

    store = memory_store(Deleting(space=MemorySpace()))
    with pytest.raises(IOFailed, match="it was deleted while the commit was running"):
        await commit(store, records(40), guard=guard)
    assert keys(store) == []


@pytest.mark.fault(18)
async def test_a_root_deleted_while_committing_fails_and_leaves_no_zombie(tmp_path: anyio.Path) -> None:
    """Somebody removes the whole folder: the commit fails, and no part of it is made anew."""
    root, gone = anyio.Path(tmp_path) / "root", anyio.Path(tmp_path) / "gone"
    async with open_store(str(root), "write", limits=SMALL_PARTS) as store:

        def stream() -> Iterator[Record]:
            yield from records(100)
            os.rename(root, gone)  # in one step, for a commit in progress would make it fail half way
            shutil.rmtree(gone, ignore_errors=True)
            yield from records(100, start=100)

        with pytest.raises(BackendError):
            await ParticipantCommit(store, FIRST, AGENT).run(list_lazily(stream))
    assert not await root.exists()


async def list_lazily(make: Callable[[], Iterator[Record]]) -> AsyncIterator[Record]:
    """Records from an iterator that blocks, which therefore runs in a thread."""
    source = make()
    while (record := await anyio.to_thread.run_sync(next, source, None)) is not None:
        yield record
