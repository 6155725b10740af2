"""Conversations and their one rendering as token ids, which can be read back.

    <|tools|>{"choice": ..., "tools": [{"name", "parameters"}, ...]}<|end|>      if tools may be called
    <|system|>text<|end|>                                                        system, developer, instructions
    <|user|>text<|end|>
    <|assistant|>text<|refusal|>text<|call|>name\\narguments<|call|>...<|end|>    each part only if there is one
    <|tool|>text<|end|>                                                          one result of a call
    <|assistant|>                                                                generation starts here

A turn that the backend generates has exactly the ids with which it is rendered in the next prompt, and a prompt with
part of the last turn is read as that conversation and that part. So whatever the backend does is a function of token
ids.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import orjson

from .tokens import ASSISTANT, CALL, END, REFUSAL, SYSTEM, TOOL, TOOLS, USER, Ids, decode, encode

ROLE_MARKS = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": TOOL}
_ROLE_OF = {mark: role for role, mark in ROLE_MARKS.items()}
_TURN = re.compile(f"([{SYSTEM}-{TOOLS}])([^{END}-{TOOLS}]*)({END}?)")
_PART = re.compile(f"([{CALL}{REFUSAL}])")


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """One call of a tool."""

    name: str
    arguments: str
    """As sent: JSON, or whatever a script put there."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    """A key of ROLE_MARKS."""
    text: str = ""
    refusal: str | None = None
    calls: tuple[FunctionCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolBox:
    """The tools that may be called."""

    tools: tuple[dict[str, object], ...]
    """Each with `name` and `parameters`."""
    choice: str = "auto"
    """auto, required, or the name of the one to call."""

    def names(self) -> frozenset[str]:
        """The names of the tools."""
        return frozenset(str(tool["name"]) for tool in self.tools)


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a prompt says."""

    messages: tuple[Message, ...]
    toolbox: ToolBox | None = None


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """A prompt read back: the conversation and the part of the next turn that is already there."""

    conversation: Conversation
    before: Ids
    """The ids up to the start of the open turn."""
    prefix: Ids
    """The ids of the open turn so far."""


def turn_ids(text: str, refusal: str | None, calls: Iterable[FunctionCall]) -> Ids:
    """The ids of what an assistant says, without the marks around it."""
    said = encode(text)
    if refusal is not None:
        said = Ids(said + REFUSAL + encode(refusal))
    return Ids(said + "".join(CALL + encode(f"{call.name}\n{call.arguments}") for call in calls))


def render(conversation: Conversation, *, continue_last: bool = False) -> Ids:
    """The prompt of a conversation; with `continue_last` its last turn, an assistant's, is left open."""
    parts = []
    if box := conversation.toolbox:
        shown = orjson.dumps({"choice": box.choice, "tools": list(box.tools)}).decode()
        parts += [TOOLS, encode(shown), END]
    for message in conversation.messages:
        parts += [ROLE_MARKS[message.role], turn_ids(message.text, message.refusal, message.calls), END]
    return Ids("".join(parts[:-1] if continue_last else [*parts, ASSISTANT]))


def read(ids: Ids) -> OpenTurn | None:
    """The conversation of a rendered prompt; None for ids that are no rendered prompt."""
    messages: list[Message] = []
    box, end = None, 0
    for turn in _TURN.finditer(ids):
        if turn.start() != end:
            return None
        end, (mark, body, closed) = turn.end(), turn.groups()
        if not closed:
            if mark != ASSISTANT or end != len(ids):
                return None
            return OpenTurn(Conversation(tuple(messages), box), Ids(ids[: turn.start() + 1]), Ids(body))
        if mark == TOOLS:
            box = _read_tools(decode(body))
        else:
            messages.append(_read_message(_ROLE_OF[mark], body))
    return None


def _read_message(role: str, body: str) -> Message:
    text, *parts = _PART.split(body)
    refusal, calls = None, []
    for mark, part in zip(parts[::2], parts[1::2], strict=True):
        if mark == REFUSAL:
            refusal = decode(part)
        else:
            name, _, arguments = decode(part).partition("\n")
            calls.append(FunctionCall(name, arguments))
    return Message(role, decode(text), refusal, tuple(calls))


def _read_tools(text: str) -> ToolBox | None:
    try:
        found = orjson.loads(text)
        return ToolBox(tuple(dict(tool) for tool in found["tools"]), str(found["choice"]))
    except (ValueError, TypeError, KeyError):
        return None
