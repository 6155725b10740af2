"""Payloads that are read when they are written: the same bytes, few at a time, and only where the parent has none."""

import hashlib
from typing import Any

import pytest

from store import (
    InvalidName,
    InvalidRecord,
    LazyBytes,
    ParticipantCommit,
    Receipt,
    Record,
    Store,
    claim,
    load_parent,
    open_checkpoint,
)
from store.lazy import in_groups
from tests.support.checkpoints import AGENT, life, memory_store, publish
from tests.support.damage import FIRST

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LARGE = memory_store().limits.inline_payload_bytes + 1


class Disk:
    """Gives bytes, and says which it gave."""

    def __init__(self) -> None:
        self.reads: list[str] = []

    def lazy(self, name: str, data: bytes, then: bytes | None = None) -> LazyBytes:
        def read() -> bytes:
            self.reads.append(name)
            return data if then is None else then

        return LazyBytes(hashlib.sha256(data).hexdigest(), len(data), read)


async def commit(store: Store, *payloads: Any, **more: Any) -> Receipt:
    share = [Record(life(f"r{n}"), payload) for n, payload in enumerate(payloads)]
    return await ParticipantCommit(store, FIRST, AGENT, **more).run(share)


async def test_what_is_read_late_comes_back_as_bytes_and_as_the_same_manifest() -> None:
    """A record with lazy payloads, small and large, is the one that the bytes themselves would have made."""
    disk, small, large = Disk(), b"small", bytes(LARGE)
    lazy = await commit(memory_store(), {"a": disk.lazy("s", small), "b": [disk.lazy("l", large)]})
    eager = await commit(memory_store(), {"a": small, "b": [large]})
    assert lazy.manifest.parts == eager.manifest.parts
    assert lazy.manifest.blob_bytes == LARGE
    assert disk.reads == ["s", "l"]


async def test_what_the_parent_has_is_neither_read_nor_written() -> None:
    """The second checkpoint names the first one's blob."""
    store, disk, data = memory_store(), Disk(), b"x" * LARGE
    async with claim(store) as controller:
        await publish(store, controller, {AGENT: [Record(life("r0"), {"b": disk.lazy("first", data)})]})
        head = controller.head
        assert head is not None
        parent = await load_parent(store, head, AGENT.kind, AGENT.name)
        second = await ParticipantCommit(store, controller.next_round(), AGENT, parent=parent).run(
            [Record(life("r0"), {"b": disk.lazy("second", data), "new": disk.lazy("new", b"y" * LARGE)})]
        )
        assert disk.reads == ["first", "new"]
        assert second.manifest.blob_bytes == LARGE
        checkpoint = await open_checkpoint(store)
        async with checkpoint.records() as found:
            assert [record.payload async for record in found] == [{"b": data}]


@pytest.mark.parametrize("then", [b"", b"z" * LARGE, b"x" * (LARGE - 1)], ids=["gone", "changed", "shorter"])
async def test_what_has_changed_since_is_refused(then: bytes) -> None:
    """Neither a blob nor a manifest is written for bytes that nobody exported."""
    store = memory_store()
    with pytest.raises(InvalidRecord, match="has changed"):
        await commit(store, {"b": Disk().lazy("b", b"x" * LARGE, then)})
    assert not await store.backend.list("checkpoints/")
    assert not await store.backend.list("blobs/")


async def test_what_cannot_be_read_is_a_failed_commit() -> None:
    """An error of the disk names whose payload it was."""

    def read() -> bytes:
        raise FileNotFoundError("no such file")

    for size in (3, LARGE):
        with pytest.raises(InvalidRecord, match="no such file"):
            await commit(memory_store(), {"b": LazyBytes("0" * 64, size, read)})


async def test_few_are_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many large ones the records have, those read and not yet written stay below the bound."""
    monkeypatch.setattr("store.commit._LAZY_BYTES", 3 * LARGE)
    store, held, most = memory_store(), [0], [0]
    put = store.backend.put

    async def counting(key: str, data: bytes) -> None:
        await put(key, data)
        held[0] -= len(data) if key.startswith("blobs/") else 0

    monkeypatch.setattr(store.backend, "put", counting)

    def lazy(number: int) -> LazyBytes:
        data = number.to_bytes(LARGE, "big")

        def read() -> bytes:
            held[0] += LARGE
            most[0] = max(most[0], held[0])
            return data

        return LazyBytes(hashlib.sha256(data).hexdigest(), LARGE, read)

    await commit(store, *({"b": [lazy(10 * n + k) for k in range(10)]} for n in range(5)))
    assert held[0] == 0
    assert 0 < most[0] <= 3 * LARGE


def test_groups_keep_to_the_limit_and_the_order() -> None:
    """Neighbours up to the limit; what is larger stands alone."""
    sizes = [3, 3, 5, 20, 1, 9, 1]
    items = [(number, LazyBytes("0" * 64, size, bytes)) for number, size in enumerate(sizes)]
    assert [[item.size for _, item in group] for group in in_groups(items, 10)] == [[3, 3], [5], [20], [1, 9], [1]]
    assert list(in_groups([], 10)) == []


def test_a_digest_is_checked_before_it_is_part_of_a_key() -> None:
    """What is no sha256 names no blob."""
    with pytest.raises(InvalidName):
        LazyBytes("../x", 1, bytes)
