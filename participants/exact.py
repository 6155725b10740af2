"""Values that hooks leave or give: only what comes back from a record exactly as it is, else refused where it stands.

A record is JSON. What can be written but does not come back the same, such as a tuple, a date, an enum or NaN, would be
one thing before a crash and another after it. The walk goes level by level, so that it costs but a few passes in C.
"""

from itertools import chain
from math import isfinite
from typing import Any

import orjson

SPARE_DEPTH = 64
"""How much deeper than by itself a value may come to stand in a record."""
_EXACT = frozenset({dict, list, str, int, float, bool, type(None)})
_KEY = frozenset({str})
_INTEGERS = range(-(2**63), 2**64)
HAS = "JSON has dict with keys of str, list, str, int of 64 bits, finite float, bool and None"


def exact_copy(value: Any, what: str) -> Any:
    """A copy that nobody else can change. Raises TypeError as `check_exact`."""
    return orjson.loads(check_exact(value, what))


def check_exact(value: Any, what: str) -> bytes:
    """The value as JSON. Raises TypeError, naming what and where it is, for what would not come back the same."""
    wrapped = value
    for _ in range(SPARE_DEPTH):
        wrapped = [wrapped]
    try:
        data = orjson.dumps(wrapped)[SPARE_DEPTH:-SPARE_DEPTH]
    except TypeError as error:
        place = _place(value)
        raise _refusal(what, place, None if place else error) from error
    if not _is_exact(value):
        raise _refusal(what, _place(value), None)
    return data


def _is_exact(value: Any) -> bool:
    """Of what can be written, and so has no cycles."""
    level = [value]
    while level:
        kinds = set(map(type, level))
        if not kinds <= _EXACT:
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


def _place(value: Any) -> str:
    """The first that is not exact, those nearer to the top before others, and where; empty where none is."""
    todo: list[tuple[Any, tuple[Any, ...]]] = [(value, ())]
    seen: set[int] = set()
    for each, path in todo:
        if problem := _problem(each):
            return f"{problem} at {_written(path)}" if path else problem
        if isinstance(each, dict | list) and id(each) not in seen:
            seen.add(id(each))
            items = each.items() if isinstance(each, dict) else enumerate(each)
            todo += [(item, (path, key)) for key, item in items]
    return ""


def _problem(each: Any) -> str:
    exact = type(each) in _EXACT
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
