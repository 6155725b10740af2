"""What the trainer puts into a checkpoint while everything stands still, and the files that it names."""

import hashlib
import os
import stat
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio.to_thread

from store import External, Life, Ref, Store
from store.opened import load_aggregate
from store.reader import published

from .errors import InsideCheckpoint, NoState, UnusableFile
from .values import copy_of, text

_NOTHING: Any = object()
_INSIDE: ContextVar["Save | None"] = ContextVar("midflight_inside_checkpoint", default=None)
"""The open block that a task is in, or was started in."""
_CHUNK_BYTES = 8 * 1024 * 1024


class Save:
    """The open block of a checkpoint."""

    def __init__(self, restarts: frozenset[Life]) -> None:
        """Made by `TrainingRun.checkpoint`."""
        self.state: Any = _NOTHING
        """What the trainer needs to go on: JSON and bytes, with each result of next() that it has not trained on."""
        self.restarts = restarts
        """Rollouts that no checkpoint can capture: after a crash they begin anew."""
        self.published: Ref | None = None
        """Set once the checkpoint exists."""
        self.held_s = 0.0
        """For how long everything stood still."""
        self.open = True
        self._files: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<Save {'open' if self.open else self.published}, {len(self._files)} files>"

    def file(self, name: str, path: str | os.PathLike[str]) -> None:
        """Name a local file that is whole by now; a restore checks its size and digest, and gives it in `run.files`.

        It must stay as it is for as long as a checkpoint names it: midflight never deletes it. Raises UnusableState
        for a name that is no text.
        """
        self._files[text(name, "the name of a file")] = os.fsdecode(path)

    def taken_state(self) -> Any:
        """A copy of the state as of now. Raises NoState, UnusableState."""
        if self.state is _NOTHING:
            raise NoState
        return copy_of(self.state, "state", with_bytes=True)

    async def taken_files(self) -> dict[str, str]:
        """The absolute path of each file, which is there. Raises UnusableFile."""
        return await anyio.to_thread.run_sync(_look, self._files)

    def enter(self) -> Any:
        """The block begins; gives what `leave` needs."""
        return _INSIDE.set(self)

    def leave(self, token: Any) -> None:
        """The block is over."""
        self.open = False
        _INSIDE.reset(token)


def refuse_inside(operation: str) -> None:
    """Raise InsideCheckpoint in the block of a checkpoint, and in every task that was started there."""
    inside = _INSIDE.get()
    if inside is not None and inside.open:
        raise InsideCheckpoint(operation)


async def externals_of(files: Mapping[str, str], known: Mapping[str, str]) -> list[External]:
    """Size and digest of each file. Raises UnusableFile, also for one that is not as the head knows it."""
    found = []
    for name, path in files.items():
        external = await anyio.to_thread.run_sync(_digest, name, path)
        if known.get(path, external.sha256) != external.sha256:
            raise UnusableFile(
                name, path, "was written again although the last checkpoint names it, which cannot be restored any more"
            )
        found.append(external)
    return found


def _look(files: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, path in files.items():
        try:
            found[name] = str(Path(path).resolve())
            found[name].encode()
            mode = os.stat(found[name]).st_mode
        except OSError as error:
            raise UnusableFile(name, path, f"is not there ({error.strerror})") from error
        except (ValueError, RuntimeError) as error:  # Not UTF-8, a NUL in it, or a loop of links.
            raise UnusableFile(name, path, f"is no path that a checkpoint can name ({error})") from error
        if not stat.S_ISREG(mode):
            raise UnusableFile(name, path, "is no regular file")
    return found


def _digest(name: str, path: str) -> External:
    digest, size = hashlib.sha256(), 0
    try:
        with open(path, "rb") as file:
            while piece := file.read(_CHUNK_BYTES):
                digest.update(piece)
                size += len(piece)
    except OSError as error:
        raise UnusableFile(name, path, f"cannot be read ({error.strerror})") from error
    return External(url=path, size=size, sha256=digest.hexdigest())


async def files_in_use(store: Store) -> frozenset[Path]:
    """Every file that a checkpoint names which exists and is in no deletion plan; a trainer may delete its others."""
    refs = published(await store.chain())
    manifests = [await load_aggregate(store, ref) for ref in refs]
    return frozenset(Path(external.url) for manifest in manifests for external in manifest.externals)
