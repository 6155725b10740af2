"""Objects in any fsspec file system with an async API; `s3` specialises it for S3, which alone is complete.

What other schemes get (gcs, azure and so on): every verb by the file system's own `_pipe_file`, `_cat_file`, `_info`,
`_find` and `_rm_file`; exclusive create only where `_pipe_file(mode="create")` really is conditional, which the probe
tries at opening; the retries, chunking and caches of that file system, save the listing cache, which is switched
off here; errors told apart only as well as Python's own exceptions do.

The file system is used from the caller's event loop. Its sync API is never used, from a thread or otherwise.
"""

import inspect
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.registry import known_implementations

from ..errors import InvalidInput, InvalidStoreURL, MissingExtra, NotFound, ObjectTooLarge
from ..limits import DEFAULT_LIMITS, Limits
from .base import Backend, ObjectInfo, Traits
from .keys import check_key, check_prefix, is_key
from .object_errors import translate

_EXTRAS = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
}
_TIME_FIELDS = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")
Listing = list[ObjectInfo]
"""In a class with a verb named `list`, the type needs another name."""


def make_object_backend(
    scheme: str,
    bucket: str,
    prefix: str,
    *,
    limits: Limits = DEFAULT_LIMITS,
    storage_options: Mapping[str, Any],
) -> Backend:
    """The backend for a URL of the form `<scheme>://<bucket>/<prefix>`; opens no connection yet."""
    url = f"{scheme}://{bucket}/{prefix}".rstrip("/")
    if scheme not in known_implementations:
        raise InvalidStoreURL(url, f"the scheme {scheme} is unknown")
    try:
        kind = fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise MissingExtra(scheme, _EXTRAS.get(scheme, scheme)) from error
    if scheme in {"s3", "s3a"}:
        from .s3 import S3Backend  # only now: it needs the extra

        return S3Backend(bucket, prefix, limits=limits, storage_options=storage_options)
    if not issubclass(kind, AsyncFileSystem):
        raise InvalidStoreURL(url, f"the file system for {scheme} has no async API")
    options = {
        **storage_options,
        "asynchronous": True,
        "skip_instance_cache": True,
        "use_listings_cache": False,
    }
    try:
        filesystem = kind(**options)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the file system for {scheme} refuses its options: {error}") from error
    return ObjectBackend(filesystem, str(kind._strip_protocol(url)).strip("/"), scheme=scheme)


class ObjectBackend:
    """Keeps objects through an asynchronous fsspec file system."""

    def __init__(self, filesystem: AsyncFileSystem, root: str, *, scheme: str) -> None:
        """`root` is the path of the store in the file system, bucket first; for HTTP it is the URL."""
        self._fs = filesystem
        self._root = root.rstrip("/")
        self._scheme = scheme

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def url(self) -> str:
        """The root, for messages; holds no credentials."""
        return self._root if "://" in self._root else f"{self._scheme}://{self._root.lstrip('/')}"

    @property
    def traits(self) -> Traits:
        """What this backend can do, as far as its class can tell."""
        return Traits(scheme=self._scheme)

    async def create(self, key: str, data: bytes) -> None:
        """Write a new object unless the key is taken."""
        check_key(key)
        with translate("create", key, self.url):
            await self._fs._pipe_file(self._path(key), data, mode="create")

    async def put(self, key: str, data: bytes) -> None:
        """Write an object in place of any other with this key."""
        check_key(key)
        with translate("put", key, self.url):
            await self._fs._pipe_file(self._path(key), data, mode="overwrite")

    async def get(self, key: str, *, max_bytes: int) -> bytes:
        """Read a whole object, after a look at its size."""
        size = (await self.stat(key)).size
        if size > max_bytes:
            raise ObjectTooLarge("get", key, f"{size} bytes where at most {max_bytes} are allowed")
        with translate("get", key, self.url):
            return bytes(await self._fs._cat_file(self._path(key), start=0, end=size) if size else b"")

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read `length` bytes from offset `start`, or as many as there are."""
        size = (await self.stat(key)).size
        if start >= size or length <= 0:
            return b""
        with translate("get_range", key, self.url):
            return bytes(await self._fs._cat_file(self._path(key), start=start, end=min(size, start + length)))

    async def stat(self, key: str) -> ObjectInfo:
        """Look at one object without reading it."""
        check_key(key)
        with translate("stat", key, self.url):
            found = await self._fs._info(self._path(key))
            if found["type"] != "file":
                raise NotFound("stat", key)
            return ObjectInfo(key, int(found["size"]), _time_of(found))

    async def list(self, prefix: str) -> Listing:
        """All objects below a prefix, sorted; may be stale."""
        check_prefix(prefix)
        with translate("list", prefix, self.url):
            try:
                found = await self._fs._find(self._path(prefix.rstrip("/")).rstrip("/"), detail=True)
            except FileNotFoundError:
                return []
        infos = (self._listed(name, entry) for name, entry in found.items())
        return sorted((info for info in infos if info is not None), key=lambda info: info.key)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects one by one; a missing one is no error."""
        for key in keys:
            check_key(key, temporary=True)
            with translate("delete", key, self.url), suppress(FileNotFoundError):
                await self._fs._rm_file(self._path(key))

    def lock(self, key: str) -> AbstractAsyncContextManager[bool]:
        """Yield True and protect nothing: there is no lock of a host in object storage."""
        check_key(key)
        return _no_lock()

    async def aclose(self) -> None:
        """Close the session of the file system, where it has one."""
        session = getattr(self._fs, "_session", None)
        close = getattr(session, "close", None)
        if close is not None and inspect.isawaitable(closing := close()):
            await closing

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _listed(self, name: str, entry: Mapping[str, Any]) -> ObjectInfo | None:
        key = name.strip("/").removeprefix(self._root.strip("/") + "/")
        if entry.get("type") != "file" or not is_key(key):
            return None
        return ObjectInfo(key, int(entry["size"]), _time_of(entry))


@asynccontextmanager
async def _no_lock() -> AsyncIterator[bool]:
    yield True


def _time_of(entry: Mapping[str, Any]) -> float:
    """When the store says that an object was written; 0 where it does not say."""
    value = next((entry[field] for field in _TIME_FIELDS if entry.get(field)), 0.0)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return float(value)
