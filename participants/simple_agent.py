"""Simple Agent: a tool loop over the OpenAI Responses or Chat Completions API.

State: the items so far (input, outputs, tool outputs; always in the form of the Responses API), the tool calls of
the last reply still to be made, the number of model calls, and the summed usage. Each tool call is made in order, with
a boundary after each. The loop ends when a reply calls no tool, is incomplete or a refusal, or a budget is spent.

Bad JSON arguments and unknown tools become a tool output that tells the model, and nothing is called. What a tool
answers, errors included, goes to the model as text; what midflight itself refuses never does, and fails the episode.

Where the loop ends for want of something, the response is `incomplete` and its metadata say so in
`ng_termination_reason`: `empty_output`, `incomplete_reasoning`, `max_steps` or `wall_time`. Ids are made from the
rollout, so that a continued run gives the same response as an uninterrupted one.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson

from .activation import Final, Next, OutOfTime, Session, StepContext
from .agent import Agent
from .chat_items import from_chat, to_chat
from .data import Reply
from .errors import Code, ParticipantError
from .generations import check_generation
from .holder import Held
from .tools import RESERVED

Dialect = Literal["responses", "chat"]
_ROUTES = {"responses": "/v1/responses", "chat": "/v1/chat/completions"}
_NOT_SENT = frozenset({"input", "stream", "stream_options", "background"})
"""Of the request: what the loop does itself, and what only a client at the other end could use."""
_DETAILS = {"input_tokens_details": "cached_tokens", "output_tokens_details": "reasoning_tokens"}


class SimpleAgent(Agent):
    """The agent that ships."""

    def __init__(self, *args: Any, dialect: Dialect = "responses", max_steps: int = 32, **options: Any) -> None:
        """`max_steps` bounds the model calls of an activation."""
        super().__init__(*args, **options)
        self.dialect = dialect
        self.max_steps = max_steps

    async def start(self, held: Held[Session], body: Mapping[str, Any]) -> Any:
        """The first state: the input as items, and everything else of the request as parameters."""
        given = body.get("input") or []
        items = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
        if not all(isinstance(item, dict) for item in items):
            raise ParticipantError(Code.INVALID_REQUEST, "the input is neither text nor a list of items")
        parameters = {key: value for key, value in body.items() if key not in _NOT_SENT}
        made = {"model": body.get("model"), "created_at": 0}
        return {
            "items": items,
            "given": len(items),
            "parameters": parameters,
            "pending": [],
            "steps": 0,
            "usage": {},
            **made,
        }

    async def step(self, context: StepContext, state: Any) -> Next | Final:
        """One tool call if any is pending, else one model call."""
        if context.time_left_s == 0.0:
            return self._done(context, state, "wall_time")
        if state["pending"]:
            return Next(await self._tool_step(context, state))
        if state["steps"] >= self.max_steps:
            return self._done(context, state, "max_steps")
        try:
            return await self._model_step(context, state)
        except OutOfTime:
            return self._done(context, state, "wall_time")

    async def _model_step(self, context: StepContext, state: Any) -> Next | Final:
        response = await self._ask(context, state)
        output = output_of(response)
        cut = response.get("status") == "incomplete"
        pending = [] if cut else [item for item in output if item.get("type") == "function_call"]
        following = {**after_model(state, response), "pending": pending}
        if pending:
            return Next(following)
        if cut:
            details = response.get("incomplete_details") or {"reason": "max_output_tokens"}
            return self._done(context, following, None, details)
        return self._done(context, following, _what_is_missing(output))

    async def _ask(self, context: StepContext, state: Any) -> dict[str, Any]:
        """One model call, its reply in the form of the Responses API. Raises `model_failed` for anything else."""
        body = {**state["parameters"], "input": state["items"]}
        chat = self.dialect == "chat"
        route = _ROUTES[self.dialect]
        reply = await context.model(route, to_chat(body) if chat else body)
        if not reply.ok:
            told = f"the model answered {reply.status}: {reply.body!r:.300}"
            raise ParticipantError(Code.MODEL_FAILED, told, {"status": reply.status})
        check_generation(route, reply.body)
        response: dict[str, Any] = from_chat(reply.body, _name(context, state)) if chat else reply.body
        return response

    async def _tool_step(self, context: StepContext, state: Any) -> Any:
        call, *rest = state["pending"]
        output = await self._call_tool(context, call, state["parameters"].get("tools") or [])
        item = {"type": "function_call_output", "call_id": call.get("call_id"), "output": output}
        return {**state, "items": [*state["items"], item], "pending": rest}

    async def _call_tool(self, context: StepContext, call: Mapping[str, Any], tools: Sequence[Any]) -> str:
        name = str(call.get("name"))
        if name not in {_tool_name(tool) for tool in tools} or name in RESERVED:
            return _tool_error(f"there is no tool named {name!r}")
        try:
            arguments = orjson.loads(call.get("arguments") or "{}")
        except ValueError:
            return _tool_error("the arguments are not valid JSON")
        if not isinstance(arguments, dict):
            return _tool_error("the arguments are not a JSON object")
        return _text_of(await context.tool(name, arguments))

    def _done(self, context: StepContext, state: Any, reason: str | None, details: Any = None) -> Final:
        """The response; `reason` is the loop's own for ending early, `details` the model's."""
        output, parameters = state["items"][state["given"] :], state["parameters"]
        metadata = {**(parameters.get("metadata") or {}), "midflight_steps": str(state["steps"])}
        if reason:
            metadata["ng_termination_reason"] = reason
        response = {
            "id": f"resp_{_name(context, state)}",
            "object": "response",
            "created_at": state["created_at"],
            "model": state["model"],
            "status": "incomplete" if reason or details else "completed",
            "error": None,
            "incomplete_details": details,
            "output": output,
            "parallel_tool_calls": parameters.get("parallel_tool_calls", True),
            "tool_choice": parameters.get("tool_choice", "auto"),
            "tools": parameters.get("tools") or [],
            "usage": state["usage"] or _add_usage({}, {}),
            "metadata": metadata,
        }
        return Final(response)


def output_of(response: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items of a reply."""
    return [item for item in response.get("output") or [] if isinstance(item, dict)]


def after_model(state: Any, response: Mapping[str, Any]) -> dict[str, Any]:
    """The state with one more reply of the model."""
    return {
        **state,
        "items": [*state["items"], *output_of(response)],
        "steps": state["steps"] + 1,
        "usage": _add_usage(state["usage"], response.get("usage") or {}),
        "model": response.get("model") or state["model"],
        "created_at": state["created_at"] or response.get("created_at") or 0,
    }


def _what_is_missing(output: Sequence[Mapping[str, Any]]) -> str | None:
    """Why a reply without tool calls is no answer; None where it is one."""
    if any(_says_something(item) for item in output if item.get("type") == "message"):
        return None
    return "incomplete_reasoning" if any(item.get("type") == "reasoning" for item in output) else "empty_output"


def _says_something(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    if not isinstance(content, list):
        return bool(content)
    return any(part.get("text") or part.get("refusal") for part in content if isinstance(part, dict))


def _name(context: StepContext, state: Any) -> str:
    seed = f"{context.life.rollout_id}:{state['steps']}:{len(state['items'])}"
    return hashlib.sha256(seed.encode()).hexdigest()[:32]


def _tool_name(tool: Mapping[str, Any]) -> Any:
    return tool.get("name") or (tool.get("function") or {}).get("name")


def _tool_error(message: str) -> str:
    return orjson.dumps({"error": message}).decode()


def _text_of(reply: Reply) -> str:
    """The whole body as text, errors included, as the model is to see it."""
    return reply.body if isinstance(reply.body, str) else orjson.dumps(reply.body).decode()


def _add_usage(total: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The sum, details too."""
    keys = ("input_tokens", "output_tokens", "total_tokens")
    added: dict[str, Any] = {key: int(total.get(key) or 0) + int(new.get(key) or 0) for key in keys}
    for details, key in _DETAILS.items():
        each = ((usage.get(details) or {}).get(key) or 0 for usage in (total, new))
        added[details] = {key: sum(each)}
    return added
