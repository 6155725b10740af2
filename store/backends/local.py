"""Objects as files below a folder of this host: the async shell around `tree`, which holds the rules.

Each verb is one hop to a worker thread, however large the object. Cancellation waits for that thread, so that a
cancelled write has happened whole or not at all, and has cleaned up, before its caller goes on. A system call that the
kernel never returns from is the one thing that no deadline can cut off here.
"""

import fcntl
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import anyio
import anyio.to_thread

from ..errors import BackendError, IOFailed, ObjectTooLarge, UnsafeObject
from ..limits import DEFAULT_LIMITS, Limits
from .base import ObjectInfo, Traits
from .files import FileOps, Handle
from .keys import check_key, check_removable
from .tree import REWALKS, Tree, file_url, translate

Listing = list[ObjectInfo]
"""In a class with a verb named `list`, the type needs another name."""
Handles = list[Handle]
T = TypeVar("T")


class LocalBackend:
    """Keeps objects as files below a folder."""

    def __init__(
        self, root: str | os.PathLike[str], ops: FileOps | None = None, *, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        """`root` is a path, made absolute now; `ops` are the system calls, for tests to replace."""
        self._tree = Tree(os.path.abspath(os.fspath(root)), ops if ops is not None else FileOps())
        self._threads = anyio.CapacityLimiter(limits.requests_in_flight)

    def __repr__(self) -> str:
        return f"<LocalBackend {self.root}>"

    @property
    def url(self) -> str:
        """The root, for messages."""
        return file_url(self.root)

    @property
    def root(self) -> str:
        """The root as an absolute path."""
        return self._tree.root

    @property
    def traits(self) -> Traits:
        """What this backend can do."""
        return Traits(scheme="file", host_lock=True, durable_when_seen=False)

    async def make_root(self) -> None:
        """Make the root folder, durably, unless it is there."""
        await self._in_thread("make_root", self.root, lambda: self._tree.ops.make_root(self.root))

    async def create(self, key: str, data: bytes) -> None:
        """Write a new object unless the key is taken."""
        await self._in_thread("create", key, lambda: self._tree.write("create", key, data, exclusive=True))

    async def put(self, key: str, data: bytes) -> None:
        """Write an object in place of any other with this key."""
        await self._in_thread("put", key, lambda: self._tree.write("put", key, data, exclusive=False))

    async def get(self, key: str, *, max_bytes: int) -> bytes:
        """Read a whole object."""

        def read() -> bytes:
            with self._tree.open_object("get", key) as (file, facts):
                if facts.size > max_bytes:
                    reason = f"{facts.size} bytes where at most {max_bytes} are allowed"
                    raise ObjectTooLarge("get", key, reason)
                return self._tree.read(file, 0, facts.size)

        return await self._in_thread("get", key, read)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read `length` bytes from offset `start`, or as many as there are."""

        def read() -> bytes:
            with self._tree.open_object("get_range", key) as (file, facts):
                return self._tree.read(file, start, min(length, facts.size - start))

        return await self._in_thread("get_range", key, read)

    async def stat(self, key: str) -> ObjectInfo:
        """Look at one object without reading it."""

        def look() -> ObjectInfo:
            with self._tree.open_object("stat", key) as (_, facts):
                return ObjectInfo(key, facts.size, facts.modified_s)

        return await self._in_thread("stat", key, look)

    async def list(self, prefix: str) -> list[ObjectInfo]:
        """All objects below a prefix, sorted; links and devices are shown, not followed, temporary files hidden.

        A file that no key can name is listed under an escaped name, so that it can be told and deleted, not read.
        """
        return await self._in_thread("list", prefix, lambda: self._tree.list(prefix, temporary=False))

    async def list_leftovers(self) -> Listing:
        """The temporary files of writes that are in progress or died; `delete` takes their keys."""
        return await self._in_thread("list", "", lambda: self._tree.list("", temporary=True))

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects and the folders they leave empty; goes through all keys before it raises the first error."""

        def remove() -> None:
            failures = [failure for key in keys if (failure := self._remove(key)) is not None]
            if failures:
                raise failures[0]

        for key in keys:
            check_removable(key)
        await self._in_thread("delete", "", remove)

    def lock(self, key: str) -> AbstractAsyncContextManager[bool]:
        """Hold `flock` on a file of the store while the context is open; yields whether it was free."""
        check_key(key)
        return self._hold(key)

    async def aclose(self) -> None:
        """Do nothing: no descriptor outlives a call, except those of open locks."""

    async def _in_thread(self, operation: str, key: str, work: Callable[[], T]) -> T:
        def run() -> T:
            with translate(operation, key):
                return work()

        return await anyio.to_thread.run_sync(run, limiter=self._threads)

    def _remove(self, key: str) -> BackendError | None:
        try:
            with translate("delete", key):
                self._tree.remove(key)
        except BackendError as error:
            return error
        return None

    @asynccontextmanager
    async def _hold(self, key: str) -> AsyncIterator[bool]:
        held: Handles = []  # filled by the thread, so that a cancellation right after it loses no descriptor
        try:
            await self._in_thread("lock", key, lambda: self._lock(key, held))
            yield bool(held)
        finally:
            for handle in held:
                self._tree.ops.close(handle)  # releases it

    def _lock(self, key: str, held: Handles) -> None:
        *folders, name = check_key(key)
        for _ in range(REWALKS):
            try:
                with self._tree.walk("lock", folders, make=True) as handles:
                    if self._lock_file(handles[-1], name, held):
                        return
            except FileNotFoundError:
                continue  # the folder or the file was removed meanwhile: a lock on it would exclude nobody
        raise IOFailed("lock", key, "its file was removed again and again")

    def _lock_file(self, folder: Handle, name: str, held: Handles) -> bool:
        """Try once; False where the file that was locked is no longer the one that others would open."""
        ops = self._tree.ops
        handle = ops.open_lock(folder, name)
        try:
            if not ops.stat_open(handle).is_regular:
                raise UnsafeObject("lock", handle.path)
            fcntl.flock(handle.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if ops.stat(folder, name).identity != ops.stat_open(handle).identity:
                ops.close(handle)
                return False
        except BlockingIOError:
            ops.close(handle)
            return True
        except BaseException:
            ops.close(handle)
            raise
        held.append(handle)
        return True
