"""Contest problems for tests, generated with graders, checkers and scripts as real ones have them."""

from collections.abc import Mapping, Sequence
from typing import Any

FUNCTION = "long long answer(int n, const int* a)"
"""What a submission to `sums` defines."""
UNCHECKED = "#!/bin/bash\ng++ -O0 -o graders/sums graders/grader.cpp graders/sums.cpp\n"
"""Compiles no checker."""
GRADER = (
    "#include <cstdio>\n"
    f"{FUNCTION};\n"
    "int main() {\n"
    "    static int a[1000]; int n;\n"
    '    if (scanf("%d", &n) != 1) return 1;\n'
    '    for (int i = 0; i < n; i++) if (scanf("%d", &a[i]) != 1) return 1;\n'
    '    printf("%lld\\n", answer(n, a));\n'
    "}\n"
)
CHECKER = """#include <cstdio>
#include <cstdlib>
// Full points for the right number, half for one that is off by one, a tenth for any other.
int main() {
    FILE* given = fopen("output.txt", "r"); FILE* wanted = fopen("correct_output.txt", "r");
    long long g, w;
    if (!wanted || fscanf(wanted, "%lld", &w) != 1) return 3;
    if (!given || fscanf(given, "%lld", &g) != 1) { puts("0.0"); fputs("no number", stderr); return 0; }
    puts(g == w ? "1.0" : llabs(g - w) == 1 ? "0.5" : "0.1");
    fputs("checked", stderr);
}
"""
COMPILE = """#!/bin/bash
set -e
g++ -O0 -o graders/sums graders/grader.cpp graders/sums.cpp
g++ -O0 -o graders/checker graders/checker.cpp
"""
RUN = """#!/bin/bash
if ! timeout --kill-after=1 "$(( ${TIME_LIMIT_SCALE%.*} * 2 ))" ./graders/sums < input.txt > output.txt; then
    echo 0
    echo "the submission failed" >&2
    exit
fi
./graders/checker
"""
STRICT = RUN.replace("./graders/checker", "cmp -s output.txt correct_output.txt && echo 1 || echo 0")
PLAIN_CONFIG = ["graders/grader_config.json", '{"task_type": "MULTIFILE"}']
"""Submissions are left as they are, and compile in a moment."""


def sums(
    subtasks: Mapping[str, Mapping[str, Any]], tests: Mapping[str, Sequence[int]], **changes: Any
) -> dict[str, Any]:
    """The sum of some numbers, each test with the right one, under the checker that gives partial scores."""
    files = [["graders/grader.cpp", GRADER], ["graders/checker.cpp", CHECKER], PLAIN_CONFIG]
    data = {
        name: {"input": f"{len(given)}\n{' '.join(map(str, given))}\n", "output": f"{sum(given)}\n", "group": "secret"}
        for name, given in tests.items()
    }
    scripts = {"compile": COMPILE, "run": RUN}
    return {"name": "Sums", **scripts, "grader_files": files, "subtasks": subtasks, "all_tests": data, **changes}


def worth(aggregation: str, tests: Sequence[str], score: float = 0, precision: int = 0) -> dict[str, Any]:
    """A subtask."""
    return {"aggregation": aggregation, "score": score, "score_precision": precision, "test_names": list(tests)}


def entry(**problems: Any) -> dict[str, Any]:
    """A line of the metadata file."""
    return {"competition_id": "tests", "metadata": problems}


def submitted(body: str, before: str = "") -> str:
    """What a model says to submit this body of the function."""
    return f"My submission:\n```cpp\n{before}\n{FUNCTION} {{ {body} }}\n```"


ADD = "long long s = 0; for (int i = 0; i < n; i++) s += a[i];"
RIGHT = submitted(f"{ADD} return s;")

GUESS_GRADER = """#include <cstdio>
int guess(int highest, int (*compare)(int));
static FILE *in, *out;
static int compare(int value) {
    int reply;
    fprintf(out, "%d\\n", value); fflush(out);
    return fscanf(in, "%d", &reply) == 1 ? reply : 0;
}
int main(int count, char** names) {
    int highest;
    if (count != 3) return 1;
    out = fopen(names[1], "w"); in = fopen(names[2], "r");
    if (!in || !out || fscanf(in, "%d", &highest) != 1) return 1;
    fprintf(out, "= %d\\n", guess(highest, compare)); fflush(out);
}
"""
GUESS_MANAGER = """#include <cstdio>
#include <cstring>
// Knows the secret, answers at most 20 comparisons, and prints the score.
int main(int, char** names) {
    int highest, secret, value, asked = 0; char word[32];
    FILE* data = fopen("input.txt", "r");
    if (!data || fscanf(data, "%d %d", &highest, &secret) != 2) return 1;
    FILE* in = fopen(names[1], "r"); FILE* out = fopen(names[2], "w");
    fprintf(out, "%d\\n", highest); fflush(out);
    while (fscanf(in, "%31s", word) == 1) {
        if (!strcmp(word, "=")) { puts(fscanf(in, "%d", &value) == 1 && value == secret ? "1.0" : "0.0"); return 0; }
        if (sscanf(word, "%d", &value) != 1 || ++asked > 20) break;
        fprintf(out, "%d\\n", value < secret ? -1 : value > secret); fflush(out);
    }
    puts("0.0");
}
"""
GUESS_COMPILE = """#!/bin/bash
set -e
g++ -O0 -o graders/manager graders/manager.cpp
g++ -O0 -o graders/guess graders/stub.cpp graders/guess.cpp
"""
GUESS_RUN = """#!/bin/bash
pipes=$(mktemp -d)
mkfifo "$pipes/up" "$pipes/down"
./graders/guess "$pipes/up" "$pipes/down" > /dev/null &
user_pid=$!
timeout 20 ./graders/manager "$pipes/up" "$pipes/down" || echo 0
wait "$user_pid"
exit 0
"""
HALVING = """int guess(int highest, int (*compare)(int)) {
    int low = 1;
    while (low < highest) {
        int middle = (low + highest) / 2, sign = compare(middle);
        if (!sign) return middle;
        if (sign < 0) low = middle + 1; else highest = middle - 1;
    }
    return low;
}
"""


def guess(secrets: Sequence[int]) -> dict[str, Any]:
    """A number is to be guessed by asking a manager through named pipes, which decides the score meanwhile."""
    files = [["graders/stub.cpp", GUESS_GRADER], ["graders/manager.cpp", GUESS_MANAGER], PLAIN_CONFIG]
    tests = {f"t{n}": {"input": f"1000 {secret}\n", "output": f"{secret}\n"} for n, secret in enumerate(secrets)}
    return {
        "compile": GUESS_COMPILE,
        "run": GUESS_RUN,
        "grader_files": files,
        "subtasks": {"all": worth("min", list(tests), 100)},
        "all_tests": tests,
    }
