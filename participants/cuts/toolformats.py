"""How calls of tools stand in the text that a model generates, read as its server reads them.

marks    text<|refusal|>text<|call|>name\\narguments<|call|>...     the deterministic backend and its real worker
         A model may write the name of a mark as plain text: only ids say which name is a mark (`told`).
hermes   text<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>...     vLLM's and SGLang's of that name
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson


@dataclass(frozen=True, slots=True)
class Said:
    """One part of what was said, in order."""

    kind: Literal["text", "refusal", "call"]
    text: str
    """Of a call its name."""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A text, read."""

    parts: tuple[Said, ...]

    @property
    def content(self) -> str:
        """The text beside calls and refusals."""
        return "".join(part.text for part in self.parts if part.kind == "text")

    @property
    def refusal(self) -> str | None:
        """None where there is none."""
        refusals = [part.text for part in self.parts if part.kind == "refusal"]
        return "".join(refusals) if refusals else None

    @property
    def calls(self) -> list[Said]:
        """The calls."""
        return [part for part in self.parts if part.kind == "call"]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way to write calls."""

    name: str
    parse: Callable[[str], Parsed]
    """Of text in which marks are told."""
    shown: Callable[[str], str]
    """Raw text in which marks are told, as Completions shows it."""
    always: bool
    """Whether the server reads calls in every reply, or only where tools were offered."""
    marks: re.Pattern[str] | None = None
    """What stands in told text for tokens that no stop string can match. Without them nothing needs to be told."""


MARK_IDS: Mapping[str, int] = {
    f"<|{name}|>": number
    for number, name in enumerate(("end", "system", "user", "assistant", "tool", "tools", "call", "refusal"), 256)
}
"""As `participants.inference.tokens` has them."""
SHOWN_MARKS = frozenset({"<|call|>", "<|refusal|>"})
"""Those that Completions shows."""
_TOLD = "\udc00"
"""Stands for the first character of the name of a mark that is one. A lone surrogate: no text has it otherwise."""
_MARKS = re.compile(rf"{_TOLD}\|[a-z]+\|>")
_UNSHOWN_MARKS = re.compile(rf"{_TOLD}\|(?:end|system|user|assistant|tool|tools)\|>")
_SPLIT_MARKS = re.compile(rf"({_TOLD}\|(?:call|refusal)\|>)")


class CannotTell(Exception):
    """The name of a mark stands in a text as plain text and as a mark, and its ids do not say which is which."""


def told(text: str, ids: Sequence[int], *, all_shown: bool = False) -> str:
    """A text in which the names of marks that are marks differ from such names as plain text; as long as before.

    Of the marks among its ids, text as Completions shows it has only some; with `all_shown` it has all, as
    `/detokenize` gives it. Raises CannotTell.
    """
    if "<|" not in text:
        return text
    for name, mark in MARK_IDS.items():
        if name in text and (all_shown or name in SHOWN_MARKS) and (marks := ids.count(mark)):
            if text.count(name) != marks:
                raise CannotTell(name)
            text = text.replace(name, _TOLD + name[1:])
    return text


def named(text: str) -> str:
    """The text again as it came."""
    return text.replace(_TOLD, "<")


def _shown_marks(raw: str) -> str:
    return _UNSHOWN_MARKS.sub("", raw)


def _parse_marks(raw: str) -> Parsed:
    parts: list[Said] = []
    kind: Literal["text", "refusal", "call"] = "text"
    for piece in _SPLIT_MARKS.split(_shown_marks(raw)):
        if _SPLIT_MARKS.fullmatch(piece):
            kind = "call" if named(piece) == "<|call|>" else "refusal"
            if kind == "call":
                parts.append(Said("call", ""))
        elif kind == "call":
            name, _, arguments = piece.partition("\n")
            parts[-1] = Said("call", name, arguments)
        elif piece:
            parts.append(Said(kind, piece))
    return Parsed(tuple(parts))


_HERMES = re.compile(r"<tool_call>(.*?)</tool_call>|<tool_call>(.*)", re.DOTALL)


def _parse_hermes(raw: str) -> Parsed:
    """Text after a call is dropped, and one bad call makes all of it content: both as vLLM does."""
    if "<tool_call>" not in raw:
        return Parsed((Said("text", raw),) if raw else ())
    try:
        calls = [_hermes_call(orjson.loads(closed or left)) for closed, left in _HERMES.findall(raw)]
    except (ValueError, TypeError, KeyError):
        return Parsed((Said("text", raw),))
    content = raw[: raw.find("<tool_call>")]
    return Parsed((*((Said("text", content),) if content else ()), *calls))


def _hermes_call(call: Mapping[str, Any]) -> Said:
    arguments = call["arguments"]
    return Said("call", str(call["name"]), json_of(arguments))


def json_of(arguments: Any) -> str:
    """Arguments as text, spaced as Python's own json writes them."""
    import json

    return json.dumps(arguments, ensure_ascii=False)


def _same(raw: str) -> str:
    return raw


FORMATS: Mapping[str, ToolFormat] = {
    "marks": ToolFormat("marks", _parse_marks, _shown_marks, always=True, marks=_MARKS),
    "hermes": ToolFormat("hermes", _parse_hermes, _same, always=False),
}


def plain(raw: str) -> Parsed:
    """Text in which no calls are looked for."""
    return Parsed((Said("text", raw),) if raw else ())
