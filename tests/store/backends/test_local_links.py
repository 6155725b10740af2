"""A checkpoint is untrusted input: links and special files in a local store are neither followed nor opened."""

import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from store.backends import FileOps, Handle, LocalBackend
from store.errors import AlreadyExists, UnsafeObject

pytestmark = pytest.mark.anyio


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the root, with a file that nobody may read or change through the store."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(b"secret")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def _reads(backend: LocalBackend, key: str) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: backend.get(key, max_bytes=100),
        lambda: backend.get_range(key, 0, 10),
        lambda: backend.stat(key),
    ]


@pytest.mark.unit
async def test_a_linked_object_is_refused(root: Path, outside: Path) -> None:
    """A symbolic link in the place of an object is not followed, wherever it leads."""
    (root / "link").symlink_to(outside / "secret")
    (root / "dangling").symlink_to(outside / "none")
    (root / "inside").symlink_to(root / "link")
    for key in ("link", "dangling", "inside"):
        for read in _reads(LocalBackend(root), key):
            with pytest.raises(UnsafeObject):
                await read()


@pytest.mark.unit
async def test_a_linked_folder_is_refused(root: Path, outside: Path) -> None:
    """A symbolic link in the place of a folder is followed neither for reading nor for writing nor for deleting."""
    (root / "folder").symlink_to(outside)
    backend = LocalBackend(root)
    calls: list[Callable[[], Awaitable[object]]] = [
        *_reads(backend, "folder/secret"),
        lambda: backend.create("folder/new", b"x"),
        lambda: backend.put("folder/secret", b"x"),
        lambda: backend.list("folder/"),
        lambda: backend.delete(["folder/secret"]),
        lambda: backend.lock("folder/lock").__aenter__(),
    ]
    for call in calls:
        with pytest.raises(UnsafeObject):
            await call()
    assert os.listdir(outside) == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"


@pytest.mark.unit
async def test_a_write_goes_over_a_link_and_not_through_it(root: Path, outside: Path) -> None:
    """A put replaces the link itself, a create is refused by it, a delete removes it: the target stays as it is."""
    for name in ("put", "create", "delete"):
        (root / name).symlink_to(outside / "secret")
    backend = LocalBackend(root)
    await backend.put("put", b"mine")
    await backend.delete(["delete"])
    with pytest.raises(AlreadyExists):
        await backend.create("create", b"mine")
    assert await backend.get("put", max_bytes=4) == b"mine"
    assert not (root / "delete").is_symlink()
    assert (outside / "secret").read_bytes() == b"secret"


@pytest.mark.unit
async def test_a_special_file_is_refused_and_does_not_hang(root: Path) -> None:
    """A fifo without a writer, a socket and a device are refused at once."""
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "socket"))
    for key in ("fifo", "socket"):
        for read in _reads(LocalBackend(root), key):
            with pytest.raises(UnsafeObject):
                await read()


@pytest.mark.unit
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device file")
async def test_a_device_is_refused(root: Path) -> None:
    """A device file would give endless zeros, or do something when it is opened."""
    os.mknod(root / "zero", 0o20666, os.makedev(1, 5))
    for read in _reads(LocalBackend(root), "zero"):
        with pytest.raises(UnsafeObject):
            await read()


@pytest.mark.unit
async def test_a_listing_shows_links_and_follows_none(root: Path, outside: Path) -> None:
    """A link appears under its own name, so that a check can report it; what is behind it does not."""
    (root / "folder").symlink_to(outside)
    (root / "a").mkdir()
    (root / "a" / "link").symlink_to(outside / "secret")
    assert [info.key for info in await LocalBackend(root).list("")] == ["a/link", "folder"]


@pytest.mark.unit
async def test_a_put_leaves_other_names_of_a_file_alone(root: Path, outside: Path) -> None:
    """Where an object is a hard link to another file, writing the object does not write that file."""
    os.link(outside / "secret", root / "k")
    backend = LocalBackend(root)
    assert await backend.get("k", max_bytes=10) == b"secret"
    await backend.put("k", b"mine")
    assert (outside / "secret").read_bytes() == b"secret"


@pytest.mark.unit
async def test_the_root_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    """Where the store lies is the user's choice, links and all."""
    (tmp_path / "alias").symlink_to(root)
    await LocalBackend(tmp_path / "alias").create("k", b"x")
    assert (root / "k").read_bytes() == b"x"


@pytest.mark.unit
async def test_a_file_where_a_folder_should_be_is_refused(root: Path) -> None:
    """An object has nothing below it: the layout never puts a folder and an object in one place."""
    backend = LocalBackend(root)
    await backend.create("a", b"x")
    with pytest.raises(UnsafeObject):
        await backend.create("a/b", b"x")
    with pytest.raises(UnsafeObject):
        await backend.put("a/b", b"x")


HOLDER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(fd, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.process
async def test_a_lock_is_freed_by_the_death_of_its_holder(root: Path) -> None:
    """A lock of another process is seen as held while it lives, and as free once it was killed."""
    (root / "alive").mkdir()
    backend = LocalBackend(root)
    command = [sys.executable, "-c", HOLDER, str(root / "alive" / "1.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:  # noqa: ASYNC220
        assert holder.stdout is not None
        holder.stdout.readline()
        async with backend.lock("alive/1.lock") as free:
            assert not free
        holder.kill()
    async with backend.lock("alive/1.lock") as free:
        assert free


@pytest.mark.unit
async def test_a_lock_on_a_removed_file_is_not_trusted(root: Path) -> None:
    """Who holds the lock of a file that was deleted excludes nobody: the next one makes a new file and gets it."""
    backend = LocalBackend(root)
    async with backend.lock("alive/1.lock") as first:
        await backend.delete(["alive/1.lock"])
        async with backend.lock("alive/1.lock") as second, backend.lock("alive/1.lock") as third:
            assert (first, second, third) == (True, True, False)


class _RemovesLockFile(FileOps):
    """Another process deletes the lock file once, just after it was opened."""

    done = False

    def open_lock(self, folder: Handle, name: str) -> Handle:
        handle = super().open_lock(folder, name)
        if not self.done:
            self.done = True
            self.unlink(folder, name)
        return handle


@pytest.mark.unit
async def test_a_lock_file_removed_while_it_is_locked_is_not_held(root: Path) -> None:
    """Between opening a lock file and locking it somebody may delete it: what is held is the file that others open."""
    async with (
        LocalBackend(root, _RemovesLockFile()).lock("l") as first,
        LocalBackend(root).lock("l") as second,
    ):
        assert (first, second) == (True, False)
