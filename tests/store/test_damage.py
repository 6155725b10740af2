"""Damage anywhere: a restore refuses the whole set, names the object, and hands nothing out."""

import re
from collections.abc import Callable

import anyio
import orjson
import pytest
import zstandard

from store import (
    CheckpointId,
    CorruptChain,
    CorruptCheckpoint,
    ForeignObject,
    Life,
    Record,
    Store,
    StoreError,
    UnsafeObject,
    open_checkpoint,
    open_store,
)
from store.frames import compress_bytes
from store.layout import aggregate_key, entry_key, participant_key
from tests.support.checkpoints import AGENT, TOOLS, Shares, life, publish_rounds, records, store_with
from tests.support.damage import FIRST, flipped, keys, read, remove, resealed, write
from tests.support.tiers import sampled

pytestmark = pytest.mark.anyio

BLOB = bytes(range(256))
FLIPS = 150
"""Of an object, spread over all of it; every bit of a sealed document is flipped in test_sealed."""
NAMES = {
    "aggregate manifest": "checkpoints/1.1/manifest.json",
    "participant manifest": "agent.solver/p0/manifest.json",
    "index": "agent.solver/p0/index-",
    "part": "agent.solver/p0/00000-",
    "blob": "blobs/",
}


def shares() -> Shares:
    return {
        AGENT: [*records(3), Record(life("b1", n=9), {"image": BLOB})],
        TOOLS: [Record(life("r0"), {"file": "x"})],
    }


async def make_store() -> Store:
    return await store_with(shares())


async def restore(store: Store, checkpoint: CheckpointId = FIRST) -> list[Record]:
    """What a restore does: open, verify all, and only then take records."""
    opened = await open_checkpoint(store, checkpoint)
    await opened.verify()
    async with opened.records() as found:
        return [record async for record in found]


async def expect_refusal(store: Store, key: str, *, names: str = "") -> StoreError:
    """A restore raises one of our errors and names the object; so does handing out without verifying first."""
    with pytest.raises((CorruptCheckpoint, ForeignObject)) as caught:
        await restore(store)
    assert (names or key) in str(caught.value)
    return caught.value


def the_key(store: Store, what: str) -> str:
    return keys(store, NAMES[what])[0]


@sampled(9)
@pytest.mark.parametrize("what", NAMES)
@pytest.mark.fault(1, 7)
async def test_an_object_cut_at_any_byte_is_refused_by_name(what: str, step: int) -> None:
    """Every prefix of every sort of object is found before anything is handed out."""
    store = await make_store()
    key = the_key(store, what)
    whole = read(store, key)
    for length in [*range(0, len(whole), step), len(whole) - 1]:
        write(store, key, whole[:length])
        await expect_refusal(store, key)


@sampled(5)
@pytest.mark.parametrize("what", NAMES)
@pytest.mark.fault(3, 4)
async def test_an_object_with_any_bit_flipped_is_refused_by_name(what: str, step: int) -> None:
    """One bit anywhere is found; in a blob and in framing as well as in content."""
    store = await make_store()
    key = the_key(store, what)
    whole = read(store, key)
    for bit in range(0, len(whole) * 8, step * max(1, len(whole) * 8 // FLIPS | 1)):
        write(store, key, flipped(whole, bit))
        await expect_refusal(store, key)


SPOILED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "all zeros": lambda data: bytes(len(data)),
    "longer": lambda data: data + b"x",
    "longer by itself": lambda data: data + data,
    "longer by zeros": lambda data: data + bytes(4096),
}


@pytest.mark.unit
@pytest.mark.parametrize("how", SPOILED)
@pytest.mark.parametrize("what", NAMES)
@pytest.mark.fault(2, 7, 15)
async def test_an_object_of_zeros_or_of_another_length_is_refused_by_name(what: str, how: str) -> None:
    """What a crash leaves where names reach the disk before data, and what a careless tool appends."""
    store = await make_store()
    key = the_key(store, what)
    write(store, key, SPOILED[how](read(store, key)))
    await expect_refusal(store, key)


@pytest.mark.unit
@pytest.mark.parametrize("what", NAMES)
@pytest.mark.fault(5, 33)
async def test_a_missing_object_is_refused_by_name(what: str) -> None:
    """What a lifecycle rule or another tool deleted is named, and nothing else is opened in its place."""
    store = await make_store()
    key = the_key(store, what)
    remove(store, key)
    error = await expect_refusal(store, key)
    assert "missing" in str(error)


@pytest.mark.unit
@pytest.mark.parametrize("what", [what for what in NAMES if what != "blob"])
async def test_an_object_of_another_checkpoint_is_refused_by_name(what: str) -> None:
    """A perfectly sound object in the wrong place is no better than a damaged one."""
    store = await make_store()
    later = Life("b2", 2, 0, 1)
    await publish_rounds(store, [{**shares(), AGENT: [*records(3), Record(later, {"n": 1})]}])
    key = the_key(store, what)
    other = keys(store, NAMES[what].replace("/1.1/", "/2.1/") if "/1.1/" in NAMES[what] else f"2.1/{NAMES[what]}")[0]
    assert read(store, other) != read(store, key)
    write(store, key, read(store, other))
    await expect_refusal(store, key)


@pytest.mark.unit
async def test_a_part_of_another_participant_is_refused_by_name() -> None:
    """Two participants' manifests cannot be exchanged, for each is pinned by name and digest."""
    store = await make_store()
    agent, tools = participant_key(FIRST, AGENT), participant_key(FIRST, TOOLS)
    one, two = read(store, agent), read(store, tools)
    write(store, agent, two)
    write(store, tools, one)
    await expect_refusal(store, "manifest.json")


@pytest.mark.unit
@pytest.mark.fault(1)
async def test_damage_is_never_answered_with_an_older_checkpoint() -> None:
    """The head is damaged: it is refused, and the checkpoint before it is given only to who asks for it by name."""
    store = await store_with({AGENT: records(2)}, {AGENT: records(3)})
    head = CheckpointId(1, 2)
    write(store, aggregate_key(head), b"")
    with pytest.raises(CorruptCheckpoint, match=re.escape(aggregate_key(head))):
        await open_checkpoint(store)
    assert [record.life.rollout_id for record in await restore(store, FIRST)] == ["r0", "r1"]


@pytest.mark.unit
@pytest.mark.fault(4)
async def test_a_flipped_bit_in_a_record_names_object_participant_and_rollouts() -> None:
    """An operator reads which participant's part it is, and which records are hit."""
    store = await make_store()
    key = the_key(store, "part")
    write(store, key, flipped(read(store, key), 800))
    for act in (restore, take_all):
        with pytest.raises(CorruptCheckpoint) as caught:
            await act(store)
        assert "agent.solver/p0" in str(caught.value)
        assert "r0/1.0#0" in str(caught.value)


async def take_all(store: Store) -> list[Record]:
    """Take records without verifying first."""
    async with (await open_checkpoint(store)).records() as found:
        return [record async for record in found]


@pytest.mark.unit
@pytest.mark.fault(4)
async def test_nothing_unverified_is_handed_out_even_without_verifying_first() -> None:
    """A reader who skips the check gets sound records up to the damaged frame, and then the error."""
    store = await make_store()
    sound = await take_all(store)
    for key in keys(store, "jsonl.zst"):
        whole = read(store, key)
        for bit in range(0, len(whole) * 8, 397):
            write(store, key, flipped(whole, bit))
            found: list[Record] = []
            with pytest.raises(CorruptCheckpoint):
                await collect(store, found)
            assert found == sound[: len(found)]
        write(store, key, whole)


@pytest.mark.unit
@pytest.mark.fault(4)
async def test_another_sound_frame_in_the_place_of_one_is_not_handed_out() -> None:
    """One of the same size that decompresses well and holds the same lives: only the digest tells them apart."""
    store = await store_with({AGENT: records(1)})
    [key] = keys(store, NAMES["part"])
    sound = read(store, key)
    line = zstandard.decompress(sound)
    digit = next(at for at in range(len(line) - 1, 0, -1) if line[at : at + 1].isdigit())
    others = (compress_bytes(line[:digit] + b"%d" % n + line[digit + 1 :]) for n in range(10))
    other = next(data for data in others if len(data) == len(sound) and data != sound)
    write(store, key, other)
    with pytest.raises(CorruptCheckpoint, match="does not match its digest"):
        await collect(store, [])


@pytest.mark.unit
@pytest.mark.fault(3)
async def test_another_sound_manifest_in_the_place_of_the_published_one_is_refused() -> None:
    """One whose own seal is right, and which says all that the published one says, and a tag: the chain pins one."""
    store = await make_store()
    document = orjson.loads(read(store, aggregate_key(FIRST)))
    write(store, aggregate_key(FIRST), resealed({**document, "tags": ["another"]}))
    with pytest.raises(CorruptCheckpoint, match="it is not the one that the chain names"):
        await open_checkpoint(store)


async def collect(store: Store, found: list[Record]) -> None:
    async with (await open_checkpoint(store)).records() as handed_out:
        async for record in handed_out:
            found.append(record)  # noqa: PERF401 - what came before the error counts


@pytest.mark.unit
@pytest.mark.fault(1, 3)
async def test_a_damaged_entry_or_format_is_refused_by_name() -> None:
    """The chain and format.json decide everything, so nothing is decided while one of them cannot be read."""
    store = await make_store()
    for key in keys(store, "chain/"):
        whole = read(store, key)
        for damaged in (b"", whole[:-1], whole[:40], bytes(len(whole)), flipped(whole, 99), whole + whole):
            write(store, key, damaged)
            with pytest.raises(CorruptChain, match=re.escape(key)):
                await open_checkpoint(store)
        write(store, key, whole)
    assert await restore(store)


@pytest.mark.unit
async def test_a_hole_in_the_chain_is_damage() -> None:
    """An entry that is missing while a later one is listed is never taken for the end of the chain."""
    store = await store_with({AGENT: records(1)}, {AGENT: records(2)})
    remove(store, entry_key(2))
    with pytest.raises(CorruptChain, match=re.escape(entry_key(2))):
        await open_checkpoint(store)


@pytest.mark.unit
@pytest.mark.fault(1, 2, 3)
async def test_a_damaged_format_file_is_refused_by_name(tmp_path: anyio.Path) -> None:
    """Cut, flipped or emptied, format.json opens nothing and is left as it is."""
    async with open_store(str(tmp_path), "write"):
        pass
    path = anyio.Path(tmp_path) / "format.json"
    whole = await path.read_bytes()
    for damaged in [whole[:length] for length in range(len(whole))] + [
        flipped(whole, bit) for bit in range(0, 800, 29)
    ]:
        await path.write_bytes(damaged)
        with pytest.raises(CorruptCheckpoint, match=r"format\.json"):
            async with open_store(str(tmp_path)):
                pass
    with pytest.raises(CorruptCheckpoint, match=r"format\.json"):
        async with open_store(str(tmp_path), "write"):
            pass
    assert await path.read_bytes() == damaged


@pytest.mark.unit
@pytest.mark.parametrize("what", ["format.json", "manifest.json", ".jsonl.zst", "blobs/", "chain/"])
@pytest.mark.fault(59)
async def test_a_link_in_place_of_an_object_is_refused_and_its_target_untouched(
    what: str, tmp_path: anyio.Path
) -> None:
    """A link that leads to the very same bytes, or to a secret, is refused all the same, and nothing follows it."""
    root, secret = anyio.Path(tmp_path) / "root", anyio.Path(tmp_path) / "secret"
    async with open_store(str(root), "write") as store:
        await publish_rounds(store, [{AGENT: [Record(life("b1"), {"image": bytes(100_000)})]}])
    [path, *_] = [path async for path in root.rglob("*") if what in str(path) and await path.is_file()]
    await path.rename(secret)
    before = await secret.read_bytes()
    await path.symlink_to(secret)
    with pytest.raises((UnsafeObject, CorruptChain), match=re.escape(str(path.relative_to(root)))):
        async with open_store(str(root)) as store:
            await restore(store)
    assert await secret.read_bytes() == before
    assert await path.is_symlink()
