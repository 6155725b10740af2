"""Hooks that do not listen (they swallow every cancellation until they are released), and hooks that take a while."""

from collections.abc import Awaitable, Callable

import anyio


class Deaf:
    """Holds whoever awaits it, whatever is done to end that."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self.released = anyio.Event()
        self.calls = 0

    async def __call__(self) -> None:
        self.calls += 1
        self.reached.set()
        while not self.released.is_set():
            try:
                await self.released.wait()
            except BaseException:
                continue


def taking(seconds: float) -> Callable[[], Awaitable[None]]:
    """A hook that takes so long."""

    async def hook() -> None:
        await anyio.sleep(seconds)

    return hook
