"""From generated pieces to what a client is shown: text, refusals and calls of tools, as deltas and as a whole."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from .sampling import Piece
from .tokens import SHOWN_CALL, SHOWN_REFUSAL

_SIGN = re.compile(f"([{SHOWN_CALL}{SHOWN_REFUSAL}])")
Kind = Literal["text", "refusal", "call", "arguments"]


@dataclass(frozen=True, slots=True)
class Delta:
    """One addition to the reply."""

    kind: Kind
    """`call` opens a call and its text is the name; `arguments` adds to the call opened last."""
    text: str


@dataclass(slots=True)
class Reply:
    """Everything generated so far."""

    text: str = ""
    refusal: str | None = None
    calls: list[list[str]] = field(default_factory=list)
    """[name, arguments] of each call."""
    pieces: list[Piece] = field(default_factory=list)

    @property
    def ids(self) -> str:
        """All its ids."""
        return "".join(piece.ids for piece in self.pieces)


class Assembler:
    """Takes pieces, gives deltas, and keeps the whole."""

    def __init__(self) -> None:
        self.reply = Reply()
        self._kind: Kind = "text"
        self._name = ""

    def feed(self, piece: Piece) -> list[Delta]:
        """The deltas of one more piece."""
        self.reply.pieces.append(piece)
        return [delta for part in _SIGN.split(piece.text) if part for delta in self._part(part)]

    def finish(self) -> list[Delta]:
        """What the end brings: a call whose name was cut by a limit."""
        return list(self._open_call()) if self._kind == "call" else []

    def _part(self, part: str) -> Iterator[Delta]:
        if part in (SHOWN_CALL, SHOWN_REFUSAL):
            yield from self.finish()
            self._kind, self._name = ("call", "") if part == SHOWN_CALL else ("refusal", "")
        elif self._kind == "call":
            name, newline, rest = part.partition("\n")
            self._name += name
            if newline:
                yield from self._open_call()
                yield from self._add("arguments", rest)
        else:
            yield from self._add(self._kind, part)

    def _open_call(self) -> Iterator[Delta]:
        self._kind = "arguments"
        self.reply.calls.append([self._name, ""])
        yield Delta("call", self._name)

    def _add(self, kind: Kind, text: str) -> Iterator[Delta]:
        if not text:
            return
        if kind == "arguments":
            self.reply.calls[-1][1] += text
        elif kind == "refusal":
            self.reply.refusal = (self.reply.refusal or "") + text
        else:
            self.reply.text += text
        yield Delta(kind, text)


def call_id(prompt: str, index: int) -> str:
    """The id of a call in the reply to a prompt: the same whenever the same reply is generated."""
    digest = hashlib.blake2b(prompt.encode("utf-16-le"), digest_size=10, salt=index.to_bytes(4, "big"))
    return f"call_{digest.hexdigest()}"
