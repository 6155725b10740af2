"""Hostile checkpoints: every digest is right and the content is a lie. All are refused by name, in flat memory."""

import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any

import orjson
import pytest
import zstandard

from store import (
    CheckpointId,
    CorruptCheckpoint,
    ForeignObject,
    Limits,
    Record,
    Store,
    UnsupportedVersion,
    open_checkpoint,
)
from store.errors import InvalidName
from store.frames import compress_bytes, decompress
from store.layout import BlobRef
from tests.support.checkpoints import AGENT, SMALL_PARTS, TOOLS, life, records, store_with
from tests.support.damage import Forger, backend_of, forge_aggregate, keys, read, replace_aggregate, resealed_bytes

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

HUGE = 10**18
SECRET = "../../../etc/passwd"
FOREIGN = {"sha256": "ab" * 32, "written_by": "1.1", "size": 5}
Lie = Callable[[Any], Any]


async def make_store(limits: Limits = SMALL_PARTS) -> Store:
    share = [*records(12), Record(life("b"), {"image": bytes(300)})]
    return await store_with({AGENT: share, TOOLS: records(2)}, limits=limits, state={"k": bytes(300)})


async def restore(store: Store) -> list[Record]:
    checkpoint = await open_checkpoint(store)
    await checkpoint.verify()
    async with checkpoint.records() as found:
        return [record async for record in found]


async def expect_refusal(store: Store, *errors: type[Exception], names: str = "") -> Exception:
    """The whole restore is refused with one of our errors, and no key outside the store was asked for."""
    backend_of(store).calls.clear()
    with pytest.raises(errors or (CorruptCheckpoint,)) as caught:
        await restore(store)
    assert names in str(caught.value)
    assert len(str(caught.value)) < 2000
    for call in backend_of(store).calls:
        assert call.key.startswith(("checkpoints/1.1/", "blobs/", "chain/"))
        assert ".." not in call.key
    return caught.value


async def test_a_forger_who_lies_about_nothing_is_believed() -> None:
    """The forger of these tests makes sound checkpoints, so each refusal below is the lie's."""
    store = await make_store()
    forger = Forger(store)
    forger.put_frame(0, compress_bytes(zstandard.decompress(forger.frame(0))), forger.lines[0]["raw_size"])
    forger.save()
    assert len(await restore(store)) == 15


NAMES = ["../x", "..", "/etc/passwd", SECRET, "a\0b", "x" * 4096, "", "manifest.json", "a/b", "A", 5, None, ["x"]]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name)[:20])
@pytest.mark.fault(58, 64)
async def test_a_name_that_would_be_a_path_is_refused_wherever_a_manifest_has_one(name: Any) -> None:
    """Parts, participants, processes and lives: no name of a hostile manifest ever becomes a key."""
    lies: dict[str, Lie] = {
        "name": lambda d: d["participants"][0].update(name=name),
        "kind": lambda d: d["participants"][0].update(kind=name),
        "process": lambda d: d["participants"][0].update(process=name),
        "scope": lambda d: d["scope"].__setitem__(0, name if name == 5 else f"{name}/1.0#0"),
        "checkpoint": lambda d: d.update(checkpoint=name),
        "blob": lambda d: d["state"]["blobs"][0].update(sha256=name),
        "writer": lambda d: d["state"]["blobs"][0].update(written_by=name),
    }
    for where, lie in lies.items():
        if where == "scope" and name == "A":
            continue
        store = await make_store()
        forge_aggregate(store, lie)
        await expect_refusal(store, names="1.1")
    for field in ("name", "kind", "process"):
        store = await make_store()
        Forger(store).save(manifest=lambda d, field=field: d.update({field: name}))  # type: ignore[misc]
        await expect_refusal(store, names="agent.solver/p0/manifest.json")
    store = await make_store()
    Forger(store).save(manifest=lambda d: d["parts"][0].update(name=name))
    await expect_refusal(store, names="agent.solver/p0/manifest.json")


AGGREGATE_LIES: dict[str, Lie] = {
    "records": lambda d: d.update(records=d["records"] + 1),
    "negative records": lambda d: d.update(records=-1),
    "size": lambda d: d.update(size=HUGE),
    "epoch": lambda d: d.update(epoch=2),
    "participant twice": lambda d: d["participants"].append(d["participants"][0]),
    "participant gone": lambda d: d["participants"].pop(),
    "manifest size": lambda d: d["participants"][0].update(size=HUGE),
    "negative manifest size": lambda d: d["participants"][0].update(size=-5),
    "one byte more": lambda d: d["participants"][0].update(size=d["participants"][0]["size"] + 1),
    "participant records": lambda d: d["participants"][0].update(records=0),
    "participant bytes": lambda d: d["participants"][0].update(bytes=HUGE),
    "a float size": lambda d: d.update(size=float(d["size"])),
    "a size as text": lambda d: d.update(size=str(d["size"])),
    "a life twice": lambda d: d["scope"].append(d["scope"][0]),
    "a life in two sets": lambda d: d.update(restarts=[d["scope"][0]]),
    "another attempt in restarts": lambda d: d.update(restarts=["r0/1.1#9"]),
    "dropped and in scope": lambda d: d.update(dropped=[{"life": d["scope"][0], "reason": "x"}]),
    "a life out of scope": lambda d: d["scope"].pop(),
    "another life in scope": lambda d: d["scope"].__setitem__(0, "r0/1.1#0"),
    "no scope": lambda d: d.pop("scope"),
    "null scope": lambda d: d.update(scope=None),
    "another checkpoint": lambda d: d.update(checkpoint="1.2"),
    "another sort": lambda d: d.update(format="midflight.participant"),
    "state blob size": lambda d: d["state"]["blobs"][0].update(size=HUGE),
    "state blob unknown": lambda d: d["state"].update(blobs=[FOREIGN]),
    "fingerprint": lambda d: d.update(fingerprint=["x"]),
    "not a document": lambda d: d.clear(),
}


@pytest.mark.parametrize("lie", AGGREGATE_LIES)
@pytest.mark.fault(7, 8, 9, 64)
async def test_an_aggregate_manifest_that_lies_is_refused(lie: str) -> None:
    """Sizes and counts that contradict each other, lives in two sets, and fields of the wrong kind."""
    store = await make_store()
    forge_aggregate(store, AGGREGATE_LIES[lie])
    error = await expect_refusal(store)
    assert "1.1" in str(error) or "blobs/ab/" in str(error)


async def test_a_process_named_twice_is_refused_though_every_sum_is_right() -> None:
    """The aggregate manifest counts its records twice, so that nothing but the name can give it away."""
    store = await store_with({AGENT: [], TOOLS: records(2)})

    def twice(document: Any) -> None:
        [empty] = [ref for ref in document["participants"] if ref["kind"] == AGENT.kind]
        document["participants"].append(empty)

    forge_aggregate(store, twice)
    await expect_refusal(store, names="contradict each other")


MANIFEST_LIES: dict[str, Lie] = {
    "size": lambda d: d.update(size=HUGE),
    "records": lambda d: d.update(records=1),
    "part size": lambda d: d["parts"][0].update(size=HUGE),
    "part of nothing": lambda d: d["parts"][0].update(size=0),
    "negative part": lambda d: d["parts"][0].update(size=-1),
    "part raw size": lambda d: d["parts"][0].update(raw_size=d["parts"][0]["raw_size"] + 1),
    "part records": lambda d: d["parts"][0].update(records=d["parts"][0]["records"] + 1),
    "part digest": lambda d: d["parts"][0].update(sha256="ab" * 32),
    "part gone": lambda d: d["parts"].pop(),
    "part twice": lambda d: d["parts"].append(d["parts"][0]),
    "parts swapped": lambda d: d["parts"].reverse(),
    "index size": lambda d: d["index"].update(size=HUGE),
    "index raw size": lambda d: d["index"].update(raw_size=HUGE),
    "index raw size off by one": lambda d: d["index"].update(raw_size=d["index"]["raw_size"] - 1),
    "negative index": lambda d: d["index"].update(raw_size=-1),
    "index digest": lambda d: d["index"].update(sha256="ab" * 32),
    "codec": lambda d: d.update(codec="gzip"),
    "another checkpoint": lambda d: d.update(checkpoint="1.2"),
    "another process": lambda d: d.update(process="p1"),
}


@pytest.mark.parametrize("lie", MANIFEST_LIES)
@pytest.mark.fault(7, 64)
async def test_a_participant_manifest_that_lies_is_refused(lie: str) -> None:
    """Sizes that are huge, negative or contradict the index, other digests, and parts out of place."""
    store = await make_store()
    Forger(store).save(manifest=MANIFEST_LIES[lie])
    await expect_refusal(store, names="checkpoints/1.1/")


INDEX_LIES: dict[str, Lie] = {
    "overlapping": lambda rows: rows[1].update(offset=0),
    "a gap": lambda rows: rows[1].update(offset=rows[1]["offset"] + 1),
    "out of range": lambda rows: rows[-1].update(size=rows[-1]["size"] + 1),
    "too short": lambda rows: rows[-1].update(size=rows[-1]["size"] - 1),
    "empty frame": lambda rows: rows[0].update(size=0),
    "negative": lambda rows: rows[0].update(offset=-1),
    "huge": lambda rows: rows[0].update(size=HUGE),
    "huge content": lambda rows: rows[0].update(raw_size=HUGE),
    "content off by one": lambda rows: rows[0].update(raw_size=rows[0]["raw_size"] + 1),
    "unknown part": lambda rows: rows[0].update(part=99),
    "digest": lambda rows: rows[0].update(sha256="ab" * 32),
    "no lives": lambda rows: rows[0].update(lives=[]),
    "a life too few": lambda rows: rows[0]["lives"].pop(),
    "a life too many": lambda rows: rows[0]["lives"].append("new/1.0#50"),
    "a life twice": lambda rows: rows[1]["lives"].__setitem__(0, rows[0]["lives"][0]),
    "two attempts": lambda rows: rows[0]["lives"].__setitem__(0, "r5/1.1#9"),
    "lives swapped": lambda rows: rows[0]["lives"].reverse() if len(rows[0]["lives"]) > 1 else rows.clear(),
    "a life out of scope": lambda rows: rows[0]["lives"].__setitem__(0, "stranger/1.0#0"),
    "a life as a path": lambda rows: rows[0]["lives"].__setitem__(0, f"{SECRET}/1.0#0"),
    "an unknown blob": lambda rows: rows[0]["blobs"].append(["ab" * 32, "1.1", 5]),
    "a blob as a path": lambda rows: rows[0]["blobs"].append([SECRET, "1.1", 5]),
    "a huge blob": lambda rows: [row.update(blobs=[[b[0], b[1], HUGE] for b in row["blobs"]]) for row in rows],
    "a blob unnamed": lambda rows: [row.update(blobs=[]) for row in rows],
    "a line too few": lambda rows: rows.pop(),
    "a line too many": lambda rows: rows.append(rows[-1]),
    "another key": lambda rows: rows[0].update(x=1),
    "not an object": lambda rows: rows.__setitem__(0, [1, 2]),
    "lives as text": lambda rows: rows[0].update(lives="r0/1.0#0"),
    "nothing": lambda rows: rows.clear(),
}  # fmt: skip


@pytest.mark.parametrize("lie", INDEX_LIES)
@pytest.mark.fault(7, 8, 64)
async def test_an_index_that_lies_is_refused(lie: str) -> None:
    """Frames that overlap, leave gaps or reach out of range, lives not in scope or twice, and unknown blobs."""
    store = await make_store()
    forger = Forger(store)
    INDEX_LIES[lie](forger.lines)
    forger.save()
    error = await expect_refusal(store)
    assert any(name in str(error) for name in ("agent.solver/p0", "checkpoint 1.1", "blobs/"))


def skippable(size: int) -> bytes:
    return b"\x50\x2a\x4d\x18" + size.to_bytes(4, "little") + bytes(size)


def with_dictionary(raw: bytes) -> bytes:
    samples: list[bytes | bytearray | memoryview[int]] = [
        b'{"life":"r%d/1.0#0","payload":{"k":%d}}' % (n, n) for n in range(2000)
    ]
    trained = zstandard.train_dictionary(4096, samples)
    return zstandard.ZstdCompressor(dict_data=trained).compress(raw)


def unannounced(raw: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(raw)


FRAME_LIES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "trailing bytes": lambda frame, raw: frame + b"trailing",
    "two frames": lambda frame, raw: frame + frame,
    "a second, empty frame": lambda frame, raw: frame + compress_bytes(b""),
    "a skippable frame after": lambda frame, raw: frame + skippable(8),
    "a skippable frame before": lambda frame, raw: skippable(8) + frame,
    "only a skippable frame": lambda frame, raw: skippable(len(raw)),
    "no announced size": lambda frame, raw: unannounced(raw),
    "a dictionary": lambda frame, raw: with_dictionary(raw),
    "not zstd": lambda frame, raw: raw,
    "gzip": lambda frame, raw: b"\x1f\x8b" + frame,
    "no last line feed": lambda frame, raw: compress_bytes(raw[:-1] + b" "),
    "a line too many": lambda frame, raw: compress_bytes(raw[:-2] + b"\n\n"),
    "lines of other lives": lambda frame, raw: compress_bytes(raw.replace(b'"r0/', b'"rX/')),
    "the magic number alone": lambda frame, raw: frame[:4],
}


@pytest.mark.parametrize("lie", FRAME_LIES)
@pytest.mark.fault(60)
async def test_a_frame_that_is_not_exactly_one_sound_frame_is_refused(lie: str) -> None:
    """Something before, after or instead of the frame, though index, part and manifests all agree on it."""
    store = await make_store()
    forger = Forger(store)
    raw = zstandard.decompress(forger.frame(0))
    forger.put_frame(0, FRAME_LIES[lie](forger.frame(0), raw), len(raw))
    forger.save()
    await expect_refusal(store, names="agent.solver/p0/00000-")


@cache
def bomb(size: int, *, announced: bool) -> bytes:
    """A frame that unpacks to `size` zeros, made without holding them."""
    compressor = zstandard.ZstdCompressor(level=19, write_content_size=announced)
    packer = compressor.compressobj(size=size if announced else -1)
    piece = bytes(1 << 20)
    packed = [packer.compress(piece) for _ in range(size // len(piece))]
    return b"".join(packed) + packer.flush()


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("claimed", [1000, HUGE])
@pytest.mark.fault(60)
def test_a_bomb_is_refused_in_flat_memory(announced: bool, claimed: int) -> None:
    """A frame of a few kilobytes that unpacks to a gigabyte allocates next to nothing before it is refused."""
    packed = bomb(1 << 28, announced=announced)
    assert len(packed) < 50_000
    tracemalloc.start()
    with pytest.raises(CorruptCheckpoint, match="part"):
        decompress(packed, claimed, "part")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.fault(60)
async def test_a_bomb_behind_right_digests_is_refused_by_the_size_that_the_index_announces() -> None:
    """What the index announces is bounded before anything is unpacked, in a part and in the index itself."""
    packed = bomb(1 << 28, announced=True)
    for raw_size in (1000, 1 << 28):
        store = await make_store(Limits(frame_bytes=512, part_bytes=1024, read_bytes=512, max_record_bytes=1 << 20))
        forger = Forger(store)
        forger.put_frame(0, packed, raw_size)
        forger.save()
        tracemalloc.start()
        await expect_refusal(store, names="agent.solver/p0")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
        tracemalloc.stop()


@pytest.mark.parametrize(
    "raw",
    [
        b"\n" * (1 << 24),
        b'{"part":0,"offset":0,"size":1,"raw_size":1,"sha256":"x","lives":['
        + b"[]," * (1 << 22)
        + b'[]],"blobs":[]}\n',
        b"".join(
            b'{"part":0,"offset":%d,"size":1,"raw_size":1,"sha256":"%b","lives":["a/1.0#0"],"blobs":[]}\n'
            % (n, b"a" * 64)
            for n in range(1 << 16)
        ),
    ],
    ids=["line feeds", "brackets", "frames"],
)
async def test_an_index_of_anything_behind_right_digests_costs_little_more_than_its_bytes(raw: bytes) -> None:
    """It is looked at line by line and no further than the manifest has records; its content is never taken apart."""
    store = await make_store(Limits(max_index_bytes=1 << 26))
    Forger(store).save(index=raw)
    tracemalloc.start()
    await expect_refusal(store, names="agent.solver/p0/index-")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * len(raw) + (8 << 20)


async def test_a_record_past_the_limit_of_the_reader_is_refused_by_name() -> None:
    """A reader with less room than the writer had names the record that does not fit."""
    store = await store_with({AGENT: [Record(life("big"), "x" * 5000)]}, limits=Limits())
    small = Store(store.backend, store.run_id, Limits(max_record_bytes=4000))
    with pytest.raises(CorruptCheckpoint, match=r"big/1\.0#0.*5\d\d\d bytes, past the limit"):
        async with (await open_checkpoint(small)).records() as found:
            await anext(found)


@pytest.mark.fault(61)
async def test_a_hostile_line_behind_right_digests_names_object_and_record() -> None:
    """JSON that cannot be kept exactly is found when the record is parsed, and the error leads to it."""
    for payload in (b'{"a":1,"a":2}', b"NaN", b"1e999", b"18446744073709551616", b"[" * 600 + b"]" * 600, b'"\\ud800"'):
        store = await store_with({AGENT: [Record(life("r0"), 1)]})
        forger = Forger(store)
        raw = b'{"life":"r0/1.0#0","payload":%s}\n' % payload
        forger.put_frame(0, compress_bytes(raw), len(raw))
        forger.save()
        await expect_refusal(store, names="agent.solver/p0/00000-")
        await expect_refusal(store, names="r0/1.0#0")


@pytest.mark.fault(64)
async def test_a_record_that_names_a_blob_behind_the_back_of_the_index_is_refused() -> None:
    """Only blobs that the index lists are kept alive and checked, so a record may name no other."""
    store = await store_with({AGENT: [Record(life("r0"), b"x")]})
    forger = Forger(store)
    payload = orjson.dumps({"$blob": FOREIGN})
    raw = b'{"life":"r0/1.0#0","escaped":true,"payload":%s}\n' % payload
    forger.put_frame(0, compress_bytes(raw), len(raw))
    forger.save()
    await expect_refusal(store, names="the index does not")


@pytest.mark.fault(63)
async def test_a_manifest_of_another_run_is_foreign() -> None:
    """A checkpoint of another experiment is refused as such, and not as damage."""
    store = await make_store()
    forge_aggregate(store, lambda document: document.update(run_id="ab" * 16))
    await expect_refusal(store, ForeignObject, names="checkpoints/1.1/manifest.json")
    store = await make_store()
    Forger(store).save(manifest=lambda document: document.update(run_id="ab" * 16))
    await expect_refusal(store, ForeignObject, names="agent.solver/p0/manifest.json")


@pytest.mark.parametrize("change", [{"version": [2, 0]}, {"features": ["deltas"]}])
@pytest.mark.fault(62)
async def test_a_checkpoint_of_a_newer_midflight_is_refused_by_name(change: dict[str, Any]) -> None:
    """Either manifest may need more than this version knows, and the error says what."""
    needs = "format version 2.0" if "version" in change else "the feature 'deltas'"
    store = await make_store()
    forge_aggregate(store, lambda document: document.update(change))
    await expect_refusal(store, UnsupportedVersion, names=f"checkpoints/1.1/manifest.json needs {needs}")
    store = await make_store()
    Forger(store).save(manifest=lambda document: document.update(change))
    await expect_refusal(store, UnsupportedVersion, names=f"agent.solver/p0/manifest.json needs {needs}")


@pytest.mark.fault(62)
async def test_a_checkpoint_of_a_newer_minor_version_is_read() -> None:
    """Fields that a later minor version added are passed over."""
    store = await make_store()
    more = {"version": [1, 7], "added": {"later": [1, 2]}}
    Forger(store).save(manifest=lambda d: d.update(more), aggregate=lambda d: d.update(more))
    assert len(await restore(store)) == 15


@pytest.mark.fault(60)
async def test_a_manifest_larger_than_any_is_refused_before_it_is_read() -> None:
    """The limit of a manifest holds whatever stands there."""
    store = await make_store(Limits(max_manifest_bytes=5000))
    replace_aggregate(store, resealed_bytes(b'{"a":"' + b"x" * 6000 + b'"}'))
    await expect_refusal(store, names="at most 5000 are allowed")


async def test_a_blob_that_announces_more_than_any_is_refused_before_it_is_read() -> None:
    """A reference with an absurd size costs no request."""
    store = await make_store()
    checkpoint = await open_checkpoint(store)
    backend_of(store).calls.clear()
    with pytest.raises(CorruptCheckpoint, match="past the limit"):
        await checkpoint.read_blob(BlobRef("ab" * 32, CheckpointId(1, 1), HUGE))
    assert not backend_of(store).calls


def test_the_last_check_of_a_name_stands_where_a_key_is_made() -> None:
    """A part name that got past everything else would still be refused."""
    with pytest.raises(InvalidName):
        BlobRef("ab" * 32, CheckpointId.parse("1.1/.."), 5)


async def test_objects_that_nobody_named_are_passed_over() -> None:
    """Unknown files anywhere below the root change nothing for a reader."""
    store = await make_store()
    for key in ("checkpoints/1.1/extra", "checkpoints/1.1/agent.solver/p0/00009-0.jsonl.zst", "blobs/zz/x", "chain/x"):
        await store.backend.put(key, b"rubbish")
    assert len(await restore(store)) == 15
    assert keys(store, "extra")
    assert read(store, "blobs/zz/x") == b"rubbish"
