"""Verifying finds every damage, secret and leftover, names it, goes on after it, and touches nothing."""

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from store import (
    CheckpointDeleted,
    CheckpointId,
    External,
    Finding,
    MemoryBackend,
    NoCheckpoint,
    Record,
    Retention,
    Store,
    StoreUnavailable,
    TransientError,
    VerifyReport,
    claim,
    open_checkpoint,
    open_store,
    prune,
    verify_store,
)
from store.backends import Fault, MemorySpace
from store.findings import FrameCheck, check_frame
from tests.support.checkpoints import (
    AGENT,
    SMALL_PARTS,
    TOOLS,
    life,
    memory_store,
    publish,
    publish_rounds,
    records,
    store_with,
)

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

FIRST, SECOND = CheckpointId(1, 1), CheckpointId(1, 2)
BLOB = hashlib.sha512(b"payload").digest() * 4
KEY = "AKIA" + "ABCDEFGHIJKLMNOP"
"""Looks like a credential; put together here so that this file does not hold one."""


async def two_checkpoints() -> Store:
    tools = [Record(life("r1", n=1), {"file": BLOB})]
    return await store_with({AGENT: records(12), TOOLS: tools}, {AGENT: records(9), TOOLS: tools})


def like(store: Store) -> Store:
    """Another store with the same objects."""
    assert isinstance(store.backend, MemoryBackend)
    return memory_store(MemoryBackend(space=MemorySpace(dict(store.backend.space.objects))), run_id=store.run_id)


def objects_of(store: Store) -> dict[str, bytes]:
    assert isinstance(store.backend, MemoryBackend)
    return {key: stored.data for key, stored in store.backend.space.objects.items()}


def change(store: Store, key: str, edit: Callable[[bytes], bytes]) -> None:
    """Put other bytes in the place of an object, as a failing disk would."""
    assert isinstance(store.backend, MemoryBackend)
    stored = store.backend.space.objects[key]
    store.backend.space.objects[key] = dataclasses.replace(stored, data=edit(stored.data))


def remove(store: Store, key: str) -> None:
    assert isinstance(store.backend, MemoryBackend)
    del store.backend.space.objects[key]


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]


def the(report: VerifyReport, severity: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity == severity]


@pytest.mark.parametrize("deep", [False, True])
async def test_a_sound_store_has_no_findings(deep: bool) -> None:
    """Everything is counted, nothing is found, and nothing is written."""
    store = await two_checkpoints()
    before = objects_of(store)
    report = await verify_store(store, deep=deep)
    assert report.findings == ()
    assert report.sound
    assert report.checkpoints == (FIRST, SECOND)
    assert (report.entries, report.records, report.blobs) == (3, 12 + 9 + 2, 1)
    assert objects_of(store) == before


async def test_a_sound_store_of_one_checkpoint_and_no_participant_is_sound() -> None:
    """A controller may publish nothing but its own state, with bytes in it, inline or in a blob."""
    store = memory_store()
    await publish_rounds(store, [{}], state={"cursor": 3, "rng": BLOB, "note": b"short"})
    report = await verify_store(store, deep=True)
    assert report.findings == ()
    assert report.blobs == 1


async def test_every_flipped_object_is_found_and_named() -> None:
    """One bit in any object of a root is damage at exactly that object; only the liveness counter holds nothing."""
    pristine = await two_checkpoints()
    for key in objects_of(pristine):
        store = like(pristine)
        change(store, key, flip)
        report = await verify_store(store, deep=True)
        if key.startswith("alive/"):
            assert report.sound
        else:
            assert any(finding.object == key for finding in the(report, "damage")), key


async def test_every_missing_object_is_found_and_named() -> None:
    """Whatever a checkpoint or the chain names and is not there is damage; the last entry alone is never missed."""
    pristine = await two_checkpoints()
    for key in objects_of(pristine):
        store = like(pristine)
        remove(store, key)
        report = await verify_store(store)
        harmless = key.startswith("alive/") or key == "chain/000000000003.json"
        assert report.sound == harmless, key
        if not harmless:
            assert any(finding.object == key for finding in the(report, "damage")), key


@pytest.mark.enumerated(2)
@pytest.mark.parametrize("garbage", [b"", b"\0" * 500, b"{}", b"[]\n", b"\xff" * 90, b'{"n":' + b"[" * 100_000])
async def test_any_object_of_garbage_is_damage_and_ends_nothing(garbage: bytes) -> None:
    """Empty, zeros, other JSON, no text, bottomless nesting: damage, and everything else is still looked at."""
    pristine = await two_checkpoints()
    for key in objects_of(pristine):
        store = like(pristine)
        change(store, key, lambda data: garbage)
        report = await verify_store(store, deep=True)
        assert report.sound == key.startswith("alive/"), key
        assert report.entries == 3


async def test_damage_in_one_place_does_not_hide_another() -> None:
    """A broken entry, manifest, part and blob are all found in one look."""
    store = await two_checkpoints()
    parts = sorted(key for key in objects_of(store) if ".jsonl.zst" in key and "index" not in key)
    [blob] = [key for key in objects_of(store) if key.startswith("blobs/")]
    broken = {"checkpoints/1.2/manifest.json", parts[0], parts[1], blob, "chain/000000000001.json"}
    for key in broken:
        change(store, key, flip)
    report = await verify_store(store, deep=True)
    assert broken - {parts[0], parts[1]} <= {finding.object for finding in the(report, "damage")}


async def test_damage_in_a_part_names_participant_part_and_records() -> None:
    """A flipped bit names the records of its frame and no others; the rest of the part is still looked at."""
    store = await two_checkpoints()
    checkpoint = await open_checkpoint(store, FIRST)
    [share] = checkpoint.shares("agent")
    frame = share.frames[1]
    key = share.key_of(frame)
    change(
        store,
        key,
        lambda data: (
            data[: frame.offset] + flip(data[frame.offset :][: frame.size]) + data[frame.offset + frame.size :]
        ),
    )
    [finding] = the(await verify_store(store), "damage")
    assert finding.object == key
    assert str(frame.lives[0]) in finding.message
    assert "agent.solver/p0" in finding.message
    assert str(share.frames[0].lives[0]) not in finding.message


@pytest.mark.parametrize("edit", [lambda data: data[:-7], lambda data: data + b"more"])
async def test_a_part_of_another_length_is_found(edit: Callable[[bytes], bytes]) -> None:
    """A cut part names the records that were lost; a longer one is damage too."""
    store = await store_with({AGENT: records(3)})
    [key] = [key for key in objects_of(store) if "00000-" in key]
    change(store, key, edit)
    damage = the(await verify_store(store), "damage")
    assert {finding.object for finding in damage} == {key}
    assert "bytes, and the manifest of agent.solver/p0 says" in damage[0].message
    assert any("r2/1.0#2" in finding.message for finding in damage) == (len(damage) > 1)


async def test_a_record_past_the_limit_is_found() -> None:
    """What no reader would hand out is not called sound."""
    store = await store_with({AGENT: records(2)})
    strict = dataclasses.replace(store, limits=dataclasses.replace(SMALL_PARTS, max_record_bytes=100))
    damage = the(await verify_store(strict), "damage")
    assert ["past the limit" in finding.message for finding in damage] == [True, True]
    assert "r1/1.0#1" in damage[1].message


async def test_a_record_that_names_a_blob_the_index_does_not_is_found() -> None:
    """Its blob would not be kept by a prune, so only the deep look can call the rest sound."""
    store = await two_checkpoints()
    [share] = (await open_checkpoint(store, FIRST)).shares("resources")
    [frame] = share.frames
    found = check_frame(
        await store.backend.get(share.key_of(frame), max_bytes=10_000),
        dataclasses.replace(frame, blobs=()),
        FrameCheck("part", "resources.tools/p0", True, 10_000),
    )
    assert [finding.severity for finding in found] == ["damage"]
    assert "blobs" in found[0].message


async def test_a_missing_part_names_some_of_its_records() -> None:
    """An operator learns which rollouts are lost."""
    store = await store_with({AGENT: records(3)})
    [key] = [key for key in objects_of(store) if "00000-" in key]
    remove(store, key)
    [finding] = the(await verify_store(store), "damage")
    assert "it is missing, and with it 3 records: r0/1.0#0" in finding.message


async def test_one_checkpoint_can_be_looked_at_alone() -> None:
    """Damage in another one is not reported then, and leftovers are not looked for."""
    store = await two_checkpoints()
    change(store, "checkpoints/1.2/manifest.json", flip)
    await store.backend.put("notes.txt", b"x")
    assert (await verify_store(store, FIRST)).findings == ()
    assert not (await verify_store(store, SECOND)).sound
    with pytest.raises(NoCheckpoint):
        await verify_store(store, CheckpointId(7, 7))


async def test_a_deleted_checkpoint_is_told_apart_from_one_that_never_was() -> None:
    """Its name stands in a plan, and that is what the error says."""
    store = await two_checkpoints()
    await prune(store, Retention(keep_last=1))
    with pytest.raises(CheckpointDeleted):
        await verify_store(store, FIRST)
    assert (await verify_store(store)).checkpoints == (SECOND,)


async def test_leftovers_are_told_and_never_touched() -> None:
    """Unknown files, an unpublished newest folder, an extra file in a checkpoint and an unnamed blob; all stay."""
    store = await two_checkpoints()
    strange = {
        "notes.txt": "unknown",
        "chain/readme": "unknown",
        "alive/probe-x": "unknown",
        "blobs/zz": "unknown",
        "checkpoints/stray": "unknown",
        "checkpoints/1.1/agent.solver/p0/extra.bin": "no manifest of this checkpoint names it",
        "checkpoints/1.9/agent.solver/p0/manifest.json": "checkpoint 1.9 is not published: in progress, or left",
        f"blobs/{'0' * 2}/{'0' * 64}.1.1": "no checkpoint names them; written for 1.1",
    }
    for key in strange:
        await store.backend.put(key, b"???")
    before = objects_of(store)
    report = await verify_store(store)
    assert report.sound
    assert len(report.findings) == len(strange)
    for key, says in strange.items():
        stem = key.split("agent.solver")[0] if "1.9" in key else "blobs/*.1.1" if "000" in key else key
        assert any(f.object == stem and says in f.message and f.severity == "leftover" for f in report.findings), key
    assert objects_of(store) == before


async def test_what_an_unfinished_deletion_left_is_a_leftover() -> None:
    """A plan whose objects could not be deleted is told with its entry."""
    store = await two_checkpoints()
    assert isinstance(store.backend, MemoryBackend)
    store.backend.inject(
        Fault(verb="delete", key_part="checkpoints", error=lambda call: StoreUnavailable(call.verb, call.key))
    )
    report = await prune(store, Retention(keep_last=1))
    assert report.failures
    [finding, *_] = (await verify_store(store)).findings
    assert finding.object == "checkpoints/1.1/"
    assert "named in the deletion plan of entry 4, which is not finished" in finding.message


async def test_temporary_files_of_a_local_store_are_told(tmp_path: Path) -> None:
    """A write that died leaves a file under a name of its own; verify shows it."""
    async with open_store(tmp_path / "s", "write") as store:
        await publish_rounds(store, [{AGENT: records(1)}])
        leftover = anyio.Path(tmp_path / "s" / "chain" / ".000000000003.json.0123456789abcdef.tmp")
        await leftover.write_bytes(b"half")
        report = await verify_store(store, deep=True)
        assert report.sound
        assert [finding.object for finding in report.findings] == ["chain/.000000000003.json.0123456789abcdef.tmp"]


async def test_a_link_in_place_of_an_object_is_damage_and_is_not_followed(tmp_path: Path) -> None:
    """A manifest that became a link to a file of the host is refused by name, and that file is untouched."""
    outside = tmp_path / "outside.json"
    async with open_store(tmp_path / "s", "write") as store:
        await publish_rounds(store, [{AGENT: records(1)}])
        manifest = tmp_path / "s" / "checkpoints" / "1.1" / "manifest.json"
        await anyio.Path(manifest).rename(outside)
        await anyio.Path(manifest).symlink_to(outside)
        [finding] = the(await verify_store(store), "damage")
        assert finding.object == "checkpoints/1.1/manifest.json"
        assert await anyio.Path(outside).exists()


async def test_secrets_are_found_in_state_records_and_payloads_and_not_shown() -> None:
    """Each is named by owner, kind and place, also in bytes inside of records; the scan of blobs belongs to deep."""
    tools = [
        Record(life("r1", n=1), {"env": f"export ID={KEY}"}),
        Record(life("r2", n=2), {"inline": f"id={KEY}".encode(), "large": b" " * 200 + KEY.encode()}),
    ]
    store = memory_store()
    await publish_rounds(store, [{TOOLS: tools}], state={"aws": KEY}, fingerprint={"config": "plain"})
    shallow, deep = await verify_store(store), await verify_store(store, deep=True)
    assert not shallow.sound
    assert not the(shallow, "damage")
    assert [("state" in f.message, "r1/1.0#1" in f.message) for f in the(shallow, "secret")] == [
        (True, False),
        (False, True),
        (False, False),
    ]
    assert "in base64" in the(shallow, "secret")[2].message
    assert len(the(deep, "secret")) == 4
    assert any(finding.object.startswith("blobs/") for finding in the(deep, "secret"))
    assert KEY not in repr(deep)


async def test_a_secret_in_a_state_kept_in_a_blob_is_found() -> None:
    """A state too large for its manifest is read and scanned without deep, for it is part of the manifest."""
    limits = dataclasses.replace(SMALL_PARTS, inline_state_bytes=64)
    store = memory_store(limits=limits)
    await publish_rounds(store, [{}], state={"pad": "x" * 100, "aws": KEY})
    [finding] = (await verify_store(store)).findings
    assert finding.object.startswith("blobs/")


async def test_external_files_are_checked_where_they_are_on_a_local_disk(tmp_path: Path) -> None:
    """A local file is checked by size and digest; of a remote one it is said that it was not."""
    weights = tmp_path / "weights"
    await anyio.Path(weights).write_bytes(b"12345")
    local = External(url=str(weights), size=5, sha256=hashlib.sha256(b"12345").hexdigest())
    store = memory_store()
    await publish_rounds(store, [{AGENT: records(1)}], externals=[local])
    assert (await verify_store(store)).findings == ()
    await anyio.Path(weights).write_bytes(b"12346")
    [finding] = (await verify_store(store)).findings
    assert (finding.severity, finding.object) == ("damage", str(weights))


async def test_a_transient_failure_is_not_taken_for_damage() -> None:
    """A store that cannot be asked ends the look with its own error, whichever call it happens at."""
    pristine = await two_checkpoints()
    assert isinstance(pristine.backend, MemoryBackend)
    nth = 1
    while True:
        backend = MemoryBackend(space=pristine.backend.space)
        backend.inject(Fault(nth=nth, error=lambda call: TransientError(call.verb, call.key)))
        store = memory_store(backend, run_id=pristine.run_id)
        try:
            report = await verify_store(store, deep=True)
        except TransientError:
            nth += 1
            continue
        assert report.findings == ()
        assert nth > 20
        return


async def test_a_deletion_planned_during_the_look_is_not_damage() -> None:
    """The objects of a checkpoint go while they are verified: the look is repeated and finds what is left sound."""
    store = await two_checkpoints()
    assert isinstance(store.backend, MemoryBackend)
    slow = MemoryBackend(space=store.backend.space)
    reached = anyio.Event()

    class _Pausing(MemoryBackend):
        """Prunes the first checkpoint away right before its manifest is read for the first time."""

        async def get(self, key: str, *, max_bytes: int) -> bytes:
            if key == "checkpoints/1.1/manifest.json" and not reached.is_set():
                reached.set()
                await prune(memory_store(slow, run_id=store.run_id), Retention(keep_last=1))
            return await super().get(key, max_bytes=max_bytes)

    looking = memory_store(_Pausing(space=store.backend.space), run_id=store.run_id)
    report = await verify_store(looking, deep=True)
    assert reached.is_set()
    assert report.sound
    assert report.checkpoints == (SECOND,)


async def test_progress_adds_up_to_the_bytes_that_were_read() -> None:
    """A progress bar reaches what the report says."""
    store = await two_checkpoints()
    seen: list[int] = []
    report = await verify_store(store, deep=True, progress=seen.append)
    parts = sum(len(data) for key, data in objects_of(store).items() if "/0000" in key and key.endswith(".zst"))
    assert sum(seen) == report.bytes == parts + len(BLOB)


async def test_a_gap_and_a_foreign_entry_in_the_chain_are_found() -> None:
    """Numbers that are missing and an entry of another run are damage; the entries after them still count."""
    store = await two_checkpoints()
    other = await store_with({AGENT: records(1)})
    remove(store, "chain/000000000001.json")
    foreign = objects_of(other)["chain/000000000002.json"]
    change(store, "chain/000000000002.json", lambda data: foreign)
    report = await verify_store(store)
    damage = {finding.object: finding.message for finding in the(report, "damage")}
    assert "1 entries from here on are missing" in damage["chain/000000000001.json"]
    assert "it says that it is entry 2 of run" in damage["chain/000000000002.json"]
    assert report.checkpoints == (SECOND,)


async def test_a_stray_entry_of_a_huge_number_costs_nothing() -> None:
    """A file named like an entry far away is damage, and is not a reason to try every number before it."""
    store = await two_checkpoints()
    await store.backend.put("chain/999999999999.json", b"{}")
    report = await verify_store(store)
    assert [finding.object for finding in the(report, "damage")] == [
        "chain/000000000004.json",
        "chain/999999999999.json",
    ]


async def test_verifying_while_a_controller_publishes_reports_at_most_leftovers() -> None:
    """A round in progress is no damage."""
    store = memory_store()
    async with claim(store) as controller:
        await publish(store, controller, {AGENT: records(4)})
        await store.backend.put("checkpoints/1.2/agent.solver/p0/index-0123456789abcdef.jsonl.zst", b"in progress")
        report = await verify_store(store)
    assert report.sound
    assert "in progress, or left by a crash" in report.findings[0].message
