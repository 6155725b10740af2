"""Small programs, right and wrong, by which the conformance kit tries `code_gen`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import orjson

from ..cases import Case

COUNT = 54


@dataclass(frozen=True, slots=True)
class _Task:
    """One kind of task: tests by chance, and programs for it."""

    test: Callable[[Random], tuple[str, str]]
    """An input and the output that it must have."""
    programs: Sequence[str]
    """The first is right."""
    fn_name: str | None = None
    language: str = "python"


def _sum(random: Random) -> tuple[str, str]:
    numbers = [random.randint(1, 99) for _ in range(4)]
    return f"4\n{' '.join(map(str, numbers))}\n", f"{sum(numbers)}\n"


def _halves(random: Random) -> tuple[str, str]:
    number = random.randint(1, 99)
    return f"{number}\n", f"{number / 2}\n"


def _longest(random: Random) -> tuple[str, str]:
    words = ["a" * length for length in random.sample(range(1, 9), 3)]
    return orjson.dumps(words).decode(), orjson.dumps(max(words, key=len)).decode()


def _add(random: Random) -> tuple[str, str]:
    first, second = random.randint(1, 99), random.randint(1, 99)
    return f"{first}\n{second}", str(first + second)


TASKS = (
    _Task(
        test=_sum,
        programs=(
            "input()\nprint(sum(map(int, input().split())))",
            "input()\nprint(sum(map(int, input().split())) + 1)",
            "input()\nprint(1 // 0)",
            "raise SystemExit",
        ),
    ),
    _Task(test=_halves, programs=("print(f'{int(input()) / 2:.3f}')", "print(int(input()) // 2 - 1)")),
    _Task(
        test=_longest,
        programs=(
            "class Solution:\n    def longest(self, words: List[str]) -> str:\n        return max(words, key=len)",
            "class Solution:\n    def longest(self, words: List[str]) -> str:\n        return min(words, key=len)",
            "import os\nos._exit(0)",
        ),
        fn_name="longest",
    ),
    _Task(test=_add, programs=("def add(a, b):\n    return a + b", "def add(a, b):\n    return [a]"), fn_name="add"),
    _Task(
        test=_sum,
        programs=(
            '#include <cstdio>\nint main() { int n, x, s = 0; scanf("%d", &n); while (n--) { scanf("%d", &x); s += x; }'
            ' printf("%d", s); }',
            "int main() { return 1; }",
        ),
        language="cpp",
    ),
)


def cases() -> list[Case]:
    """The same ones every time."""
    random = Random(0)
    return [_case(random, number) for number in range(COUNT)]


def _case(random: Random, number: int) -> Case:
    task = TASKS[number % len(TASKS)]
    tests = [task.test(random) for _ in range(2)]
    unit_tests: Mapping[str, Any] = {
        "inputs": [given for given, _ in tests],
        "outputs": [expected for _, expected in tests],
        "fn_name": task.fn_name,
    }
    program = task.programs[number // len(TASKS) % len(task.programs)]
    said = f"I think this will do:\n```{task.language}\n{program}\n```" if number % 11 else "I cannot solve this."
    return Case(row={"verifier_metadata": {"unit_tests": unit_tests, "language": task.language}}, said=said)
