"""A copy is whole or not there, whatever interrupts it; it goes on where it stopped, and the source stays as it is."""

import dataclasses
import hashlib
import itertools
import shutil
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from store import (
    CheckpointConflict,
    CheckpointDeleted,
    CheckpointId,
    CorruptCheckpoint,
    Import,
    InvalidInput,
    IOFailed,
    MemoryBackend,
    NoCheckpoint,
    Record,
    Retention,
    Store,
    StoreError,
    claim,
    copy_checkpoint,
    find_checkpoint,
    open_checkpoint,
    open_store,
    prune,
    verify_store,
)
from store.backends import Fault, LocalBackend, MemorySpace, Retrying
from tests.support.checkpoints import (
    AGENT,
    SMALL_PARTS,
    TOOLS,
    Shares,
    life,
    memory_store,
    publish,
    publish_rounds,
    records,
    store_with,
)
from tests.support.file_ops import RecordingOps
from tests.support.seaweed import S3Server
from tests.support.tiers import sampled

pytestmark = pytest.mark.anyio
unit = pytest.mark.unit

FIRST, SECOND = CheckpointId(1, 1), CheckpointId(1, 2)


def payload(name: str) -> bytes:
    return hashlib.shake_256(name.encode()).digest(200)


def shares(count: int = 8) -> Shares:
    """Two participants, several parts, and a blob that every checkpoint of one run names again."""
    return {AGENT: records(count), TOOLS: [Record(life("r1", n=1), {"file": payload("file")})]}


async def a_source() -> Store:
    """Checkpoints 1.1 and 1.2, of which the second names a blob of the first."""
    return await store_with(shares(8), shares(6), state={"cursor": 7, "rng": payload("rng")})


def space_of(store: Store) -> MemorySpace:
    assert isinstance(store.backend, MemoryBackend)
    return store.backend.space


def contents(store: Store) -> dict[str, bytes]:
    return {key: stored.data for key, stored in space_of(store).objects.items()}


def again(store: Store) -> Store:
    """Another client of the same objects, without faults and with calls of its own."""
    return memory_store(MemoryBackend(space=space_of(store)), run_id=store.run_id)


def copied(store: Store) -> dict[str, bytes]:
    return {key: data for key, data in contents(store).items() if not key.startswith(("chain/", "alive/"))}


@unit
async def test_a_copy_is_the_same_checkpoint_under_the_same_id() -> None:
    """Every object below it is the same bytes, it opens by name, and it is no head."""
    source, destination = await a_source(), memory_store()
    seen: list[int] = []
    ref = await copy_checkpoint(source, destination, SECOND, progress=seen.append)
    assert ref == await find_checkpoint(source, SECOND) == await find_checkpoint(destination, SECOND)
    assert copied(destination).items() <= copied(source).items()
    checkpoint = await open_checkpoint(destination, SECOND)
    assert await checkpoint.state() == {"cursor": 7, "rng": payload("rng")}
    async with checkpoint.records(checkpoint.shares("resources")) as found:
        assert [record.payload async for record in found] == [{"file": payload("file")}]
    with pytest.raises(NoCheckpoint):
        await find_checkpoint(destination, "head")
    assert sum(seen) == sum(len(data) for data in copied(destination).values())
    assert (await verify_store(destination, deep=True)).findings == ()


@unit
async def test_the_import_names_the_run_it_came_from_and_whose_blobs_it_needs() -> None:
    """The entry pins the source's run, and the ids that the checkpoint's blobs were written for."""
    source, destination = await a_source(), memory_store()
    ref = await copy_checkpoint(source, destination)
    [entry] = (await destination.chain()).entries
    assert entry.action == Import(ref=ref, needs=(FIRST,))
    assert (entry.action.ref.run_id, entry.run_id) == (source.run_id, destination.run_id)


@unit
async def test_data_comes_first_and_the_chain_last() -> None:
    """Blobs, parts, indexes, participant manifests, the aggregate manifest, and only then the entry."""
    source, destination = await a_source(), memory_store()
    await copy_checkpoint(source, destination)
    assert isinstance(destination.backend, MemoryBackend)
    written = [call.key for call in destination.backend.calls if call.verb in {"create", "put"}]
    assert [kind for kind, _ in itertools.groupby(written, _kind)] == [
        "blob",
        "part",
        "index",
        "manifest",
        "whole",
        "chain",
    ]


def _kind(key: str) -> str:
    if key.startswith(("blobs/", "chain/")):
        return key[:5].rstrip("s/")
    name = key.rpartition("/")[2]
    if name == "manifest.json":
        return "manifest" if key.count("/") > 2 else "whole"
    return "index" if name.startswith("index") else "part"


@unit
async def test_a_second_copy_writes_nothing() -> None:
    """The same checkpoint twice is fine: no object is written again and no second entry appended."""
    source, destination = await a_source(), memory_store()
    first = await copy_checkpoint(source, destination)
    before = contents(destination)
    repeated = again(destination)
    assert await copy_checkpoint(source, repeated) == first
    assert isinstance(repeated.backend, MemoryBackend)
    assert repeated.backend.count("create") == repeated.backend.count("put") == 0
    assert contents(destination) == before


@unit
async def test_a_root_copied_onto_itself_stays_as_it_is() -> None:
    """The checkpoint stands there already."""
    source = await a_source()
    before = contents(source)
    await copy_checkpoint(source, again(source), FIRST)
    assert contents(source) == before


@sampled(4)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("side", ["source", "destination"])
async def test_a_copy_that_fails_at_any_call_leaves_no_half_checkpoint(side: str, after: bool, step: int) -> None:
    """A call fails before or after its effect, from the first call on: the source is untouched, the destination shows
    the whole checkpoint or none, and the next copy completes.
    """
    original = await a_source()
    untouched = contents(original)
    for nth in itertools.count(1, step):
        source, destination = again(original), memory_store()
        failing = source if side == "source" else destination
        assert isinstance(failing.backend, MemoryBackend)
        failing.backend.inject(Fault(nth=nth, after=after, error=lambda call: IOFailed(call.verb, call.key)))
        with suppress(StoreError):
            await copy_checkpoint(source, destination)
        was_reached = len(failing.backend.calls) >= nth
        assert contents(original) == untouched
        await check_all_or_nothing(again(destination))
        await copy_checkpoint(again(original), again(destination))
        assert (await verify_store(again(destination), deep=True)).findings == ()
        if not was_reached:
            assert nth > 25
            return


@sampled(4)
async def test_a_copy_that_is_cancelled_at_any_call_leaves_no_half_checkpoint(step: int) -> None:
    """As the last test, for a process that is killed while the call hangs."""
    original = await a_source()
    for nth in itertools.count(1, step):
        destination = memory_store()
        assert isinstance(destination.backend, MemoryBackend)
        destination.backend.inject(Fault(nth=nth))
        finished = anyio.Event()

        async def copy(destination: Store = destination, finished: anyio.Event = finished) -> None:
            await copy_checkpoint(again(original), destination)
            finished.set()

        async with anyio.create_task_group() as group:
            group.start_soon(copy)
            while len(destination.backend.calls) < nth and not finished.is_set():
                await anyio.lowlevel.checkpoint()
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        await check_all_or_nothing(again(destination))
        await copy_checkpoint(again(original), again(destination))
        assert (await verify_store(again(destination), deep=True)).findings == ()
        if finished.is_set():
            return


async def check_all_or_nothing(destination: Store) -> None:
    """Whatever the chain names can be opened and verified."""
    for ref in (await destination.chain()).known.refs.values():
        await (await open_checkpoint(destination, ref)).verify()


@unit
async def test_an_interrupted_copy_goes_on_where_it_stopped() -> None:
    """What stands at the destination is read and not written again."""
    source, destination = await a_source(), memory_store()
    assert isinstance(destination.backend, MemoryBackend)
    destination.backend.inject(
        Fault(verb="create", key_part="1.2/manifest.json", error=lambda call: IOFailed(call.verb, call.key))
    )
    with pytest.raises(IOFailed):
        await copy_checkpoint(source, destination)
    rest = again(destination)
    await copy_checkpoint(source, rest)
    assert isinstance(rest.backend, MemoryBackend)
    created = [call.key for call in rest.backend.calls if call.verb == "create"]
    assert created == ["checkpoints/1.2/manifest.json", "chain/000000000001.json"]


@unit
async def test_a_damaged_source_is_not_copied() -> None:
    """It is verified before anything is written."""
    source, destination = await a_source(), memory_store()
    key = next(key for key in contents(source) if "1.2/agent.solver/p0/00000" in key)
    objects = space_of(source).objects
    objects[key] = dataclasses.replace(objects[key], data=objects[key].data[:-1] + b"\0")
    with pytest.raises(CorruptCheckpoint):
        await copy_checkpoint(source, destination)
    assert contents(destination) == {}


@unit
async def test_a_blob_that_is_damaged_at_the_source_is_not_copied() -> None:
    """Its content is looked at, not only its size."""
    source, destination = await a_source(), memory_store()
    key = next(key for key in contents(source) if key.startswith("blobs/"))
    objects = space_of(source).objects
    objects[key] = dataclasses.replace(objects[key], data=b"\0" * len(objects[key].data))
    with pytest.raises(CorruptCheckpoint, match="blobs/"):
        await copy_checkpoint(source, destination)
    assert (await destination.chain()).entries == []


@unit
async def test_a_copy_that_was_damaged_since_is_repaired() -> None:
    """Copying the same checkpoint again puts back what is missing or has other bytes, whichever object it is."""
    source = await a_source()
    pristine = memory_store()
    await copy_checkpoint(source, pristine)
    for key in copied(pristine):
        for edit in (None, lambda data: b"\0" * len(data)):
            destination = memory_store(run_id=pristine.run_id)
            objects = space_of(destination).objects
            objects.update(space_of(pristine).objects)
            if edit is None:
                del objects[key]
            else:
                objects[key] = dataclasses.replace(objects[key], data=edit(objects[key].data))
            await copy_checkpoint(source, destination)
            assert contents(destination) == contents(pristine), key


@unit
async def test_another_checkpoint_of_the_same_id_is_a_conflict() -> None:
    """Two runs both have a 1.1; the second one is refused and what is there stays."""
    source, other, destination = await a_source(), await store_with(shares(3)), memory_store()
    await copy_checkpoint(source, destination, FIRST)
    before = contents(destination)
    with pytest.raises(CheckpointConflict, match="another root"):
        await copy_checkpoint(other, destination, FIRST)
    assert contents(destination) == before


@unit
async def test_what_another_unfinished_copy_left_is_a_conflict_and_stays() -> None:
    """Its manifest has the same key and other bytes; nothing of it is replaced."""
    source, other, destination = await a_source(), await store_with(shares(3)), memory_store()
    assert isinstance(destination.backend, MemoryBackend)
    destination.backend.inject(
        Fault(verb="create", key_part="1.1/manifest.json", error=lambda call: IOFailed(call.verb, call.key))
    )
    with pytest.raises(IOFailed):
        await copy_checkpoint(other, destination, FIRST)
    before = contents(destination)
    with pytest.raises(CheckpointConflict):
        await copy_checkpoint(source, destination, FIRST)
    assert before.items() <= contents(destination).items()


@unit
@pytest.mark.parametrize("finish", [False, True], ids=["open", "ended"])
async def test_what_a_deletion_plan_names_is_not_imported(finish: bool) -> None:
    """The destination has pruned that id: its objects may be going, and nothing is written."""
    source, destination = await a_source(), memory_store()
    await copy_checkpoint(source, destination, FIRST)
    await drop(destination, FIRST, finish)
    before = contents(destination)
    with pytest.raises(CheckpointDeleted, match=r"1\.1"):
        await copy_checkpoint(source, again(destination), FIRST)
    with pytest.raises(CheckpointDeleted, match=r"1\.1"):
        await copy_checkpoint(source, again(destination), SECOND)  # It names a blob that 1.1 wrote.
    assert contents(destination) == before


async def drop(store: Store, checkpoint: CheckpointId, finish: bool = True) -> None:
    """Prune one checkpoint; unfinished where nothing can be deleted."""
    client = again(store)
    assert isinstance(client.backend, MemoryBackend)
    if not finish:
        client.backend.inject(
            Fault(verb="delete", key_part="checkpoints", error=lambda call: IOFailed(call.verb, call.key))
        )
    await prune(client, Retention(drop=frozenset({checkpoint})))


@unit
@pytest.mark.parametrize("needed", [False, True], ids=["the id itself", "an id whose blobs it needs"])
async def test_a_plan_that_appears_during_a_copy_refuses_the_import(needed: bool) -> None:
    """However late it comes, the chain decides: the import is refused and no reader ever sees the copy."""
    source = await a_source()
    wanted = SECOND if needed else FIRST

    class _PruningLate(MemoryBackend):
        """Has checkpoint 1.1 imported and dropped right before the copy's own entry is created."""

        async def create(self, key: str, data: bytes) -> None:
            if key == "chain/000000000001.json":
                rival = memory_store(MemoryBackend(space=self.space), run_id=destination.run_id)
                await copy_checkpoint(again(source), rival, FIRST)
                await drop(rival, FIRST)
            await super().create(key, data)

    destination = memory_store(_PruningLate(space=MemorySpace()))
    with pytest.raises(CheckpointDeleted, match=r"1\.1"):
        await copy_checkpoint(source, destination, wanted)
    assert (await again(destination).chain()).known.refs == {}


@unit
async def test_an_id_that_a_controller_of_the_destination_may_write_is_refused() -> None:
    """Its round would write the same objects; another root, or a later moment, is fine."""
    source, destination = await a_source(), memory_store()
    async with claim(destination) as controller:
        with pytest.raises(InvalidInput, match="may still be written there by the controller of epoch 1"):
            await copy_checkpoint(source, destination, SECOND)
        assert copied(destination) == {}
        await publish(destination, controller, {AGENT: records(2)})
    async with claim(destination):
        ref = await copy_checkpoint(source, destination, SECOND)
    assert (await destination.chain()).known.refs[SECOND] == ref


@unit
async def test_a_source_that_is_pruned_during_a_copy_says_so() -> None:
    """Objects that vanish because of a deletion are reported as that, not as damage."""
    source = await a_source()

    class _PrunedMeanwhile(MemoryBackend):
        """Loses the checkpoint to a prune when its first part is read as a whole, by the copy."""

        async def get(self, key: str, *, max_bytes: int) -> bytes:
            if "1.1/agent.solver/p0/00000" in key:
                await prune(again(source), Retention(keep_last=1))
            return await super().get(key, max_bytes=max_bytes)

    reading = memory_store(_PrunedMeanwhile(space=space_of(source)), run_id=source.run_id)
    with pytest.raises(CheckpointDeleted):
        await copy_checkpoint(reading, memory_store(), FIRST)


@unit
async def test_a_round_after_an_interrupted_copy_takes_an_id_of_its_own() -> None:
    """What was copied of 2.1 and not imported is met by no round of epoch 2, and the copy can still be finished."""
    source = await store_with(shares(3))
    await publish_rounds(source, [shares(4)])
    copied_id, destination = CheckpointId(2, 1), await store_with(shares(2))
    assert isinstance(destination.backend, MemoryBackend)
    destination.backend.inject(
        Fault(verb="create", key_part="2.1/manifest.json", error=lambda call: IOFailed(call.verb, call.key))
    )
    with pytest.raises(IOFailed):
        await copy_checkpoint(source, destination, copied_id)
    [ref] = await publish_rounds(destination, [shares(6)])
    assert ref.checkpoint == CheckpointId(2, 2)
    assert (await copy_checkpoint(source, destination, copied_id)).checkpoint == copied_id
    assert (await verify_store(destination, deep=True)).findings == ()


@unit
async def test_a_copy_is_restored_by_name_and_goes_on() -> None:
    """A claim that names it takes an epoch above its own; the next checkpoint continues it and shares its blobs."""
    source, destination = await a_source(), memory_store()
    await copy_checkpoint(source, destination, SECOND)
    async with claim(destination, SECOND) as controller:
        assert controller.epoch == 2
        ref = await publish(destination, controller, shares(6))
    assert (ref.checkpoint, ref.run_id) == (CheckpointId(2, 1), destination.run_id)
    assert {blob.written_by for blob in (await open_checkpoint(destination)).blobs} == {FIRST}
    assert (await verify_store(destination, deep=True)).findings == ()


@unit
async def test_an_epoch_claimed_after_a_copy_never_comes_to_its_id() -> None:
    """A new run in a root that holds a copy would else, at its second round, write under the id of the copy."""
    source, destination = await a_source(), memory_store()
    await copy_checkpoint(source, destination, SECOND)
    refs = await publish_rounds(destination, [{AGENT: records(1)}, {AGENT: records(2)}])
    assert [str(ref.checkpoint) for ref in refs] == ["2.1", "2.2"]
    await drop(destination, SECOND)
    assert (await verify_store(destination, deep=True)).sound


@unit
async def test_pruning_keeps_what_was_copied_in() -> None:
    """There is no marker that only one kind of store has: what verifies is kept, with the blobs of others it needs."""
    source, destination = await a_source(), memory_store()
    await copy_checkpoint(source, destination, SECOND)
    await publish_rounds(destination, [{AGENT: records(1)}, {AGENT: records(2)}, {AGENT: records(3)}])
    await prune(destination, Retention(keep_last=1))
    assert (await verify_store(destination, SECOND, deep=True)).sound


@pytest.mark.real
@pytest.mark.timeout(120)
async def test_from_local_disk_to_s3_and_back_everything_is_valid_and_kept(tmp_path: Path, seaweed: S3Server) -> None:
    """The same bytes are valid on every kind of store, and pruning takes them for garbage on none."""
    limits = dataclasses.replace(SMALL_PARTS, sweep_after_s=0.0)
    async with (
        open_store(tmp_path / "a", "write", limits=limits) as first,
        open_store(seaweed.url, "write", limits=limits, storage_options=seaweed.options()) as bucket,
        open_store(tmp_path / "b", "write", limits=limits) as last,
    ):
        [ref, _] = await publish_rounds(first, [shares(8), shares(6)], state={"rng": payload("rng")})
        for source, destination in ((first, bucket), (bucket, last)):
            assert await copy_checkpoint(source, destination, FIRST) == ref
            assert (await prune(destination, Retention(keep_last=0))).deleted == 0
            assert (await verify_store(destination, deep=True)).findings == ()
        assert await files_below(tmp_path / "a", "1.1") == await files_below(tmp_path / "b", "1.1")


async def files_below(root: Path, checkpoint: str) -> dict[str, bytes]:
    folder = anyio.Path(root / "checkpoints" / checkpoint)
    return {str(p.relative_to(folder)): await p.read_bytes() async for p in folder.rglob("*") if await p.is_file()}


@pytest.mark.unit
async def test_what_an_earlier_copy_left_is_made_durable_before_the_import(tmp_path: Path) -> None:
    """Killed before a folder was synced, then continued: a power loss after the import must not lose the objects."""
    source = await a_source()
    (tmp_path / "copy").mkdir()
    first = Store(Retrying(LocalBackend(tmp_path / "copy")), "5" * 32, SMALL_PARTS)
    await copy_checkpoint(source, first)
    shutil.rmtree(tmp_path / "copy" / "chain")

    ops = RecordingOps()
    await copy_checkpoint(source, Store(Retrying(LocalBackend(tmp_path / "copy", ops)), "5" * 32, SMALL_PARTS))
    imported = next(at for at, op in enumerate(ops.log) if op.name == "link" and op.target.startswith("chain/"))
    synced = {op.path for op in ops.log[:imported] if op.name == "fsync"}
    folders = {
        str(file.parent.relative_to(tmp_path / "copy")) for file in (tmp_path / "copy").rglob("checkpoints/**/*.zst")
    }
    assert folders
    assert folders <= synced
