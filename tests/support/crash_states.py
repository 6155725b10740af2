"""What a disk may hold after a power loss, worked out from a log of file operations.

The model is harsher than any one file system and allows what POSIX allows.

1. A file's content is certain up to its last fsync. What was written after it may be there, be missing (zero length),
   be zeros of the same length, or stop half way.
2. A change of a folder (create, link, rename, unlink, mkdir, rmdir) is certain once that folder was synced after it.
   Until then any subset of such changes may have reached the disk, in no order. A rename is one change.
3. A folder whose own name was lost takes everything below it along, synced or not.
"""

import os
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from pathlib import Path

from store.backends import FileOp

Image = dict[str, bytes | None]
"""A whole folder: path to content, None for a folder; without the empty path where the root itself is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How far to go where there are too many states to try them all."""

    exhaustive: int
    """Up to so many changes in the air every subset of them is tried; of more, the telling ones and a sample."""
    sample: int
    """How many seeded random subsets of a larger set are tried."""
    go_on_each: int
    """The next round is tried on each n-th different state."""
    seed: int = 7


QUICK = Effort(exhaustive=3, sample=2, go_on_each=5)
THOROUGH = Effort(exhaustive=7, sample=25, go_on_each=3)


@dataclass(slots=True, eq=False)
class _File:
    data: bytes = b""
    synced: bytes = b""

    @property
    def torn(self) -> list[bytes]:
        """What may be found in place of the content that is not synced."""
        if self.data == self.synced:
            return []
        size = len(self.data)
        return [text for text in dict.fromkeys((self.synced, bytes(size), self.data[: size // 2])) if text != self.data]


@dataclass(slots=True, eq=False)
class _Folder:
    names: dict[str, "_Node"] = field(default_factory=dict)
    synced: dict[str, "_Node"] = field(default_factory=dict)


_Node = _File | _Folder


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    folder: _Folder
    adds: str = ""
    node: _Node | None = None
    removes: str = ""

    def apply(self, names: dict[str, _Node]) -> None:
        if self.removes:
            names.pop(self.removes, None)
        if self.node is not None:
            names[self.adds] = self.node


class Disk:
    """A folder as the kernel sees it, and which part of it is certain to survive."""

    def __init__(self, image: Image) -> None:
        """Everything in `image` is on the disk for certain."""
        self._above = _Folder()
        self._changes: list[_Change] = []
        for path, content in sorted(image.items()):
            self._place(path, content)

    def _place(self, path: str, content: bytes | None) -> None:
        folder, name = self._find(path)
        node = _Folder() if content is None else _File(content, content)
        folder.names[name] = folder.synced[name] = node

    def _find(self, path: str) -> tuple[_Folder, str]:
        """The folder that holds a path, and the last name; the root is a name in a folder of its own."""
        names = ["", *path.split("/")] if path else [""]
        folder = self._above
        for name in names[:-1]:
            child = folder.names[name]
            assert isinstance(child, _Folder)
            folder = child
        return folder, names[-1]

    def apply(self, op: FileOp) -> bool:
        """Take one operation that succeeded; False where it changes nothing about what survives."""
        match op.name:
            case "make_root" | "mkdir":
                return self._change(op.path, _Folder())
            case "create_file":
                return self._change(op.path, _File())
            case "open_lock":
                folder, name = self._find(op.path)
                return name not in folder.names and self._change(op.path, _File())
            case "link" | "rename":
                folder, name = self._find(op.path)
                old = name if op.name == "rename" else ""
                return self._change(op.target, folder.names[name], old)
            case "unlink" | "rmdir":
                return self._change(op.path, None, self._find(op.path)[1])
            case "write":
                return self._write(op)
            case "fsync":
                return self._sync(op.path)
            case _:
                return False

    def _change(self, path: str, node: _Node | None, removes: str = "") -> bool:
        folder, name = self._find(path)
        change = _Change(folder, name, node, removes)
        change.apply(folder.names)
        self._changes.append(change)
        return True

    def _write(self, op: FileOp) -> bool:
        folder, name = self._find(op.path)
        file = folder.names[name]
        assert isinstance(file, _File)
        file.data += op.data
        return True

    def _sync(self, path: str) -> bool:
        if path == "..":
            node: _Node = self._above
        else:
            folder, name = self._find(path)
            node = folder.names[name]
        if isinstance(node, _File):
            node.synced = node.data
        else:
            node.synced = dict(node.names)
            self._changes = [change for change in self._changes if change.folder is not node]
        return True

    def image(self) -> Image:
        """What a process sees now; also what a killed process leaves behind."""
        return _image(self._above, {}, {}) if not self._changes else self._survivor(range(len(self._changes)), {})

    def states(self, effort: Effort) -> Iterator[Image]:
        """Every state that this moment may leave on the disk (see the module), repetitions included."""
        for kept in _subsets(len(self._changes), effort):
            yield self._survivor(kept, {})
            yield from self._torn(kept)

    def _torn(self, kept: Sequence[int]) -> Iterator[Image]:
        files = [file for file in self._reachable(kept) if file.torn]
        for file in files:
            for text in file.torn:
                yield self._survivor(kept, {file: text})
        if len(files) > 1:
            for position in range(3):
                yield self._survivor(kept, {file: file.torn[position % len(file.torn)] for file in files})

    def _entries(self, kept: Iterable[int]) -> dict[_Folder, dict[str, _Node]]:
        """The names of each folder with changes in the air, where only `kept` survive."""
        entries = {change.folder: dict(change.folder.synced) for change in self._changes}
        for position in kept:
            change = self._changes[position]
            change.apply(entries[change.folder])
        return entries

    def _survivor(self, kept: Iterable[int], torn: dict[_File, bytes]) -> Image:
        return _image(self._above, self._entries(kept), torn)

    def _reachable(self, kept: Iterable[int]) -> list[_File]:
        entries, found = self._entries(kept), dict[_File, None]()
        folders = [self._above]
        while folders:
            folder = folders.pop()
            for node in entries.get(folder, folder.names).values():
                if isinstance(node, _Folder):
                    folders.append(node)
                else:
                    found[node] = None
        return list(found)


def _image(above: _Folder, entries: dict[_Folder, dict[str, _Node]], torn: dict[_File, bytes]) -> Image:
    image: Image = {}

    def walk(folder: _Folder, prefix: str) -> None:
        for name, node in entries.get(folder, folder.names).items():
            path = prefix + name
            if isinstance(node, _File):
                image[path] = torn.get(node, node.data)
            else:
                image[path] = None
                walk(node, f"{path}/" if path else "")

    walk(above, "")
    return image


def _subsets(count: int, effort: Effort) -> Iterator[Sequence[int]]:
    """All subsets of a small set; of a larger one none, all, each prefix, each single, each without one, a sample."""
    everything = range(count)
    if count <= effort.exhaustive:
        yield from chain.from_iterable(combinations(everything, size) for size in range(count + 1))
        return
    yield from (range(size) for size in range(count + 1))
    yield from ([position] for position in everything)
    yield from ([other for other in everything if other != position] for position in everything)
    chance = random.Random(f"{effort.seed} {count}")
    for _ in range(effort.sample):
        yield [position for position in everything if chance.random() < 0.5]


def read_image(root: Path) -> Image:
    """The folder as it is; links and devices have no place here."""
    image: Image = {"": None}
    for folder, folders, files in os.walk(root):
        for name in folders:
            image[(Path(folder) / name).relative_to(root).as_posix()] = None
        for name in files:
            path = Path(folder) / name
            image[path.relative_to(root).as_posix()] = path.read_bytes()
    return image


def write_image(image: Image, root: Path) -> None:
    """Make a folder like this."""
    for path, content in sorted(image.items()):
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)
