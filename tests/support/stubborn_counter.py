"""Resources servers whose hooks do not do as they are told: they swallow cancellation, block, or take their time."""

import time
from pathlib import Path
from typing import Any

import anyio

from participants import ResourcesSession, tool

from .logged_counter import LoggedCounter

PAUSE_S = 0.02
LONG_S = 60.0
"""Longer than any test waits."""


class StubbornCounter(LoggedCounter):
    """Its tools hang in the way that `how` names, once, and its sessions take long to close where that is asked."""

    def __init__(self, name: str = "main", *, how: str = "", once: str = "", **options: Any) -> None:
        """`how` is swallow, block, close or aclose; after the file `once` exists nothing hangs."""
        super().__init__(name, **options)
        self._how = how
        self._once = Path(once)

    async def _hang(self) -> None:
        if not self._how or self._once.exists():
            return
        self._once.touch()
        if self._how == "block":
            time.sleep(LONG_S)  # noqa: ASYNC251 - the point of it
        ends = time.monotonic() + LONG_S
        while time.monotonic() < ends:
            try:
                await anyio.sleep(PAUSE_S)
            except BaseException:
                continue

    @tool
    async def increment_counter(self, session: ResourcesSession, count: int) -> dict[str, Any]:
        """Add a number to the counter."""
        await self._note(session, "tool", count)
        if self._how in ("swallow", "block"):
            await self._hang()
        session.state["count"] += count
        return {"success": True}

    async def close_session(self, session: ResourcesSession) -> None:
        """Take long, if that is asked."""
        if self._how == "close":
            self._once.touch()
            await anyio.sleep(LONG_S)

    async def aclose(self) -> None:
        """Never come to an end, if that is asked."""
        if self._how == "aclose":
            await self._hang()
        await super().aclose()
