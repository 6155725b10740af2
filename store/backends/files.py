"""The operating system calls of the local backend, one method each, so that tests can fail, record and replay them.

Every call names what it touches by a path relative to the root, beside the descriptor that it really uses: a log of
`FileOp`s is a complete model of what was written, linked, renamed, removed and synced, in order.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a fifo that somebody planted must not hang; O_NOFOLLOW: nor may a link be followed.
_FILE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

OpName = Literal[
    "make_root", "open_root", "open_folder", "open_file", "create_file", "open_lock", "read", "write", "fsync", "link",
    "rename", "unlink", "mkdir", "rmdir", "names", "stat", "close",
]  # fmt: skip
NO_STEP: AbstractContextManager[None] = nullcontext()


@dataclass(frozen=True, slots=True)
class FileOp:
    """One call, as tests see it."""

    name: OpName
    path: str
    """Relative to the root; empty for the root itself."""
    target: str = ""
    """The new name, of a link or rename."""
    data: bytes = b""
    """What a write was asked to write; it may write less."""


@dataclass(frozen=True, slots=True)
class Handle:
    """An open file or folder, with its path relative to the root."""

    fd: int
    path: str

    def child(self, name: str) -> str:
        """The path of something in this folder."""
        return f"{self.path}/{name}" if self.path else name


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What stat tells."""

    mode: int
    size: int
    modified_s: float
    identity: tuple[int, int]
    """Device and inode."""

    @property
    def is_regular(self) -> bool:
        """A plain file: no folder, link, device, fifo or socket."""
        return stat.S_ISREG(self.mode)

    @property
    def is_folder(self) -> bool:
        """A real folder, not a link to one."""
        return stat.S_ISDIR(self.mode)


class FileOps:
    """The real calls. A subclass overrides `step` to record or to raise, or single methods to do them differently."""

    def step(self, op: FileOp) -> AbstractContextManager[None]:
        """Surround one call: raising on entry fails it before, on exit after it took effect."""
        return NO_STEP

    def make_root(self, path: str) -> None:
        """Make the root and what is missing above it, each made durable in its parent."""
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path) or "."
        for folder in reversed(missing):
            with self.step(FileOp("make_root", "")):
                os.makedirs(folder, exist_ok=True)
            parent = Handle(os.open(os.path.dirname(folder) or ".", os.O_RDONLY | os.O_CLOEXEC), "..")
            with self.closing(parent):
                self.fsync(parent)

    def open_root(self, path: str) -> Handle:
        """Open the root; it alone may be reached through links, by the user's choice."""
        with self.step(FileOp("open_root", "")):
            return Handle(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), "")

    def open_folder(self, folder: Handle, name: str) -> Handle:
        """Open a folder in a folder; a link is refused."""
        with self.step(FileOp("open_folder", folder.child(name))):
            return Handle(os.open(name, _FOLDER_FLAGS, dir_fd=folder.fd), folder.child(name))

    def open_file(self, folder: Handle, name: str) -> Handle:
        """Open a file for reading; a link is refused."""
        with self.step(FileOp("open_file", folder.child(name))):
            return Handle(os.open(name, os.O_RDONLY | _FILE_FLAGS, dir_fd=folder.fd), folder.child(name))

    def create_file(self, folder: Handle, name: str) -> Handle:
        """Create a new file for writing; an existing one is refused."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE_FLAGS
        with self.step(FileOp("create_file", folder.child(name))):
            return Handle(os.open(name, flags, 0o666, dir_fd=folder.fd), folder.child(name))

    def open_lock(self, folder: Handle, name: str) -> Handle:
        """Open a lock file, made if it is missing."""
        flags = os.O_RDWR | os.O_CREAT | _FILE_FLAGS
        with self.step(FileOp("open_lock", folder.child(name))):
            return Handle(os.open(name, flags, 0o666, dir_fd=folder.fd), folder.child(name))

    def read(self, file: Handle, length: int, offset: int) -> bytes:
        """Read at most `length` bytes from `offset`."""
        with self.step(FileOp("read", file.path)):
            return os.pread(file.fd, length, offset)

    def write(self, file: Handle, data: memoryview) -> int:
        """Write some of `data` at the end; returns how much."""
        with self.step(FileOp("write", file.path, data=bytes(data) if self.keeps_data else b"")):
            return os.write(file.fd, data)

    keeps_data: bool = False
    """Whether `FileOp.data` is filled in; costs a copy."""

    def fsync(self, handle: Handle) -> None:
        """Make a file's content, or a folder's names, durable."""
        with self.step(FileOp("fsync", handle.path)):
            os.fsync(handle.fd)

    def link(self, folder: Handle, name: str, new_name: str) -> None:
        """Give a file a second name, exclusively."""
        with self.step(FileOp("link", folder.child(name), folder.child(new_name))):
            os.link(name, new_name, src_dir_fd=folder.fd, dst_dir_fd=folder.fd, follow_symlinks=False)

    def rename(self, folder: Handle, name: str, new_name: str) -> None:
        """Rename a file, in place of any other."""
        with self.step(FileOp("rename", folder.child(name), folder.child(new_name))):
            os.rename(name, new_name, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)

    def unlink(self, folder: Handle, name: str) -> None:
        """Remove a name."""
        with self.step(FileOp("unlink", folder.child(name))):
            os.unlink(name, dir_fd=folder.fd)

    def mkdir(self, folder: Handle, name: str) -> None:
        """Make a folder."""
        with self.step(FileOp("mkdir", folder.child(name))):
            os.mkdir(name, 0o777, dir_fd=folder.fd)

    def rmdir(self, folder: Handle, name: str) -> None:
        """Remove an empty folder."""
        with self.step(FileOp("rmdir", folder.child(name))):
            os.rmdir(name, dir_fd=folder.fd)

    def names(self, folder: Handle) -> list[str]:
        """The names in a folder, in no order."""
        with self.step(FileOp("names", folder.path)), os.scandir(folder.fd) as entries:
            return [entry.name for entry in entries]

    def stat(self, folder: Handle, name: str) -> FileFacts:
        """Look at a name, without following a link."""
        with self.step(FileOp("stat", folder.child(name))):
            return _facts(os.stat(name, dir_fd=folder.fd, follow_symlinks=False))

    def stat_open(self, handle: Handle) -> FileFacts:
        """Look at an open file."""
        with self.step(FileOp("stat", handle.path)):
            return _facts(os.fstat(handle.fd))

    def close(self, handle: Handle) -> None:
        """Close a descriptor, which is gone whatever the call says."""
        try:
            with self.step(FileOp("close", handle.path)):
                pass
        finally:
            os.close(handle.fd)

    @contextmanager
    def closing(self, handle: Handle) -> Iterator[Handle]:
        """Close a handle at the end of a block."""
        try:
            yield handle
        finally:
            self.close(handle)


def _facts(found: os.stat_result) -> FileFacts:
    return FileFacts(found.st_mode, found.st_size, found.st_mtime, (found.st_dev, found.st_ino))
