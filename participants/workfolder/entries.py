"""What a working folder holds, and its form in a record, which is untrusted when it is read back.

    {"version": 1, "root": [mode, mtime_ns], "packs": [bytes, ...],
     "entries": [[path, kind, mode, mtime_ns, extra], ...]}

Paths are relative, their names joined by `/`, and stand in strictly ascending order of their bytes, so that a folder
comes before what is in it and nothing comes twice. One that is not UTF-8 stands as bytes. `extra` is the size of a
`file`, the target of a `link`, and null for a `folder`, `fifo` or `socket`. The contents of the files, in the order of
the entries, are those of the packs, one after another; no file lies in two packs.

Modes have the nine bits of permission and no others: set-uid, set-gid and sticky bits are dropped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

Kind = Literal["file", "folder", "link", "fifo", "socket"]
KINDS = frozenset(get_args(Kind))
VERSION = 1
MAX_DEPTH = 64
"""Names in a path."""
MAX_NAME, MAX_PATH, MAX_TARGET = 255, 4095, 4095
"""Bytes."""
PERMISSIONS = 0o777
_TIMES = range(-(2**63), 2**63)


class BadFolder(ValueError):
    """A folder, or a record of one, that is not exported or not imported; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderLimits:
    """How much one folder may hold."""

    entries: int = 100_000
    bytes: int = 256 << 20
    """Of all its files together."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in a folder."""

    path: bytes
    kind: Kind
    mode: int
    mtime_ns: int
    size: int = 0
    """Of a file."""
    target: bytes = b""
    """Of a link."""

    def row(self) -> list[Any]:
        """As it stands in a record."""
        extra = {"file": self.size, "link": _written(self.target)}.get(self.kind)
        return [_written(self.path), self.kind, self.mode, self.mtime_ns, extra]


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder as a record has it, checked."""

    mode: int
    mtime_ns: int
    entries: Sequence[Entry]
    contents: Mapping[bytes, memoryview]
    """Of each file that is not empty."""

    def read(self, entry: Entry) -> Iterator[memoryview]:
        """The content of a file."""
        if entry.size:
            yield self.contents[entry.path]


def check_path(path: bytes) -> bytes:
    """The path itself. Raises BadFolder for one that is not plainly below its folder."""
    names = path.split(b"/")
    if len(path) > MAX_PATH or len(names) > MAX_DEPTH:
        raise BadFolder(f"the path {path[:80]!r}... has {len(path)} bytes and {len(names)} names")
    for name in names:
        if name in (b"", b".", b"..") or b"\0" in name or len(name) > MAX_NAME:
            raise BadFolder(f"the path {path[:200]!r} has the name {name[:80]!r}")
    return path


def tree_of(exported: Any, limits: FolderLimits) -> Tree:
    """A folder from its record. Raises BadFolder, whatever the record holds."""
    try:
        if exported["version"] != VERSION:
            raise BadFolder(f"the record's version is {exported['version']!r:.20}, and this knows {VERSION}")
        (mode, mtime_ns), rows, packs = exported["root"], exported["entries"], exported["packs"]
        if len(rows) > limits.entries:
            raise BadFolder(f"the record has {len(rows)} entries, and the limit is {limits.entries}")
        entries = [_entry(*row) for row in rows]
    except BadFolder:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise BadFolder(f"the record is malformed: {error!r:.200}") from error
    _check_order(entries)
    _check_facts(mode, mtime_ns)
    return Tree(mode & PERMISSIONS, mtime_ns, entries, _contents(entries, packs, limits))


def _entry(path: Any, kind: Any, mode: Any, mtime_ns: Any, extra: Any) -> Entry:
    if kind not in KINDS:
        raise BadFolder(f"there is no kind {kind!r:.40}")
    _check_facts(mode, mtime_ns)
    entry = Entry(check_path(_parsed(path)), kind, mode & PERMISSIONS, mtime_ns)
    if kind == "file":
        if type(extra) is not int or extra < 0:
            raise BadFolder(f"the size of {entry.path!r:.200} is {extra!r:.40}")
        return Entry(entry.path, kind, entry.mode, mtime_ns, size=extra)
    if kind == "link":
        target = _parsed(extra)
        if not 0 < len(target) <= MAX_TARGET or b"\0" in target:
            raise BadFolder(f"the target of {entry.path!r:.200} is {target[:80]!r}")
        return Entry(entry.path, kind, entry.mode, mtime_ns, target=target)
    if extra is not None:
        raise BadFolder(f"{entry.path!r:.200} is a {kind} with {extra!r:.40}")
    return entry


def _check_facts(mode: Any, mtime_ns: Any) -> None:
    if type(mode) is not int or not 0 <= mode <= 0o7777:
        raise BadFolder(f"a mode is {mode!r:.40}")
    if type(mtime_ns) is not int or mtime_ns not in _TIMES:
        raise BadFolder(f"a time is {mtime_ns!r:.40}")


def _check_order(entries: Sequence[Entry]) -> None:
    """Each path once, and in a folder that the record has: so never below a link or a file."""
    folders, last = {b""}, b""
    for entry in entries:
        if entry.path <= last:
            raise BadFolder(f"{entry.path[:200]!r} comes after {last[:200]!r}")
        last = entry.path
        parent = entry.path.rpartition(b"/")[0]
        if parent not in folders:
            raise BadFolder(f"{entry.path[:200]!r} is in no folder of the record")
        if entry.kind == "folder":
            folders.add(entry.path)


def _contents(entries: Sequence[Entry], packs: Any, limits: FolderLimits) -> dict[bytes, memoryview]:
    if type(packs) is not list or not all(type(pack) is bytes and pack for pack in packs):
        raise BadFolder("the record's packs are no list of bytes")
    total = sum(map(len, packs))
    if total > limits.bytes:
        raise BadFolder(f"the record's files have {total} bytes, and the limit is {limits.bytes}")
    contents: dict[bytes, memoryview] = {}
    rest, left = memoryview(b""), iter(packs)
    for entry in entries:
        if not entry.size:
            continue
        if not rest:
            rest = memoryview(next(left, b""))
        if entry.size > len(rest):
            raise BadFolder(f"{entry.path[:200]!r} has {entry.size} bytes, and its pack ends after {len(rest)}")
        contents[entry.path], rest = rest[: entry.size], rest[entry.size :]
    if rest or next(left, None) is not None:
        raise BadFolder("the record's packs have more than its files")
    return contents


def _written(path: bytes) -> str | bytes:
    try:
        return path.decode()
    except UnicodeDecodeError:
        return path


def _parsed(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if type(value) is not str:
        raise BadFolder(f"a path is {value!r:.80}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise BadFolder(f"a path is no text: {error}") from error
