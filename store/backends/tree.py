"""Reading and writing files below one folder, synchronously: every step of the local backend's promises, in order.

Rules.

1. An object appears whole or not at all: temporary file in the same folder, write, fsync, then `link` (create) or
   `rename` (put), then fsync of the folder. `link` is what makes a create exclusive; it never replaces.
2. A folder that this process has not used before is made durable in its parent before anything is written into it.
3. An error before the link or rename means that nothing changed. One after it (the fsync of the folder) means that the
   object is there but perhaps not after a power loss: OutcomeUnknown, and nothing is removed. No fsync is repeated.
4. A create that meets an existing object syncs the folder before it says so: whoever concludes "it is mine" or "the
   slot is taken" builds on something durable.
5. Nothing below the root is reached through a link: every path is walked from a descriptor of the root. The root itself
   may be a link, but once used it must stay the same folder, and it is never made here except by `make_root`.

Crash points: before the link or rename, a leftover `.<name>.<random>.tmp`; after a link the object too, under two names
until the leftover is deleted; before the fsync of the folder, the old or the new object.
"""

import errno
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import quote

from ..errors import (
    AccessDenied,
    AlreadyExists,
    BackendError,
    InvalidName,
    IOFailed,
    NoSpace,
    NotFound,
    OutcomeUnknown,
    RootMissing,
    StoreError,
    UnsafeObject,
    UnsupportedStore,
)
from .base import ObjectInfo
from .files import FileFacts, FileOps, Handle
from .keys import MAX_DEPTH, check_key, check_prefix, check_removable, is_key, is_temporary, real_name, stray_key

_log = logging.getLogger(__name__)

REWALKS = 32
"""How often a write walks down again because a concurrent delete took an empty folder away."""
_STEM_BYTES = 100
"""How much of the object's name a temporary name repeats, for people who look."""

Infos = list[ObjectInfo]
Paths = list[tuple[str, ...]]
"""In a class with a verb named `list`, these types need other names."""

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
_ERRORS: dict[int, type[BackendError]] = {
    errno.ENOENT: NotFound,
    errno.EEXIST: AlreadyExists,
    errno.EACCES: AccessDenied,
    errno.EPERM: AccessDenied,
    errno.EROFS: AccessDenied,
    errno.ENOSPC: NoSpace,
    errno.EDQUOT: NoSpace,
    errno.ELOOP: UnsafeObject,  # a link, met with O_NOFOLLOW
    errno.ENOTDIR: UnsafeObject,  # a link or a file where a folder should be
    errno.EISDIR: UnsafeObject,
    errno.ENXIO: UnsafeObject,  # a socket
    errno.ENODEV: UnsafeObject,
}


@contextmanager
def translate(operation: str, key: str) -> Iterator[None]:
    """Turn an OSError into one of ours: the only place that knows what an errno means to the store."""
    try:
        yield
    except OSError as error:
        code = error.errno or errno.EIO
        if code == errno.ENAMETOOLONG:
            raise InvalidName("key", key, "short enough for this file system") from error
        detail = "" if code in {errno.ENOENT, errno.EEXIST} else os.strerror(code)
        raise _ERRORS.get(code, IOFailed)(operation, key, detail) from error


def file_url(path: str) -> str:
    """The URL of an absolute path, which opens the same folder: what would mean something else in it is escaped."""
    escaped = "".join(char if char.isprintable() and char not in "%?#" else quote(os.fsencode(char)) for char in path)
    return f"file://{escaped.replace('::', ':%3A')}"


class Tree:
    """A folder of objects. Raises OSError, for `translate`, where no better error is known; see the module."""

    def __init__(self, root: str, ops: FileOps) -> None:
        """`root` is an absolute path; it need not exist yet."""
        self.root = root
        self.ops = ops
        self._root_identity: tuple[int, int] | None = None
        self._durable: set[tuple[str, tuple[int, int]]] = set()

    # Walking

    def _open_root(self, operation: str) -> Handle:
        try:
            root = self.ops.open_root(self.root)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise RootMissing(operation, self.root) from error
        try:
            self._check_root(operation, self.ops.stat_open(root).identity)
        except BaseException:
            self._close(root)
            raise
        return root

    def _check_root(self, operation: str, identity: tuple[int, int]) -> None:
        if self._root_identity not in (None, identity):
            raise RootMissing(operation, self.root, "another folder has taken its place")
        self._root_identity = identity

    @contextmanager
    def walk(self, operation: str, names: Sequence[str], *, make: bool = False) -> Iterator[list[Handle]]:
        """Open the root and each folder below it, making missing ones on request; yields all, outermost first."""
        with ExitStack() as stack:
            handles = [self._open_root(operation)]
            stack.callback(self._close, handles[0])
            for name in names:
                child = self._enter(handles[-1], name) if make else self.ops.open_folder(handles[-1], name)
                stack.callback(self._close, child)
                handles.append(child)
            yield handles

    def _enter(self, parent: Handle, name: str) -> Handle:
        """Open a folder, made if it is missing, and see to it once that its parent names it durably.

        Also where it was there already: another process may have made it a moment ago and not synced it yet.
        """
        try:
            child, made = self.ops.open_folder(parent, name), False
        except FileNotFoundError:
            with suppress(FileExistsError):  # somebody was faster
                self.ops.mkdir(parent, name)
            child, made = self.ops.open_folder(parent, name), True
        try:
            mark = (child.path, self.ops.stat_open(child).identity)
            if made or mark not in self._durable:
                self.ops.fsync(parent)
                self._durable.add(mark)
        except BaseException:
            self._close(child)
            raise
        return child

    def _close(self, handle: Handle) -> None:
        with suppress(OSError):  # nothing was written through it
            self.ops.close(handle)

    # Writing

    def write(self, operation: str, key: str, data: bytes, *, exclusive: bool) -> None:
        """Write an object durably: as a new one, or in place of any other."""
        *folders, name = check_key(key)
        try:
            for _ in range(REWALKS):
                if self._write_once(operation, key, data, folders, name, exclusive=exclusive):
                    return
        except AlreadyExists:
            raise
        except (OSError, StoreError):
            self._prune(folders)  # no empty folders in memory of a write that failed
            raise
        raise IOFailed(operation, key, "its folder was removed again and again while it was being written")

    def _write_once(
        self, operation: str, key: str, data: bytes, folders: Sequence[str], name: str, *, exclusive: bool
    ) -> bool:
        """False where a concurrent delete removed the folder before anything was written."""
        with ExitStack() as stack:
            try:
                folder = stack.enter_context(self.walk(operation, folders, make=True))[-1]
                file = self.ops.create_file(folder, _temporary_name(name))
            except FileNotFoundError:
                return False
            try:
                taken = self._publish(folder, file, data, name, exclusive=exclusive)
            except FileNotFoundError as error:
                raise IOFailed(operation, key, "its folder was removed while it was being written") from error
            self._settle(operation, key, folder, taken)
        return True

    def _publish(
        self, folder: Handle, file: Handle, data: bytes, name: str, *, exclusive: bool
    ) -> FileExistsError | None:
        """Write the temporary file and give it its name, or return the error that says that the name is taken."""
        temporary = os.path.basename(file.path)
        renamed = False
        try:
            with self.ops.closing(file):
                self._write_all(file, data)
                self.ops.fsync(file)
            if not exclusive:
                self.ops.rename(folder, temporary, name)
                renamed = True
                return None
            return self._link(folder, temporary, name)
        finally:
            if not renamed:
                self._discard(folder, temporary)

    def _link(self, folder: Handle, temporary: str, name: str) -> FileExistsError | None:
        try:
            self.ops.link(folder, temporary, name)
        except FileExistsError as taken:
            return taken
        except OSError as error:
            if error.errno in _NO_LINKS:  # it is our own file, so this is not about permissions
                hint = "Use a file system with hard links, or object storage"
                raise UnsupportedStore(file_url(self.root), "it has no hard links", hint=hint) from error
            raise
        return None

    def _write_all(self, file: Handle, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self.ops.write(file, rest) :]

    def _discard(self, folder: Handle, temporary: str) -> None:
        try:
            self.ops.unlink(folder, temporary)
        except OSError as error:  # a leftover is no reason to fail a write that has its outcome already
            _log.warning("could not remove the temporary file %s: %s", folder.child(temporary), error)

    def _settle(self, operation: str, key: str, folder: Handle, taken: FileExistsError | None) -> None:
        """Make the name durable, whoever gave it (rules 3 and 4)."""
        try:
            self.ops.fsync(folder)
        except OSError as error:
            if taken is None:
                raise OutcomeUnknown(operation, key, os.strerror(error.errno or errno.EIO)) from error
            raise
        if taken is not None:
            raise AlreadyExists(operation, key) from taken

    # Reading

    @contextmanager
    def open_object(self, operation: str, key: str) -> Iterator[tuple[Handle, FileFacts]]:
        """Open a regular file for reading; a folder is no object, anything else is refused."""
        *folders, name = check_key(key)
        with ExitStack() as stack:
            folder = stack.enter_context(self.walk(operation, folders))[-1]
            file = self.ops.open_file(folder, name)
            stack.callback(self._close, file)
            facts = self.ops.stat_open(file)
            if facts.is_folder:
                raise NotFound(operation, key)
            if not facts.is_regular:
                raise UnsafeObject(operation, key)
            yield file, facts

    def read(self, file: Handle, start: int, length: int) -> bytes:
        """Read up to `length` bytes; fewer where the file ends."""
        parts: list[bytes] = []
        while length > 0 and (part := self.ops.read(file, length, start)):
            parts.append(part)
            start += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def list(self, prefix: str, *, temporary: bool) -> list[ObjectInfo]:
        """Everything below a prefix that is not a folder, sorted; links are not followed.

        `temporary` picks the temporary files instead of the objects. What has a name that no key can have is among the
        objects, under an escaped one (`keys.stray_key`), and so is a folder that lies deeper than any key.
        """
        found: Infos = []
        pending = [check_prefix(prefix)]
        while pending:
            names = pending.pop()
            with suppress(FileNotFoundError), self.walk("list", names) as handles:  # gone since
                for name in self.ops.names(handles[-1]):
                    with suppress(FileNotFoundError):
                        self._list_name(handles[-1], (*names, name), temporary, pending, found)
        return sorted(found, key=lambda info: info.key)

    def _list_name(
        self,
        folder: Handle,
        names: tuple[str, ...],
        temporary: bool,
        pending: Paths,
        found: Infos,
    ) -> None:
        facts = self.ops.stat(folder, names[-1])
        if facts.is_folder and len(names) < MAX_DEPTH:
            pending.append(names)
            return
        key = "/".join(names)
        if (not facts.is_folder and is_temporary(names[-1]) and is_key(key, temporary=True)) != temporary:
            return
        if not temporary and not is_key(key):
            key = stray_key(names)
        found.append(ObjectInfo(key, facts.size, facts.modified_s))

    # Removing

    def remove(self, key: str) -> None:
        """Remove a name and the folders that it leaves empty; a missing one is no error, and a stray goes too."""
        names = check_removable(key)
        if not self._unlink(names):
            real = tuple(map(real_name, names))
            if real == names or not self._unlink(real):
                real = names
            names = real
        self._prune(names[:-1])

    def _unlink(self, names: Sequence[str]) -> bool:
        try:
            with self.walk("delete", names[:-1]) as handles:
                self.ops.unlink(handles[-1], names[-1])
        except FileNotFoundError:
            return False
        return True

    def _prune(self, folders: Sequence[str]) -> None:
        """Remove empty folders from the innermost outwards, as far as that goes; the root stays."""
        for depth in range(len(folders), 0, -1):
            try:
                with self.walk("delete", folders[: depth - 1]) as handles:
                    self.ops.rmdir(handles[-1], folders[depth - 1])
            except FileNotFoundError:
                continue
            except (OSError, BackendError):
                return


def _temporary_name(name: str) -> str:
    stem = name.encode()[:_STEM_BYTES].decode(errors="ignore")
    return f".{stem}.{secrets.token_hex(8)}.tmp"
