"""A working folder comes back from its record as it was, whatever is in it."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants.workfolder import BadFolder, FolderLimits, copy_tree, tree_of, write_tree

from .trees import LIMITS, facts, make, stored

pytestmark = pytest.mark.unit

NAMES = st.one_of(
    st.binary(min_size=1, max_size=12).filter(lambda name: name not in (b".", b"..") and not {0, 47} & {*name}),
    st.sampled_from(
        [b" ", b"-rf", b"...", b"$bytes", b"\xff\xfe", b"\n", b"a", b"a-", b"A" * 255, "\u202e".encode(), b"*", b"~"]
    ),
)
TARGETS = st.sampled_from(["/etc/passwd", "..", "../../x", "a", ".", "/", "nowhere", "a/b/c", "x" * 200, "\ufeff"])
CONTENTS = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda size, byte: bytes([byte]) * size, st.integers(0, 200_000), st.integers(0, 255)),
    st.sampled_from([65_535, 65_536, 65_537]).map(bytes),
)
TREES = st.recursive(
    st.dictionaries(NAMES, st.one_of(CONTENTS, TARGETS, st.none(), st.just(0)), max_size=5),
    lambda child: st.dictionaries(NAMES, st.one_of(child, CONTENTS), max_size=4),
    max_leaves=15,
)


@given(TREES, st.lists(st.sampled_from([0o644, 0o755, 0o400, 0o700, 0o777]), min_size=1), st.integers(0, 2**61))
def test_any_folder_comes_back(content: Any, modes: list[int], when: int) -> None:
    """Names, kinds, bytes, targets, permissions and times of everything, and the same again from a plain copy."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, restored, copied = (Path(scratch, name) for name in ("folder", "restored", "copied"))
        for each in (folder, restored, copied):
            each.mkdir()
        make(os.fsencode(folder), content)
        for number, path in enumerate(sorted(facts(folder), reverse=True)):
            at = os.fsencode(folder) + path
            if not os.path.islink(at):
                os.chmod(at, modes[number % len(modes)] | (0o700 if os.path.isdir(at) else 0))
            os.utime(at, ns=(when, when // (number + 1)), follow_symlinks=False)
        before = facts(folder)
        write_tree(restored, tree_of(stored(folder), LIMITS))
        copy_tree(folder, copied, LIMITS)
        assert facts(restored) == facts(copied) == facts(folder) == before


def test_special_bits_are_dropped_and_hard_links_become_copies(tmp_path: Path) -> None:
    """What a program of another user could gain something by, or what two names share."""
    folder, restored = tmp_path / "folder", tmp_path / "restored"
    folder.mkdir()
    restored.mkdir()
    (folder / "a").write_text("x")
    (folder / "b").hardlink_to(folder / "a")
    (folder / "a").chmod(0o6755)
    (folder / "sub").mkdir()
    (folder / "sub").chmod(0o3777)
    write_tree(restored, tree_of(stored(folder), LIMITS))
    found = facts(restored)
    assert [found[name][1] for name in (b"/a", b"/b", b"/sub")] == [0o755, 0o755, 0o777]
    assert (restored / "a").stat().st_nlink == 1
    assert found[b"/b"][3] == b"x"


def deep(folder: Path) -> None:
    """One folder more than a record has, one in another."""
    folder.joinpath(*["d"] * 65).mkdir(parents=True)


def many(folder: Path) -> None:
    """One file more."""
    for number in range(11):
        (folder / f"{number}").touch()


def large(folder: Path) -> None:
    """One byte more, of which none is on the disk."""
    with open(folder / "sparse", "wb") as file:
        file.truncate(1001)


@pytest.mark.parametrize("spoil", [deep, many, large])
def test_a_folder_past_a_limit_is_not_exported(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    """Its life becomes a restart: it is refused by what it holds, not when memory is full."""
    spoil(tmp_path)
    with pytest.raises(BadFolder, match=r"more than|names"):
        stored(tmp_path, limits=FolderLimits(entries=10, bytes=1000) if spoil is not deep else LIMITS)


def test_a_device_is_refused_by_name(tmp_path: Path) -> None:
    """A record cannot have one, and nobody can make one without being root."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a device")
    os.mknod(tmp_path / "null", 0o020666, os.makedev(1, 3))
    with pytest.raises(BadFolder, match="null' is a device"):
        stored(tmp_path)
