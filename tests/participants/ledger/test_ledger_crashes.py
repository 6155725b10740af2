"""A disk that fails, or a process that dies, at every single system call of what changes a ledger.

Each piece of work below is run with the n-th system call failing, for every n until none is left to fail. Then it is
tried again: once in the same process, whose disk is well again, and once in a new process that finds what the dead one
left. In both, everything that was acknowledged is there, exactly once, and the work comes out as if nothing had been.
"""

import itertools
import shutil
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from participants import Code, ParticipantError
from participants.ledger import Ledger, check
from participants.ledger.lines import scan
from tests.support.ledgers import FailingDisk, conversation, files_of, life, place, quick, record, turn

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

FIRST, DEAD, SECOND = life(0, 1), life(1, 2), life(1, 3)
Work = Callable[[Ledger, list[Any]], Awaitable[Any]]


async def begin(ledger: Ledger, _: list[Any]) -> None:
    await ledger.begin(life(0, 1, rollout="s"))


async def begin_carried(ledger: Ledger, boundary: list[Any]) -> None:
    await ledger.begin(SECOND, boundary, FIRST, clear=True)


async def append(ledger: Ledger, _: list[Any]) -> None:
    await ledger.append(DEAD, turn(3), record(3))


async def append_first(ledger: Ledger, _: list[Any]) -> None:
    fresh = life(0, 1, rollout="s")
    await ledger.begin(fresh)
    await ledger.append(fresh, turn(0), record(0))


async def freeze(ledger: Ledger, _: list[Any]) -> None:
    await ledger.freeze("r-a1", "v")


async def retire(ledger: Ledger, _: list[Any]) -> None:
    await ledger.retire(DEAD)


async def delete(ledger: Ledger, _: list[Any]) -> None:
    await ledger.delete(DEAD)


async def arranged(root: Path) -> list[Any]:
    """A first life with three calls, of which two are before the boundary, and a life that went on from there."""
    ledger = quick(root)
    await ledger.begin(FIRST)
    await conversation(ledger, FIRST, range(2))
    boundary = ledger.export(FIRST)
    await ledger.append(FIRST, turn(2), record(2))
    await ledger.begin(DEAD, boundary, FIRST)
    await ledger.append(DEAD, turn(2), record(2))
    return boundary


async def acknowledged_is_there(root: Path) -> None:
    """What was durable before the work began is there, in this order, unless its life was deleted whole."""
    ledger = quick(root)
    rows = await ledger.rows("r")
    assert [row.call for row in rows] == [turn(k).call for k in range(3)]
    assert check([row.to_json() for row in rows]) == []
    assert await ledger.records("r") == [record(k) for k in range(3)]
    if DEAD in await ledger.lives("r-a1"):
        data = Path(place(root, DEAD).ledger).read_bytes()  # noqa: ASYNC240 - a test may read
        found = scan(data)
        assert not found.damage
        assert len(found.rows) >= 3


async def view(root: Path) -> Any:
    """Everything that a fresh reader finds, and the names of the files."""
    ledger = quick(root)
    found: dict[str, Any] = {"files": files_of(root)}
    for key in ("r", "r-a1", "s"):
        for one in await ledger.lives(key):
            assert one == (await ledger.lives(key))[-1] or key == "r-a1"
        with suppress(ParticipantError):
            manifest = (await ledger.manifest(key)).to_json()
            rows = [row.to_json() for row in await ledger.rows(key)]
            assert check(rows, count=manifest["rows"], last=manifest["last"]) == []
            found[key] = (manifest, rows, await ledger.records(key))
    return found


WORKS = [begin, begin_carried, append, append_first, freeze, retire, delete]


@pytest.mark.enumerated(4)
@pytest.mark.parametrize("how", ["failed", "died", "died half way through a write"])
@pytest.mark.parametrize("work", WORKS)
async def test_every_system_call_may_fail(tmp_path: Path, work: Work, how: str) -> None:
    """After a failure at any call the same work, repeated, ends in the same state as without the failure."""
    boundary = await arranged(tmp_path / "before")
    shutil.copytree(tmp_path / "before", tmp_path / "well")
    await work(quick(tmp_path / "well"), boundary)
    expected = await view(tmp_path / "well")
    struck = []
    for nth in itertools.count(1):
        root = tmp_path / f"{nth}"
        shutil.copytree(tmp_path / "before", root)
        disk = FailingDisk(nth, dead=how != "failed", torn=how != "failed")
        ledger = Ledger(str(root), disk=disk)
        with suppress(ParticipantError):  # Or the failure was after everything that had to be done.
            await work(ledger, boundary)
        if not disk.struck:
            break
        struck.append(disk.struck)
        await acknowledged_is_there(root)
        again = ledger if how == "failed" else quick(root)
        await repeated(again, work, boundary)
        assert await view(root) == expected, disk.struck
    assert len(struck) >= 5
    sys.stderr.write(f"{work.__name__} {how}: {len(struck)} system calls\n")


async def repeated(ledger: Ledger, work: Work, boundary: list[Any]) -> None:
    """Do it again; a new process does not know whether a row whose append died is there, and looks first."""
    if work in (append, append_first):
        rows: list[Any] = []
        with suppress(ParticipantError):
            rows = await ledger.rows("s" if work is append_first else "r-a1")
        if any(row.call == turn(3 if work is append else 0).call and row.index == 3 * (work is append) for row in rows):
            return
    await work(ledger, boundary)


@pytest.mark.parametrize("cut", range(0, 400, 7))
async def test_a_torn_tail_is_cut_off(tmp_path: Path, cut: int) -> None:
    """Wherever a file ends after a crash, the rows before are there, and the next row follows the last whole one."""
    ledger = quick(tmp_path)
    await ledger.begin(life())
    await conversation(ledger, life(), range(3))
    path = place(tmp_path, life())
    size = Path(path.ledger).stat().st_size  # noqa: ASYNC240 - a test may look
    with open(path.ledger, "r+b") as file:  # noqa: ASYNC230 - a test may write
        file.truncate(size - cut)
    fresh = quick(tmp_path)
    count = len(await fresh.rows("r"))
    assert count == 3 if cut == 0 else count < 3
    row = await fresh.append(life(), turn(count), record(count))
    assert row.index == count
    assert await fresh.records("r") == [record(k) for k in range(count + 1)]
    rows = [row.to_json() for row in await fresh.rows("r")]
    assert check(rows, count=count + 1, last=row.chain) == []


@pytest.mark.parametrize("left", [b"", b'{"kind":"led', bytes(90), b"{}"])
async def test_a_torn_first_line_is_a_ledger_that_never_began(tmp_path: Path, left: bytes) -> None:
    """It takes no row; it can be begun, retired (once), superseded and deleted as if it were not there."""
    for work in ("begin", "retire", "supersede"):
        root = tmp_path / work
        ledger = quick(root)
        await ledger.begin(life())
        with open(place(root, life()).ledger, "wb") as file:  # noqa: ASYNC230 - a test may write
            file.write(left)
        fresh = quick(root)
        if work == "begin":
            await refused(fresh.append(life(), turn(0)))
            await fresh.begin(life())
            await fresh.append(life(), turn(0), record(0))
            assert len(await fresh.rows("r")) == 1
        elif work == "retire":
            receipt = await fresh.retire(life())
            assert (receipt.rows, receipt.found, receipt.damage) == (0, True, "")
            assert await fresh.retire(life()) == receipt
        else:
            [receipt] = await fresh.begin(life(1, 2))
            assert (await fresh.manifest("r")).end == receipt
        await fresh.delete(life())
        assert await fresh.lives("r") == []


async def test_zeros_after_a_power_loss_are_a_torn_tail(tmp_path: Path) -> None:
    """Blocks that came to the disk as zeros are cut off like any tail."""
    ledger = quick(tmp_path)
    await ledger.begin(life())
    await conversation(ledger, life(), range(2))
    with open(place(tmp_path, life()).ledger, "ab") as file:  # noqa: ASYNC230 - a test may write
        file.write(bytes(700))
    await quick(tmp_path).append(life(), turn(2), record(2))
    assert len(await ledger.rows("r")) == 3


async def refused(attempt: Awaitable[Any]) -> None:
    with pytest.raises(ParticipantError) as caught:
        await attempt
    assert caught.value.code in (Code.CORRUPT_CHECKPOINT, Code.STALE_LIFE)


async def test_damage_in_the_middle_is_refused_and_can_be_retired(tmp_path: Path) -> None:
    """Any flipped bit before the last row makes reading and appending `corrupt_checkpoint`, and never blocks an end."""
    ledger = quick(tmp_path / "0")
    await ledger.begin(life())
    await conversation(ledger, life(), range(3))
    good = Path(place(tmp_path / "0", life()).ledger).read_bytes()  # noqa: ASYNC240 - a test may read
    last = good.rstrip(b"\n").rindex(b"\n")
    for at in range(0, last, 41):
        root = tmp_path / f"{at + 1}"
        damaged = quick(root)
        await damaged.begin(life())
        await conversation(damaged, life(), range(3))
        with open(place(root, life()).ledger, "wb") as file:  # noqa: ASYNC230 - a test may write
            file.write(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        fresh: Ledger = quick(root)
        await refused(fresh.rows("r"))
        await refused(fresh.append(life(), turn(3)))
        receipt = await fresh.retire(life())
        assert receipt.damage
        assert await fresh.retire(life()) == receipt
        assert (await fresh.manifest("r")).end == receipt
        await fresh.delete(life())
        assert files_of(root) == []
