"""Judges that say what a test has written down, and a caller of verify."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from participants.cases import Case, response_of
from participants.data import CallId, Reply, Request
from participants.resources import ResourcesServer
from store import Life

LIFE, ANOTHER = Life("r0", 1, 0, 0), Life("r1", 1, 0, 1)
CALL = CallId("environment.main", 4, 0)


def chat_reply(text: str | None, **message: Any) -> Reply:
    """What a model server answers that speaks Chat Completions."""
    said = {"role": "assistant", "content": text, **message}
    return Reply(200, {"choices": [{"index": 0, "message": said, "finish_reason": "stop"}]})


@dataclass(slots=True)
class ScriptedJudge:
    """Gives its replies in order, the last one again and again; an exception is raised."""

    replies: Sequence[Reply | str | Exception]
    role: str = "model.main"
    asked: list[Request] = field(default_factory=list)
    open: int = 0
    hold: anyio.Event | None = None
    before: Callable[[], None] = lambda: None

    async def call(self, request: Request) -> Reply:
        """The next reply."""
        reply = self.replies[min(len(self.asked), len(self.replies) - 1)]
        self.asked.append(request)
        self.open += 1
        try:
            self.before()
            if self.hold is not None:
                await self.hold.wait()
        finally:
            self.open -= 1
        if isinstance(reply, Exception):
            raise reply
        return chat_reply(reply) if isinstance(reply, str) else reply

    @property
    def prompts(self) -> list[str]:
        """What it was shown, call by call."""
        return [str(request.body["messages"][-1]["content"]) for request in self.asked]


async def verify(
    server: ResourcesServer, row: Mapping[str, Any], said: str, life: Life | None = LIFE, call: CallId | None = CALL
) -> dict[str, Any]:
    """Seed a session of its own and verify it; the reply's body."""
    await server.handle(Request(route="/seed_session", body=dict(row), life=life))
    body = {**row, "response": response_of(Case(row=row, said=said))}
    reply = await server.handle(Request(route="/verify", body=body, life=life, call=call))
    assert isinstance(reply.body, dict)
    return reply.body
