"""Stop strings that begin in the prefix and end in the rest: the backend sees only the rest, so they are found here."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import sse
from .reading import parsed

NO_TEXT = "\x00"
"""Stands for what no stop string can match; no stop string has it."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a text stops."""

    at: int
    """Characters of the text that stay."""
    seen: int
    """Characters that had to be generated to know."""
    by: str


def find_stop(
    text: str, stops: Sequence[str], *, passed: int = 0, marks: re.Pattern[str] | None = None, included: bool = False
) -> Stop | None:
    """The first stop string that ends after `passed` characters: what ends before, the backend has let pass.

    Of several, the one that begins first, as the backends have it. `marks` are no text.
    """
    longest = max(map(len, stops), default=0)
    start = max(passed - longest + 1, 0)
    searched = text[start:]
    if marks is not None:
        searched = marks.sub(lambda match: NO_TEXT * len(match[0]), searched)
    found = []
    for stop in stops:
        at = searched.find(stop)
        while at >= 0 and start + at + len(stop) <= passed:
            at = searched.find(stop, at + 1)
        if at >= 0:
            end = start + at + len(stop)
            found.append(Stop(end if included else start + at, end, stop))
    return min(found, key=lambda stop: stop.at, default=None)


def includes_stop(body: Mapping[str, Any]) -> bool:
    """Whether the stop string stays in the text."""
    return bool(body.get("include_stop_str_in_output") or body.get("no_stop_trim"))


class StopWatch:
    """Reads along with the rest and says when it can be ended early."""

    def __init__(self, stops: Sequence[str], raw_text: str, passed: int, marks: re.Pattern[str] | None = None) -> None:
        """`raw_text` is that of the prefix's ids; of it, the backend has shown `passed` characters."""
        self._stops = tuple(stops)
        self._marks = marks
        self._longest = max(map(len, self._stops), default=0)
        self._base = max(len(raw_text) - self._longest - len(raw_text[passed:]) + 1, 0)
        self._text = raw_text[self._base :]
        self._passed = max(passed - self._base, 0)
        self._edge = len(self._text) + self._longest
        self._parser = sse.Parser()
        self.stop: Stop | None = self._find()
        """Found in the prefix alone: nothing needs to be asked."""

    @property
    def over(self) -> bool:
        """Whether nothing can be found any more that the backend would not find itself."""
        return self.stop is not None or not self._stops or len(self._text) >= self._edge

    def feed(self, chunk: bytes) -> bool:
        """Bytes of the rest's stream. True once the generation can be ended: `join` finds the same stop again."""
        if self.over:
            return self.stop is not None
        payloads = self._parser.feed(chunk)
        events, _ = parsed(b"".join(b"data: " + payload + b"\n\n" for payload in payloads))
        for event in events:
            for choice in event.get("choices") or ():
                text = choice.get("text") or (choice.get("delta") or {}).get("content")
                self._text += text or ""
        self.stop = self._find()
        return self.stop is not None

    def _find(self) -> Stop | None:
        return find_stop(self._text, self._stops, passed=self._passed, marks=self._marks)
