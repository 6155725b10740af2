"""Where the values of a JSON file stand, for files too large to load: a scanner that keeps one piece in memory.

The scanner believes that the file is JSON and only looks for the ends of values; whoever loads one of them finds out
whether it is. Nothing here builds a value, but for the names of members.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Self

PIECE_BYTES = 1 << 20
MAX_NAME_BYTES = 4096
"""Of the name of a member."""
_NO_SPACE = re.compile(rb"[^ \t\r\n]")
_NESTING = re.compile(rb'["{}\[\]]')
_AFTER_SCALAR = re.compile(rb"[,}\] \t\r\n]")
_QUOTE = re.compile(rb'"')


class NotJson(ValueError):
    """The file is not what it should be; the message says where."""


@dataclass(frozen=True, slots=True)
class Span:
    """Where a value stands: bytes from `start` to just before `end`."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """In bytes."""
        return self.end - self.start


class JsonFile:
    """A file of JSON values, one after the other. Its methods block; not for two threads at once."""

    def __init__(self, file: BinaryIO) -> None:
        """The file must not change meanwhile."""
        self._file = file
        self._start = 0
        self._piece = b""
        self._ends: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def values(self) -> Iterator[int]:
        """The first byte of each value of the file."""
        at = self._find(_NO_SPACE, 0)
        while at is not None:
            yield at
            at = self._find(_NO_SPACE, self._end(at))

    def members(self, start: int) -> Iterator[tuple[str, int]]:
        """Name and first byte of each member of the object that begins here. Raises `NotJson`.

        Whoever walks through a member before the next one is asked for saves this from looking for its end again.
        """
        at = self._next(self._expect(start, b"{"))
        if self._at(at) != b"}":
            at -= 1
        while self._at(at) != b"}":
            at = self._next(at + 1)
            if self._at(at) != b'"':
                raise NotJson(f"there is no name of a member at byte {at}")
            end = self._string_end(at)
            name = str(self.load(Span(at, end), MAX_NAME_BYTES))
            at = self._next(self._expect(self._next(end), b":"))
            yield name, at
            at = self._next(self._end(at))
            if self._at(at) not in b",}":
                raise NotJson(f"there is neither a comma nor a brace at byte {at}")
        self._ends[start] = at + 1

    def is_object(self, start: int) -> bool:
        """Whether the value that begins here has members."""
        return self._at(start) == b"{"

    def span(self, start: int) -> Span:
        """Of the value that begins here."""
        return Span(start, self._end(start))

    def load(self, span: Span, max_bytes: int) -> Any:
        """One value. Raises `NotJson`, also where it is larger."""
        if span.size > max_bytes:
            raise NotJson(f"the value at byte {span.start} has {span.size} bytes, over {max_bytes}")
        self._file.seek(span.start)
        try:
            return json.loads(self._file.read(span.size))
        except (ValueError, RecursionError) as error:
            raise NotJson(f"the value at byte {span.start} is no JSON: {error}") from error

    def _end(self, at: int) -> int:
        """Just behind the value that begins here; known of those that were walked through."""
        if at in self._ends:
            return self._ends[at]
        match self._at(at):
            case b'"':
                return self._string_end(at)
            case b"{" | b"[":
                return self._nested_end(at)
        end = self._find(_AFTER_SCALAR, at)
        return self._size() if end is None else end

    def _nested_end(self, at: int) -> int:
        depth = 0
        while (found := self._find(_NESTING, at)) is not None:
            match self._at(found):
                case b'"':
                    at = self._string_end(found)
                    continue
                case b"{" | b"[":
                    depth += 1
                case _:
                    depth -= 1
            at = found + 1
            if depth == 0:
                return at
        raise NotJson("the file ends inside of a value")

    def _string_end(self, at: int) -> int:
        """Quotes are far between, and backslashes are not: only those just before a quote are looked at."""
        quote = self._find(_QUOTE, at + 1)
        while quote is not None and self._backslashes(quote, at) % 2:
            quote = self._find(_QUOTE, quote + 1)
        if quote is None:
            raise NotJson(f"the string at byte {at} does not end")
        return quote + 1

    def _backslashes(self, before: int, after: int) -> int:
        count = 0
        while before - count - 1 > after and self._at(before - count - 1) == b"\\":
            count += 1
        return count

    def _next(self, at: int) -> int:
        found = self._find(_NO_SPACE, at)
        if found is None:
            raise NotJson("the file ends inside of an object")
        return found

    def _expect(self, at: int, byte: bytes) -> int:
        if self._at(at) != byte:
            raise NotJson(f"there is no {byte.decode()} at byte {at}")
        return at + 1

    def _find(self, pattern: re.Pattern[bytes], at: int) -> int | None:
        """The first byte that the pattern takes; None at the end of the file."""
        while True:
            self._hold(at)
            found = pattern.search(self._piece, at - self._start)
            if found:
                return self._start + found.start()
            if not self._piece:
                return None
            at = self._start + len(self._piece)

    def _at(self, at: int) -> bytes:
        self._hold(at)
        return self._piece[at - self._start : at - self._start + 1]

    def _hold(self, at: int) -> None:
        """Have the piece with this byte in memory; an empty one behind the end."""
        if self._start <= at < self._start + len(self._piece):
            return
        self._start = at
        self._file.seek(at)
        self._piece = self._file.read(PIECE_BYTES)

    def _size(self) -> int:
        return self._file.seek(0, 2)
