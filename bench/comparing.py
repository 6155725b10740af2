"""What differs between two replies that should be the same."""

from collections.abc import Iterator
from typing import Any

TOLERANCE = 1e-4
"""Of log probabilities."""
VARYING = frozenset({"id", "created", "created_at", "completed_at", "call_id", "item_id", "system_fingerprint"})
"""Ids and times: no two replies have the same."""
_CONTENT = "token_ids"


class Comparison:
    """Two JSON values, compared field by field."""

    def __init__(self, expected: Any, found: Any) -> None:
        """Floats count as equal within TOLERANCE; fields of VARYING are not looked at."""
        self.largest = 0.0
        """The largest difference of two floats."""
        self.differences = list(self._walk("", expected, found))
        """A line each."""

    def _walk(self, where: str, one: Any, two: Any) -> Iterator[str]:
        if isinstance(one, dict) and isinstance(two, dict):
            for key in sorted((one.keys() | two.keys()) - VARYING):
                yield from self._walk(f"{where}.{key}", one.get(key), two.get(key))
        elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
            for number, (left, right) in enumerate(zip(one, two, strict=True)):
                yield from self._walk(f"{where}[{number}]", left, right)
        elif isinstance(one, float) and isinstance(two, float):
            self.largest = max(self.largest, abs(one - two))
            if abs(one - two) > TOLERANCE:
                yield f"{where}: {one} and {two}"
        elif one != two:
            yield f"{where}: {one!r:.120} and {two!r:.120}"


def ids_in(body: Any) -> list[int] | None:
    """The token ids that a reply names, in any dialect."""
    places = [body, *(body.get("choices") or ())] if isinstance(body, dict) else []
    return next((place[_CONTENT] for place in places if place.get(_CONTENT) is not None), None)
