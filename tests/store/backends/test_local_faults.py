"""Local files when the disk fails, fills up, or loses power: the old object or the new, never a third."""

import errno
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import anyio
import pytest

from store.backends import FileOp, LocalBackend, create_once
from store.errors import (
    AccessDenied,
    AlreadyExists,
    BackendError,
    InvalidName,
    IOFailed,
    NoSpace,
    NotFound,
    OutcomeUnknown,
    RootMissing,
    UnsupportedStore,
)
from tests.support.durability import survivors
from tests.support.file_ops import FaultyOps, Matches, RecordingOps, StingyOps, every

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

KEY = "checkpoints/1.2/agent.a/part.jsonl.zst"
OLD, NEW = b"old content", b"new content" * 100
MOST_CALLS = 60
"""More system calls than one write makes."""

Write = Callable[[LocalBackend], Awaitable[None]]
WRITES: dict[str, Write] = {
    "create": lambda backend: backend.create(KEY, NEW),
    "put": lambda backend: backend.put(KEY, NEW),
    "put over": lambda backend: backend.put(KEY, NEW),
}


def on_fsync(op: FileOp) -> bool:
    """Match the fsyncs."""
    return op.name == "fsync"


def changes(op: FileOp) -> bool:
    """Match what a full disk or inode table can refuse."""
    return op.name in {"create_file", "write", "fsync", "link", "rename", "mkdir"}


@pytest.mark.enumerated(3)
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    ("code", "matches", "expected"),
    [
        (errno.EIO, every, IOFailed),
        (errno.ENOSPC, changes, NoSpace),
        (errno.EDQUOT, changes, NoSpace),
        (errno.EIO, on_fsync, IOFailed),
        (errno.EACCES, changes, AccessDenied),
    ],
    ids=["EIO", "ENOSPC", "EDQUOT", "EIO on fsync", "EACCES"],
)
async def test_a_write_that_fails_at_its_nth_call_leaves_old_or_new(
    tmp_path: Path, write: str, code: int, matches: Matches, expected: type[BackendError]
) -> None:
    """For every n: a typed error, the old object or none, no temporary file or empty folder, and a retry works."""
    for nth in range(1, MOST_CALLS):
        root = tmp_path / str(nth)
        root.mkdir()
        clean = LocalBackend(root)
        if write == "put over":
            await clean.put(KEY, OLD)
        ops = FaultyOps(nth, code, matches)
        error = await _failure(WRITES[write], LocalBackend(root, ops))
        if ops.struck is None:
            assert error is None
            break
        await _check_after(clean, ops.struck, error, expected, OLD if write == "put over" else None)
        if error is not None and not isinstance(error, OutcomeUnknown):
            await WRITES[write](clean)
            assert await clean.get(KEY, max_bytes=len(NEW)) == NEW
    else:
        pytest.fail("a write makes more calls than expected")
    assert nth > 2


async def _failure(write: Write, backend: LocalBackend) -> BackendError | None:
    try:
        await write(backend)
    except BackendError as error:
        return error
    return None


async def _check_after(
    clean: LocalBackend,
    struck: FileOp,
    error: BackendError | None,
    expected: type[BackendError],
    old: bytes | None,
) -> None:
    leftovers = [info.key for info in await clean.list_leftovers()]
    assert leftovers == ([struck.path] if struck.name == "unlink" else [])
    if error is None:  # only where the failed call was one of tidying up
        assert struck.name in {"close", "unlink"}
        assert await clean.get(KEY, max_bytes=len(NEW)) == NEW
    elif isinstance(error, OutcomeUnknown):  # only the fsync of the folder, after the object had its name
        assert (struck.name, struck.path) == ("fsync", os.path.dirname(KEY))
        assert await clean.get(KEY, max_bytes=len(NEW)) == NEW
    else:
        assert isinstance(error, expected)
        assert isinstance(error.__cause__, OSError)
        assert await _content(clean) == old
        if old is None:
            assert os.listdir(clean.root) == []


async def _content(backend: LocalBackend) -> bytes | None:
    try:
        return await backend.get(KEY, max_bytes=len(NEW))
    except NotFound:
        return None


@pytest.mark.parametrize("operation", ["create", "put"])
async def test_a_power_loss_at_any_moment_leaves_old_or_new(tmp_path: Path, operation: str) -> None:
    """Of what a write has done, only what was synced is kept: the object is absent, old, or new and whole."""
    ops = RecordingOps()
    backend = LocalBackend(tmp_path, ops)
    await backend.put("a/other", b"there before")
    await getattr(backend, operation)("a/b/object", NEW)
    if operation == "put":
        await backend.put("a/b/object", OLD)
    for length in range(len(ops.log) + 1):
        left = survivors(ops.log[:length])
        assert left.get("a/b/object") in {None, NEW, OLD}
    assert survivors(ops.log) == {
        "a/other": b"there before",
        "a/b/object": OLD if operation == "put" else NEW,
    }


@pytest.mark.parametrize("operation", ["create", "put"])
async def test_a_write_that_returned_survives_a_power_loss(tmp_path: Path, operation: str) -> None:
    """Object, name and every folder above are durable when the call returns; no temporary name is."""
    ops = RecordingOps()
    await getattr(LocalBackend(tmp_path, ops), operation)("a/b/c/object", NEW)
    assert survivors(ops.log) == {"a/b/c/object": NEW}


async def test_a_folder_that_another_process_made_is_made_durable_too(tmp_path: Path) -> None:
    """A folder found there may not be synced yet: its parent is synced before anything in it counts."""
    (tmp_path / "chain").mkdir()
    ops = RecordingOps()
    backend = LocalBackend(tmp_path, ops)
    await backend.create("chain/1", b"x")
    assert next(op.path for op in ops.log if on_fsync(op)) == ""
    synced = len([op for op in ops.log if on_fsync(op)])
    await backend.create("chain/2", b"x")
    assert len([op for op in ops.log if on_fsync(op)]) == synced + 2


async def test_a_refused_create_rests_on_something_durable(tmp_path: Path) -> None:
    """AlreadyExists is said only after the folder was synced, so that nobody builds on a name that a crash undoes."""
    await LocalBackend(tmp_path).create("k", b"winner")
    ops = RecordingOps()
    with pytest.raises(AlreadyExists):
        await LocalBackend(tmp_path, ops).create("k", b"loser")
    assert (ops.log[-2].name, ops.log[-2].path) == ("fsync", "")
    with pytest.raises(IOFailed):
        await LocalBackend(tmp_path, FaultyOps(2, errno.EIO, on_fsync)).create("k", b"loser")


async def test_a_failed_fsync_is_not_repeated(tmp_path: Path) -> None:
    """After EIO on fsync the kernel may have dropped the data: the same descriptor is never asked again."""
    ops = FaultyOps(1, errno.EIO, on_fsync)
    with pytest.raises(IOFailed):
        await LocalBackend(tmp_path, ops).create("k", NEW)
    assert len(ops.seen) == 1
    assert os.listdir(tmp_path) == []


async def test_a_read_that_fails_says_so(tmp_path: Path) -> None:
    """EIO at any call of a read is an IOFailed, and never a NotFound or a shorter content."""
    clean = LocalBackend(tmp_path)
    await clean.create("a/k", NEW)
    for nth in range(1, MOST_CALLS):
        ops = FaultyOps(nth, errno.EIO)
        with suppress(IOFailed):
            assert await LocalBackend(tmp_path, ops).get("a/k", max_bytes=len(NEW)) == NEW
        if ops.struck is None:
            break
    assert nth > 5


async def test_short_writes_and_reads_are_continued(tmp_path: Path) -> None:
    """A kernel that takes and gives a few bytes at a time still gets and gives all."""
    backend = LocalBackend(tmp_path, StingyOps())
    await backend.create("k", NEW)
    assert await backend.get("k", max_bytes=len(NEW)) == NEW
    assert await backend.get_range("k", 3, 50) == NEW[3:53]


async def test_a_vanished_root_is_not_made_again(tmp_path: Path) -> None:
    """Every verb says that the root is missing, and no zombie folder appears."""
    backend = LocalBackend(tmp_path / "root")
    await backend.make_root()
    await backend.create("a/k", b"x")
    (tmp_path / "root").rename(tmp_path / "moved")
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: backend.create("a/other", b"x"),
        lambda: backend.put("a/k", b"x"),
        lambda: backend.get("a/k", max_bytes=1),
        lambda: backend.stat("a/k"),
        lambda: backend.list(""),
        lambda: backend.delete(["a/k"]),
        lambda: backend.lock("alive/1.lock").__aenter__(),
    ]
    for call in calls:
        with pytest.raises(RootMissing):
            await call()
    assert os.listdir(tmp_path) == ["moved"]


async def test_another_folder_in_the_place_of_the_root_is_refused(tmp_path: Path) -> None:
    """An unmounted disk leaves an empty folder behind: it is not taken for the store."""
    backend = LocalBackend(tmp_path / "root")
    await backend.make_root()
    await backend.create("k", b"x")
    (tmp_path / "root").rename(tmp_path / "moved")
    (tmp_path / "root").mkdir()
    with pytest.raises(RootMissing):
        await backend.list("")
    with pytest.raises(RootMissing):
        await backend.create("k2", b"x")


class _DeletesFolder(RecordingOps):
    """Removes everything once, when the temporary file has been written."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def step(self, op: FileOp) -> AbstractContextManager[None]:
        if op.name in {"link", "rename"}:
            for path in self._folder.iterdir():
                path.unlink()
            self._folder.rmdir()
        return super().step(op)


@pytest.mark.parametrize("operation", ["create", "put"])
async def test_a_folder_deleted_in_mid_write_fails_the_write(tmp_path: Path, operation: str) -> None:
    """Somebody's `rm -r` while an object is written is an error, and no folder comes back from it."""
    backend = LocalBackend(tmp_path, _DeletesFolder(tmp_path / "a"))
    with pytest.raises(IOFailed, match="removed while it was being written"):
        await getattr(backend, operation)("a/k", b"x")
    assert os.listdir(tmp_path) == []


async def test_writes_and_deletes_of_one_folder_do_not_disturb_each_other(tmp_path: Path) -> None:
    """A folder that empties and vanishes while others write into it costs them nothing."""
    backend = LocalBackend(tmp_path)

    async def churn(name: str) -> None:
        for _ in range(30):
            await backend.create(f"a/b/{name}", b"x")
            await backend.delete([f"a/b/{name}"])

    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(churn, str(number))
    assert os.listdir(tmp_path) == []


async def test_a_leftover_is_hidden_listed_apart_and_never_merged(tmp_path: Path) -> None:
    """A temporary file of a dead writer is no object, stands in nobody's way, and can be swept by its key."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".k.0123456789abcdef.tmp").write_bytes(b"half an obj")
    backend = LocalBackend(tmp_path)
    await backend.create("a/k", b"whole")
    assert [info.key for info in await backend.list("")] == ["a/k"]
    assert await backend.get("a/k", max_bytes=5) == b"whole"
    leftovers = await backend.list_leftovers()
    assert [(info.key, info.size) for info in leftovers] == [("a/.k.0123456789abcdef.tmp", 11)]
    await backend.delete([info.key for info in leftovers])
    assert await backend.list_leftovers() == []


async def test_the_longest_name_can_be_written(tmp_path: Path) -> None:
    """A name as long as the file system allows leaves room for its temporary file; a longer one is refused."""
    backend = LocalBackend(tmp_path)
    for name in ("x" * 255, "ü" * 127):
        await backend.create(f"a/{name}", b"x")
        assert await backend.get(f"a/{name}", max_bytes=1) == b"x"
    with pytest.raises(InvalidName):
        await LocalBackend(tmp_path, FaultyOps(1, errno.ENAMETOOLONG)).get("a/b", max_bytes=1)


async def test_names_that_are_no_keys_hide_no_object(tmp_path: Path) -> None:
    """A file whose name is not UTF-8 is somebody else's: it is told under an escaped name."""
    backend = LocalBackend(tmp_path)
    await backend.create("k", b"x")
    with open(os.fsencode(tmp_path) + b"/\xff\xfe", "wb"):  # noqa: ASYNC230
        pass
    assert [info.key for info in await backend.list("")] == [r"\xff\xfe", "k"]


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
async def test_a_file_system_without_links_is_named_as_such(tmp_path: Path, code: int) -> None:
    """Where the kernel refuses a hard link to our own file, exclusive create is impossible: not a permission."""
    ops = FaultyOps(1, code, lambda op: op.name == "link")
    with pytest.raises(UnsupportedStore, match="no hard links"):
        await LocalBackend(tmp_path, ops).create("k", b"x")
    assert os.listdir(tmp_path) == []


async def test_a_time_in_the_future_is_told_as_it_is(tmp_path: Path) -> None:
    """The store's clock may be anything: it is passed on, and nothing here decides by it."""
    backend = LocalBackend(tmp_path)
    await backend.create("k", b"x")
    os.utime(tmp_path / "k", (4e9, 4e9))
    assert (await backend.stat("k")).modified_s == 4e9
    assert [info.modified_s for info in await backend.list("")] == [4e9]


async def test_no_descriptor_outlives_its_call(tmp_path: Path) -> None:
    """However a call ends, in success or at any failing system call, as many files are open as before."""
    before = len(os.listdir("/proc/self/fd"))
    for nth in range(1, MOST_CALLS):
        backend = LocalBackend(tmp_path, FaultyOps(nth))
        await _failure(lambda backend: backend.put(f"a/b/{nth}", b"x"), backend)  # noqa: B023
        await _failure(lambda backend: create_once(backend, "a/k", b"x"), backend)  # type: ignore[arg-type,return-value]
    assert len(os.listdir("/proc/self/fd")) <= before + 1
