"""What the tables of a configuration are made of: limits of numbers, JSON, the names of secrets."""

import json
import os
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, Any, get_args

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ..wire import MAX_SECONDS

Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS, allow_inf_nan=False)]
"""A week at most, as in the calls of the control plane."""
MAX_INT = 2**63 - 1
"""The largest integer of TOML, and of what is written as JSON."""
NotNegative = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
Natural = Annotated[int, Field(ge=0, le=MAX_INT)]
Positive = Annotated[int, Field(ge=1, le=MAX_INT)]


def _without_nul(place: str) -> str:
    if "\0" in place:
        raise ValueError("no file has the character NUL in its name")
    return place


Place = Annotated[str, AfterValidator(_without_nul)]
"""A path or URL."""


def _is_class(path: str) -> str:
    module, colon, name = path.partition(":")
    if not (colon and name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ValueError(f"{path!r:.200} is no module:Class")
    return path


ClassPath = Annotated[str, AfterValidator(_is_class)]
"""`module:Class`."""
Texts = Annotated[tuple[str, ...], Field(strict=False)]
"""An array of a file, which comes as a list."""
GC_THRESHOLD = (50_000, 20, 20)
"""With tens of thousands of episodes in memory, Python spends a third of its time looking for cycles otherwise."""


_BARE = re.compile(r"[A-Za-z0-9_-]+|\[key\]")
"""Of the steps to a place in a document, those that a file has without quotes; the second means the key itself."""


class ConfigError(Exception):
    """The configuration cannot be used, or not with what is there; the message says what to change."""


class Table(BaseModel):
    """Base of the tables. Text is no number and no boolean, though it may look like one."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _as_json(values: dict[str, Any]) -> dict[str, Any]:
    """Refuse what JSON cannot say: dates, numbers that are not finite, integers of more than 64 bits, other keys."""
    for name, value in values.items():
        try:
            json.dumps(value, allow_nan=False)  # It refuses dates, which orjson would write as text.
            orjson.dumps(value)  # It refuses integers of more than 64 bits, and keys that are no text.
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{name} cannot be written as JSON ({error}); a date, for one, is given as text"
            ) from error
    return values


JSONTable = Annotated[dict[str, Any], AfterValidator(_as_json)]


def secret(name: str | None) -> str | None:
    """The value of an environment variable that the configuration names. Raises ConfigError where it is not set."""
    if name is None:
        return None
    value = os.environ.get(name)
    if not value:
        raise ConfigError(f"the environment variable {name} is not set, and the configuration names it")
    return value


def problem_of(error: ValidationError, top: type[Table]) -> str:
    """The first thing that is wrong with a document, and where, if at one place; of a wrong key, the right ones."""
    # A wrong key first: what is missing may be what it stands for.
    first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    place, said = ".".join(map(_quoted, first["loc"])), first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        keys = list(_table_at(first["loc"][:-1], top).model_fields)
        said = f"there is no such key; there are {', '.join(keys)}"
        if near := get_close_matches(str(first["loc"][-1])[:200], keys, n=1):
            said += f". Did you mean {near[0]}?"
    elif first["type"] in ("model_type", "dict_type"):
        said = "this is a table, and it has another value"
    elif first["type"] == "too_short" and first["input"] == "":
        said = "it is empty"
    elif first.get("ctx") == {"le": MAX_SECONDS}:
        said = f"it may be {MAX_SECONDS:.0f} seconds at most, a week"
    return f"{place}: {said}" if place else said


def _quoted(step: str | int) -> str:
    return f"{step!s:.200}" if _BARE.fullmatch(str(step)) else f'"{step!s:.200}"'


def _table_at(steps: Sequence[str | int], top: type[Table]) -> type[Table]:
    """The table that a place in the document is in."""
    table = top
    for step in steps:
        if (field := table.model_fields.get(str(step))) is None:
            continue  # The name of one of several tables of one kind.
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, Table):
                table = kind
    return table
