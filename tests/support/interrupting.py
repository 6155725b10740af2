"""A backend that does something of the test's choice before or after its n-th call."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import anyio
import anyio.lowlevel

from store import Backend, ObjectInfo, Traits

T = TypeVar("T")
Act = Callable[[], Awaitable[None]]


class Interrupted:
    """Wraps a backend; calls are counted from `arm` on."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self._left = 0
        self._act: Act | None = None
        self._after = False
        self.struck = ""
        """The call that was interrupted, as `verb key`."""

    def disarm(self) -> None:
        """Let everything through."""
        self._act = None

    def arm(self, nth: int, act: Act, *, after: bool = False) -> None:
        """Let `act` run before the n-th call from now, or after it took effect."""
        self._left, self._act, self._after, self.struck = nth, act, after, ""

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def traits(self) -> Traits:
        return self.inner.traits

    async def create(self, key: str, data: bytes) -> None:
        await self._go(f"create {key}", lambda: self.inner.create(key, data))

    async def put(self, key: str, data: bytes) -> None:
        await self._go(f"put {key}", lambda: self.inner.put(key, data))

    async def get(self, key: str, *, max_bytes: int) -> bytes:
        return await self._go(f"get {key}", lambda: self.inner.get(key, max_bytes=max_bytes))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._go(f"get_range {key}", lambda: self.inner.get_range(key, start, length))

    async def stat(self, key: str) -> ObjectInfo:
        return await self._go(f"stat {key}", lambda: self.inner.stat(key))

    async def list(self, prefix: str) -> list[ObjectInfo]:
        return await self._go(f"list {prefix}", lambda: self.inner.list(prefix))

    async def delete(self, keys: Sequence[str]) -> None:
        await self._go(f"delete {len(keys)}", lambda: self.inner.delete(keys))

    def lock(self, key: str) -> AbstractAsyncContextManager[bool]:
        return self.inner.lock(key)

    async def aclose(self) -> None:
        await self.inner.aclose()

    async def _go(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        self._left -= 1
        act = self._act if self._left == 0 else None
        if act is None:
            return await call()
        self.struck = name
        if not self._after:
            await act()
            return await call()
        try:
            return await call()
        finally:
            await act()  # whatever the reply was, it is lost


def cancelling(scope: anyio.CancelScope) -> Act:
    """Cancel this scope, and let it show at once."""

    async def act() -> None:
        scope.cancel()
        await anyio.lowlevel.checkpoint()

    return act


def hanging(scope: anyio.CancelScope) -> Act:
    """Never return; the deadline of this scope comes soon."""

    async def act() -> None:
        scope.deadline = anyio.current_time() + 0.01
        await anyio.sleep_forever()

    return act


def raising(error: Callable[[], BaseException]) -> Act:
    """Fail."""

    async def act() -> None:
        raise error()

    return act
