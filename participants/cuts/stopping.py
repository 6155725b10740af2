"""Stop strings that begin in the prefix and end in the rest: the backend sees only the rest, so they are found here."""

import re
from collections.abc import Callable, Mapping, Sequence
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


INCLUDING: Mapping[str, tuple[str, ...]] = {
    "vllm": ("include_stop_str_in_output",),
    "sglang": ("no_stop_trim",),
    "openai": ("include_stop_str_in_output", "no_stop_trim"),
}
"""By kind of backend: what has the stop string stay in the text. Elsewhere these fields have no effect."""


def includes_stop(body: Mapping[str, Any], kind: str) -> bool:
    """Whether a backend of this kind leaves the stop string in the text."""
    return any(body.get(name) for name in INCLUDING.get(kind, ()))


class StopWatch:
    """Finds a stop string that has begun in the prefix, while the rest comes.

    Where one has begun, the rest is asked for without stop strings (`asked`), so that its text does not lag behind its
    ids, and this alone ends it: the first token that completes one is known then. Else the backend finds them all.
    """

    def __init__(
        self,
        stops: Sequence[str],
        text: str,
        passed: int,
        marks: re.Pattern[str] | None = None,
        told: Callable[[str, Sequence[int]], str] = lambda text, ids: text,
    ) -> None:
        """`text` is that of the prefix's ids; of it, the backend has shown `passed` characters.

        `told` tells the `marks` in the text of one event by its ids.
        """
        self._told = told
        self._stops = tuple(stops)
        self._marks = marks
        self._longest = max(map(len, self._stops), default=0)
        self._text, self._passed = text, passed
        self._parser = sse.Parser()
        self.stop: Stop | None = find_stop(text, self._stops, passed=passed, marks=marks)
        """Found in the prefix alone: nothing needs to be asked. `join` finds it again."""
        self.begun = self.stop is None and _has_begun(text, self._stops, marks)
        """Whether a stop string may have begun in the prefix."""

    @property
    def over(self) -> bool:
        """Whether there is nothing to watch for."""
        return self.stop is not None or not self.begun

    def asked(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body with which the rest is asked for."""
        # Before the least number of tokens only the backend knows which of them count.
        alone = self.begun and not body.get("min_tokens")
        asked = {key: value for key, value in body.items() if not (alone and key == "stop")}
        # Several tokens may come in one event, and only their log probabilities tell which of them completes a stop.
        if self.begun and "prompt" in body and body.get("logprobs") is None:
            asked["logprobs"] = 0
        return asked

    def feed(self, chunk: bytes) -> bool:
        """Bytes of the rest's stream. True once the generation is to be ended."""
        if self.over:
            return self.stop is not None
        payloads = self._parser.feed(chunk)
        events, _ = parsed(b"".join(b"data: " + payload + b"\n\n" for payload in payloads))
        for event in events:
            for choice in event.get("choices") or ():
                text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
                self._text += self._told(text, choice.get("token_ids") or ())
        self.stop = find_stop(self._text, self._stops, passed=self._passed, marks=self._marks)
        self._forget()
        return self.stop is not None

    def _forget(self) -> None:
        """Keep of the text what may be the beginning of a stop string, and marks whole."""
        kept = self._longest + LONGEST_MARK
        if self.stop is None and len(self._text) > 2 * kept:
            self._text = self._text[-kept:]
            self._passed = len(self._text)


def _has_begun(text: str, stops: Sequence[str], marks: re.Pattern[str] | None) -> bool:
    tail = text[-max(map(len, stops), default=0) - LONGEST_MARK :]
    if marks is not None:
        tail = marks.sub(lambda match: NO_TEXT * len(match[0]), tail)
    return any(tail.endswith(stop[:n]) for stop in stops for n in range(1, len(stop)))


LONGEST_MARK = 32
"""Characters of the name of a mark."""
