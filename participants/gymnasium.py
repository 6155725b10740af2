"""Resources servers of Gymnasium's shape: `/reset` gives an observation, `/step` takes an action and gives a reward.

An author subclasses `GymnasiumServer`, fills `session.state` in `seed`, and writes `look` (the observation as things
stand) and `act` (one action). The reward of the session is the sum of its steps' rewards, and `verify` gives that.

    /reset   {observation, info}; before the first step it may come again, afterwards it is refused: nobody plays twice
    /step    a body with `response`, from which `action_of` reads the action, or with `action`;
             {observation, reward, terminated, truncated, info}; refused after the end

A step runs once: a call with an id gets its kept reply, and so does a body that repeats the `_ng_step_request_id` of
the step before. A client without a life that sends a row to `/reset` gets a new session, and its cookie.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel, ConfigDict

from .data import Reply, Request
from .output_text import output_text
from .resources import SEED, ResourcesServer
from .sessions import SESSION_HEADER, ResourcesSession
from .tools import ToolError

RESET, STEP = "/reset", "/step"
KEY = "_ng_step_request_id"
"""Of the body of a step: whoever sends it again gets the same reply."""
INFO: Mapping[str, Any] = {"supports_step_idempotency": True, "supports_explicit_close": False}
"""What `/reset` says of the server; a session is closed by `/close_session`."""
_OWN = "gymnasium"
"""The key of the session's state that is not the author's."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What an action has led to."""

    observation: Any
    reward: float = 0.0
    terminated: bool = False
    """The task has come to its end."""
    truncated: bool = False
    """The environment stops before that."""
    info: Mapping[str, Any] = field(default_factory=dict)


class _Kept(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    key: str
    action: str
    reply: dict[str, Any]


class _Own(BaseModel):
    """What the base keeps in the state."""

    model_config = ConfigDict(extra="forbid", strict=True)

    steps: int = 0
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    kept: _Kept | None = None


class GymnasiumServer(ResourcesServer):
    """Base of servers with `/reset` and `/step`; their state is a JSON dict."""

    # What an author writes

    async def look(self, session: ResourcesSession) -> Any:
        """The observation as things stand: text, or JSON."""
        raise NotImplementedError(f"{type(self).__name__} has no look")

    async def act(self, session: ResourcesSession, action: str) -> Turn:
        """Carry out one action. Raise ToolError for one that cannot be."""
        raise NotImplementedError(f"{type(self).__name__} has no act")

    def action_of(self, text: str) -> str:
        """The action in what the model has said: all of it, unless a server says otherwise."""
        return text

    # What it does with them

    async def handle(self, request: Request) -> Reply:
        """As any resources server; a plain client's `/reset` with a row seeds first."""
        row = isinstance(request.body, dict) and "responses_create_params" in request.body
        if request.route != RESET or request.life is not None or SESSION_HEADER in request.headers or not row:
            return await super().handle(request)
        seeded = await super().handle(replace(request, route=SEED))
        cookie = seeded.headers["set-cookie"]
        headers = {**request.headers, "cookie": cookie.partition(";")[0]}
        reply = await super().handle(replace(request, headers=headers))
        return Reply(reply.status, reply.body, {**reply.headers, "set-cookie": cookie})

    async def call_tool(self, session: ResourcesSession, name: str, arguments: Any) -> Any:
        """`reset` and `step` beside the tools."""
        match name:
            case "reset":
                return await self._reset(session)
            case "step":
                return await self._step(session, arguments)
        return await super().call_tool(session, name, arguments)

    async def take(self, session: ResourcesSession, action: str) -> dict[str, Any]:
        """One step; also for tools that stand for actions. Raises ToolError after the end."""
        if self.is_over(session):
            raise ToolError("this is over: there is nothing to do any more", 409)
        turn = await self.act(session, action)
        own = self._own(session)
        own["steps"] += 1
        own["reward"] += turn.reward
        own["terminated"], own["truncated"] = turn.terminated, turn.truncated
        session.state[_OWN] = own
        return {
            "observation": turn.observation,
            "reward": turn.reward,
            "terminated": turn.terminated,
            "truncated": turn.truncated,
            "info": dict(turn.info),
        }

    def is_over(self, session: ResourcesSession) -> bool:
        """Whether no step can follow."""
        own = self._own(session)
        return bool(own["terminated"] or own["truncated"])

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """The sum of the rewards, and how far it went."""
        own = self._own(session)
        return {name: own[name] for name in ("reward", "terminated", "truncated")}

    async def import_session(self, session: ResourcesSession, exported: Any) -> None:
        """The state again. Raises where the base's own part of it is malformed; extend it with what is yours."""
        if _OWN in exported:
            _Own.model_validate(exported[_OWN])
        session.state = exported

    async def _reset(self, session: ResourcesSession) -> dict[str, Any]:
        if self._own(session)["steps"]:
            raise ToolError("this has begun: seed a new session to begin another", 409)
        return {"observation": await self.look(session), "info": dict(INFO)}

    async def _step(self, session: ResourcesSession, body: Any) -> dict[str, Any]:
        action, key = self._asked(body)
        kept = self._own(session)["kept"]
        if key is not None and kept is not None and kept["key"] == key:
            if kept["action"] != action:
                raise ToolError(f"{KEY} {key!r:.80} was of another action", 409)
            reply: dict[str, Any] = kept["reply"]
            return reply
        reply = await self.take(session, action)
        session.state[_OWN]["kept"] = None if key is None else {"key": key, "action": action, "reply": reply}
        return reply

    def _asked(self, body: Any) -> tuple[str, str | None]:
        """The action, and the step's key if it has one."""
        body = body if isinstance(body, dict) else {}
        action, response, key = body.get("action"), body.get("response"), body.get(KEY)
        if key is not None and not isinstance(key, str):
            raise ToolError(f"{KEY} is not text", 422)
        if isinstance(response, dict):
            return self.action_of(output_text(response)), key
        if isinstance(action, str):
            return action, key
        raise ToolError("a step has either a response object or an action in words", 422)

    def _own(self, session: ResourcesSession) -> dict[str, Any]:
        own: dict[str, Any] | None = session.state.get(_OWN)
        return _Own().model_dump() if own is None else own
