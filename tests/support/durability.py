"""What a power loss leaves of a log of file operations, in the worst case: only what was synced."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from posixpath import dirname

from store.backends import FileOp


@dataclass(slots=True)
class _File:
    written: bytes = b""
    durable: bytes = b""


@dataclass(slots=True)
class Disk:
    """A model of a folder tree: names and contents as they are, and as they would be after a power loss."""

    names: dict[str, _File | None] = field(default_factory=dict)
    """Every path; None for a folder."""
    durable_names: dict[str, _File | None] = field(default_factory=dict)

    def apply(self, op: FileOp) -> None:
        """Carry out one operation."""
        if op.name == "create_file":
            self.names[op.path] = _File()
        elif op.name == "mkdir":
            self.names[op.path] = None
        elif op.name == "write":
            self._file(op.path).written += op.data
        elif op.name == "link":
            self.names[op.target] = self.names[op.path]
        elif op.name == "rename":
            self.names[op.target] = self.names.pop(op.path)
        elif op.name in {"unlink", "rmdir"}:
            self.names.pop(op.path)
        elif op.name == "fsync":
            self._fsync(op.path)

    def survivors(self) -> dict[str, bytes]:
        """The files that are there after a power loss, and what is in them."""
        return {
            path: file.durable
            for path, file in self.durable_names.items()
            if file is not None and self._is_reachable(dirname(path))
        }

    def _file(self, path: str) -> _File:
        file = self.names[path]
        assert file is not None
        return file

    def _fsync(self, path: str) -> None:
        if (file := self.names.get(path)) is not None:
            file.durable = file.written
            return
        kept = {name: file for name, file in self.durable_names.items() if dirname(name) != path}
        self.durable_names = kept | {name: file for name, file in self.names.items() if dirname(name) == path}

    def _is_reachable(self, folder: str) -> bool:
        return not folder or (folder in self.durable_names and self._is_reachable(dirname(folder)))


def survivors(log: Iterable[FileOp], disk: Disk | None = None) -> dict[str, bytes]:
    """What is left after a power loss at the end of a log."""
    disk = disk if disk is not None else Disk()
    for op in log:
        disk.apply(op)
    return disk.survivors()
