"""A record is untrusted: whatever it says, nothing is made that is not plainly inside of the folder."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants.workfolder import BadFolder, FolderLimits, tree_of, write_tree

from .trees import LIMITS, facts

pytestmark = pytest.mark.unit

ROOT = [0o700, 0]


def record(*entries: Any, packs: Any = (), **other: Any) -> dict[str, Any]:
    return {"version": 1, "root": ROOT, "entries": [*entries], "packs": [*packs], **other}


def file(path: Any, size: Any = 0, mode: Any = 0o644, mtime_ns: Any = 0) -> list[Any]:
    return [path, "file", mode, mtime_ns, size]


def folder(path: Any) -> list[Any]:
    return [path, "folder", 0o755, 0, None]


def link(path: Any, target: Any = "/etc") -> list[Any]:
    return [path, "link", 0o777, 0, target]


BAD_PATHS = [
    "", "/", "/etc/passwd", "..", "../x", "a/..", "a/../../x", ".", "./a", "a/.", "a//b", "a/", "\0", "a\0b", "n" * 256,
    "/".join("d" * 65), "d/" * 3000 + "d", b"", b"..", b"/x", b"a\0", "\ud800", None, 3, ["a"], {"a": 1}, True,
]  # fmt: skip
BAD: dict[str, Any] = {
    "nothing": None,
    "a number": 7,
    "a list": [],
    "a text": "version",
    "no version": {"root": ROOT, "entries": [], "packs": []},
    "another version": record(version=2),
    "no root": {"version": 1, "entries": [], "packs": []},
    "half a root": record(root=[0o700]),
    "a root of text": record(root="ab"),
    "entries of a dict": record(entries={"abcde": 1}),
    "entries that are a number": {**record(), "entries": 5},
    "a short row": record(["a", "file", 0o644, 0]),
    "a long row": record([*file("a"), 1]),
    "a row of text": record("abcde"),
    "another kind": record(["a", "device", 0o644, 0, None]),
    "a kind that is a list": record(["a", ["file"], 0o644, 0, 0]),
    "a mode too large": record(file("a", mode=0o10000)),
    "a mode below 0": record(file("a", mode=-1)),
    "a mode that is a bool": record(file("a", mode=True)),
    "a mode of text": record(file("a", mode="755")),
    "a time past 64 bits": record(file("a", mtime_ns=2**63)),
    "a time of float": record(file("a", mtime_ns=1.5)),
    "a size below 0": record(file("a", size=-1)),
    "a size of text": record(file("a", size="1")),
    "a folder with a size": record(["a", "folder", 0o755, 0, 3]),
    "a fifo with a target": record(["a", "fifo", 0o644, 0, "b"]),
    "a link without a target": record(link("a", None)),
    "a link to nothing": record(link("a", "")),
    "a link with a NUL": record(link("a", "b\0c")),
    "a link too long": record(link("a", "x" * 4096)),
    "twice the same": record(file("a"), file("a")),
    "twice the same in two forms": record(file("a"), file(b"a")),
    "not in order": record(file("b"), file("a")),
    "below a link": record(link("a"), file("a/passwd")),
    "below a link of a folder's name": record(folder("a"), link("a"), file("a/b")),
    "below a file": record(file("a"), file("a/b")),
    "below nothing": record(file("a/b")),
    "a folder after what is in it": record(file("a/b"), folder("a")),
    "no packs": {"version": 1, "root": ROOT, "entries": []},
    "packs of text": record(file("a", 1), packs=["x"]),
    "an empty pack": record(packs=[b""]),
    "a pack too many": record(file("a", 1), packs=[b"x", b"y"]),
    "a pack too few": record(file("a", 1)),
    "a pack too long": record(file("a", 1), packs=[b"xy"]),
    "a file over two packs": record(file("a", 2), packs=[b"x", b"y"]),
    "a huge announced size": record(file("a", 2**62), packs=[b"x"]),
}


def refuse(value: Any, limits: FolderLimits = LIMITS) -> None:
    with pytest.raises(BadFolder):
        tree_of(value, limits)


@pytest.mark.parametrize("value", BAD.values(), ids=BAD.keys())
def test_a_malformed_record_is_refused_whole(value: Any) -> None:
    """One kind of error for all of it, before anything is written."""
    refuse(value)


@pytest.mark.parametrize("path", BAD_PATHS, ids=lambda path: repr(path)[:20])
def test_a_path_that_is_not_plainly_inside_is_refused(path: Any) -> None:
    """For files, folders and links alike."""
    for row in (file(path), folder(path), link(path)):
        refuse(record(row))


def test_counts_and_sizes_are_bounded() -> None:
    """By the limits of the server that restores, not by those of the one that wrote."""
    limits = FolderLimits(entries=2, bytes=3)
    tree_of(record(file("a", 3), file("b"), packs=[b"xyz"]), limits)
    refuse(record(file("a"), file("b"), file("c")), limits)
    refuse(record(file("a", 4), packs=[b"wxyz"]), limits)


def test_links_out_of_the_folder_are_made_and_never_followed(tmp_path: Path) -> None:
    """They are harmless by themselves; what they point to is neither written, nor changed in mode or time."""
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir(mode=0o755)
    (outside / "secret").write_text("secret")
    inside.mkdir()
    before = facts(outside)
    links = [link("a", str(outside)), link("b", "../outside/secret"), link("c", "."), link("d", "/dev/null")]
    write_tree(inside, tree_of(record(*links, folder("e"), link("e/up", "../..")), LIMITS))
    assert facts(outside) == before
    assert {path: fact[3] for path, fact in facts(inside).items() if fact[3]} == {
        b"/a": str(outside).encode(), b"/b": b"../outside/secret", b"/c": b".", b"/d": b"/dev/null", b"/e/up": b"../..",
    }  # fmt: skip


def test_set_uid_is_dropped_from_a_record(tmp_path: Path) -> None:
    """Such a bit is worth something to whoever may write records."""
    write_tree(tmp_path, tree_of(record(file("a", 1, 0o6755), packs=[b"x"], root=[0o7700, 0]), LIMITS))
    assert (tmp_path / "a").stat().st_mode & 0o7777 == 0o755
    assert tmp_path.stat().st_mode & 0o7777 == 0o700


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.binary(max_size=3) | st.sampled_from(["file"]),
    lambda child: st.lists(child, max_size=5) | st.dictionaries(st.text(max_size=3), child, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON, JSON)
def test_whatever_else_a_record_holds_is_refused_as_one_kind_of_error(root: Any, entries: Any, packs: Any) -> None:
    """No other exception comes out, and what passes has nothing outside."""
    for value in (root, record(root=root), record(entries), {**record(), "entries": entries, "packs": packs}):
        try:
            tree = tree_of(value, LIMITS)
        except BadFolder:
            continue
        assert all(b".." not in entry.path.split(b"/") and entry.path[:1] != b"/" for entry in tree.entries)
