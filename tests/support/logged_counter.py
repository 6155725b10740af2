"""Resources servers for runs in child processes: what they do is appended to a file, which survives a kill."""

import os
from typing import Any

import anyio
import orjson

from participants import ResourcesSession, tool
from participants.servers.counter import CounterServer


class LoggedCounter(CounterServer):
    """A counter that says what it does before it does it, and takes its time."""

    def __init__(self, name: str = "main", *, log: str, pause_s: float = 0.0, hold: str = "", **options: Any) -> None:
        """Tool calls and verifications wait while the file `hold` exists; where it holds text, only those named in it.

        A line of it names one as `tool 12`, `tool get` or `verify`.
        """
        super().__init__(name, **options)
        # O_NONBLOCK has no effect on a regular file; it says that this append is meant to happen in the event loop.
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        self._pause_s = pause_s
        self._hold = hold

    async def _note(self, session: ResourcesSession, kind: str, what: Any = None) -> None:
        os.write(self._log, orjson.dumps({"kind": kind, "life": str(session.life), "what": what}) + b"\n")
        await anyio.sleep(self._pause_s)
        name = kind if what is None else f"{kind} {what}"
        while self._hold and await self._is_held(name):  # noqa: ASYNC110 - a file is no event
            await anyio.sleep(0.02)

    async def _is_held(self, name: str) -> bool:
        try:
            named = (await anyio.Path(self._hold).read_text()).splitlines()
        except FileNotFoundError:
            return False
        return not named or name in named

    @tool
    async def increment_counter(self, session: ResourcesSession, count: int) -> dict[str, Any]:
        """Add a number to the counter."""
        await self._note(session, "tool", count)
        session.state["count"] += count
        return {"success": True}

    @tool
    async def get_counter_value(self, session: ResourcesSession) -> dict[str, Any]:
        """The counter's value."""
        await self._note(session, "tool", "get")
        return {"count": session.state["count"]}

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """1.0 if the counter stands at `expected_count`."""
        await self._note(session, "verify")
        return await super().verify(session, row)
