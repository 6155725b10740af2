"""Faults that users reported to other projects which save and resume work, where the reader is what has to be right."""

import dataclasses
from pathlib import Path

import anyio
import pytest

from store import (
    CheckpointId,
    CorruptCheckpoint,
    DuplicateRollout,
    ForeignObject,
    NotAStore,
    NotFound,
    ParticipantCommit,
    Record,
    Store,
    claim,
    open_checkpoint,
    open_store,
)
from store.frames import compress_bytes, decompress
from store.layout import aggregate_key, participant_key
from store.verify import verify_store
from tests.support.checkpoints import AGENT, TOOLS, life, publish, publish_rounds, records, store_with
from tests.support.damage import Forger, backend_of, forge_aggregate, keys, read, remove, write

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

FIRST, SECOND = CheckpointId(1, 1), CheckpointId(1, 2)


async def restored(store: Store) -> list[Record]:
    checkpoint = await open_checkpoint(store)
    await checkpoint.verify()
    async with checkpoint.records() as found:
        return [record async for record in found]


async def test_the_newest_folder_counts_only_once_it_is_published() -> None:
    """A trainer that comes back while a checkpoint is half written continues from the last complete one.

    At every stage before the entry (parts, participant and aggregate manifest) the newest folder is passed over by
    the reader, and told as a leftover by verify.
    """
    store = await store_with({AGENT: records(3)})
    for stage in ("parts", "participant manifest", "aggregate manifest"):
        await ParticipantCommit(store, SECOND, AGENT).run(records(5))
        if stage == "parts":
            remove(store, participant_key(SECOND, AGENT))
        if stage == "aggregate manifest":
            await store.backend.put(aggregate_key(SECOND), read(store, aggregate_key(FIRST)))
        assert (await open_checkpoint(store)).ref.checkpoint == FIRST
        assert await restored(store) == records(3)
        report = await verify_store(store)
        assert report.sound
        assert [finding for finding in report.findings if "1.2" in finding.object]


async def test_an_object_that_downloads_shorter_than_recorded_is_read_once_more_and_refused_by_name() -> None:
    """A component of a checkpoint is shorter than its manifest says: one retry, then a refusal that names it."""
    whole = await store_with({AGENT: [*records(5), Record(life("b", n=9), {"image": bytes(500)})]})
    for key in keys(whole, "checkpoints/") + keys(whole, "blobs/"):
        data = read(whole, key)
        write(whole, key, data[:-7])
        backend_of(whole).calls.clear()
        with pytest.raises(CorruptCheckpoint, match=key):
            await restored(whole)
        asked = [call for call in backend_of(whole).calls if call.key == key]
        assert len(asked) == 2
        write(whole, key, data)
    assert len(await restored(whole)) == 6


async def test_a_link_inside_a_checkpoint_is_never_followed(tmp_path: Path) -> None:
    """A file of the host behind a link in the checkpoint is neither read, moved nor changed, whatever names it."""
    root, host = anyio.Path(tmp_path) / "root", anyio.Path(tmp_path) / "passwd"
    await host.write_bytes(b"root:x:0:0")
    async with open_store(str(root), "write") as store:
        await publish_rounds(store, [{AGENT: [*records(3), Record(life("b", n=9), {"image": bytes(100_000)})]}])
        objects = [path async for path in root.rglob("*") if await path.is_file() and "alive" not in path.parts]
        for path in objects:
            if path.name == "format.json":
                continue
            kept = await path.read_bytes()
            await path.unlink()
            await path.symlink_to(host)
            with pytest.raises(Exception, match="refused a link"):
                await restored(store)
            await path.unlink()
            await path.write_bytes(kept)
        assert len(await restored(store)) == 4
    assert await host.read_bytes() == b"root:x:0:0"


async def test_a_torn_line_or_a_record_counted_twice_is_refused_and_says_which() -> None:
    """Half a line at the end and a second record of one rollout never inflate or shorten what is restored."""
    for torn in (True, False):
        store = await store_with({AGENT: records(4, turns=1)})
        forger = Forger(store)
        raw = decompress(forger.frame(-1), forger.lines[-1]["raw_size"], "frame")
        if torn:
            raw = raw[:-20]
        else:
            forger.lines[-1]["lives"].append("r0/1.0#0")
            forger.manifest["records"] += 1
            forger.manifest["parts"][-1]["records"] += 1
            raw += b'{"life":"r0/1.0#0","payload":1}\n'
        forger.put_frame(len(forger.lines) - 1, compress_bytes(raw), len(raw))
        forger.save(aggregate=lambda document: document.update(records=document["participants"][0]["records"]))
        with pytest.raises(CorruptCheckpoint, match=r"agent\.solver/p0" if torn else "r0"):
            await restored(store)


async def test_a_record_is_counted_once_however_often_it_is_exported() -> None:
    """A duplicate is refused when it is written, so no count can ever include it."""
    store = await store_with({AGENT: records(2)})
    async with claim(store) as controller:
        with pytest.raises(DuplicateRollout, match="r1"):
            await publish(store, controller, {AGENT: [*records(2), *records(1, start=1)]})
    assert len(await restored(store)) == 2


async def test_results_of_another_run_are_not_mixed_in() -> None:
    """A manifest of another run under our name, and another run's fingerprint, are told as foreign."""
    store = await store_with({AGENT: records(2)}, fingerprint={"dataset": "a"})
    with pytest.raises(ForeignObject, match="dataset"):
        (await open_checkpoint(store)).check_fingerprint({"dataset": "b"})
    forge_aggregate(store, lambda document: document.update(run_id="ab" * 16))
    with pytest.raises(ForeignObject, match="ab" * 16):
        await restored(store)


async def test_a_folder_that_holds_something_else_is_not_taken_for_a_store(tmp_path: Path) -> None:
    """A folder with files and no format.json is refused for writing and reading, and left as it is."""
    results = anyio.Path(tmp_path) / "results.jsonl"
    await results.write_text('{"reward": 1}\n{"rew')
    for mode in ("read", "write"):
        with pytest.raises(NotAStore, match=r"format\.json"):
            async with open_store(tmp_path, mode):
                pass
    assert [path.name async for path in anyio.Path(tmp_path).iterdir() if path.name != "alive"] == ["results.jsonl"]
    assert await results.read_text() == '{"reward": 1}\n{"rew'


async def test_what_a_first_look_missed_is_found_by_the_next() -> None:
    """A client that once saw nothing there sees, at its next look, what another has written since."""
    store = await store_with({AGENT: records(1)})
    other = dataclasses.replace(store, backend=type(backend_of(store))(space=backend_of(store).space))
    with pytest.raises(NotFound):
        await other.backend.stat(aggregate_key(SECOND))
    chain = await other.chain()
    async with claim(store) as controller:
        ref = await publish(store, controller, {TOOLS: records(2)})
    await chain.refresh()
    assert chain.state.head == ref
    assert len(await restored(other)) == 2
