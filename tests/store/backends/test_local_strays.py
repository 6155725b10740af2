"""Files and folders that nobody here can have made are listed under names that can be shown, and can be deleted."""

import os
import resource
from pathlib import Path

import pytest

from store import NotAStore, open_store, verify_store
from store.backends import LocalBackend
from store.backends.keys import MAX_DEPTH

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

STRAYS = {
    b"ex\x01tra": r"ex\x01tra",
    b"x\ny": r"x\x0ay",
    b"bad\xff": r"bad\xff",
    b"del\x7f": r"del\x7f",
    b"both\x01\\": r"both\x01\x5c",
    b".weird.tmp/file": r"\x2eweird.tmp/file",
    b".a\x01.tmp": r"\x2ea\x01.tmp",
}


def plant(root: Path, *names: bytes) -> None:
    for name in names:
        path = os.path.join(os.fsencode(root), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"x")


def nest(root: Path, depth: int) -> None:
    """A chain of folders deeper than a path may be long."""
    fd = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        child = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = child
    os.close(fd)


def flatten(root: Path, depth: int) -> None:
    """Undo `nest`, which pytest's own clean-up could not."""
    for _ in range(depth - 1):
        (root / "d" / "d").rename(root / "e")
        (root / "d").rmdir()
        (root / "e").rename(root / "d")


@pytest.mark.parametrize(("name", "key"), STRAYS.items())
async def test_a_name_that_is_no_key_is_listed_with_escapes_and_can_be_deleted(
    tmp_path: Path, name: bytes, key: str
) -> None:
    """Control bytes, bytes that are no UTF-8, and whatever lies in a folder that looks temporary."""
    plant(tmp_path, b"a/" + name, b"a/ours")
    backend = LocalBackend(tmp_path)
    assert [info.key for info in await backend.list("a/")] == sorted([f"a/{key}", "a/ours"])
    await backend.delete([f"a/{key}"])
    assert [info.key for info in await backend.list("")] == ["a/ours"]
    assert await backend.list_leftovers() == []


async def test_a_path_that_is_too_long_for_a_key_is_a_stray(tmp_path: Path) -> None:
    """It is no key for its length alone, and can be deleted like any."""
    plant(tmp_path, b"/".join([b"x" * 200] * 6))
    backend = LocalBackend(tmp_path)
    [info] = await backend.list("")
    assert r"/\x78xxx" in info.key
    await backend.delete([info.key])
    assert os.listdir(tmp_path) == []


async def test_a_name_with_a_backslash_is_an_object_like_any(tmp_path: Path) -> None:
    """What looks like an escape and is none is deleted, and not the stray that it would stand for."""
    backend = LocalBackend(tmp_path)
    await backend.create(r"a\x01b", b"x")
    plant(tmp_path, b"a\x01b")
    await backend.delete([r"a\x01b"])
    assert os.listdir(tmp_path) == ["a\x01b"]


async def test_no_escape_leads_out_of_the_root(tmp_path: Path) -> None:
    """An escaped dot or slash is no way up."""
    (tmp_path / "root").mkdir()
    plant(tmp_path, b"outside")
    for key in (r"\x2e\x2e/outside", r"\x2e./outside", r"\x2e\x2e\x2foutside", r"x\x00y", "\\x2e\n"):
        with pytest.raises(Exception, match="is refused"):
            await LocalBackend(tmp_path / "root").delete([key])
    assert (tmp_path / "outside").exists()


async def test_folders_deeper_than_any_key_are_told_by_name_and_not_entered(tmp_path: Path) -> None:
    """Listing neither recurses nor keeps a descriptor for each level."""
    plant(tmp_path, b"ours")
    nest(tmp_path, 1500)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2 * MAX_DEPTH, limits[1]))
    try:
        listed = await LocalBackend(tmp_path).list("")
        temporary = await LocalBackend(tmp_path).list_leftovers()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        flatten(tmp_path, 1500)
    assert [info.key for info in listed] == ["/".join(["d"] * MAX_DEPTH), "ours"]
    assert temporary == []


@pytest.mark.parametrize("name", [*STRAYS, b"alive/notes", b"alive/01", b"alive/1.lock/x", b"alive/probe-x"])
async def test_a_folder_that_holds_something_of_others_is_made_no_store(tmp_path: Path, name: bytes) -> None:
    """Whatever it is named, and below alive/ too; what the probe and a killed start leave there is ours."""
    plant(tmp_path, name)
    with pytest.raises(NotAStore, match="other object"):
        async with open_store(tmp_path, "write"):
            pass
    assert not (tmp_path / "format.json").exists()


async def test_what_a_killed_start_leaves_is_not_foreign(tmp_path: Path) -> None:
    """Probes, clocks, counters and locks below alive/ stand in no store's way."""
    plant(tmp_path, b"alive/probe-00ff", b"alive/clock-00ff", b"alive/12", b"alive/12.lock", b".format.json.0f.tmp")
    async with open_store(tmp_path, "write") as store:
        assert store.run_id


@pytest.mark.parametrize(("name", "key"), STRAYS.items())
async def test_verify_tells_a_name_that_is_no_key(tmp_path: Path, name: bytes, key: str) -> None:
    """As a leftover, in a name that a terminal can show."""
    async with open_store(tmp_path, "write") as store:
        plant(tmp_path, b"checkpoints/" + name)
        report = await verify_store(store)
    assert [finding.object for finding in report.findings] == [f"checkpoints/{key}"]
    assert report.findings[0].severity == "leftover"
