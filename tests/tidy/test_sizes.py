"""Files, functions and folders stay small enough to read."""

import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from .tree import COMPANIONS, PACKAGES, ROOT, AnyFunction, Module, expect_none, modules, plant

pytestmark = pytest.mark.unit

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70
MEDIAN_FUNCTION_LINES = 10
"""The median over all functions that ship stays under this."""
MAX_FOLDER_DEPTH = 2


def length(function: AnyFunction) -> int:
    """Lines from `def` to the last one, docstring and all."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def module_problems(module: Module) -> Iterator[str]:
    """What is too large, too deep or not annotated in one module that ships."""
    if len(module.folder) > MAX_FOLDER_DEPTH:
        yield f"{module.path}: lies deeper than {MAX_FOLDER_DEPTH} folders"
    for function in module.functions():
        if length(function) > MAX_FUNCTION_LINES:
            yield f"{module.at(function)}: {function.name} has {length(function)} lines"
        if function.returns is None:
            yield f"{module.at(function)}: {function.name} has no return annotation"


def median_length(root: Path) -> float:
    """The median length of the functions that ship; 0 if there are none."""
    lengths = [length(function) for module in modules(root, *PACKAGES) for function in module.functions()]
    return statistics.median(lengths) if lengths else 0


def violations(root: Path) -> list[str]:
    """Everything in a tree that breaks a number above."""
    found = [message for module in modules(root, *PACKAGES) for message in module_problems(module)]
    for module in modules(root, *PACKAGES, *COMPANIONS):
        lines = len(module.text.splitlines())
        if lines > MAX_FILE_LINES:
            found.append(f"{module.path}: has {lines} lines")
    if median_length(root) >= MEDIAN_FUNCTION_LINES:
        found.append(f"the median function has {median_length(root)} lines")
    return found


def test_everything_is_small_enough_to_read() -> None:
    """Files, functions and folders keep to the numbers, and every function says what it returns."""
    expect_none(violations(ROOT))


def body(lines: int) -> str:
    """A function with this many lines."""
    return "def f() -> None:\n" + "    pass\n" * (lines - 1)


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        ("store/a.py", "\n" * 501, "has 501 lines"),
        ("tests/store/test_a.py", "\n" * 501, "has 501 lines"),
        ("store/a.py", body(71) + body(2) * 2, "f has 71 lines"),
        ("store/a.py", body(10), "the median function has 10 lines"),
        ("store/backends/object/a.py", "", "deeper than 2"),
        ("midflight/a.py", "class A:\n    async def f(self): ...\n", "f has no return annotation"),
        ("midflight/a.py", "def f() -> None:\n    def g(): ...\n", "g has no return annotation"),
    ],
)
def test_a_thing_too_large_is_found(tmp_path: Path, path: str, text: str, says: str) -> None:
    """Each number is exceeded by one, and that is found."""
    [message] = violations(plant(tmp_path, {path: text}))
    assert says in message


def test_the_limits_themselves_pass(tmp_path: Path) -> None:
    """Exactly as much as allowed is allowed, and tests may nest as deep as what they mirror."""
    files = {
        "store/a.py": "\n" * 500,
        "store/backends/a.py": body(70) + body(9) * 2,
        "tests/store/backends/a.py": "def f(): ...",
    }
    assert violations(plant(tmp_path, files)) == []
