"""A backend that counts the requests that go through it, verb by verb."""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from .base import Backend, ObjectInfo, Traits

Infos = list[ObjectInfo]
"""In a class with a verb named `list`, the type needs another name."""


@dataclass(slots=True)
class CountingBackend:
    """Passes every call on, one request each; locks are no requests."""

    inner: Backend
    requests: Counter[str] = field(default_factory=Counter)

    @property
    def url(self) -> str:
        """The root, for messages."""
        return self.inner.url

    @property
    def traits(self) -> Traits:
        """What the wrapped backend can do."""
        return self.inner.traits

    async def create(self, key: str, data: bytes) -> None:
        """Count a create."""
        self.requests["create"] += 1
        await self.inner.create(key, data)

    async def put(self, key: str, data: bytes) -> None:
        """Count a put."""
        self.requests["put"] += 1
        await self.inner.put(key, data)

    async def get(self, key: str, *, max_bytes: int) -> bytes:
        """Count a get."""
        self.requests["get"] += 1
        return await self.inner.get(key, max_bytes=max_bytes)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Count a get of a range."""
        self.requests["get_range"] += 1
        return await self.inner.get_range(key, start, length)

    async def stat(self, key: str) -> ObjectInfo:
        """Count a look."""
        self.requests["stat"] += 1
        return await self.inner.stat(key)

    async def list(self, prefix: str) -> Infos:
        """Count a listing."""
        self.requests["list"] += 1
        return await self.inner.list(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        """Count a delete."""
        self.requests["delete"] += 1
        await self.inner.delete(keys)

    def lock(self, key: str) -> AbstractAsyncContextManager[bool]:
        """Pass it on."""
        return self.inner.lock(key)

    async def aclose(self) -> None:
        """Pass it on."""
        await self.inner.aclose()
