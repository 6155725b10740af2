"""What a record gives back exactly as it is, and what it does not: refused, and named with its place."""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import UUID

import orjson
import pytest

from participants.exact import check_exact, exact_copy

pytestmark = pytest.mark.unit


class Colour(Enum):
    RED = "red"


class Word(StrEnum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Text(str):
    __slots__ = ()


@dataclass
class Point:
    x: int = 0


CYCLE: list[Any] = []
CYCLE += [CYCLE, CYCLE]
DEEP: list[Any] = []
for _ in range(300):
    DEEP = [DEEP]
EXACT: list[Any] = [
    None, True, 0, -(2**63), 2**64 - 1, 1.5, -0.0, 1e300, "", "é\U0001f600", [], {}, [[1, "a"], {"b": {"c": [None]}}],
]  # fmt: skip
STRANGE: list[Any] = [
    (1, 2), {1}, b"x", datetime(2026, 1, 1, tzinfo=UTC), UUID(int=1), Colour.RED, Word.RED, Number.ONE, Text("a"),
    Point(), float("nan"), float("inf"), float("-inf"), 2**64, -(2**63) - 1, "\ud800", OrderedDict(a=1), {1: "a"},
    {Text("a"): 1}, {Word.RED: 1}, {"\ud800": 1}, object(), orjson.Fragment(b"1"),
]  # fmt: skip


@pytest.mark.parametrize("value", EXACT, ids=repr)
def test_json_comes_back_as_a_copy(value: Any) -> None:
    """Equal, of the same types, and nobody else's."""
    given = {"a": [value]}
    copied = exact_copy(given, "it")
    assert repr(copied) == repr(given)
    assert copied["a"] is not given["a"]
    assert orjson.loads(check_exact(value, "it")) == value


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: type(value).__name__)
def test_what_would_come_back_changed_is_named_with_its_place(value: Any) -> None:
    """By itself, and deep inside of what is exact."""
    with pytest.raises(TypeError, match=r"^the state is not JSON that comes back the same: "):
        check_exact(value, "the state")
    with pytest.raises(TypeError, match=r" at \['a'\]\[1\]"):
        check_exact({"b": "fine", "a": [0, value]}, "the state")


@pytest.mark.parametrize("value", [CYCLE, DEEP], ids=["cycle", "deep"])
def test_what_has_no_end_or_is_too_deep_is_refused_soon(value: Any) -> None:
    """Nothing in it is wrong by itself."""
    with pytest.raises(TypeError, match="its depth or size"):
        check_exact(value, "it")
