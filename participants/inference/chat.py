"""POST /v1/chat/completions: messages and tools in, text or calls of tools out."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .assembly import Assembler, Delta, call_id
from .completions import StreamOptions, usage
from .jobs import (
    MAX_TOP_LOGPROBS,
    SSE_DONE,
    Job,
    Meta,
    Request,
    choosing_of,
    limits_of,
    logprob_entries,
    script_message,
    sse,
    validate,
    versioned,
)
from .refusals import RequestRefused
from .sampling import Piece
from .template import Conversation, FunctionCall, Message, ToolBox, render
from .tokens import Ids, to_numbers


class Lenient(BaseModel):
    """Part of a body; fields that we do not know have no effect."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class TextPart(Lenient):
    """Part of a content list."""

    type: str
    text: str = ""
    refusal: str = ""


Content = str | list[TextPart] | None


class CalledFunction(Lenient):
    """What a call calls."""

    name: str
    arguments: str = ""


class SentCall(Lenient):
    """A call in an earlier turn."""

    function: CalledFunction


class ChatMessage(Lenient):
    """One message."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    refusal: str | None = None
    tool_calls: list[SentCall] | None = None


class Function(Lenient):
    """A tool."""

    name: str
    parameters: dict[str, Any] | None = None


class Tool(Lenient):
    """A tool as Chat wraps it."""

    type: Literal["function"] = "function"
    function: Function


class NamedChoice(Lenient):
    """The demand to call one tool."""

    function: Function


class ChatRequest(Request):
    """The body."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedChoice | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    n: int | None = 1
    stream_options: StreamOptions | None = None
    continue_final_message: bool = False


def text_of(content: Content) -> str:
    """The text of a content; a part of another type than text is refused."""
    if isinstance(content, str) or content is None:
        return content or ""
    for part in content:
        if part.type not in {"text", "input_text", "output_text", "refusal"}:
            raise RequestRefused(f"content of type {part.type} is not supported", param="content")
    return "".join(part.text for part in content)


def conversation_of(asked: ChatRequest) -> Conversation:
    """The conversation of a request, a script in its metadata included."""
    script = script_message(asked.metadata)
    first = (Message("system", script),) if script else ()
    return Conversation((*first, *(_message(each) for each in asked.messages)), _toolbox(asked))


def _message(sent: ChatMessage) -> Message:
    calls = tuple(FunctionCall(call.function.name, call.function.arguments) for call in sent.tool_calls or ())
    role = "system" if sent.role == "developer" else sent.role
    return Message(role, text_of(sent.content), sent.refusal, calls)


def _toolbox(asked: ChatRequest) -> ToolBox | None:
    choice = asked.tool_choice.function.name if isinstance(asked.tool_choice, NamedChoice) else asked.tool_choice
    functions = [tool.function for tool in asked.tools or ()]
    return make_toolbox([(each.name, each.parameters) for each in functions], choice or "auto")


def make_toolbox(tools: list[tuple[str, dict[str, Any] | None]], choice: str) -> ToolBox | None:
    """The tools that may be called; None if there are none or none may be."""
    if choice not in {"auto", "none", "required", *(name for name, _ in tools)}:
        raise RequestRefused(f"tool_choice names {choice}, which is no tool of the request", param="tool_choice")
    if not tools or choice == "none":
        return None
    return ToolBox(tuple({"name": name, "parameters": parameters or {}} for name, parameters in tools), choice)


def prompt_of(asked: ChatRequest) -> Ids:
    """The rendered prompt of a request."""
    if asked.continue_final_message and asked.messages[-1].role != "assistant":
        raise RequestRefused("the final message is not the assistant's", param="continue_final_message")
    return render(conversation_of(asked), continue_last=asked.continue_final_message)


def parse(body: bytes, model: str) -> Job:
    """A request as a job; `model` is the model where none is named."""
    asked = validate(ChatRequest, body)
    if asked.n not in {1, None}:
        raise RequestRefused("n must be 1", param="n")
    prompt = prompt_of(asked)
    limits = limits_of(asked, asked.max_completion_tokens or asked.max_tokens, asked.stop)
    ranks = max(asked.top_logprobs or 0, 1) if asked.logprobs else None
    encoder, choosing = ChatEncoder(asked, prompt), choosing_of(asked)
    return Job("chat", asked.model or model, asked.stream, prompt, limits, ranks, encoder, choosing)


class ChatEncoder:
    """Writes a chat completion."""

    def __init__(self, asked: ChatRequest, prompt: Ids) -> None:
        self._asked, self._prompt = asked, prompt
        self._assembler = Assembler()
        self._meta = Meta("", "", 0)

    def start(self, meta: Meta) -> list[bytes]:
        """The role, and the ids of the prompt if asked for."""
        self._meta = meta
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        extra = {"prompt_token_ids": to_numbers(self._prompt)} if self._asked.return_token_ids else {}
        return [sse(self._envelope("chat.completion.chunk", [choice]) | extra)]

    def piece(self, piece: Piece) -> list[bytes]:
        """A chunk for each delta; the ids go with the last of them."""
        deltas = self._assembler.feed(piece)
        if not self._asked.stream:
            return []
        chunks = [self._delta(delta) for delta in deltas] or [{}]
        early = [self._chunk(delta) for delta in chunks[:-1]]
        return [*early, self._chunk(chunks[-1], piece=piece)] if self._shows(piece, deltas) else early

    def _shows(self, piece: Piece, deltas: list[Delta]) -> bool:
        """A piece without text is worth a chunk only for its ids or log probabilities."""
        return bool(deltas) or self._asked.return_token_ids or bool(piece.scores)

    def end(self, finish: str, generated: int) -> list[bytes]:
        """The reason, the usage if asked for, and the end."""
        late = [self._chunk(self._delta(delta)) for delta in self._assembler.finish()]
        events = [*late, self._chunk({}, finish=self._reason(finish))]
        if self._asked.stream_options and self._asked.stream_options.include_usage:
            closing = self._envelope("chat.completion.chunk", []) | {"usage": usage(self._prompt, generated)}
            events.append(sse(closing))
        return [*events, SSE_DONE]

    def body(self, finish: str, generated: int) -> dict[str, Any]:
        """The whole."""
        self._assembler.finish()
        reply = self._assembler.reply
        content = reply.text or (None if reply.calls or reply.refusal else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": reply.refusal}
        if reply.calls:
            message["tool_calls"] = [self._call(n, *call) for n, call in enumerate(reply.calls)]
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": self._reason(finish)}
        entries = [entry for piece in reply.pieces for entry in logprob_entries(piece)]
        choice["logprobs"] = {"content": entries} if self._asked.logprobs else None
        whole = self._envelope("chat.completion", [choice]) | {"usage": usage(self._prompt, generated)}
        if self._asked.return_token_ids:
            choice["token_ids"] = to_numbers(reply.ids)
            whole["prompt_token_ids"] = to_numbers(self._prompt)
        return whole

    def _reason(self, finish: str) -> str:
        return "tool_calls" if finish == "stop" and self._assembler.reply.calls else finish

    def _call(self, index: int, name: str, arguments: str) -> dict[str, Any]:
        function = {"name": name, "arguments": arguments}
        return {"id": call_id(self._prompt, index), "type": "function", "function": function}

    def _delta(self, delta: Delta) -> dict[str, Any]:
        index = len(self._assembler.reply.calls) - 1
        if delta.kind == "call":
            return {"tool_calls": [{"index": index} | self._call(index, delta.text, "")]}
        if delta.kind == "arguments":
            return {"tool_calls": [{"index": index, "function": {"arguments": delta.text}}]}
        return {"refusal": delta.text} if delta.kind == "refusal" else {"content": delta.text}

    def _chunk(self, delta: dict[str, Any], *, finish: str | None = None, piece: Piece | None = None) -> bytes:
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish}
        if piece and piece.scores:
            choice["logprobs"] = {"content": logprob_entries(piece)}
        if piece and self._asked.return_token_ids:
            choice["token_ids"] = to_numbers(piece.ids)
        return sse(self._envelope("chat.completion.chunk", [choice]))

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        envelope = {
            "id": f"chatcmpl-{self._meta.number}",
            "object": kind,
            "created": self._meta.created,
            "model": self._meta.model,
            "choices": choices,
        }
        pieces = self._assembler.reply.pieces
        return versioned(envelope, pieces[-1].weights if pieces else self._meta.weights)
