"""Each system call below a store fails once: the work ends in a typed error, cleans up, and can be repeated."""

import errno
import os
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from store import LocalBackend, StoreError
from store.backends import FileOp, Handle, Retrying, probe
from store.root import load_format
from tests.support.crash_states import Image, read_image
from tests.support.file_ops import FaultyOps, Matches
from tests.support.rounds import PATIENT, View, on_backend, view_root

from .conftest import Tally
from .explore import UnsyncedOps, folder_like
from .works import WORKS, Work, publish_cursors, survives

pytestmark = pytest.mark.anyio
RUN_ID = "0" * 32


def one_of(*names: str) -> Matches:
    """Match these calls."""
    return lambda op: op.name in names


FAULTS: dict[str, tuple[int, Matches]] = {
    "no space": (errno.ENOSPC, one_of("create_file", "write", "link", "rename", "mkdir")),
    "fsync fails": (errno.EIO, one_of("fsync")),
    "device fails": (errno.EIO, one_of("write", "read", "names", "stat", "link", "rename", "unlink", "rmdir")),
    "denied": (
        errno.EACCES,
        one_of("open_folder", "open_file", "create_file", "open_lock", "link", "rename", "unlink"),
    ),
}


class UnsyncedFaultyOps(FaultyOps):
    """Fails as told, and saves the time of real syncs, which only a power loss would need."""

    def fsync(self, handle: Handle) -> None:
        with self.step(FileOp("fsync", handle.path)):
            pass


async def base_of(folder: Path, cursors: tuple[int, ...]) -> Image:
    """A store with these checkpoints."""
    backend = LocalBackend(folder, limits=PATIENT)
    await backend.make_root()
    store = on_backend(backend, RUN_ID)
    await publish_cursors(store, cursors)
    return await anyio.to_thread.run_sync(read_image, folder)


def open_files() -> int:
    """Descriptors that this process holds."""
    return len(os.listdir("/proc/self/fd"))


async def fails_at(nth: int, work: Work, root: Path, fault: tuple[int, Matches]) -> FileOp | None:
    """Do the work at `root` while the n-th matching call fails; the call, if there were so many."""
    ops = UnsyncedFaultyOps(0, *fault)
    before = await anyio.to_thread.run_sync(open_files)

    def calm() -> None:
        ops.left = 0

    def arm(scope: anyio.CancelScope) -> None:
        ops.left = nth

    faulty = on_backend(Retrying(LocalBackend(root, ops, limits=PATIENT)), RUN_ID)
    healthy = on_backend(LocalBackend(root, UnsyncedOps(), limits=PATIENT), RUN_ID)
    ended = await survives(work, faulty, healthy, arm, calm)
    assert ended is None or isinstance(ended, StoreError)
    assert await anyio.to_thread.run_sync(open_files) == before, ops.struck
    left = [path for path in await anyio.to_thread.run_sync(read_image, root) if path.endswith(".tmp")]
    assert len(left) <= (ops.struck is not None and ops.struck.name == "unlink"), (ops.struck, left)
    return ops.struck


async def fail_each(name: str, kind: str, folder: Path, step: int) -> str:
    """Let each matching call fail (each `step`-th, from a start that the fault chooses); how many were tried."""
    work, tried, nth = WORKS[name], 0, 1 + list(FAULTS).index(kind) % step
    base = await base_of(folder / "base", work.cursors)
    while True:
        async with folder_like(base, folder / str(nth)) as root:
            if await fails_at(nth, work, root, FAULTS[kind]) is None:
                return f"{tried} of {nth - 1} calls"
        tried += 1
        nth += step


@pytest.mark.enumerated(4)
@pytest.mark.unit
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("name", WORKS)
async def test_a_system_call_that_fails_loses_nothing(name: str, kind: str, tmp_path: Path, tally: Tally) -> None:
    """Every few calls: typed error or success, the older checkpoint verifies, no temporary file, no open file."""
    tally(f"{name}, {kind}", await fail_each(name, kind, tmp_path, step=23))


@pytest.mark.scale
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("name", WORKS)
async def test_every_system_call_that_fails_loses_nothing(name: str, kind: str, tmp_path: Path, tally: Tally) -> None:
    """The same for each call."""
    tally(f"{name}, {kind}", await fail_each(name, kind, tmp_path, step=1))


@pytest.mark.enumerated(2)
@pytest.mark.unit
@pytest.mark.parametrize("kind", FAULTS)
async def test_an_opening_that_fails_at_any_system_call_can_be_repeated(
    kind: str, tmp_path: Path, tally: Tally
) -> None:
    """A fresh root is refused with a typed error or opened, and opened by the next try; the probe leaves no object."""
    nth, struck = 0, True
    while struck:
        nth += 1
        root = tmp_path / str(nth)
        ops = UnsyncedFaultyOps(nth, *FAULTS[kind])
        backend = LocalBackend(root, ops, limits=PATIENT)
        try:
            await open_fresh(backend)
        except StoreError:
            assert ops.struck is not None
        struck = ops.struck is not None
        ops.left = 0
        await open_fresh(backend)
        assert await view_root(root) == View()
        objects = [info.key for info in await backend.list("")]
        deletes = ops.struck is not None and ops.struck.name in {"unlink", "open_folder", "rmdir", "stat"}
        assert len(objects) <= 1 + deletes, (ops.struck, objects)
    tally(f"opening, {kind}", f"{nth - 1} calls")


async def open_fresh(backend: LocalBackend) -> None:
    """What opening a root for writing does."""
    await backend.make_root()
    await probe(Retrying(backend))
    await load_format(Retrying(backend), PATIENT, create=True)
