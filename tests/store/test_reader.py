"""Reading: whole, by shard, one rollout, raw or parsed; verified first, in bounded memory, and without a trace."""

import asyncio
import dataclasses
import gc
import hashlib
import logging
from typing import Any

import anyio
import pytest

from store import (
    BackendError,
    CheckpointId,
    CorruptCheckpoint,
    External,
    ForeignObject,
    NoCheckpoint,
    RawRecord,
    Record,
    Shard,
    Store,
    TransientError,
    open_checkpoint,
)
from store.backends.memory import Call, Fault
from store.layout import BlobRef
from store.tasks import open_group
from tests.support.checkpoints import AGENT, SMALL_PARTS, TOOLS, Shares, life, memory_store, records, store_with
from tests.support.damage import Forger, backend_of, flipped, keys, read, write

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

MANY = 60


async def make_store() -> Store:
    """Two participants, several parts and frames each."""
    return await store_with({AGENT: records(MANY), TOOLS: records(MANY // 2, turns=1)})


async def taken(store: Store, **how: Any) -> list[Record]:
    async with (await open_checkpoint(store)).records(**how) as found:
        return [record async for record in found]


async def test_everything_is_read_back_in_the_order_in_which_it_was_written() -> None:
    """Records of all participants, parsed and raw, are what was committed."""
    store = await make_store()
    written = [*records(MANY), *records(MANY // 2, turns=1)]
    checkpoint = await open_checkpoint(store)
    assert await taken(store) == written
    async with checkpoint.raw_records() as lines:
        assert [raw.parse() async for raw in lines] == written
    assert len(checkpoint.processes[0].manifest.parts) > 3
    assert len(checkpoint.processes[0].frames) > len(checkpoint.processes[0].manifest.parts)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 1000])
async def test_shards_are_disjoint_and_together_are_everything(count: int) -> None:
    """Whatever their number, each record is in exactly one shard."""
    store = await make_store()
    shards = [await taken(store, shard=Shard(number, count)) for number in range(min(count, 100))]
    lives = [record.life for shard in shards for record in shard]
    everything = [record.life for record in await taken(store)]
    assert sorted(lives) == sorted(everything)
    assert count == 1 or len([shard for shard in shards if shard]) > 1


async def test_one_participant_is_read_alone() -> None:
    """A participant takes up its own share, and touches no other's parts."""
    store = await make_store()
    checkpoint = await open_checkpoint(store)
    backend_of(store).calls.clear()
    assert await taken(store, processes=checkpoint.shares("resources", "tools")) == records(MANY // 2, turns=1)
    assert not [call for call in backend_of(store).calls if "agent" in call.key and call.verb == "get_range"]
    assert [process.name for process in checkpoint.shares()] == [AGENT, TOOLS]
    assert checkpoint.shares("agent", "nobody") == []


async def test_one_rollout_is_found_by_reading_one_frame_a_participant() -> None:
    """The index finds a rollout: one request of one frame's size for each participant that holds it."""
    store = await make_store()
    checkpoint = await open_checkpoint(store)
    backend_of(store).calls.clear()
    for n in (0, 17, MANY // 2, MANY - 1):
        found = await checkpoint.rollout(f"r{n}")
        assert set(found) == ({AGENT, TOOLS} if n < MANY // 2 else {AGENT})
        assert found[AGENT].parse() == records(1, start=n)[0]
        assert [call.verb for call in backend_of(store).calls] == ["get_range"] * len(found)
        backend_of(store).calls.clear()
    assert await checkpoint.rollout("nobody") == {}
    assert not backend_of(store).calls


async def test_blobs_come_back_as_bytes_or_as_references() -> None:
    """A reader chooses: payloads filled in, or only named and read one by one."""
    payload = {"image": bytes(range(256)), "small": b"x", "again": [bytes(range(256))]}
    store = await store_with({AGENT: [Record(life("r"), payload)]})
    checkpoint = await open_checkpoint(store)
    [filled] = await taken(store)
    [named] = await taken(store, load_blobs=False)
    assert filled.payload == payload
    ref = named.payload["image"]
    assert isinstance(ref, BlobRef)
    assert named.payload == {"image": ref, "small": b"x", "again": [ref]}
    assert await checkpoint.read_blob(ref) == payload["image"]
    assert list(checkpoint.blobs) == [ref]


async def test_a_checkpoint_of_nothing_is_read() -> None:
    """No participants, or a participant without records, is a checkpoint too."""
    nothing: list[Shares] = [{}, {AGENT: []}]
    for shares in nothing:
        store = await store_with(shares, state={"k": 1})
        checkpoint = await open_checkpoint(store)
        await checkpoint.verify()
        assert await taken(store) == []
        assert await checkpoint.state() == {"k": 1}


async def test_what_is_not_there_is_said_to_be_not_there() -> None:
    """An empty store has no head, and an unknown checkpoint is not confused with a damaged one."""
    with pytest.raises(NoCheckpoint):
        await open_checkpoint(memory_store())
    store = await make_store()
    with pytest.raises(NoCheckpoint, match=r"1\.7"):
        await open_checkpoint(store, CheckpointId(1, 7))


@pytest.mark.fault(4)
async def test_verifying_finds_damage_in_a_blob_before_anything_is_handed_out() -> None:
    """A restore verifies everything first, payloads outside the records included."""
    store = await store_with({AGENT: [Record(life("r"), bytes(range(256)))]}, state={"b": bytes(500)})
    checkpoint = await open_checkpoint(store)
    await checkpoint.verify()
    for key in keys(store, "blobs/"):
        whole = read(store, key)
        write(store, key, flipped(whole, 77))
        with pytest.raises(CorruptCheckpoint, match=key):
            await checkpoint.verify()
        write(store, key, whole)


async def test_verifying_reports_how_far_it_is() -> None:
    """Progress adds up to the bytes of all parts."""
    checkpoint = await open_checkpoint(await make_store())
    seen: list[int] = []
    await checkpoint.verify(seen.append)
    assert sum(seen) == checkpoint.manifest.size


@pytest.mark.fault(5)
async def test_a_rollout_in_scope_without_a_record_is_damage() -> None:
    """A rollout that no participant holds would vanish at a restore, so it is named instead."""
    store = await make_store()
    forger = Forger(store)
    extra = "vanished/1.0#99"
    forger.save(aggregate=lambda document: document["scope"].append(extra))
    with pytest.raises(CorruptCheckpoint, match=extra):
        await open_checkpoint(store)


async def test_memory_holds_a_few_frames_however_many_there_are() -> None:
    """While a reader goes through a thousand records, only those of a few frames are alive."""
    store = await store_with({AGENT: records(1000, turns=1)})
    checkpoint = await open_checkpoint(store)
    frames = len(checkpoint.processes[0].frames)
    largest = max(len(frame.lives) for frame in checkpoint.processes[0].frames)
    most = 0
    async with checkpoint.raw_records() as lines:
        number = 0
        async for _ in lines:
            number += 1
            if number % 100 == 0:
                most = max(most, sum(type(thing) is RawRecord for thing in gc.get_objects()))
    assert frames > 100
    assert most <= (SMALL_PARTS.frames_in_flight + 2) * largest


async def test_a_reader_that_stops_early_leaves_no_task_behind() -> None:
    """Breaking out of the iterator ends the work that was ahead of it."""
    checkpoint = await open_checkpoint(await make_store())
    before = asyncio.all_tasks()
    async with checkpoint.records() as found:
        async for _ in found:
            break
    await anyio.lowlevel.checkpoint()
    assert asyncio.all_tasks() == before


async def test_an_iterator_is_of_no_use_after_its_context() -> None:
    """Going on after the context ended is an error, and never a list that is silently short."""
    checkpoint = await open_checkpoint(await make_store())
    async with checkpoint.records() as found:
        pass
    with pytest.raises(RuntimeError):
        await anext(found)


async def test_an_error_of_the_caller_comes_out_as_it_is() -> None:
    """What is raised inside the context is neither wrapped nor changed."""
    checkpoint = await open_checkpoint(await make_store())

    async def fail_inside() -> None:
        async with checkpoint.records() as found:
            await anext(found)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_inside()


async def test_a_group_of_errors_of_the_caller_comes_out_whole() -> None:
    """Two failures of the caller's own task group stay two, through any number of ours."""
    checkpoint = await open_checkpoint(await make_store())
    failures = [ZeroDivisionError(), KeyError()]

    async def fail_inside() -> None:
        async with open_group(), checkpoint.records():
            raise ExceptionGroup("two", failures)

    with pytest.raises(ExceptionGroup) as caught:
        await fail_inside()
    assert list(caught.value.exceptions) == failures


async def test_a_cancelled_reader_is_cancelled() -> None:
    """A deadline of the caller's ends a read that hangs, and nothing of it is left."""
    store = await make_store()
    checkpoint = await open_checkpoint(store)
    backend_of(store).inject(Fault(verb="get_range", nth=3))
    before = asyncio.all_tasks()
    with anyio.move_on_after(0.2) as scope:
        async with checkpoint.records() as found:
            async for _ in found:
                pass
    assert scope.cancelled_caught
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("verb", ["get", "get_range", "stat"])
async def test_a_store_that_fails_while_reading_is_never_a_short_list(verb: Any) -> None:
    """A failure of the n-th request, for every n, is raised; the next try reads everything."""
    store = await store_with({AGENT: [*records(20), Record(life("b"), bytes(500))]})
    backend = backend_of(store)

    def gone(call: Call) -> BackendError:
        return TransientError(call.verb, call.key)

    async def restore() -> int:
        checkpoint = await open_checkpoint(store)
        await checkpoint.verify()
        return len(await taken(store))

    backend.calls.clear()
    assert await restore() == 21
    for nth in range(1, backend.count(verb) + 1):
        backend.inject(Fault(verb=verb, nth=nth, error=gone))
        with pytest.raises(TransientError):
            await restore()
        assert await restore() == 21


CUTS = ["manifest.json", "agent.solver/p0/manifest.json", "/index-", "00000-", "blobs/", "chain/"]


class CuttingBackend:
    """Hands out the first answer about some object cut short, as a proxy that closes a connection early does."""

    def __init__(self, inner: Any, part: str, times: int = 1) -> None:
        self._inner = inner
        self._part = part
        self.left = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _cut(self, key: str, data: bytes) -> bytes:
        if self._part in key and self.left:
            self.left -= 1
            return data[: len(data) // 2]
        return data

    async def get(self, key: str, *, max_bytes: int) -> bytes:
        return self._cut(key, await self._inner.get(key, max_bytes=max_bytes))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._cut(key, await self._inner.get_range(key, start, length))


@pytest.mark.parametrize("part", CUTS)
@pytest.mark.fault(29)
async def test_a_reply_that_was_cut_is_asked_for_once_more(part: str, caplog: pytest.LogCaptureFixture) -> None:
    """One short answer about any object is followed by one more request, and the restore succeeds."""
    store = await store_with({AGENT: [*records(3), Record(life("b"), bytes(500))]})
    cut = CuttingBackend(store.backend, part)
    store = dataclasses.replace(store, backend=cut)
    with caplog.at_level(logging.WARNING):
        await (await open_checkpoint(store)).verify()
    assert cut.left == 0
    assert "read once more" in caplog.text
    cut.left = 1
    assert len(await taken(store)) == 4


async def test_the_fingerprint_of_another_run_names_each_field_that_differs() -> None:
    """A restore into another dataset or configuration is refused until each differing field is overridden by name."""
    fingerprint = {"dataset": "a", "config": "b", "code": "c"}
    checkpoint = await open_checkpoint(await store_with({AGENT: records(1)}, fingerprint=fingerprint))
    checkpoint.check_fingerprint(fingerprint)
    other = {"dataset": "x", "config": "b", "seed": "7"}
    with pytest.raises(ForeignObject, match="code, dataset, seed") as caught:
        checkpoint.check_fingerprint(other)
    assert caught.value.fields == ("code", "dataset", "seed")
    with pytest.raises(ForeignObject) as caught:
        checkpoint.check_fingerprint(other, override=["code", "seed"])
    assert caught.value.fields == ("dataset",)
    checkpoint.check_fingerprint(other, override=["code", "dataset", "seed"])


async def test_a_file_outside_the_store_is_checked_when_it_is_verified(tmp_path: anyio.Path) -> None:
    """Size and digest of what a checkpoint refers to are looked at, and a lie about them is refused by name."""
    path = anyio.Path(tmp_path) / "weights.bin"
    await path.write_bytes(b"weights")
    external = External(url=str(path), size=7, sha256=hashlib.sha256(b"weights").hexdigest())
    checkpoint = await open_checkpoint(await store_with({AGENT: records(1)}, externals=[external]))
    await checkpoint.verify()
    for content in (b"weighty", b"weight", b"weights!", b""):
        await path.write_bytes(content)
        with pytest.raises(CorruptCheckpoint, match=r"weights\.bin"):
            await checkpoint.verify()
    await path.unlink()
    with pytest.raises(CorruptCheckpoint, match=r"weights\.bin"):
        await checkpoint.verify()
