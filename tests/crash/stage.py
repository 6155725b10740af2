"""A store whose file operations are recorded, for as long as one piece of work takes."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio.to_thread

from store import LocalBackend, Store, open_store
from store.backends import FileOp, FileOps, Retrying
from tests.support.crash_states import Disk, Image, read_image
from tests.support.file_ops import RecordingOps
from tests.support.rounds import PATIENT, on_backend


@dataclass(slots=True)
class Stage:
    """A store whose file operations are recorded."""

    root: Path
    ops: RecordingOps
    store: Store
    base: Image = field(default_factory=dict)
    """The folder when the recording began; all of it counts as durable."""
    log: tuple[FileOp, ...] = ()
    marks: dict[str, int] = field(default_factory=dict)
    """How many operations had been made when something had returned."""

    async def begin(self) -> None:
        """Forget what was done so far."""
        self.base = await anyio.to_thread.run_sync(read_image, self.root)
        self.ops.log.clear()

    def mark(self, name: str) -> None:
        """Something has returned to its caller, who relies on it from now on."""
        self.marks[name] = len(self.ops.log)

    async def end(self) -> None:
        """Keep the log; check that the model of the disk says the same as the disk."""
        self.log = tuple(self.ops.log)
        disk = Disk(self.base)
        for op in self.log:
            disk.apply(op)
        assert disk.image() == await anyio.to_thread.run_sync(read_image, self.root)


MakeBackend = Callable[[Path, FileOps], LocalBackend]


def plain_backend(root: Path, ops: FileOps) -> LocalBackend:
    """The backend as it ships."""
    return LocalBackend(root, ops, limits=PATIENT)


def wide_backend(root: Path, ops: FileOps) -> LocalBackend:
    """The same with many calls at a time."""
    return LocalBackend(root, ops)


@asynccontextmanager
async def on_stage(
    root: Path, ops: RecordingOps | None = None, make: MakeBackend = plain_backend, in_flight: int = 1
) -> AsyncIterator[Stage]:
    """Make a store at `root` and open it so that its operations, so many at a time, are recorded."""
    async with open_store(root, "write", limits=PATIENT) as made:
        run_id = made.run_id
    recorder = ops or RecordingOps()
    backend = Retrying(make(root, recorder))
    yield Stage(root, recorder, on_backend(backend, run_id, requests_in_flight=in_flight))
