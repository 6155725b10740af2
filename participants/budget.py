"""A bound on memory that many share: so many bytes at once, or one taker alone, in the order in which they ask."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio


class Budget:
    """So many bytes."""

    def __init__(self, limit: int) -> None:
        """Nothing is taken."""
        self._limit = limit
        self._taken = 0
        self._turn = anyio.Lock()
        self._given_back = anyio.Event()

    @asynccontextmanager
    async def take(self, size: int) -> AsyncIterator[None]:
        """Hold so many bytes; one that wants more than there are waits until nobody else holds any."""
        async with self._turn:
            while self._taken and self._taken + size > self._limit:
                await self._given_back.wait()
            self._taken += size
        try:
            yield
        finally:
            self._taken -= size
            self._given_back.set()
            self._given_back = anyio.Event()
