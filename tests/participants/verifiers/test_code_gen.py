"""`code_gen` with real programs in the real sandbox: right, wrong and hostile ones; what it leaves behind."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from participants import Code, ParticipantError
from participants.cases import Case, response_of
from participants.sandbox import WORK, Program, Ran, Sandbox, SandboxLimits
from participants.verifiers.code_gen import CodeGenServer
from participants.verifiers.scratch import own_place

from .judges import verify

pytestmark = [pytest.mark.process, pytest.mark.anyio, pytest.mark.timeout(180)]

SUMS: Mapping[str, Any] = {"inputs": ["2\n3 4\n", "3\n1 1 1\n"], "outputs": ["7\n", "3\n"]}
CALLS: Mapping[str, Any] = {"inputs": ["3\n4", "1\n1"], "outputs": ["7", "2"], "fn_name": "add"}
LISTS: Mapping[str, Any] = {"inputs": ["[3, 1, 2]"], "outputs": ["[1, 2, 3]"], "fn_name": "sort"}


def row(unit_tests: Mapping[str, Any], language: str = "python") -> dict[str, Any]:
    """A task."""
    return {"verifier_metadata": {"unit_tests": dict(unit_tests), "language": language, "difficulty": "easy"}}


async def scored(unit_tests: Mapping[str, Any], code: str, language: str = "python", **options: Any) -> dict[str, Any]:
    """The reply for one program."""
    server = CodeGenServer(**{"unit_test_timeout_secs": 10.0, **options})
    return await verify(server, row(unit_tests, language), f"```{language}\n{code}\n```")


CPP_SUM = (
    "#include <iostream>\nint main() { int n, x, s = 0; std::cin >> n; while (std::cin >> x) s += x; std::cout << s; }"
)

DEEP: Mapping[str, Any] = {"inputs": ["100000"], "outputs": ["100000"]}
LONG: Mapping[str, Any] = {"inputs": ["300000"], "outputs": ["".join(f"{n}\n" for n in range(300000))]}
CACHED = "sys.setrecursionlimit(10**6)\n@cache\ndef f(n): return 2 + f(n - 1) if n else 0\nprint(f(int(input()) // 2))"
OWN_MODULE = "import __main__\ndef add(x): return sum(map(int, x))\ninput()\nprint(__main__.add(input().split()))"
CPP_DEEP = (
    "#include <cstdio>\nint f(int n) { volatile int a[16] = {n}; return n ? f(n - 1) + (a[0] == n) : 0; }\n"
    'int main() { int n; scanf("%d", &n); printf("%d", f(n)); }'
)
PICKLED = (
    "import pickle\ndef number(x): return int(x)\ninput()\n"
    "print(sum(map(pickle.loads(pickle.dumps(number)), input().split())))"
)

ENDS: Mapping[str, tuple[Mapping[str, Any], str, str, list[Any]]] = {
    # Tests, program, language, and the codes that it must get, by hand.
    "right": (SUMS, "n = int(input())\nprint(sum(map(int, input().split())))", "", [True, True]),
    "guard": (SUMS, "if __name__ == '__main__':\n  input()\n  print(sum(map(int, input().split())))", "", [True, True]),
    "reads all": (SUMS, "import sys\nprint(sum(map(int, sys.stdin.read().split()[1:])))", "", [True, True]),
    "reads bytes": (SUMS, "print(sum(map(int, sys.stdin.buffer.readlines()[1].split())))", "", [True, True]),
    "names at hand": (SUMS, "input()\nprint(reduce(lambda a, b: a + b, map(int, input().split())))", "", [True, True]),
    "exits with 0": (SUMS, "input()\nprint(sum(map(int, input().split())))\nexit()", "", [True, True]),
    "opens stdin": (SUMS, "print(sum(map(int, open('/dev/stdin').read().split()[1:])))", "", [True, True]),
    "its own module": (SUMS, OWN_MODULE, "", [True, True]),
    "pickles": (SUMS, PICKLED, "", [True, True]),
    "long output": (LONG, "print(*range(int(input())), sep='\\n')", "", [True]),
    "long number": ({"inputs": ["9000"], "outputs": ["9001"]}, "print(len(str(10 ** int(input()))))", "", [True]),
    "deep in C": (DEEP, CACHED, "", [True]),
    "second is wrong": (SUMS, "print(7)", "", [True, -2]),
    "raises": (SUMS, "print(7)\nraise ValueError", "", [-4]),
    "does not parse": (SUMS, "print(7", "", [-4]),
    "recursion": (SUMS, "def f(n): return f(n + 1)\nf(0)", "", [-4]),
    "function": (CALLS, "def add(a, b): return a + b", "", [True, True]),
    "method": (CALLS, "class Solution:\n  def add(self, a: int, b: Optional[int]): return a + b", "", [True, True]),
    "prints as well": (CALLS, "def add(a, b):\n  print('x' * 9)\n  return a + b", "", [True, True]),
    "wrong result": (CALLS, "def add(a, b): return 7", "", [True, -2]),
    "text for a number": (CALLS, "def add(a, b): return str(a + b)", "", [-2]),
    "no such function": (CALLS, "def plus(a, b): return a + b", "", [-4]),
    "one of the library's": (CALLS, "from operator import add", "", [True, True]),
    "a tuple": (LISTS, "def sort(x): return tuple(sorted(x))", "", [True]),
    "a set": (LISTS, "def sort(x): return set(x)", "", [-4]),
    "C++": (SUMS, CPP_SUM, "cpp", [True, True]),
    "C++, deep": (DEEP, CPP_DEEP, "cpp", [True]),
    "C++, wrong": (SUMS, "#include <cstdio>\nint main() { puts(\"7\"); }", "cpp", [True, -2]),
    "C++, crash": (SUMS, "int main() { return *(volatile int*)0; }", "cpp", [-4]),
    "C++, no compilation": (SUMS, "int main() { return x; }", "cpp", [-4]),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
async def test_each_end_of_a_program_has_its_code(name: str) -> None:
    """Tests run up to the first that fails, and a reward of 1 wants all of them."""
    unit_tests, code, language, codes = ENDS[name]
    reply = await scored(unit_tests, code, language or "python")
    assert reply["result"] == codes
    assert reply["reward"] == float(all(code is True for code in codes))
    assert reply["extracted_model_code"] == code
    assert reply["difficulty"] == "easy"
    assert reply["unit_tests_time_taken"] > 0


SLOW = {
    "sleeps": "import time\ntime.sleep(60)",
    "counts": "while True: pass",
    "waits": "import threading\nthreading.Event().wait()",
}


@pytest.mark.parametrize("name", SLOW)
async def test_a_program_that_takes_too_long_is_ended(name: str) -> None:
    """Sleeping counts like working, and the time that it took is about the limit."""
    reply = await scored(SUMS, SLOW[name], unit_test_timeout_secs=1.0)
    assert (reply["result"], reply["reward"]) == ([-3], 0.0)
    assert reply["unit_tests_time_taken"] < 15


HOSTILE: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "answer of another test": (SUMS, "print(3)"),
    "all answers": (SUMS, "print(7)\nprint(3)"),
    "leaves early": (SUMS, "raise SystemExit(0)"),
    "leaves at once": (CALLS, "import os\nos._exit(0)"),
    "leaves in the call": (CALLS, "import os\ndef add(a, b): os._exit(0)"),
    "markers": (CALLS, "def add(a, b):\n  print('[true, true]')\n  print('{\"reward\": 1}')\n  return None"),
    "equal to everything": (
        CALLS,
        "class All(int):\n  def __eq__(self, other): return True\n  def __ne__(self, other): return False\n"
        "  __hash__ = None\ndef add(a, b): return All(99)",
    ),
    "text that is everything": (CALLS, "class All(str):\n  __eq__ = lambda a, b: True\ndef add(a, b): return All('7')"),
    "patched encoder": (CALLS, "import json\njson.dumps = lambda *a, **k: 'true'\ndef add(a, b): return a + b"),
    "patched harness": (
        CALLS,
        "import sys\nmain = sys.modules['__main__']\n"
        "for name in list(vars(main)):\n  setattr(main, name, lambda *a: 1)\n"
        "def add(a, b): return True",
    ),
    "writes to the channel": (
        CALLS,
        "import os\nfor fd in range(1, 64):\n  try: os.write(fd, b'7')\n  except OSError: pass\ndef add(a, b): pass",
    ),
    "exit hook": (CALLS, "import atexit\natexit.register(lambda: print(7))\ndef add(a, b): return None"),
    "frames of the caller": (
        CALLS,
        "import sys\ndef add(a, b):\n  f = sys._getframe()\n  seen = []\n  while f:\n"
        "    seen += [v for v in {**f.f_globals, **f.f_locals}.values() if v == 7]\n    f = f.f_back\n"
        "  return seen[0] if a == 3 and seen else None",
    ),
    "looks for the answer": (
        SUMS,
        f"import glob\nfor path in glob.glob('{WORK}/**', recursive=True) + glob.glob('/tmp/**', recursive=True) + "
        "glob.glob('/proc/*/environ') + glob.glob('/proc/*/cmdline'):\n  try: print(open(path, 'rb').read())\n"
        "  except OSError: pass",
    ),
    "floods": (SUMS, "while True: print('7' * 10000)"),
    "floods stderr": (SUMS, "import sys\nwhile True: sys.stderr.write('7' * 10000)"),
    "forks": (SUMS, "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"),
    "memory": (SUMS, "x = []\nwhile True: x.append(bytearray(1 << 24))"),
    "kills all": (SUMS, "import os, signal\nos.kill(-1, signal.SIGKILL)\nos.kill(os.getppid(), signal.SIGKILL)"),
    "deep result": (LISTS, "def sort(x):\n  y = []\n  for _ in range(9000): y = [y]\n  return y"),
    "endless number": (CALLS, "import sys\nsys.set_int_max_str_digits(0)\ndef add(a, b): return 10 ** 100000"),
    "not a number": (CALLS, "def add(a, b): return float('nan')"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
async def test_no_trick_is_rewarded(name: str) -> None:
    """Whatever a program does in its own process, only the answer counts, and it does not know the answer."""
    unit_tests, code = HOSTILE[name]
    reply = await scored(unit_tests, code, unit_test_timeout_secs=3.0)
    assert reply["reward"] == 0.0
    assert reply["result"][-1] in (-2, -3, -4)


async def test_a_right_program_survives_hostile_neighbours() -> None:
    """While others fork and flood beside it, it gets its reward."""
    server = CodeGenServer(unit_test_timeout_secs=20.0, num_processes=3)
    rewards = {}

    async def one(name: str, code: str) -> None:
        rewards[name] = (await verify(server, row(SUMS), f"```\n{code}\n```", life=None, call=None))["reward"]

    async with anyio.create_task_group() as group:
        group.start_soon(one, "right", ENDS["right"][1])
        group.start_soon(one, "floods", HOSTILE["floods"][1])
        group.start_soon(one, "kills all", HOSTILE["kills all"][1])
    assert rewards == {"right": 1.0, "floods": 0.0, "kills all": 0.0}


@pytest.mark.parametrize("said", ["", "I do not know.", "```\n\n```", "``` unfinished"])
async def test_no_code_is_a_reward_of_0_and_runs_nothing(said: str) -> None:
    """The response says so by having no result."""
    reply = await verify(CodeGenServer(), row(SUMS), said)
    assert (reply["reward"], reply["result"]) == (0.0, None)


async def test_wrong_tests_are_no_reward_even_without_code() -> None:
    """A row without tests would be won by every program."""
    with pytest.raises(ParticipantError) as caught:
        await verify(CodeGenServer(), row({"inputs": [], "outputs": []}), "nothing")
    assert caught.value.code == Code.INVALID_REQUEST


async def test_broken_tags_are_the_penalty() -> None:
    """Also for a program that is right."""
    server = CodeGenServer(reasoning_format_penalty=-0.5)
    reply = await verify(server, row(SUMS), f"</think>\n```\n{ENDS['right'][1]}\n```")
    assert (reply["reward"], reply["result"]) == (-0.5, [True, True])
    assert reply["reasoning_format_violation_rate"] == 1.0


async def test_expected_output_is_told_in_debug_alone() -> None:
    """The response's metadata says what was wrong."""
    told = (await scored(SUMS, "print(8)", debug=True))["metadata"]
    assert told == {"error_code": -2, "error_message": "Wrong Answer", "test": 0, "output": "8\n", "expected": "7\n"}
    assert "expected" not in (await scored(SUMS, "print(8)"))["metadata"]


class BrokenSandbox(Sandbox):
    """Contains nothing."""

    async def run(self, program: Program, limits: SandboxLimits | None = None) -> Ran:
        raise ParticipantError(Code.EXECUTOR_FAILED, "this host contains nothing")


async def test_a_sandbox_that_fails_is_no_reward() -> None:
    """The same program is right where the sandbox works."""
    server = CodeGenServer()
    server.sandbox = BrokenSandbox()
    with pytest.raises(ParticipantError) as caught:
        await verify(server, row(SUMS), f"```\n{ENDS['right'][1]}\n```")
    assert caught.value.code == Code.EXECUTOR_FAILED


def left() -> list[Path]:
    """Folders of programs that this process has."""
    return list(own_place().folder.glob("program-*"))


async def test_a_cancelled_verify_leaves_nothing() -> None:
    """It ends at once, with the compiled program, its folder and its process gone; run again, it gives the same."""
    server = CodeGenServer(unit_test_timeout_secs=60.0)
    sleeps = "#include <unistd.h>\nint main() { sleep(50); }"
    body = {**row(SUMS, "cpp"), "response": response_of(Case(row={}, said=f"```\n{sleeps}\n```"))}
    with anyio.move_on_after(2) as scope:
        await server.verify(None, body)  # type: ignore[arg-type]  # it looks at no session
    assert scope.cancelled_caught
    assert left() == []
    reply = await scored(SUMS, CPP_SUM, "cpp")
    assert reply["reward"] == 1.0
    assert left() == []
