"""Counters that declare something else, or do what no author should: for the scenarios of resources servers."""

from collections.abc import Mapping
from typing import Any, ClassVar

import anyio

from participants import Peer, Reply, Request, ResourcesSession, tool
from participants.sessions import Sessions
from store import Life

from .logged_counter import LoggedCounter

PAUSE_S = 0.02
SAYS_YES = '<script>[{"text": "Yes."}]</script>'


class CarelessCounter(LoggedCounter):
    """Opens a session where none is, in place of the refusal."""

    async def enter(self, life: Life, *, creates: bool = False, dispatches: bool = False) -> Any:
        """Whoever calls is let in."""
        return await super().enter(life, creates=True, dispatches=dispatches)

    async def _serve(self, sessions: Sessions, session_id: str, request: Request) -> Reply:
        session = ResourcesSession(session_id, request.life, {"count": 0}, seeded=True, used_at=self._now())
        sessions.open.setdefault(session_id, session)
        return await super()._serve(sessions, session_id, request)


class ConsumingCounter(LoggedCounter):
    """Its verify takes the count out of the session before it says so."""

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """1.0 if the counter stood at `expected_count`."""
        count = session.state.pop("count")
        await self._note(session, "verify")
        return {"reward": float(count == row["expected_count"])}


class WaitingCounter(LoggedCounter):
    """Its verify is waited for."""

    checkpoint_verify: ClassVar[Any] = "wait"


class RestartCounter(LoggedCounter):
    """Declares what a server declares that says nothing."""

    checkpoint_mode: ClassVar[Any] = "restart"
    checkpoint_verify: ClassVar[Any] = "wait"


class ClosingCounter(LoggedCounter):
    """Its sessions close only while nobody holds `close`."""

    async def close_session(self, session: ResourcesSession) -> None:
        """Wait as long as it is held."""
        while self._hold and await self._is_held("close"):  # noqa: ASYNC110 - a file is no event
            await anyio.sleep(PAUSE_S)


class AskingCounter(LoggedCounter):
    """Asks the model before it adds anything."""

    def __init__(self, name: str = "main", *, peers: Mapping[str, Peer], **options: Any) -> None:
        """`peers` has the model."""
        super().__init__(name, **options)
        self._model = peers["model.main"]

    @tool
    async def increment_counter(self, session: ResourcesSession, count: int) -> dict[str, Any]:
        """Add a number to the counter, if the model answers."""
        await self._note(session, "tool", count)
        messages = [{"role": "user", "content": f"{question(count)} {SAYS_YES}"}]
        reply = await self.call(self._model, "/v1/chat/completions", {"messages": messages})
        assert reply.ok, reply.body
        session.state["count"] += count
        return {"success": True}


def question(count: int) -> str:
    """What the model is asked before this is added; stands in no other prompt."""
    return f"May I add {count}?"
