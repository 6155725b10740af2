"""Planted faults: local backends that break one promise each, and must be found out by their crash states."""

import os
from pathlib import Path

from store import LocalBackend, Retention, Store, prune, survey
from store.backends import FileOps, Handle
from store.backends.tree import Tree
from tests.support.file_ops import RecordingOps
from tests.support.rounds import PATIENT


class NoFileSync(RecordingOps):
    """Never syncs what it wrote."""

    def fsync(self, handle: Handle) -> None:
        if not handle.path.endswith(".tmp"):
            super().fsync(handle)


class NoFolderSync(RecordingOps):
    """Never syncs a name."""

    def fsync(self, handle: Handle) -> None:
        if handle.path.endswith(".tmp"):
            super().fsync(handle)


class NoParentSync(RecordingOps):
    """Syncs the folder of an object, but no folder that only holds folders."""

    def __init__(self) -> None:
        super().__init__()
        self._holds_objects: set[str] = set()

    def create_file(self, folder: Handle, name: str) -> Handle:
        self._holds_objects.add(folder.path)
        return super().create_file(folder, name)

    def fsync(self, handle: Handle) -> None:
        if handle.path.endswith(".tmp") or handle.path in self._holds_objects:
            super().fsync(handle)


class Unsynced(RecordingOps):
    """Syncs nothing in one part of the store."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.part = part

    def fsync(self, handle: Handle) -> None:
        if not handle.path.startswith(self.part):
            super().fsync(handle)


class SyncBeforeWrite(RecordingOps):
    """Syncs each file while it is still empty."""

    def create_file(self, folder: Handle, name: str) -> Handle:
        file = super().create_file(folder, name)
        super().fsync(file)
        return file

    def fsync(self, handle: Handle) -> None:
        if not handle.path.endswith(".tmp"):
            super().fsync(handle)


class _NameFirst(Tree):
    """Gives an object its name before its content."""

    def _publish(
        self, folder: Handle, file: Handle, data: bytes, name: str, *, exclusive: bool
    ) -> FileExistsError | None:
        temporary = os.path.basename(file.path)
        taken = self._link(folder, temporary, name)
        with self.ops.closing(file):
            self._write_all(file, data)
            self.ops.fsync(file)
        self._discard(folder, temporary)
        return taken


def name_first(root: Path, ops: FileOps) -> LocalBackend:
    """A backend whose names reach the disk before the data."""
    backend = LocalBackend(root, ops, limits=PATIENT)
    backend._tree = _NameFirst(str(root), ops)
    return backend


class _InPlace(Tree):
    """Writes an object under its own name from the start."""

    def _publish(
        self, folder: Handle, file: Handle, data: bytes, name: str, *, exclusive: bool
    ) -> FileExistsError | None:
        self.ops.rename(folder, os.path.basename(file.path), name)
        with self.ops.closing(Handle(file.fd, folder.child(name))) as renamed:
            self._write_all(renamed, data)
            self.ops.fsync(renamed)
        return None


def in_place(root: Path, ops: FileOps) -> LocalBackend:
    """A backend without temporary files."""
    backend = LocalBackend(root, ops, limits=PATIENT)
    backend._tree = _InPlace(str(root), ops)
    return backend


async def delete_then_plan(store: Store) -> None:
    """A prune that says on the chain what it deletes only after it has begun."""
    policy = Retention(keep_last=1)
    found = await survey(store, policy)
    await store.backend.delete([info.key for info in found.doomed])
    await prune(store, policy)
