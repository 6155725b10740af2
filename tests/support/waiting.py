"""Waiting for what another process does, which is no event that a test could await."""

import time
from collections.abc import Awaitable, Callable

import anyio

PAUSE_S = 0.01


def until(so: Callable[[], object], within_s: float = 30.0, told: Callable[[], str] = str) -> None:
    """Return once `so()` is true. Raises AssertionError, with what `told()` says, where that takes too long."""
    deadline = time.monotonic() + within_s
    while not so():
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not come to pass in {within_s:g} s: {told()}")
        time.sleep(PAUSE_S)


async def until_asked(so: Callable[[], Awaitable[object]], within_s: float = 30.0) -> None:
    """Return once another process, asked again and again, says so. Raises TimeoutError where that takes too long."""
    with anyio.fail_after(within_s):
        while not await so():  # noqa: ASYNC110 - another process is no event
            await anyio.sleep(PAUSE_S)


def let_run(seconds: float) -> None:
    """Let other processes run for so long: for a kill at a seeded random time, where the time is the point."""
    time.sleep(seconds)
