"""The ledger as its users see it: rows, lives that continue each other, ends, keys, several processes on a root."""

import hashlib
from pathlib import Path

import anyio
import pytest

from participants import Code, ParticipantError
from participants.ledger import Entry, Ledger, Row, check
from participants.ledger.rows import contexts
from tests.support.ledgers import (
    LoggingDisk,
    QuickDisk,
    conversation,
    entry,
    files_of,
    life,
    lineage,
    many_lives,
    place,
    quick,
    record,
    turn,
)

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Not made yet."""
    return tmp_path / "deep" / "ledgers"


@pytest.fixture
def ledger(root: Path) -> Ledger:
    """An empty one."""
    return quick(root)


async def refused(code: Code, awaitable: object) -> ParticipantError:
    with pytest.raises(ParticipantError) as caught:
        await awaitable  # type: ignore[misc]
    assert caught.value.code is code
    return caught.value


async def test_rows_and_records_are_read_back(ledger: Ledger, root: Path) -> None:
    """What was appended is what rows, records, the export and the manifest say, in this process and in a fresh one."""
    await ledger.begin(life())
    await conversation(ledger, life(), range(3))
    for each in (ledger, quick(root)):
        rows = await each.rows("r")
        assert [row.call for row in rows] == ["agent.main:0.0", "agent.main:1.0", "agent.main:2.0"]
        assert [row.parent for row in rows] == ["", "agent.main:0.0", "agent.main:1.0"]
        assert [ids and list(ids[0]) for ids in contexts(rows)] == [list(turn(k).prompt or ()) for k in range(3)]
        assert await each.records("r") == [record(k) for k in range(3)]
        manifest = await each.manifest("r")
        assert (manifest.rows, manifest.records, manifest.last) == (3, 3, rows[-1].chain)
        assert check([row.to_json() for row in rows], count=manifest.rows, last=manifest.last) == []
    assert ledger.export(life()) == [row.to_json() for row in await ledger.rows("r")]


async def test_a_row_is_durable_before_its_awaiter_returns(root: Path) -> None:
    """The record is synced before its row is written, the row and the names of both files before append returns."""
    disk = LoggingDisk()
    ledger = Ledger(str(root), disk=disk)
    await ledger.begin(life())
    disk.log.clear()
    await ledger.append(life(), turn(0), record(0))
    steps = [step for step in disk.log if step[0] in ("write", "fsync")]
    records, rows = "1.0.0.records.jsonl", "1.0.0.ledger.jsonl"
    shard = place(root, life()).shard.rsplit("/", 1)[1]
    assert steps == [
        ("write", records), ("fsync", records), ("write", rows), ("fsync", rows), ("fsync", "r"), ("fsync", shard),
        ("fsync", "ledgers"),
    ]  # fmt: skip
    disk.log.clear()
    await ledger.append(life(), turn(1), record(1))
    assert [step for step in disk.log if step[0] == "fsync"] == [("fsync", records), ("fsync", rows)]


async def test_a_life_carries_the_rows_of_the_one_it_continues(ledger: Ledger) -> None:
    """Over three lives the chain goes on, each call has its parent once, and the sources are retired and readable."""
    lives = await lineage(ledger, 3, 2)
    rows = await ledger.rows("r-a2")
    assert [str(row.life) for row in rows] == [str(each) for each in lives for _ in range(2)]
    assert [row.parent for row in rows] == ["", *[row.call for row in rows[:-1]]]
    assert [ids and list(ids[0]) for ids in contexts(rows)] == [list(turn(k).prompt or ()) for k in range(6)]
    manifest = await ledger.manifest("r-a2")
    assert (manifest.source, manifest.carried, manifest.records) == (str(lives[1]), 4, 2)
    assert manifest.origins == (str(lives[0]), str(lives[1]))
    found = check([row.to_json() for row in rows], lives=[str(each) for each in lives], count=6, last=manifest.last)
    assert found == []
    for key, count in (("r", 2), ("r-a1", 4)):
        ended = (await ledger.manifest(key)).end
        assert ended is not None
        assert (ended.rows, ended.reason.split()[0]) == (count, "continued")
    assert await ledger.records("r-a2") == [record(4), record(5)]


async def test_rows_after_the_boundary_are_in_no_lineage(ledger: Ledger) -> None:
    """What a life did after its boundary is not carried; a dead life of the same attempt is cleared when told."""
    first, dead, second = life(0, 1), life(1, 2), life(1, 3)
    await ledger.begin(first)
    await conversation(ledger, first, range(2))
    boundary = ledger.export(first)
    await conversation(ledger, first, range(2, 3))
    await ledger.begin(dead, boundary, first)
    await conversation(ledger, dead, range(2, 4))
    receipts = await ledger.begin(second, boundary, first, clear=True)
    assert [(each.life, each.what, each.rows) for each in receipts] == [
        (str(first), "end", 3), (str(dead), "deleted", 4),
    ]  # fmt: skip
    assert await ledger.resolve("r-a1") == second
    assert [row.life for row in await ledger.rows("r-a1")] == [first, first]
    assert await ledger.lives("r-a1") == [second]
    again = await ledger.begin(second, boundary, first, clear=True)
    assert [each.what for each in again] == ["end"]


async def test_late_rows_are_discarded_and_counted(ledger: Ledger) -> None:
    """A row of a retired, superseded, deleted or unknown life is `stale_life`, changes nothing and is counted."""
    await ledger.begin(life())
    await ledger.append(life(), turn(0))
    receipt = await ledger.retire(life())
    await refused(Code.STALE_LIFE, ledger.append(life(), turn(1)))
    await refused(Code.STALE_LIFE, ledger.begin(life()))
    assert await ledger.retire(life()) == receipt
    assert len(await ledger.rows("r")) == 1
    await ledger.begin(life(1, 2))
    await refused(Code.STALE_LIFE, ledger.append(life(), turn(1)))
    await ledger.delete(life())
    await refused(Code.STALE_LIFE, ledger.append(life(), turn(1)))
    await refused(Code.STALE_LIFE, ledger.append(life(5, 5), turn(1)))
    assert ledger.counts()["ledger_rows_discarded"] == 4
    assert ledger.counts()["ledger_rows"] == 1
    await refused(Code.STALE_LIFE, ledger.begin(life(0, 1, 0)))
    await ledger.begin(life(1, 4))
    await refused(Code.STALE_LIFE, ledger.begin(life(1, 3)))


async def test_another_process_fences_too(root: Path) -> None:
    """Two ledgers on one root see each other's rows, and what one retires or deletes, the other appends nothing to."""
    one, two = quick(root), quick(root)
    await one.begin(life())
    for k in range(6):
        await (one, two)[k % 2].append(life(), turn(k), record(k))
    rows = await one.rows("r")
    assert [row.call for row in rows] == [turn(k).call for k in range(6)]
    assert check([row.to_json() for row in rows]) == []
    assert await two.records("r") == [record(k) for k in range(6)]
    await two.retire(life())
    await refused(Code.STALE_LIFE, one.append(life(), turn(6)))
    await one.begin(life(1, 2))
    await two.delete(life(1, 2))
    await refused(Code.STALE_LIFE, one.append(life(1, 2), turn(6)))
    assert one.export(life(1, 2)) == []


async def test_an_open_ledger_is_retired_by_one_flush(root: Path) -> None:
    """Where the process knows its files, no record is read again, and only the end itself is synced."""
    disk = LoggingDisk()
    ledger = Ledger(str(root), disk=disk)
    await ledger.begin(life())
    await conversation(ledger, life(), range(2))
    disk.log.clear()
    receipt = await ledger.retire(life())
    name = "1.0.0.ledger.jsonl"
    assert [step for step in disk.log if step[0] != "lock"] == [
        ("read", name), ("open", name), ("write", name), ("fsync", name),
    ]  # fmt: skip
    assert await quick(root).retire(life()) == receipt
    assert receipt.records == 2


async def test_many_are_retired_at_once(ledger: Ledger) -> None:
    """Receipts come in the order of the lives, unknown ones among them, and all have ended."""
    lives = [life(rollout=f"r{n}", n=n) for n in range(40)]
    for each in lives[::2]:
        await ledger.begin(each)
        await ledger.append(each, turn(0))
    receipts = await ledger.retire_all(lives)
    assert [receipt.life for receipt in receipts] == [str(each) for each in lives]
    assert [receipt.found for receipt in receipts] == [True, False] * 20
    assert await ledger.retire_all([]) == []
    for each in lives:
        await refused(Code.STALE_LIFE, ledger.append(each, turn(1)))


async def test_deleting_leaves_nothing(ledger: Ledger, root: Path) -> None:
    """Delete removes both files and the folder, says what there was, and a repeat finds nothing."""
    await ledger.begin(life())
    await conversation(ledger, life(), range(2))
    before = await ledger.manifest("r")
    receipt = await ledger.delete(life())
    assert (receipt.what, receipt.found, receipt.rows, receipt.records, receipt.last) == (
        "deleted", True, 2, 2, before.last,
    )  # fmt: skip
    assert not (await ledger.delete(life())).found
    assert not (await ledger.retire(life())).found
    assert files_of(root) == []
    assert not await anyio.Path(place(root, life()).folder).exists()
    await refused(Code.INVALID_REQUEST, ledger.manifest("r"))


async def test_a_freeze_is_a_version_to_read(ledger: Ledger, root: Path) -> None:
    """Rows are read as they stood at a freeze; the same version gives the same receipt, also from another process."""
    await ledger.begin(life())
    await ledger.append(life(), turn(0))
    first = await ledger.freeze("r", "step 1")
    await ledger.append(life(), turn(1))
    other = quick(root)
    assert await other.freeze("r", "step 1") == first
    second = await other.freeze("r", "step 2")
    await ledger.append(life(), turn(2))
    assert [len(await ledger.rows("r", version)) for version in ("step 1", "step 2", "")] == [1, 2, 3]
    assert (await ledger.manifest("r")).frozen == (first, second)
    assert (first.rows, second.rows, first.version) == (1, 2, "step 1")
    await refused(Code.INVALID_REQUEST, ledger.rows("r", "step 3"))
    await refused(Code.INVALID_REQUEST, ledger.freeze("r", ""))
    await ledger.retire(life())
    await refused(Code.STALE_LIFE, ledger.freeze("r", "step 3"))
    assert len(await ledger.rows("r", "step 2")) == 2


async def test_a_receipt_has_the_digest_of_the_file(ledger: Ledger, root: Path) -> None:
    """Size and sha256 of a receipt are those of the file up to it."""
    await ledger.begin(life())
    await ledger.append(life(), turn(0))
    receipt = await ledger.retire(life())
    data = await anyio.Path(place(root, life()).ledger).read_bytes()
    assert receipt.sha256 == hashlib.sha256(data[: receipt.size]).hexdigest()
    assert data[receipt.size :].count(b"\n") == 1


@pytest.mark.parametrize("harm", ["parent", "chain", "order", "newer", "other rollout", "source"])
async def test_what_is_no_chain_is_not_carried(ledger: Ledger, harm: str) -> None:
    """Rows that were changed, or are of a newer life or another rollout, are refused, and nothing begins."""
    [first] = await lineage(ledger, 1, 2)
    rows, target, source = ledger.export(first), life(1, 2), first
    if harm == "parent":
        rows[1]["parent"] = "agent.main:7.0"
    elif harm == "chain":
        rows[0]["masked"] = 1
    elif harm == "order":
        rows.reverse()
    elif harm == "newer":
        target = life(1, 0)
    elif harm == "other rollout":
        target = life(1, 2, rollout="s")
    else:
        source = target
    await refused(Code.CORRUPT_CHECKPOINT, ledger.begin(target, rows, source))
    assert (await ledger.manifest("r")).end is None


async def test_beginning_again_with_other_rows_is_a_conflict(ledger: Ledger, root: Path) -> None:
    """A begun life is found begun with the same rows, or with none named; others are `checkpoint_conflict`."""
    [first] = await lineage(ledger, 1, 2)
    rows = ledger.export(first)
    await ledger.begin(life(1, 2), rows, first)
    await ledger.append(life(1, 2), turn(2))
    await ledger.begin(life(1, 2), rows, first)
    await ledger.begin(life(1, 2))
    assert len(ledger.export(life(1, 2))) == 3
    other = quick(root.with_name("others"))
    await other.begin(first)
    await other.append(first, entry(9))
    await refused(Code.CHECKPOINT_CONFLICT, ledger.begin(life(1, 2), other.export(first), first))


async def test_an_export_has_a_row_only_when_its_awaiter_goes_on(root: Path) -> None:
    """While an append is in progress its row is in no export, and as soon as it has returned it is."""
    ledger = quick(root)
    await ledger.begin(life())
    seen: list[tuple[int, int]] = []

    async def append(k: int) -> None:
        row = await ledger.append(life(), turn(k))
        seen.append((row.index, len(ledger.export(life()))))

    async with anyio.create_task_group() as group:
        for k in range(20):
            group.start_soon(append, k)
    assert seen == [(k, k + 1) for k in range(20)]


async def test_cancellation_waits_for_what_was_handed_in(ledger: Ledger) -> None:
    """A cancelled append has happened, and the lane serves whoever comes after."""
    await ledger.begin(life())
    for k in range(3):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await ledger.append(life(), turn(k))
    await ledger.append(life(), turn(3))
    assert len(await ledger.rows("r")) == 4


async def test_one_bad_row_fails_alone(ledger: Ledger) -> None:
    """Of many appends in one batch only the one without sense is refused; the others are one chain."""
    await ledger.begin(life())
    outcomes: list[str] = []

    async def append(each: Entry, kept: object) -> None:
        try:
            row = await ledger.append(life(), each, kept)
            outcomes.append(row.call)
        except ParticipantError as error:
            outcomes.append(error.code)

    async with anyio.create_task_group() as group:
        group.start_soon(append, turn(0), record(0))
        group.start_soon(append, entry(1, [-1], []), record(1))
        group.start_soon(append, entry(2), {"no": {1}})
        group.start_soon(append, turn(1), record(1))
    assert sorted(outcomes) == ["agent.main:0.0", "agent.main:1.0", "invalid_request", "invalid_request"]
    assert check([row.to_json() for row in await ledger.rows("r")], count=2) == []
    assert len(await ledger.records("r")) == 2


async def test_many_lives_use_few_locks_and_descriptors(root: Path) -> None:
    """However many lives there are: 64 lock files at most, descriptors only for a batch, and none afterwards."""
    await many_lives(root, 500)


async def test_a_link_in_place_of_a_ledger_is_not_followed(ledger: Ledger, root: Path, tmp_path: Path) -> None:
    """A symbolic link planted where a ledger should be is an error, and what it points to is not touched."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    await ledger.begin(life(3, 3))
    await anyio.Path(place(root, life()).ledger).symlink_to(victim)
    await refused(Code.STORE_FAILED, ledger.append(life(), turn(0)))
    assert victim.read_bytes() == b"precious"


async def test_a_lock_that_another_holds_is_waited_for(root: Path) -> None:
    """While another process holds a lock, rows that need it wait, and come when it is free."""

    class Slow(QuickDisk):
        refusals = 3

        def try_lock(self, path: str) -> int | None:
            self.refusals -= 1
            return None if self.refusals >= 0 else super().try_lock(path)

    ledger = Ledger(str(root), disk=Slow())
    await ledger.begin(life())
    row = await ledger.append(life(), turn(0))
    assert isinstance(row, Row)


async def test_an_attempt_that_made_no_model_call_is_answered_with_the_key_of_its_rows(tmp_path: Path) -> None:
    """It was restored when it had ended, and has no ledger; a rollout that has none at all is only not found."""
    ledger = quick(tmp_path)
    await lineage(ledger, 2, 2)
    with pytest.raises(ParticipantError, match=r"no ledger has the key 'r-a7': attempt 7, .* are those of r-a1\."):
        await ledger.manifest("r-a7")
    with pytest.raises(ParticipantError, match=r"no ledger has the key 'q-a1'\."):
        await ledger.rows("q-a1")
