"""Resources servers for runs in child processes: what they do is appended to a file, which survives a kill."""

import os
from typing import Any

import anyio
import orjson

from participants import ResourcesSession, tool
from participants.servers.counter import CounterServer


class Log:
    """A file that a server writes what it does to, and one that holds it."""

    def __init__(self, path: str, hold: str = "", pause_s: float = 0.0) -> None:
        """While the file `hold` exists, what is noted waits; where it holds text, only what is named in it.

        A line of it names one as `tool 12`, `tool get` or `verify`.
        """
        # O_NONBLOCK has no effect on a regular file; it says that this append is meant to happen in the event loop.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        self._hold = hold
        self._pause_s = pause_s

    async def note(self, session: ResourcesSession, kind: str, what: Any = None) -> None:
        """Write it, and wait as long as it is held."""
        os.write(self._file, orjson.dumps({"kind": kind, "life": str(session.life), "what": what}) + b"\n")
        await anyio.sleep(self._pause_s)
        name = kind if what is None else f"{kind} {what}"
        while self._hold and await self.is_held(name):  # noqa: ASYNC110 - a file is no event
            await anyio.sleep(0.02)

    async def is_held(self, name: str) -> bool:
        """Whether the file that holds is there, and names this or nothing."""
        try:
            named = (await anyio.Path(self._hold).read_text()).splitlines()
        except FileNotFoundError:
            return False
        return not named or name in named


class LoggedCounter(CounterServer):
    """A counter that says what it does before it does it, and takes its time."""

    def __init__(self, name: str = "main", *, log: str, pause_s: float = 0.0, hold: str = "", **options: Any) -> None:
        """Tool calls and verifications wait as `Log` says."""
        super().__init__(name, **options)
        self._hold = hold
        self._log = Log(log, hold, pause_s)

    async def _note(self, session: ResourcesSession, kind: str, what: Any = None) -> None:
        await self._log.note(session, kind, what)

    async def _is_held(self, name: str) -> bool:
        return await self._log.is_held(name)

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
