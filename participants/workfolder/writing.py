"""Making a working folder from a record, or from another folder: in a fresh one, where nothing can be in the way.

Folders come before what is in them, links after all that has content, modes and times at the end, the deepest first.
Nothing is ever opened through a link: the record has been checked, and O_NOFOLLOW and O_EXCL say so again.
"""

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from .beneath import folder_in, parent_of, root_of, write_all
from .entries import Entry, FolderLimits, Tree
from .reading import content, walk

Content = Callable[[Entry], Iterable[bytes | memoryview]]


def write_tree(folder: Path, tree: Tree) -> None:
    """Fill an empty folder. Blocks. Raises OSError."""
    with root_of(folder) as root:
        _fill(root, tree.entries, tree.read)
        _finish(root, tree.mode, tree.mtime_ns)


def copy_tree(source: Path, folder: Path, limits: FolderLimits) -> None:
    """Fill an empty folder with what another one holds. Blocks. Raises BadFolder and OSError."""
    facts = source.lstat()  # Before it is opened, which may want more than its mode.
    with root_of(source) as origin, root_of(folder) as root:
        _fill(root, [each.entry for each in walk(origin, limits)], lambda entry: content(origin, entry))
        _finish(root, stat.S_IMODE(facts.st_mode), facts.st_mtime_ns)


def _fill(root: int, entries: Sequence[Entry], read: Content) -> None:
    links = [entry for entry in entries if entry.kind == "link"]
    for entry in entries:
        if entry.kind != "link":
            with parent_of(root, entry.path) as (parent, name):
                _make(parent, name, entry, read)
    for entry in links:
        with parent_of(root, entry.path) as (parent, name):
            os.symlink(entry.target, name, dir_fd=parent)
            os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=parent, follow_symlinks=False)
    for entry in reversed(entries):
        if entry.kind == "folder":
            with parent_of(root, entry.path) as (parent, name), folder_in(parent, name) as fd:
                _finish(fd, entry.mode, entry.mtime_ns)


def _make(parent: int, name: bytes, entry: Entry, read: Content) -> None:
    if entry.kind == "folder":
        os.mkdir(name, 0o700, dir_fd=parent)
        return
    if entry.kind == "file":
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
        try:
            for piece in read(entry):
                write_all(fd, memoryview(piece))
            _finish(fd, entry.mode, entry.mtime_ns)
        finally:
            os.close(fd)
        return
    os.mknod(name, (stat.S_IFIFO if entry.kind == "fifo" else stat.S_IFSOCK) | 0o600, dir_fd=parent)
    os.chmod(name, entry.mode, dir_fd=parent)
    os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=parent, follow_symlinks=False)


def _finish(fd: int, mode: int, mtime_ns: int) -> None:
    os.fchmod(fd, mode)
    os.utime(fd, ns=(mtime_ns, mtime_ns))
