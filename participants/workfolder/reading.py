"""A working folder as a record: what is in it, and its files in packs that are read again only where they changed.

Large files are packs by themselves. Smaller ones, in the order of their paths, share packs of some 128 KiB, whose
borders follow from paths and sizes around them alone: so a change writes its own pack again, and not those behind it.

The digest of a pack is kept with what the file system says of its files: device, inode, size, and the times of change
of content and inode. A program cannot set the last one. Two changes within one tick of the file system's clock look the
same, so a digest is not kept where a file was changed so shortly before it was read.

A pack in a record is LazyBytes: a commit reads it from the folder, which nothing changes between the export and the
commit, and refuses it where its digest has become another one.
"""

import hashlib
import os
import stat
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from store import LazyBytes

from .beneath import file_in, folder_in, parent_of, pieces_of, root_of
from .entries import MAX_DEPTH, PERMISSIONS, VERSION, BadFolder, Entry, FolderLimits, Kind, check_path

ALONE_BYTES = 64 << 10
"""A file of at least so many bytes is a pack by itself."""
PACK_BYTES, MAX_PACK_BYTES = 96 << 10, 1 << 20
"""From the first on a pack ends behind one path of eight, at the second it ends in any case."""
TICK_NS = 100_000_000
"""Ten times the longest tick of a local file system's clock on Linux."""
Identity = tuple[int, int, int, int, int]
_KINDS: Mapping[int, Kind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}


@dataclass(frozen=True, slots=True)
class Found:
    """One thing in a folder, and what tells whether it is still the same."""

    entry: Entry
    identity: Identity

    @property
    def changed_ns(self) -> int:
        """When it was changed last, by the file system's clock."""
        return self.identity[-1]


Digests = dict[tuple[Identity, ...], str]
"""Of packs, by their files."""


def walk(root: int, limits: FolderLimits) -> list[Found]:
    """All that is in a folder, in the order of a record. Raises BadFolder for what a record cannot have."""
    found: list[Found] = []
    total = 0
    for each in _walk(root, b"", 1):
        found.append(each)
        total += each.entry.size
        if len(found) > limits.entries:
            raise BadFolder(f"the folder has more than {limits.entries} entries")
        if total > limits.bytes:
            raise BadFolder(f"the folder's files have more than {limits.bytes} bytes")
    return sorted(found, key=lambda each: each.entry.path)


def _walk(fd: int, prefix: bytes, depth: int) -> Iterator[Found]:
    with os.scandir(fd) as children:
        names = [os.fsencode(each.name) for each in children]
    for name in names:
        path = check_path(prefix + name)
        facts = os.stat(name, dir_fd=fd, follow_symlinks=False)
        kind = _KINDS.get(stat.S_IFMT(facts.st_mode))
        if kind is None:
            raise BadFolder(f"{path[:200]!r} is a device, which no record can have")
        target = os.readlink(name, dir_fd=fd) if kind == "link" else b""
        size = facts.st_size if kind == "file" else 0
        entry = Entry(path, kind, facts.st_mode & PERMISSIONS, facts.st_mtime_ns, size, target)
        times = facts.st_mtime_ns, facts.st_ctime_ns
        yield Found(entry, (facts.st_dev, facts.st_ino, facts.st_size, *times))
        if kind == "folder":
            if depth == MAX_DEPTH:
                raise BadFolder(f"the folder is more than {MAX_DEPTH} deep")
            with folder_in(fd, name) as child:
                yield from _walk(child, path + b"/", depth + 1)


def packs_of(found: Sequence[Found]) -> list[list[Found]]:
    """The files that are not empty, in order, as packs."""
    packs: list[list[Found]] = []
    size = MAX_PACK_BYTES
    for each in found:
        if not each.entry.size:
            continue
        large = each.entry.size >= ALONE_BYTES
        if size >= MAX_PACK_BYTES or large:
            packs.append([])
            size = 0
        packs[-1].append(each)
        size += each.entry.size
        if large or (size >= PACK_BYTES and zlib.crc32(each.entry.path) % 8 == 0):
            size = MAX_PACK_BYTES
    return packs


def export(folder: Path, limits: FolderLimits, digests: Digests, now: Callable[[], int] = time.time_ns) -> Any:
    """The record of a folder; `digests` are those of its last export, and then of this one. Blocks.

    Raises BadFolder and OSError.
    """
    facts = folder.lstat()  # Before it is opened, which may want more than its mode.
    with root_of(folder) as root:
        found = walk(root, limits)
        known, kept = digests.copy(), Digests()
        packs = []
        for pack in packs_of(found):
            key = tuple(each.identity for each in pack)
            began = now()
            digest = known.get(key) or _digest(root, pack)
            if all(each.changed_ns < began - TICK_NS for each in pack):
                kept[key] = digest
            packs.append(LazyBytes(digest, sum(each.entry.size for each in pack), partial(_read, folder, pack)))
    digests.clear()
    digests.update(kept)
    return {
        "version": VERSION,
        "root": [facts.st_mode & PERMISSIONS, facts.st_mtime_ns],
        "entries": [each.entry.row() for each in found],
        "packs": packs,
    }


def _digest(root: int, pack: Sequence[Found]) -> str:
    digest = hashlib.sha256()
    for each in pack:
        for piece in content(root, each.entry):
            digest.update(piece)
    return digest.hexdigest()


def content(root: int, entry: Entry) -> Iterator[bytes]:
    """What is in a file. Raises BadFolder where its size is not that of the entry."""
    size = 0
    with parent_of(root, entry.path) as (parent, name), file_in(parent, name) as fd:
        for piece in pieces_of(fd):
            size += len(piece)
            if size > entry.size:
                break
            yield piece
    if size != entry.size:
        raise BadFolder(f"{entry.path[:200]!r} was changed while it was read")


def _read(folder: Path, pack: Sequence[Found]) -> bytes:
    with root_of(folder) as root:
        return b"".join(piece for each in pack for piece in content(root, each.entry))
