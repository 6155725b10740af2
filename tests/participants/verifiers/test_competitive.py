"""`competitive_coding_challenges` with real compilers, graders and checkers: scores, failures, hostile submissions."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from participants import Code, ParticipantError
from participants.cases import Case, response_of
from participants.sandbox import WORK, Program, Ran, Sandbox, SandboxLimits
from participants.verifiers.competitive_coding_challenges import CompetitiveCodingChallengesServer
from participants.verifiers.scratch import own_place

from .contests import (
    ADD,
    FUNCTION,
    HALVING,
    PLAIN_CONFIG,
    RIGHT,
    STRICT,
    UNCHECKED,
    entry,
    guess,
    submitted,
    sums,
    worth,
)
from .judges import verify

pytestmark = [pytest.mark.process, pytest.mark.anyio, pytest.mark.timeout(180)]

NUMBERS = {"one": [5], "two": [1, 2], "three": [4, 5, 6], "five": [1, 1, 1, 1, 1]}
SUBTASKS = {
    "small": worth("min", ["one", "two"], 30),
    "large": worth("min", ["two", "three", "five"], 70, 1),
    "each": worth("sum_tests", ["one", "five"]),
}


def server(problem: Mapping[str, Any], name: str = "sums", **options: Any) -> CompetitiveCodingChallengesServer:
    """A verifier of one problem."""
    return CompetitiveCodingChallengesServer(problems=[entry(**{name: problem})], **{"time_scale": 1.0, **options})


async def scored(
    problem: Mapping[str, Any], said: str, row: Mapping[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    """The reply for one answer."""
    return await verify(server(problem, **options), {"problem_id": "sums", **(row or {})}, said)


def shown(reply: Mapping[str, Any]) -> dict[str, float]:
    """The scores of the subtasks."""
    return {name: result["score"] for name, result in reply["details"]["test_case_results"].items()}


WRONG_FOR_MANY = submitted(f"{ADD} return n > 3 ? s + 1 : s;")
WRONG_FOR_FEW = submitted(f"{ADD} return n < 2 ? 99 : s;")

SCORED = [
    # Answer, subtask, reward mode, reward, scores, tests run. By hand: the checker gives 1 for right, 0.5 for off by
    # one, and 0.1 for any other number. WRONG_FOR_MANY is off by one in `five`: large is 0.5 * 70, `each` counts both
    # tests above 0. WRONG_FOR_FEW is far off in `one`: small is 0.1 * 30, large whole.
    (RIGHT, None, "binary", 1.0, {"small": 30.0, "large": 70.0, "each": 2.0}, 4),
    (RIGHT, "small", "binary", 1.0, {"small": 30.0}, 2),
    (WRONG_FOR_MANY, None, "binary", 0.0, {"small": 30.0, "large": 35.0, "each": 2.0}, 4),
    (WRONG_FOR_MANY, "small", "binary", 1.0, {"small": 30.0}, 2),
    (WRONG_FOR_MANY, "large", "binary", 0.0, {"large": 35.0}, 3),
    (WRONG_FOR_MANY, "each", "binary", 1.0, {"each": 2.0}, 2),
    (WRONG_FOR_MANY, None, "fraction", 0.75, {"small": 30.0, "large": 35.0, "each": 2.0}, 4),
    (WRONG_FOR_MANY, "each", "fraction", 0.5, {"each": 2.0}, 2),
    (WRONG_FOR_FEW, None, "binary", 0.0, {"small": 3.0, "large": 70.0, "each": 2.0}, 4),
    (WRONG_FOR_FEW, "large", "binary", 1.0, {"large": 70.0}, 3),
]


@pytest.mark.parametrize(("said", "subtask", "mode", "reward", "scores", "count"), SCORED, ids=range(len(SCORED)))
async def test_scores_are_those_of_the_grader(
    said: str, subtask: str | None, mode: str, reward: float, scores: Mapping[str, float], count: int
) -> None:
    """Tests run once though several subtasks have them, with the problem's own compiled checker."""
    reply = await scored(sums(SUBTASKS, NUMBERS), said, {"subtask": subtask}, reward_mode=mode)
    assert (reply["reward"], shown(reply), reply["num_tests_run"]) == (reward, scores, count)
    assert reply["total_test_execution_time_s"] > 0
    outputs = [each for result in reply["details"]["test_case_results"].values() for each in result["outputs"]]
    assert {(each["test_group"], each["run_stderr"]) for each in outputs} == {("secret", "checked")}


@pytest.mark.parametrize(("mode", "reward", "count"), [("binary", 0.0, 2), ("fraction", 0.25, 4)])
async def test_a_failed_subtask_is_given_up_in_binary_mode(mode: str, reward: float, count: int) -> None:
    """The first of four tests is right, the second scores 0; in batches of one, two do not run."""
    problem = sums({"all": worth("min", list(NUMBERS), 100)}, NUMBERS, run=STRICT)
    said = submitted(f"{ADD} return n == 1 ? s : -1;")
    reply = await scored(problem, said, reward_mode=mode, test_batch_size=1)
    assert (reply["reward"], reply["num_tests_run"], shown(reply)) == (reward, count, {"all": 0.0})


async def test_the_older_form_and_added_includes_work_together() -> None:
    """A submission without a single include is compiled, and its subtasks are of aggregation min."""
    today = sums(SUBTASKS, NUMBERS)
    files = [each for each in today["grader_files"] if each is not PLAIN_CONFIG]
    shared = {"compile": today["compile"], "run": today["run"], "grader_files": files}
    tests = today["all_tests"]
    older = {"a": {**shared, "score": 40, "tests": {"one": tests["one"]}}, "b": {**shared, "score": 60, "tests": tests}}
    said = submitted("vector<int> v(a, a + n); return accumulate(v.begin(), v.end(), 0LL);")
    reply = await scored(older, said)
    assert (reply["reward"], shown(reply)) == (1.0, {"a": 40.0, "b": 60.0})


async def test_a_submission_may_recurse_as_deep_as_its_memory_allows() -> None:
    """A hundred thousand calls want more than the 8 MiB that a program has for them by default."""
    before = "static int deep(int n) { volatile int a[16] = {n}; return n ? deep(n - 1) + (a[0] != n) : 0; }"
    reply = await scored(sums(SUBTASKS, NUMBERS), submitted(f"{ADD} return s + deep(100000);", before))
    assert reply["reward"] == 1.0


@pytest.mark.parametrize(("wrong", "reward"), [(False, 1.0), (True, 0.0)])
async def test_a_submission_may_talk_to_a_manager_through_pipes(wrong: bool, reward: float) -> None:
    """The named pipes among its arguments are open to it, in a folder of the run script's own making."""
    code = (
        HALVING.replace("return low;", "return low + 1;").replace("return middle;", "return 0;") if wrong else HALVING
    )
    one = server(guess([1, 500, 1000]), "guess")
    reply = await verify(one, {"problem_id": "guess"}, f"```cpp\n{code}\n```")
    assert reply["reward"] == reward
    assert {each["score"] for each in reply["details"]["test_case_results"]["all"]["outputs"]} == {reward}


@pytest.fixture
def from_a_file(tmp_path: Path) -> CompetitiveCodingChallengesServer:
    """A server is made before its loop runs, and looks for its file then."""
    path = tmp_path / "meta.jsonl"
    path.write_text(json.dumps(entry(sums=sums(SUBTASKS, NUMBERS))), encoding="utf-8")
    return CompetitiveCodingChallengesServer(test_file=str(path))


async def test_the_metadata_file_is_used(from_a_file: CompetitiveCodingChallengesServer) -> None:
    """The same problem, from a file."""
    one = from_a_file
    reply = await verify(one, {"problem_id": "sums", "competition_id": "tests", "subtask": "small"}, RIGHT)
    assert (reply["reward"], reply["name"]) == (1.0, "sums")


NO_REWARD = {
    "no code": ("I give up.", "block of C++"),
    "another language": ("```python\nprint(1)\n```", "block of C++"),
    "does not compile": (submitted("return x;"), "does not compile"),
    "does not link": ("```cpp\nint other() { return 1; }\n```", "does not compile"),
    "a second main": (submitted("return 0;", "int main() { }"), "does not compile"),
}


@pytest.mark.parametrize("name", NO_REWARD)
async def test_what_cannot_be_run_is_a_reward_of_0_with_details(name: str) -> None:
    """The compiler's words are in the details."""
    said, told = NO_REWARD[name]
    reply = await scored(sums(SUBTASKS, NUMBERS), said)
    assert (reply["reward"], reply["num_tests_run"]) == (0.0, 0)
    assert told in reply["details"]["error"]
    assert "error" in reply["details"].get("compile_stderr", "error")


def printing(file: str) -> str:
    """C++ that prints a file and leaves, if it can open it."""
    return f'{{ FILE* f = fopen({file}, "r"); int c; if (f) {{ while ((c = getc(f)) != EOF) putchar(c); leave(); }} }}'


HEADERS = ("cstdio", "cstdlib", "cstring", "csignal", "unistd.h", "fcntl.h", "sys/stat.h")
C = "".join(f"#include <{header}>\n" for header in HEADERS) + "void leave() { fflush(stdout); _exit(0); }\n"
PARENT = 'char p[200]; for (int pid = 1; pid < 50; pid++) { sprintf(p, "/proc/%d/'
"""Tries each process that it could know."""
HOSTILE = {
    "answer of another test": submitted("return 5;"),
    "prints a score": submitted('puts("1.0"); puts("1"); leave();', C),
    "prints a score to stderr": submitted('fputs("1.0", stderr); _exit(0);', C),
    "leaves early": submitted("_exit(0);", C),
    "leaves before main": submitted("return 0;", C + '[[gnu::constructor]] void early() { puts("1.0"); leave(); }'),
    "reads the answer": submitted(printing('"correct_output.txt"') + " return -9;", C),
    "reads it by its path": submitted(printing(f'"{WORK}/correct_output.txt"') + " return -9;", C),
    "reads it by itself": submitted(printing('"/proc/self/cwd/correct_output.txt"') + " return -9;", C),
    "reads it by others": submitted(PARENT + 'cwd/correct_output.txt", pid);' + printing("p") + "} return -9;", C),
    "includes it": submitted("return\n#include \"../correct_output.txt\"\n;"),
    "reads the checker": submitted(printing('"graders/checker.cpp"') + " return -9;", C),
    "speaks for the script": submitted(
        PARENT + 'fd/1", pid); int f = open(p, 1); if (f >= 0) (void)!write(f, "1.0\\n", 4); }'
        " kill(getppid(), 9); return -9;",
        C,
    ),
    "speaks on all descriptors": submitted('for (int f = 3; f < 999; f++) (void)!write(f, "1.0\\n", 4); return 0;', C),
    "replaces the answer": submitted(
        'FILE* f = fopen("correct_output.txt", "w"); if (f) { fputs("-9\\n", f); fclose(f); } return -9;', C
    ),
    "replaces the output": submitted(
        'unlink("correct_output.txt"); symlink("output.txt", "correct_output.txt"); return -9;', C
    ),
    "replaces the script": submitted(
        'FILE* f = fopen("run.sh", "a"); if (f) { fputs("\\nexec echo 1.0\\n", f); fclose(f); } return -9;', C
    ),
    "lives on": submitted('if (!fork()) { setsid(); for (;;) puts("1.0"); } _exit(0);', C),
    "kills all": submitted("kill(-1, SIGKILL); kill(getppid(), SIGKILL); return -9;", C),
    "crashes": submitted("return *(volatile int*)0;"),
    "sleeps": submitted("sleep(100); return 0;", C),
    "floods": submitted('for (;;) puts("1.0");', C),
    "forks": submitted("for (;;) fork();", C),
    "memory": submitted("for (;;) memset(malloc(1 << 24), 1, 1 << 24);", C),
}  # fmt: skip


class ByRlimits(Sandbox):
    """A sandbox as it is where there is no bubblewrap."""

    def _bubblewrap(self) -> str:
        return ""


TRIED = [(name, "bubblewrap") for name in HOSTILE]
TRIED += [(name, "rlimits") for name in HOSTILE if name.startswith(("reads", "speaks", "replaces", "kills"))]


@pytest.mark.parametrize(("name", "containment"), TRIED)
async def test_no_hostile_submission_is_rewarded(name: str, containment: str) -> None:
    """It sees neither answers nor graders, speaks for nobody else, and leaves nothing that counts."""
    problem = sums({"all": worth("min", ["two", "three"], 100)}, NUMBERS, compile=UNCHECKED, run=STRICT, time_limit=8)
    one = server(problem, test_batch_size=1)
    one.sandbox = ByRlimits() if containment == "rlimits" else Sandbox()
    reply = await verify(one, {"problem_id": "sums"}, HOSTILE[name])
    assert (reply["reward"], shown(reply)) == (0.0, {"all": 0.0})
    assert left() == []


async def test_a_checker_cannot_be_replaced() -> None:
    """It goes on giving a tenth for any number that is wrong."""
    body = 'FILE* f = fopen("graders/checker", "w"); if (f) { fputs("#!/bin/sh\\necho 1\\n", f); fclose(f); }'
    other = f'unlink("graders/checker"); {body} chmod("graders/checker", 0755); return -9;'
    reply = await scored(sums({"all": worth("min", ["two", "three"], 100)}, NUMBERS), submitted(other, C))
    assert (reply["reward"], shown(reply)) == (0.0, {"all": 10.0})


def test_the_hostile_submissions_define_what_is_asked_for() -> None:
    """One that did not would be refused by the linker, and show nothing."""
    assert all(FUNCTION in said for said in HOSTILE.values())


BROKEN: Mapping[str, Mapping[str, Any]] = {
    "no compiler": {"compile": "#!/bin/bash\nno-such-compiler graders/sums.cpp\n"},
    "a compiler that makes nothing": {"compile": "#!/bin/bash\ntrue\n"},
    "a script that does not run it": {"run": "#!/bin/bash\necho 1\n"},
    "a script that prints no score": {"run": "#!/bin/bash\n./graders/sums < input.txt > output.txt\n"},
    "a script that prints a word": {"run": "#!/bin/bash\n./graders/sums < input.txt > output.txt\necho right\n"},
    "a script that prints 100": {"run": "#!/bin/bash\n./graders/sums < input.txt > output.txt\necho 100\n"},
    "no checker": {"run": "#!/bin/bash\n./graders/sums < input.txt > output.txt\n./graders/no-checker\n"},
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_wrong_with_a_problem_is_no_reward(name: str) -> None:
    """Neither 1 nor 0: a failure that names the problem."""
    with pytest.raises(ParticipantError, match="problem sums") as caught:
        await scored(sums(SUBTASKS, NUMBERS, **BROKEN[name]), RIGHT)
    assert caught.value.code == Code.EXECUTOR_FAILED


RUN_AND = "#!/bin/bash\nset -e\n./graders/sums < input.txt > output.txt\n"
WRONG, CRASH = submitted(f"{ADD} return s + 1;"), submitted(f"{ADD} __builtin_trap();")
GIVING_UP: dict[str, tuple[str, str, str | None]] = {
    "a crash ends the script": (f"{RUN_AND}echo 1\n", CRASH, None),
    "a wrong answer ends the script": (f"{RUN_AND}cmp -s output.txt correct_output.txt\necho 1\n", WRONG, None),
    "it talks with another program": ("#!/bin/bash\n./graders/sums < input.txt | false\n", RIGHT, None),
    "it fails by itself": (f"{RUN_AND}cat no-such-file\necho 1\n", RIGHT, "no-such-file"),
    "it fails by itself after a crash": ("#!/bin/bash\n./graders/sums < input.txt > o\nexit 3\n", CRASH, "code 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", GIVING_UP)
async def test_a_script_that_fails_is_its_own_fault_where_it_fails_with_the_expected_output_too(name: str) -> None:
    """What the submission does, or what nobody can tell, is a score of 0."""
    script, said, why = GIVING_UP[name]
    problem = sums({"all": worth("min", ["x"], 1)}, {"x": [1]}, run=script, compile=UNCHECKED)
    if why is None:
        assert (await scored(problem, said))["reward"] == 0.0
        return
    with pytest.raises(ParticipantError, match=why) as caught:
        await scored(problem, said)
    assert caught.value.code == Code.EXECUTOR_FAILED


async def test_what_a_submission_prints_is_never_its_score() -> None:
    """Under a script that leaves it its own stdout there is no score, though the sum of this test would be one."""
    problem = sums({"all": worth("min", ["x"], 1)}, {"x": [1]}, run="#!/bin/bash\n./graders/sums < input.txt\n")
    with pytest.raises(ParticipantError, match="no score") as caught:
        await scored(problem, RIGHT)
    assert caught.value.code == Code.EXECUTOR_FAILED


ABSENT: Sequence[Mapping[str, Any]] = [
    {"problem_id": "none"},
    {"problem_id": ""},
    {"subtask": "huge"},
    {"subtask_score": "all"},
    {"subtask": "each", "subtask_score": 30},  # Two tests, each of which counts one.
    {"subtask_score": 103},  # 30 and 70, and two tests.
]


@pytest.mark.parametrize("row", ABSENT)
async def test_a_row_that_names_what_is_not_there_is_refused(row: Mapping[str, Any]) -> None:
    """Before anything runs."""
    with pytest.raises(ParticipantError) as caught:
        await scored(sums(SUBTASKS, NUMBERS), RIGHT, row)
    assert caught.value.code == Code.INVALID_REQUEST


class BrokenSandbox(Sandbox):
    """Contains nothing."""

    async def run(self, program: Program, limits: SandboxLimits | None = None) -> Ran:
        raise ParticipantError(Code.EXECUTOR_FAILED, "this host contains nothing")


async def test_a_sandbox_that_fails_is_no_reward() -> None:
    """The same submission is right where the sandbox works."""
    one = server(sums(SUBTASKS, NUMBERS))
    one.sandbox = BrokenSandbox()
    with pytest.raises(ParticipantError) as caught:
        await verify(one, {"problem_id": "sums"}, RIGHT)
    assert caught.value.code == Code.EXECUTOR_FAILED


def left() -> list[Path]:
    """Folders of programs that this process has."""
    return list(own_place().folder.glob("program-*"))


async def test_a_cancelled_verify_leaves_nothing_and_may_run_again() -> None:
    """Ended among its tests, it gives the same as another that was not."""
    problem = sums({"all": worth("min", ["two", "three"], 100)}, NUMBERS)
    one = server(problem, time_scale=20.0)
    sleeps = {"problem_id": "sums", "response": response_of(Case(row={}, said=submitted("sleep(30); return 0;", C)))}
    with anyio.move_on_after(3) as scope:
        await one.verify(None, sleeps)  # type: ignore[arg-type]  # it looks at no session
    assert scope.cancelled_caught
    assert left() == []
    replies = [await verify(one, {"problem_id": "sums"}, RIGHT, life=None, call=None) for _ in range(2)]
    assert [reply["reward"] for reply in replies] == [1.0, 1.0]
    assert left() == []
