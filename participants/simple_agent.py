"""Simple Agent: a tool loop over the OpenAI Responses or Chat Completions API.

State: the items so far (input, outputs, tool outputs; always in the form of the Responses API), the tool calls of
the last reply still to be made, the number of model calls, and the summed usage. Each tool call is made in order, with
a boundary after each. The loop ends when a reply calls no tool, is incomplete or a refusal, or a budget is spent.

Bad JSON arguments and unknown tools become a tool output that tells the model, and nothing is called. An empty reply
ends as `incomplete`. Ids are made from the rollout, so that a continued run gives the same response as an
uninterrupted one.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import orjson

from .agent import Agent, Final, Next, Session, StepContext
from .chat_items import from_chat, to_chat
from .data import Reply
from .errors import Code, ParticipantError
from .holder import Held

Dialect = Literal["responses", "chat"]
_ROUTES = {"responses": "/v1/responses", "chat": "/v1/chat/completions"}


class SimpleAgent(Agent):
    """The agent that ships."""

    def __init__(self, *args: Any, dialect: Dialect = "responses", max_steps: int = 32, **options: Any) -> None:
        """`max_steps` bounds the model calls of an activation."""
        super().__init__(*args, **options)
        self.dialect = dialect
        self.max_steps = max_steps

    async def start(self, held: Held[Session], body: Mapping[str, Any]) -> Any:
        """The first state: the input as items, and everything else of the request as parameters."""
        given = body.get("input", [])
        items = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
        parameters = {key: value for key, value in body.items() if key != "input"}
        return {"items": items, "given": len(items), "parameters": parameters, "pending": [], "steps": 0, "usage": {}}

    async def step(self, context: StepContext, state: Any) -> Next | Final:
        """One tool call if any is pending, else one model call."""
        if context.time_left_s == 0.0:
            return self._done(context, state, "wall_time")
        if state["pending"]:
            return Next(await self._tool_step(context, state))
        if state["steps"] >= self.max_steps:
            return self._done(context, state, "max_steps")
        return await self._model_step(context, state)

    async def _model_step(self, context: StepContext, state: Any) -> Next | Final:
        body = {**state["parameters"], "input": state["items"]}
        reply = await context.model(_ROUTES[self.dialect], to_chat(body) if self.dialect == "chat" else body)
        if not reply.ok:
            raise ParticipantError(Code.INTERNAL, f"the model answered {reply.status}: {reply.body!r:.300}")
        response = from_chat(reply.body) if self.dialect == "chat" else reply.body
        output = list(response.get("output", []))
        following = {
            **state,
            "items": [*state["items"], *output],
            "pending": [item for item in output if item.get("type") == "function_call"],
            "steps": state["steps"] + 1,
            "usage": _add_usage(state["usage"], response.get("usage") or {}),
        }
        if following["pending"] and response.get("status") != "incomplete":
            return Next(following)
        reason = (
            (response.get("incomplete_details") or {}).get("reason") if response.get("status") == "incomplete" else None
        )
        if reason is None and not any(item.get("type") in ("message", "function_call") for item in output):
            reason = "empty_reply"
        return self._done(context, {**following, "pending": []}, reason)

    async def _tool_step(self, context: StepContext, state: Any) -> Any:
        call, *rest = state["pending"]
        output = await self._call_tool(context, call, state["parameters"].get("tools", []))
        item = {"type": "function_call_output", "call_id": call.get("call_id"), "output": output}
        return {**state, "items": [*state["items"], item], "pending": rest}

    async def _call_tool(self, context: StepContext, call: Mapping[str, Any], tools: Any) -> str:
        name = str(call.get("name"))
        if name not in {_tool_name(tool) for tool in tools}:
            return _tool_error(f"there is no tool named {name!r}")
        try:
            arguments = orjson.loads(call.get("arguments") or "{}")
        except ValueError:
            return _tool_error("the arguments are not valid JSON")
        if not isinstance(arguments, dict):
            return _tool_error("the arguments are not a JSON object")
        return _text_of(await context.tool(name, arguments))

    def _done(self, context: StepContext, state: Any, reason: str | None) -> Final:
        output = state["items"][state["given"] :]
        seed = f"{context.life.rollout_id}:{state['steps']}:{len(output)}"
        response = {
            "id": f"resp_{hashlib.sha256(seed.encode()).hexdigest()[:32]}",
            "object": "response",
            "status": "incomplete" if reason else "completed",
            "incomplete_details": {"reason": reason} if reason else None,
            "output": output,
            "usage": state["usage"],
            "metadata": {"midflight_steps": str(state["steps"])},
        }
        return Final(response)


def _tool_name(tool: Mapping[str, Any]) -> Any:
    return tool.get("name") or (tool.get("function") or {}).get("name")


def _tool_error(message: str) -> str:
    return orjson.dumps({"error": message}).decode()


def _text_of(reply: Reply) -> str:
    """The whole body as text, errors included, as the model is to see it."""
    return reply.body if isinstance(reply.body, str) else orjson.dumps(reply.body).decode()


def _add_usage(total: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("input_tokens", "output_tokens", "total_tokens")
    return {key: int(total.get(key, 0)) + int(new.get(key, 0) or 0) for key in keys}
