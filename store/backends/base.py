"""The narrow interface between the store and whatever keeps its objects: a few verbs, one promise each.

A key is a relative path of plain names joined by `/` (see `store.layout`, the only place that makes one). An object is
bytes, written whole by one request and never changed in place.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing or a look at one object tells."""

    key: str
    size: int
    """Bytes."""
    modified_s: float
    """When the store says it was written, in seconds of the store's own clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a backend can do, as declared by its class and then tried by the probe."""

    scheme: str
    conditional_create: bool = True
    """`create` is exclusive between processes and hosts."""
    host_lock: bool = False
    """`lock` works between the processes of one host."""
    durable_when_seen: bool = True
    """What a reader sees survives a power loss. Where not, a `create` that meets an object makes sure of it."""


class Backend(Protocol):
    """Keeps objects. Methods may raise the `BackendError`s of `store.errors`; cancellation is safe at every await."""

    @property
    def url(self) -> str:
        """The root, for messages; holds no credentials."""

    @property
    def traits(self) -> Traits:
        """What this backend can do."""

    async def create(self, key: str, data: bytes) -> None:
        """Write a new object, durably, unless the key is taken.

        Of any number of concurrent calls for one key exactly one succeeds. Raises AlreadyExists where the key is
        taken, perhaps by an earlier try of this very call: a caller that retries compares the content. No reader ever
        sees part of an object. Raises TransientError(applied=None) where the outcome is unknown.
        """

    async def put(self, key: str, data: bytes) -> None:
        """Write an object, durably, in place of any other with this key; readers see the old or the new, whole."""

    async def get(self, key: str, *, max_bytes: int) -> bytes:
        """Read a whole object; ObjectTooLarge before reading more than `max_bytes`, NotFound where there is none.

        Never answered from a cache, in particular not a NotFound.
        """

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read `length` bytes from offset `start`. Fewer come back where the object is shorter."""

    async def stat(self, key: str) -> ObjectInfo:
        """Look at one object without reading it; NotFound where there is none; never from a cache."""

    async def list(self, prefix: str) -> list[ObjectInfo]:
        """All objects whose key starts with `prefix` (which ends in `/` or is empty), sorted by key.

        On object storage a listing may be stale or partial: it is a hint where to look and never proof of absence.
        """

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; a missing one is no error. Folders left empty below the root go too, the root stays."""

    def lock(self, key: str) -> AbstractAsyncContextManager[bool]:
        """Hold an advisory lock of this host while the context is open; yields whether it was free.

        Released by the operating system when the process dies. Where `traits.host_lock` is False it yields True and
        protects nothing.
        """

    async def aclose(self) -> None:
        """Release connections; the backend is not used afterwards."""
