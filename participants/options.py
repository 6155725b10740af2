"""What a class of somebody else is made with, and what it makes of itself: wrong ones are refused before anything runs.

Options are held against what constructors say of them. Annotations count as far as JSON has their types; what they say
beyond that, as a class of somebody's own, is left to the constructor.
"""

import inspect
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_WORDS: Mapping[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def wrong_option(found: type, options: Mapping[str, Any]) -> str:
    """What is wrong with the type of the first option that has another one than is said; empty where none has."""
    for name, value in options.items():
        wanted = annotation_of(found, name)
        if not fits(value, wanted):
            return f"{name} is {value!r:.100}, and must be {_words(wanted)}"
    return ""


def hidden_method(one: Any) -> str:
    """The first method of a base of ours that an object hides by an attribute of its own; empty where it hides none."""
    ours = __name__.partition(".")[0]
    bases = [each for each in type(one).__mro__ if each.__module__.partition(".")[0] == ours]
    return next((name for name in vars(one) if any(callable(vars(base).get(name)) for base in bases)), "")


def annotation_of(found: type, name: str) -> Any:
    """What the first constructor that names an option says of it; Any where none does, or where it cannot be read."""
    for each in found.__mro__:
        init = vars(each).get("__init__")
        parameter = inspect.signature(init).parameters.get(name) if init is not None and each is not object else None
        if parameter is not None:
            try:
                return get_type_hints(init).get(name, Any)
            except Exception:  # Of names that only a type checker has, say.
                return Any
    return Any


def fits(value: Any, wanted: Any) -> bool:
    """Whether a value of JSON is of the type; of what JSON has no type for, each is."""
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin is Literal:
        return any(value == each and type(value) is type(each) for each in inner)
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in inner)
    kind = origin or wanted
    if kind in (bool, str, NoneType):
        return isinstance(value, kind)
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    if kind in (list, tuple, Sequence):
        items = inner[0] if inner and kind is not tuple else Any
        return isinstance(value, list | tuple) and all(fits(each, items) for each in value)
    if kind in (dict, Mapping):
        return isinstance(value, Mapping) and all(fits(each, (*inner, Any, Any)[1]) for each in value.values())
    return True


def _words(wanted: Any) -> str:
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (Union, UnionType):
        return " or ".join(_words(each) for each in inner if each is not NoneType)
    if (origin or wanted) in (list, tuple, Sequence):
        return f"a list, each item {_words(inner[0])}" if inner and inner[0] is not Any else "a list"
    if (origin or wanted) in (dict, Mapping):
        return f"a table, each value {_words(inner[1])}" if inner and inner[1] is not Any else "a table"
    return _WORDS.get(wanted, str(wanted))
