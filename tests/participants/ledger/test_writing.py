"""One batch of rows of several lives, with a disk that fails at every call: each life stands or falls alone."""

import errno
import itertools
from pathlib import Path

import pytest

from participants import Code, ParticipantError
from participants.ledger import check
from participants.ledger.files import Layout
from participants.ledger.lines import row_json, scan
from participants.ledger.writing import Append, Writer
from store import Life
from tests.support.ledgers import FailingDisk, life, place, record, turn

pytestmark = pytest.mark.unit


class StrictDisk(FailingDisk):
    """Knows which files and folders were synced since it was made."""

    def __init__(self, nth: int, *, dead: bool = False) -> None:
        super().__init__(nth, dead=dead)
        self.synced: set[str] = set()

    def sync(self, fd: int, path: str) -> None:
        super().sync(fd, path)
        self.synced.add(path)

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        self.synced.add(path)


def neighbours(root: Path) -> list[Life]:
    """Three lives, two of them in one shard."""
    by_shard: dict[str, Life] = {}
    for n in itertools.count():
        one = life(rollout=f"r{n}")
        other = by_shard.setdefault(place(root, one).shard, one)
        if other is not one:
            return [other, one, life(rollout="alone")]
    raise AssertionError


@pytest.mark.parametrize("dead", [False, True])
def test_a_row_is_acknowledged_only_with_everything_synced(tmp_path: Path, dead: bool) -> None:
    """Whatever fails, a life whose row was acknowledged has both files and all its folders synced, and others none."""
    for nth in itertools.count(1):
        root = tmp_path / f"{nth}"
        disk = StrictDisk(10**9, dead=dead)
        writer = Writer(Layout(str(root), disk), disk)
        writer.layout.make_root()
        lives = neighbours(root)
        for each in lives:
            writer.begin(each, (), None, clear=False)
        disk.left, disk.synced = nth, set()
        items = [Append(each, turn(k), record(k)) for each in lives for k in range(2)]
        try:
            writer.append_all(items)
        except ParticipantError as error:  # A lock: then nothing has happened.
            assert error.code is Code.STORE_FAILED  # noqa: PT017 - it need not fail
            assert not any(item.row for item in items)
        struck, disk.left = disk.struck, 10**9
        for one in lives:
            own = [item for item in items if item.life == one]
            where = place(root, one)
            rows = writer.ledgers[one].rows if one in writer.ledgers else []
            if own[0].row is None:
                assert not own[1].row
                assert rows == []
                writer.append_all(again := [Append(one, turn(k), record(k)) for k in range(2)])
                assert [item.row and item.row.index for item in again] == [0, 1]
            else:
                assert {where.records, where.ledger, where.folder, where.shard, str(root)} <= disk.synced
            found = scan(Path(where.ledger).read_bytes())
            assert check([row_json(line) for line in found.rows], count=2) == []
        if not struck:
            break
    assert nth > 25


class ForgetfulDisk(FailingDisk):
    """Fails the next sync of a ledger; what was written stays where it is."""

    fails = False

    def sync(self, fd: int, path: str) -> None:
        if self.fails and path.endswith(".jsonl"):
            self.fails = False
            raise OSError(errno.EIO, "not synced")
        super().sync(fd, path)


def test_a_row_whose_sync_failed_stands_once_when_its_call_is_tried_again(tmp_path: Path) -> None:
    """The whole line is there, though nobody was told of it: it is cut off before anything else is appended."""
    one, disk = life(), ForgetfulDisk(10**9)
    writer = Writer(Layout(str(tmp_path), disk), disk)
    writer.layout.make_root()
    writer.begin(one, (), None, clear=False)
    for fails in (True, False):
        disk.fails = fails
        item = Append(one, turn(0))
        writer.append_all([item])
        assert (item.error is not None) is fails
    found = scan(Path(place(tmp_path, one).ledger).read_bytes())
    assert (found.damage, len(found.rows)) == ("", 1)
