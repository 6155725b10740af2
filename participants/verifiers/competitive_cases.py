"""Small contest problems and submissions, by which the conformance kit tries `competitive_coding_challenges`.

Two problems: one of two subtasks of aggregation `min`, whose checker gives half of the points where only the parity is
right, and one of a subtask of aggregation `sum_tests`. Without the large header, compiling takes a moment.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from ..cases import Case

COUNT = 54
_COMPILE = "#!/bin/bash\ng++ -O0 -o graders/solution graders/grader.cpp graders/{name}.cpp\n"
_GRADER = """#include <cstdio>
long long answer(int n, const int* a);
int main() {
    int n, a[100];
    if (scanf("%d", &n) != 1) return 1;
    for (int i = 0; i < n; i++) if (scanf("%d", &a[i]) != 1) return 1;
    printf("%lld\\n", answer(n, a));
}
"""
_RUN_EXACT = """#!/bin/bash
timeout 10 ./graders/solution < input.txt > output.txt || { echo 0; exit; }
cmp -s output.txt correct_output.txt && echo 1 || echo 0
"""
_RUN_PARITY = """#!/bin/bash
timeout 10 ./graders/solution < input.txt > output.txt || { echo 0; exit; }
read -r given < output.txt
read -r wanted < correct_output.txt
if [ "$given" = "$wanted" ]; then echo 1.0
elif [[ $given =~ ^-?[0-9]{1,9}$ ]] && (( (given - wanted) % 2 == 0 )); then echo 0.5
else echo 0.0
fi
"""
_FIRST = "long long answer(int n, const int* a) "
SUBMISSIONS: Mapping[str, Sequence[str]] = {
    "sum": (
        _FIRST + "{ long long s = 0; for (int i = 0; i < n; i++) s += a[i]; return s; }",
        _FIRST + "{ long long s = 0; for (int i = 0; i < n; i++) s += a[i]; return n > 3 ? s + 2 : s; }",
        _FIRST + "{ long long s = 0; for (int i = 0; i < n; i++) s += a[i]; return n > 3 ? s + 1 : s; }",
        _FIRST + "{ return a[n; }",
    ),
    "largest": (
        _FIRST + "{ int m = a[0]; for (int i = 1; i < n; i++) if (a[i] > m) m = a[i]; return m; }",
        _FIRST + "{ return a[0]; }",
        _FIRST + "{ return *(volatile int*)0; }",
    ),
}


def _problem(name: str, run: str, subtasks: Mapping[str, Any], tests: Mapping[str, Any]) -> dict[str, Any]:
    files = [["graders/grader.cpp", _GRADER], ["graders/grader_config.json", '{"task_type": "MULTIFILE"}']]
    scripts = {"compile": _COMPILE.format(name=name), "run": run}
    return {"name": name, **scripts, "grader_files": files, "subtasks": subtasks, "all_tests": tests}


def _test(numbers: Sequence[int], expected: int) -> dict[str, str]:
    return {"input": f"{len(numbers)}\n{' '.join(map(str, numbers))}\n", "output": f"{expected}\n", "group": "secret"}


PROBLEMS: Sequence[Mapping[str, Any]] = (
    {
        "competition_id": "conformance",
        "metadata": {
            "sum": _problem(
                "sum",
                _RUN_PARITY,
                {
                    "small": {"aggregation": "min", "score": 30, "score_precision": 0, "test_names": ["two", "three"]},
                    "large": {"aggregation": "min", "score": 70, "score_precision": 1, "test_names": ["two", "five"]},
                },
                {"two": _test([1, 2], 3), "three": _test([4, 5, 6], 15), "five": _test([1, 1, 1, 1, 1], 5)},
            ),
            "largest": _problem(
                "largest",
                _RUN_EXACT,
                {"all": {"aggregation": "sum_tests", "test_names": ["first", "last"]}},
                {"first": _test([9, 1], 9), "last": _test([1, 9], 9)},
            ),
        },
    },
)


def cases() -> list[Case]:
    """The same ones every time."""
    random = Random(0)
    return [_case(random, number) for number in range(COUNT)]


def _case(random: Random, number: int) -> Case:
    problem_id = list(SUBMISSIONS)[number % 2]
    submission = random.choice(SUBMISSIONS[problem_id])
    subtask = random.choice(("small", "large", "")) if problem_id == "sum" else ""
    row = {"competition_id": "conformance", "problem_id": problem_id, **({"subtask": subtask} if subtask else {})}
    return Case(row=row, said=f"This is my submission:\n```cpp\n{submission}\n```" if number % 13 else "I give up.")
