"""When a program's output is the expected one: the one rule of the code verifiers, for text and for JSON values.

Text, of a program that reads stdin and writes stdout:

    white space at both ends of the whole, and of each line, does not count; the number of lines does
    two lines are the same if their text is, or else if their tokens are, one by one
    two tokens are the same if both are decimal numbers of the same value; where one of them is written with a point or
    an exponent, within 1e-6 of each other, absolute, or relative to the expected one
    words are compared as they are: case counts

JSON values, of a function that was called: the same structure, the same strings, booleans that are no numbers, and
numbers of the same value; two of which one is a float may differ by 1e-8 + 1e-5 of the expected one where they are the
whole result, and inside of it not at all. (The tolerances are those of the reference's checker.)

What is compared was written by untrusted code, so nothing here takes long for a hostile text.
"""

import json
import math
import re
from decimal import Decimal
from itertools import zip_longest
from typing import Any

TOLERANCE = Decimal("1e-6")
_NUMBER = re.compile(r"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,4})?", re.ASCII)
"""Bounded, so that no arithmetic on it is expensive; what is longer is a word."""


class NoValue(ValueError):
    """A text is no JSON value."""


def same_text(expected: str, given: str) -> bool:
    """Whether the whole output is the expected one."""
    lines = zip_longest(expected.strip().split("\n"), given.strip().split("\n"))
    return all(None not in pair and _same_line(*pair) for pair in lines)


def _same_line(expected: str, given: str) -> bool:
    if expected.strip() == given.strip():
        return True
    tokens = zip_longest(expected.split(), given.split())
    return all(None not in pair and _same_token(*pair) for pair in tokens)


def _same_token(expected: str, given: str) -> bool:
    if not (_NUMBER.fullmatch(expected) and _NUMBER.fullmatch(given)):
        return False
    wanted, got = Decimal(expected), Decimal(given)
    if wanted == got:
        return True
    if not any(mark in token for token in (expected, given) for mark in ".eE"):
        return False
    return abs(wanted - got) <= TOLERANCE * max(abs(wanted), Decimal(1))


def value_of(text: str) -> Any:
    """The JSON value of a text. Raises `NoValue` for anything else, also where it is too deep or has a NaN."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise NoValue(f"no JSON value: {error}") from error


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def same_value(expected: Any, given: Any) -> bool:
    """Whether a result is the expected one; both come from `value_of`."""
    if isinstance(expected, float) or isinstance(given, float):
        return _is_number(expected) and _is_number(given) and _close(expected, given)
    return _same(expected, given)


def _same(expected: Any, given: Any) -> bool:
    if isinstance(expected, list) and isinstance(given, list):
        return len(expected) == len(given) and all(map(_same, expected, given))
    if isinstance(expected, dict) and isinstance(given, dict):
        return expected.keys() == given.keys() and all(_same(value, given[key]) for key, value in expected.items())
    if _is_number(expected) and _is_number(given):
        return bool(expected == given)
    return type(expected) is type(given) and bool(expected == given)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _close(expected: float, given: float) -> bool:
    try:
        return math.isclose(given, expected, rel_tol=0.0, abs_tol=1e-8 + 1e-5 * abs(expected))
    except OverflowError:  # An integer too large for a float.
        return expected == given
