"""POST /v1/responses: the fields of the request and how its items become a conversation."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from .chat import Content, Lenient, make_toolbox, text_of
from .jobs import MAX_TOP_LOGPROBS, Job, Request, choosing_of, limits_of, script_message, validate
from .refusals import RequestRefused
from .response_events import ResponseEncoder
from .template import Conversation, FunctionCall, Message, ToolBox, render

LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that asks for log probabilities."""


class InputItem(Lenient):
    """One item of the input, of any type."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] = "user"
    content: Content = None
    name: str = ""
    arguments: str = ""
    output: Content = None

    @model_validator(mode="before")
    @classmethod
    def _without_unused_content(cls, item: Any) -> Any:
        """A reasoning item has content of its own kind, which no one looks at."""
        return {"type": "reasoning"} if isinstance(item, dict) and item.get("type") == "reasoning" else item


class ResponseTool(Lenient):
    """A tool as Responses has it."""

    type: Literal["function"] = "function"
    name: str
    parameters: dict[str, Any] | None = None


class NamedTool(Lenient):
    """The demand to call one tool."""

    name: str


class ResponsesRequest(Request):
    """The body."""

    input: str | list[InputItem]
    instructions: str | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = True
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: str | list[str] | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    previous_response_id: str | None = None
    background: bool | None = None


def conversation_of(asked: ResponsesRequest) -> Conversation:
    """The conversation of a request: instructions first, consecutive items of the assistant as one turn."""
    leading = [text for text in (script_message(asked.metadata), asked.instructions) if text]
    items = [InputItem(content=asked.input)] if isinstance(asked.input, str) else asked.input
    first = (Message("system", text) for text in leading)
    return Conversation(
        (*first, *_merge(_message(item) for item in items if item.type != "reasoning")), _toolbox(asked)
    )


def _message(item: InputItem) -> Message:
    if item.type == "function_call":
        return Message("assistant", calls=(FunctionCall(item.name, item.arguments),))
    if item.type == "function_call_output":
        return Message("tool", text_of(item.output))
    if item.type != "message":
        raise RequestRefused(f"an input item of type {item.type} is not supported", param="input")
    role = "system" if item.role == "developer" else item.role
    return Message(role, text_of(item.content), _refusal(item.content))


def _refusal(content: Content) -> str | None:
    refusals = [part.refusal for part in content or () if not isinstance(part, str) and part.type == "refusal"]
    return "".join(refusals) if refusals else None


def _merge(messages: Iterator[Message]) -> Iterator[Message]:
    turn: Message | None = None
    for message in messages:
        if turn and message.role == "assistant" and not (turn.calls and (message.text or message.refusal)):
            refusal = turn.refusal if message.refusal is None else (turn.refusal or "") + message.refusal
            turn = Message("assistant", turn.text + message.text, refusal, turn.calls + message.calls)
            continue
        if turn:
            yield turn
        turn = message if message.role == "assistant" else None
        if not turn:
            yield message
    if turn:
        yield turn


def _toolbox(asked: ResponsesRequest) -> ToolBox | None:
    choice = asked.tool_choice.name if isinstance(asked.tool_choice, NamedTool) else asked.tool_choice
    return make_toolbox([(tool.name, tool.parameters) for tool in asked.tools or ()], choice or "auto")


def parse(body: bytes, model: str) -> Job:
    """A request as a job; `model` is the model where none is named."""
    asked = validate(ResponsesRequest, body)
    for name in ("previous_response_id", "background"):
        if getattr(asked, name):
            raise RequestRefused(f"{name} is not supported: nothing is stored", param=name)
    prompt = render(conversation_of(asked))
    limits = limits_of(asked, asked.max_output_tokens, asked.stop)
    ranks = max(asked.top_logprobs or 0, 1) if LOGPROBS in (asked.include or ()) else None
    encoder = ResponseEncoder(prompt, _echoed(asked), stream=asked.stream, return_ids=asked.return_token_ids)
    choosing = choosing_of(asked)
    return Job("responses", asked.model or model, asked.stream, prompt, limits, ranks, encoder, choosing)


def _echoed(asked: ResponsesRequest) -> dict[str, Any]:
    """Fields of the request that a response repeats."""
    choice = asked.tool_choice
    return {
        "instructions": asked.instructions,
        "metadata": asked.metadata or {},
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "max_output_tokens": asked.max_output_tokens,
        "tool_choice": {"type": "function", "name": choice.name} if isinstance(choice, NamedTool) else choice or "auto",
        "tools": [tool.model_dump() | {"strict": False} for tool in asked.tools or ()],
    }
