"""The agent for environments with `/reset` and `/step`: what the model says is the action.

    /reset, once; then the model, and /step with its reply; until the environment says that it is over

Each observation becomes a user message, and every call is a step with a boundary of its own: a continued rollout draws
no card twice and generates nothing again. The response is that of Simple Agent, with observations among its output, and
has beside it `reward` (the sum of the steps' rewards), `terminated`, `truncated` and `info` of the last step.

At most `max_steps` model calls are made. Where that or `max_wall_s` ends it, it is `truncated`, and the response is
`incomplete` with the reason in `ng_termination_reason`. What a model says is never judged here: an empty or cut reply
goes to the environment like any other. Rows for it offer no tools, for a call of one would be answered by nobody.

A refusal of `/reset` or `/step` is no observation: the episode fails, with what the environment said.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from .activation import Final, Next, OutOfTime, Session, StepContext
from .data import Reply
from .errors import Code, ParticipantError
from .gymnasium import RESET, STEP
from .held import Held
from .simple_agent import SimpleAgent, after_model


class GymnasiumAgent(SimpleAgent):
    """Plays. The options are those of Simple Agent; `max_steps` is 10 unless given."""

    def __init__(self, *args: Any, max_steps: int = 10, **options: Any) -> None:
        """`max_steps` bounds the model calls of an activation."""
        super().__init__(*args, max_steps=max_steps, **options)

    async def start(self, held: Held[Session], body: Mapping[str, Any]) -> Any:
        """The first state: before `/reset`."""
        first = await super().start(held, body)
        played: dict[str, Any] = {"begun": False, "reply": None, "info": {}}
        return {**first, **played, "reward": 0.0, "terminated": False, "truncated": False}

    async def step(self, context: StepContext, state: Any) -> Next | Final:
        """One call of the environment or the model."""
        if state["terminated"] or state["truncated"]:
            return self._ended(context, state, None)
        if context.time_left_s == 0.0:
            return self._ended(context, state, "wall_time")
        if not state["begun"]:
            return Next(_reset(state, await _asked(context, RESET, {})))
        if state["reply"] is not None:
            return Next(_stepped(state, await _asked(context, STEP, {"response": state["reply"]})))
        if state["steps"] >= self.max_steps:
            return self._ended(context, state, "max_steps")
        try:
            reply = await self._ask(context, state)
        except OutOfTime:
            return self._ended(context, state, "wall_time")
        return Next({**after_model(state, reply), "reply": reply})

    def _ended(self, context: StepContext, state: Any, reason: str | None) -> Final:
        final = self._done(context, state, reason)
        told = {name: state[name] for name in ("reward", "terminated", "info")}
        return Final({**final.response, **told, "truncated": state["truncated"] or reason is not None})


async def _asked(context: StepContext, route: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """What the environment answers. Raises `step_failed` where it refuses, or answers what is no observation."""
    reply: Reply = await context.tool(route.removeprefix("/"), body)
    if reply.ok and isinstance(reply.body, dict) and "observation" in reply.body:
        return reply.body
    told = f"the environment answered {route} with {reply.status}: {reply.body!r:.300}"
    raise ParticipantError(Code.STEP_FAILED, told, {"status": reply.status})


def _reset(state: Any, reply: Mapping[str, Any]) -> dict[str, Any]:
    items = [*state["items"], *_observed(reply["observation"])]
    return {**state, "items": items, "begun": True, "info": reply.get("info") or {}}


def _stepped(state: Any, reply: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **state,
        "items": [*state["items"], *_observed(reply["observation"])],
        "reply": None,
        "reward": state["reward"] + float(reply.get("reward") or 0.0),
        "terminated": bool(reply.get("terminated")),
        "truncated": bool(reply.get("truncated")),
        "info": reply.get("info") or {},
    }


def _observed(observation: Any) -> list[dict[str, Any]]:
    """The observation as a message; none where there is nothing to see."""
    if observation is None or observation == "":
        return []
    text = observation if isinstance(observation, str) else orjson.dumps(observation).decode()
    return [{"role": "user", "content": text}]
