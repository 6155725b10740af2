"""Values that hooks leave or give: only what comes back from a record exactly as it is, else refused where it stands.

A record is JSON. What can be written but does not come back the same, such as a tuple, a date, an enum or NaN, would be
one thing before a crash and another after it. The walk goes level by level, so that it costs but a few passes in C.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from typing import Any

import orjson

from store import DEFAULT_LIMITS, LazyBytes

SPARE_DEPTH = 64
"""How much deeper than by itself a value may come to stand in a record."""
_EXACT: frozenset[type] = frozenset({dict, list, str, int, float, bool, type(None)})
_PAYLOADS: frozenset[type] = frozenset({bytes, LazyBytes})
"""What an author's own export may hold as well."""
_KEY: frozenset[type] = frozenset({str})
_INTEGERS = range(-(2**63), 2**64)
HAS = "JSON has dict with keys of str, list, str, int of 64 bits, finite float, bool and None"


def exact_copy(value: Any, what: str) -> Any:
    """A copy that nobody else can change. Raises TypeError as `check_exact`."""
    return orjson.loads(check_exact(value, what))


@dataclass(frozen=True, slots=True)
class Exported:
    """A copy of what an author has exported, and how large it is."""

    value: Any
    text_bytes: int
    """Of what will stand in its record."""
    payload_bytes: int
    """Of all its bytes and LazyBytes."""


def exact_export(value: Any, what: str) -> Exported:
    """A copy of JSON in which bytes and LazyBytes may stand. Raises TypeError as `check_exact`."""
    payloads: list[int] = []

    def size(each: Any) -> None:
        """Also of each subclass, which is refused later."""
        if not isinstance(each, bytes | LazyBytes):
            raise TypeError(f"a value of type {type(each).__name__}")
        payloads.append(len(each) if isinstance(each, bytes) else each.size)

    data = _checked(value, what, _EXACT | _PAYLOADS, size)
    inline = sum([size for size in payloads if size <= DEFAULT_LIMITS.inline_payload_bytes])
    copied = _copied(value) if payloads else orjson.loads(data)
    return Exported(copied, len(data) + inline * 4 // 3, sum(payloads))


def _copied(value: Any) -> Any:
    """Of what was checked; whatever is neither a dict nor a list cannot be changed."""
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if type(value) is list else value


def check_exact(value: Any, what: str) -> bytes:
    """The value as JSON. Raises TypeError, naming what and where it is, for what would not come back the same."""
    return _checked(value, what, _EXACT, None)


def _checked(value: Any, what: str, allowed: frozenset[type], default: Callable[[Any], None] | None) -> bytes:
    wrapped = value
    for _ in range(SPARE_DEPTH):
        wrapped = [wrapped]
    try:
        data = orjson.dumps(wrapped, default, orjson.OPT_PASSTHROUGH_DATACLASS)[SPARE_DEPTH:-SPARE_DEPTH]
    except TypeError as error:
        place = _place(value, allowed)
        raise _refusal(what, place, None if place else error) from error
    if not _is_exact(value, allowed):
        raise _refusal(what, _place(value, allowed), None)
    return data


def _is_exact(value: Any, allowed: frozenset[type]) -> bool:
    """Of what can be written, and so has no cycles."""
    level = [value]
    while level:
        kinds = set(map(type, level))
        if not kinds <= allowed:
            return False
        if float in kinds and not all(map(isfinite, [each for each in level if type(each) is float])):
            return False
        lists = [each for each in level if type(each) is list] if list in kinds else []
        dicts = [each for each in level if type(each) is dict] if dict in kinds else []
        if not set(map(type, chain.from_iterable(dicts))) <= _KEY:
            return False
        level = [*chain.from_iterable(lists), *chain.from_iterable(map(dict.values, dicts))]
    return True


def _refusal(what: str, place: str, error: TypeError | None) -> TypeError:
    found = place or f"its depth or size: {error}"
    return TypeError(f"{what} is not JSON that comes back the same: {found}; {HAS}")


def _place(value: Any, allowed: frozenset[type]) -> str:
    """The first that is not exact, those nearer to the top before others, and where; empty where none is."""
    todo: list[tuple[Any, tuple[Any, ...]]] = [(value, ())]
    seen: set[int] = set()
    for each, path in todo:
        if problem := _problem(each, allowed):
            return f"{problem} at {_written(path)}" if path else problem
        if isinstance(each, dict | list) and id(each) not in seen:
            seen.add(id(each))
            items = each.items() if isinstance(each, dict) else enumerate(each)
            todo += [(item, (path, key)) for key, item in items]
    return ""


def _problem(each: Any, allowed: frozenset[type]) -> str:
    exact = type(each) in allowed
    if type(each) is dict:
        key = next((key for key in each if type(key) is not str or not _is_text(key)), None)
        return "" if key is None else f"the key {key!r:.80} of type {type(key).__name__}"
    if type(each) is int:
        exact = each in _INTEGERS
    elif type(each) is float:
        exact = isfinite(each)
    elif type(each) is str:
        exact = _is_text(each)
    return "" if exact else f"{type(each).__name__} {each!r:.80}"


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _written(path: tuple[Any, ...]) -> str:
    text = ""
    while path:
        path, key = path
        text = f"[{key!r:.40}]{text}"
    return text
