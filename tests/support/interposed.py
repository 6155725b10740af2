"""A backend in memory that lets something else happen right before its n-th call, to try every order of two works."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from store import Backend, ObjectInfo, Traits

Happens = Callable[[], Awaitable[None]]


class InterposedBackend:
    """Passes everything on to `inner`; `happens` runs once, before the n-th call."""

    def __init__(self, inner: Backend, nth: int, happens: Happens) -> None:
        self.inner = inner
        self.left = nth
        """Calls until it happens; at most 0 once it has."""
        self._happens = happens

    async def _before(self) -> None:
        self.left -= 1
        if self.left == 0:
            await self._happens()

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def traits(self) -> Traits:
        return self.inner.traits

    async def create(self, key: str, data: bytes) -> None:
        await self._before()
        await self.inner.create(key, data)

    async def put(self, key: str, data: bytes) -> None:
        await self._before()
        await self.inner.put(key, data)

    async def get(self, key: str, *, max_bytes: int) -> bytes:
        await self._before()
        return await self.inner.get(key, max_bytes=max_bytes)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        await self._before()
        return await self.inner.get_range(key, start, length)

    async def stat(self, key: str) -> ObjectInfo:
        await self._before()
        return await self.inner.stat(key)

    async def list(self, prefix: str) -> list[ObjectInfo]:
        await self._before()
        return await self.inner.list(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        """One object at a time, as a listing of object storage would show it half done."""
        for key in keys:
            await self._before()
            await self.inner.delete([key])

    def lock(self, key: str) -> AbstractAsyncContextManager[bool]:
        return self.inner.lock(key)

    async def aclose(self) -> None:
        await self.inner.aclose()
