"""Copies of what the trainer gives, taken at one moment: what it changes afterwards changes no checkpoint.

A value that would not be read back as it is is refused by its place in it, before anything is written.
"""

import math
from collections.abc import Mapping
from typing import Any

from .errors import UnusableState

_LEAST, _MOST = -(2**63), 2**64 - 1
_PLAIN = {bool, type(None)}
MAX_DEPTH = 200
"""Lists and objects in each other: what JSON readers and writers take with what is put round it."""


def copy_of(value: Any, where: str, *, with_bytes: bool = False, depth: int = 0) -> Any:
    """The same value, which shares nothing that can change. Raises UnusableState, naming the place in it."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is str:
        return text(value, where)
    if kind is int:
        return _whole(value, where)
    if kind is float:
        return _finite(value, where)
    if kind in (dict, list, tuple) and depth == MAX_DEPTH:
        raise UnusableState(f"{where:.80}...", f"is nested more than {MAX_DEPTH} deep")
    if kind is dict:
        return {
            _key(key, where): copy_of(item, f"{where}[{key!r}]", with_bytes=with_bytes, depth=depth + 1)
            for key, item in value.items()
        }
    if kind in (list, tuple):
        return _copy_of_list(value, where, with_bytes, depth)
    if with_bytes and isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise UnusableState(where, f"is a {kind.__module__}.{kind.__qualname__}")


def _copy_of_list(value: list[Any] | tuple[Any, ...], where: str, with_bytes: bool, depth: int) -> list[Any]:
    kinds = set(map(type, value))
    if kinds <= _PLAIN or (kinds == {int} and _LEAST <= min(value) <= max(value) <= _MOST):
        return list(value)  # Long lists are mostly token ids.
    return [copy_of(item, f"{where}[{n}]", with_bytes=with_bytes, depth=depth + 1) for n, item in enumerate(value)]


def text(value: Any, where: str) -> str:
    """A text as it is. Raises UnusableState where it is none, or half of a character."""
    if type(value) is not str:
        raise UnusableState(where, f"is no text but {value!r:.80}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UnusableState(where, f"has half of a character at {error.start}, which UTF-8 cannot write") from error
    return value


def copy_of_row(rollout_id: Any, row: Any) -> dict[str, Any]:
    """The row of a rollout."""
    text(rollout_id, "an id of the rows")
    copied = copy_of(dict(row) if isinstance(row, Mapping) else row, f"the row of {rollout_id}")
    if not isinstance(copied, dict):
        raise UnusableState(f"the row of {rollout_id}", "is no object")
    return copied


def _key(key: Any, where: str) -> str:
    if type(key) is not str:
        raise UnusableState(where, f"has the key {key!r:.80}")
    return text(key, f"a key of {where}")


def _whole(value: int, where: str) -> int:
    if not _LEAST <= value <= _MOST:
        raise UnusableState(where, "is an integer of more than 64 bits")
    return value


def _finite(value: float, where: str) -> float:
    if not math.isfinite(value):
        raise UnusableState(where, f"is {value}")
    return value
