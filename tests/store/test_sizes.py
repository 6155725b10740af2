"""Sizes that a manifest announces: nothing past a limit is read, and memory follows none of them."""

import dataclasses
from collections.abc import Awaitable, Callable

import pytest

from store import (
    CorruptCheckpoint,
    InvalidInput,
    Limits,
    MemoryBackend,
    ParticipantCommit,
    Record,
    Store,
    copy_checkpoint,
    open_checkpoint,
    verify_store,
)
from store.backends import MemorySpace
from tests.support.checkpoints import AGENT, SMALL_PARTS, life, memory_store, records, store_with
from tests.support.damage import FIRST, Forger, backend_of, forge_aggregate, keys, write

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

ENDLESS = 2**63 - 1
PAYLOAD = bytes(range(256))


class MeasuringBackend(MemoryBackend):
    """Notes how much each request asked for."""

    def __init__(self, space: MemorySpace) -> None:
        super().__init__(space=space)
        self.asked: dict[str, int] = {}

    def _note(self, key: str, length: int) -> None:
        self.asked[key] = max(length, self.asked.get(key, 0))

    async def get(self, key: str, *, max_bytes: int) -> bytes:
        data = await super().get(key, max_bytes=max_bytes)
        self._note(key, len(data))
        return data

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self._note(key, length)
        return await super().get_range(key, start, length)


def seen_by(store: Store, limits: Limits) -> tuple[Store, MeasuringBackend]:
    """The same store for a reader with other limits, and what it asks for."""
    backend = MeasuringBackend(backend_of(store).space)
    return Store(backend, store.run_id, limits), backend


async def verify_opened(store: Store) -> None:
    await (await open_checkpoint(store)).verify()


async def copy_out(store: Store) -> None:
    await copy_checkpoint(store, memory_store())


async def damage_of(store: Store) -> dict[str, str]:
    """What verifying a root calls damage, by object."""
    report = await verify_store(store)
    return {found.object: found.message for found in report.findings if found.severity == "damage"}


@pytest.mark.parametrize("use", [open_checkpoint, verify_opened, copy_out])
async def test_a_part_past_the_limit_is_refused_by_name_before_it_is_read(
    use: Callable[[Store], Awaitable[object]],
) -> None:
    """Opening, verifying and copying name it, and ask for none of its bytes; verifying a root reports it."""
    store = await store_with({AGENT: records(40)})
    part = keys(store, "/00000-")[0]
    reader, backend = seen_by(store, dataclasses.replace(SMALL_PARTS, max_part_bytes=100))
    with pytest.raises(CorruptCheckpoint, match=f"{part} .* the limit is 100"):
        await use(reader)
    assert "the limit is 100" in (await damage_of(reader))[part]
    assert part not in backend.asked


async def test_a_part_past_the_limit_is_not_written() -> None:
    """A commit that no reader would take in is refused and leaves nothing."""
    store = memory_store(limits=dataclasses.replace(SMALL_PARTS, max_part_bytes=600))
    with pytest.raises(InvalidInput, match=r"a part of agent\.solver/p0 would have .* the limit is 600"):
        await ParticipantCommit(store, FIRST, AGENT).run(records(40))
    assert keys(store) == []


async def test_verifying_a_checkpoint_reads_a_part_piece_by_piece() -> None:
    """No request asks for more than a usual part or one frame, however long the part is."""
    store = await store_with({AGENT: records(60)}, limits=dataclasses.replace(SMALL_PARTS, part_bytes=1 << 20))
    [part] = keys(store, "/00000-")
    reader, backend = seen_by(store, dataclasses.replace(SMALL_PARTS, part_bytes=700))
    checkpoint = await open_checkpoint(reader)
    await checkpoint.verify()
    largest = max(frame.size for frame in checkpoint.processes[0].frames)
    assert backend.asked[part] <= max(700, largest) + 1 < len(backend_of(store).space.objects[part].data) // 4


@pytest.mark.parametrize("size", [ENDLESS, 10**12])
async def test_verifying_ends_on_a_part_of_any_announced_size(size: int) -> None:
    """The part is named as damage, and nothing is read for what is not there."""
    store = await store_with({AGENT: records(4)})
    forger = Forger(store)
    forger.manifest["parts"][0]["size"] = size
    forger.manifest["size"] = sum(part["size"] for part in forger.manifest["parts"])
    forger.save()
    found = await damage_of(store)
    assert f"it announces {size} bytes" in found[forger.part(0)]


async def test_verifying_asks_for_nothing_past_the_end_of_a_part() -> None:
    """With an index that cannot be read, a part of a few bytes that is said to have many costs no request more."""
    store = await store_with({AGENT: records(4)})
    forger = Forger(store)
    forger.manifest["parts"][0]["size"] = 100 << 20
    forger.manifest["size"] = sum(part["size"] for part in forger.manifest["parts"])
    forger.save(index=b"rubbish")
    backend_of(store).calls.clear()
    assert forger.part(0) in await damage_of(store)
    assert sum(call.key == forger.part(0) for call in backend_of(store).calls) == 2


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("what", ["payload", "state"])
async def test_a_blob_past_its_limit_is_refused_by_name_before_it_is_read(what: str, deep: bool) -> None:
    """Payloads and states have limits of their own; whoever reads one names the blob and asks for none of its bytes."""
    written = dataclasses.replace(SMALL_PARTS, inline_state_bytes=64)
    if what == "payload":
        store = await store_with({AGENT: [Record(life("r"), PAYLOAD)]}, limits=written)
        limits = dataclasses.replace(written, max_blob_bytes=200)
    else:
        store = await store_with({AGENT: records(1)}, limits=written, state={"pad": "x" * 300})
        limits = dataclasses.replace(written, max_state_bytes=200)
    [blob] = keys(store, "blobs/")
    reader, backend = seen_by(store, limits)
    checkpoint = await open_checkpoint(reader)
    with pytest.raises(CorruptCheckpoint, match=f"{blob} .* past the limit of 200"):
        await checkpoint.verify()
    with pytest.raises(CorruptCheckpoint, match=f"{blob} .* past the limit of 200"):
        await checkpoint.read_blob(next(iter(checkpoint.blobs)))
    with pytest.raises(CorruptCheckpoint, match=f"{blob} .* past the limit of 200"):
        await copy_out(reader)
    report = await verify_store(reader, deep=deep)
    assert blob in {found.object for found in report.findings if found.severity == "damage"}
    assert blob not in backend.asked


async def test_a_blob_of_any_announced_size_ends_a_verification_by_name() -> None:
    """A size that no disk has is refused without a look at the disk."""
    store = await store_with({AGENT: records(1)}, state={"b": PAYLOAD})
    [blob] = keys(store, "blobs/")
    forge_aggregate(store, lambda document: document["state"]["blobs"][0].update(size=ENDLESS))
    with pytest.raises(CorruptCheckpoint, match=f"{blob} .* past the limit"):
        await verify_opened(store)
    assert "past the limit" in (await damage_of(store))[blob]


async def test_a_part_that_goes_on_after_its_last_frame_is_damage() -> None:
    """One byte more than the manifest says is found, though every frame is sound."""
    store = await store_with({AGENT: records(40)})
    part = keys(store, "/00000-")[0]
    write(store, part, backend_of(store).space.objects[part].data + b"x")
    with pytest.raises(CorruptCheckpoint, match=part):
        await verify_opened(store)
