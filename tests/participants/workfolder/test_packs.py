"""What has not changed is neither written nor read again, and what has changed never goes unseen."""

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from participants.workfolder import Digests, export
from participants.workfolder.entries import Entry
from participants.workfolder.reading import MAX_PACK_BYTES, PACK_BYTES, TICK_NS, Found, packs_of
from store import InvalidRecord, LazyBytes

from .trees import LIMITS

pytestmark = pytest.mark.unit

NUMBERS = range(600)


def later() -> int:
    """Long after everything that has been written so far."""
    return time.time_ns() + 10 * TICK_NS


def packs(folder: Path, digests: Digests, now: Callable[[], int] = later) -> list[LazyBytes]:
    found: list[LazyBytes] = export(folder, LIMITS, digests, now)["packs"]
    return found


def sizes_of(changed: Collection[int] = ()) -> list[list[bytes]]:
    """The packs of many files of 1,000 bytes, some of which have another size."""
    entries = [Entry(b"%06d" % n, "file", 0o644, 0, 1500 if n in changed else 1000) for n in NUMBERS]
    return paths([Found(entry, (0, 0, 0, 0, 0)) for entry in entries])


def paths(found: list[Found]) -> list[list[bytes]]:
    return [[each.entry.path for each in pack] for pack in packs_of(found)]


def test_small_files_share_packs_and_a_large_one_has_its_own() -> None:
    """Every file that is not empty stands in one pack, in order; packs of small ones are neither tiny nor huge."""
    sizes = [10, 0, 200_000, 5, 65_536, 65_535, 65_535, 1]
    entries = [Entry(b"%d" % n, "file", 0o644, 0, size) for n, size in enumerate(sizes)]
    made = [[each.entry.size for each in pack] for pack in packs_of([Found(e, (0, 0, 0, 0, 0)) for e in entries])]
    assert made[:3] == [[10], [200_000], [5]]
    assert [size for pack in made for size in pack] == [size for size in sizes if size]
    assert all(size < 65_536 or len(pack) == 1 for pack in made for size in pack)
    many = sizes_of()
    assert all(PACK_BYTES <= 1000 * len(pack) <= MAX_PACK_BYTES + 1000 for pack in many[:-1])
    assert len(many) >= 3


def test_a_change_moves_no_border_far_away() -> None:
    """One file that grows, appears or goes leaves most packs as they were."""
    before = {tuple(pack) for pack in sizes_of()}
    after = {tuple(pack) for pack in sizes_of({300})}
    assert len(after - before) <= 2
    without = [n for n in NUMBERS if n != 300]
    found = [Found(Entry(b"%06d" % n, "file", 0o644, 0, 1000), (0, 0, 0, 0, 0)) for n in without]
    assert len({tuple(pack) for pack in paths(found)} - before) <= 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two large files and a small one."""
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode() * 100_000)
    (tmp_path / "small").write_text("small")
    return tmp_path


def spy(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The paths that are read from here on."""
    from participants.workfolder import reading

    plain, read = reading.content, list[bytes]()

    def content(root: int, entry: Entry) -> object:
        read.append(entry.path)
        return plain(root, entry)

    monkeypatch.setattr(reading, "content", content)
    return read


def test_a_second_export_reads_only_what_has_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the file system's word; what is in the record is the same as if all had been read."""
    digests, read = Digests(), spy(monkeypatch)
    first = packs(folder, digests)
    assert sorted(read) == [b"a", b"b", b"small"]
    read.clear()
    (folder / "b").write_bytes(b"c" * 100_000)
    second = packs(folder, digests)
    assert read == [b"b"]
    read.clear()
    assert [pack.sha256 for pack in packs(folder, digests)] == [pack.sha256 for pack in second]
    assert read == []
    assert [pack.sha256 for pack in packs(folder, Digests())] == [pack.sha256 for pack in second]
    assert (first[0].sha256, first[2].sha256) == (second[0].sha256, second[2].sha256)
    assert first[1].sha256 != second[1].sha256


def test_a_change_that_hides_behind_the_same_size_and_time_is_seen(folder: Path) -> None:
    """A program sets the time of change of content as it likes; that of the inode it cannot."""
    digests = Digests()
    before, times = packs(folder, digests), (folder / "a").stat()
    with open(folder / "a", "r+b") as file:
        file.write(b"X")
    os.utime(folder / "a", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert packs(folder, digests)[0].sha256 != before[0].sha256


def test_what_changed_just_before_it_was_read_is_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a tick of the clock a later change would look the same, so nothing is taken for granted."""
    digests, changed = Digests(), max((folder / name).stat().st_ctime_ns for name in ("a", "b", "small"))
    packs(folder, digests, lambda: changed + TICK_NS)
    assert len(digests) < 3
    read = spy(monkeypatch)
    packs(folder, digests, later)
    assert b"small" in read
    assert len(digests) == 3


def test_digests_of_what_is_gone_are_forgotten(folder: Path) -> None:
    """Memory follows what the folder holds now."""
    digests = Digests()
    packs(folder, digests)
    (folder / "a").unlink()
    packs(folder, digests)
    assert len(digests) == 2


@pytest.mark.parametrize("how", ["changed", "shorter", "longer", "gone", "a link"])
def test_a_folder_that_changes_after_its_export_spoils_no_checkpoint(folder: Path, how: str) -> None:
    """A commit reads what the export has named, or fails."""
    [pack, *_] = packs(folder, Digests())
    assert pack.load("r") == b"a" * 100_000
    path = folder / "a"
    content = {"changed": b"A" * 100_000, "shorter": b"a", "longer": b"a" * 100_001}.get(how)
    if content is not None:
        path.write_bytes(content)
    else:
        path.unlink()
        if how == "a link":
            path.symlink_to(folder / "b")
    with pytest.raises(InvalidRecord, match=r"changed|read any more"):
        pack.load("r")
