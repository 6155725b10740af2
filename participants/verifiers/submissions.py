"""Submissions in C++: compiled once with the grader of their problem, then run on tests, one working folder each.

The working folder is laid out as the scripts of the problems expect it:

    graders/<problem_id>.cpp   the submission
    <grader files>             as the problem has them
    compile.sh, run.sh         the problem's scripts
    input.txt                  of the test, and
    correct_output.txt         both only once the compiler is done; run.sh has TIME_LIMIT_SCALE and TMPDIR
    .midflight/                what the launcher needs

The scripts and the checker are trusted, the submission is not, and they share a folder. So every program that the
submission was linked into is put behind a launcher that lets it see none of it (`launcher.py`). Such programs are known
by a mark that is compiled into them. No program with the mark is a failure: nothing would keep the submission off.

What the submission does wrong is a score of 0. What a script, a tool or a file does wrong is `executor_failed`. A run
script that fails without a score is run once more, with a stand-in that gives the expected output: where it fails then
too, that is its own fault.
"""

import re
import secrets
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio.to_thread

from ..errors import Code, ParticipantError
from ..sandbox import COMPILE_LIMITS, WORK, Program, Ran, Sandbox, SandboxLimits, python_paths
from .launcher import FAILED, KEPT, MEMORY, SCORE, STARTED, TRACE
from .problems import Problem, TestData
from .scratch import scratch_folder

MAX_TOLD = 2_000
"""Characters of what a compiler or a script wrote, in the response."""
MEMORY_BESIDE = 512 << 20
"""For the script and the checker, beside what the submission may use."""
PROCESSES = 128
CANNOT_START = (126, 127)
"""Exit codes of a shell that found no program, or could not start it."""
UNSURE = ".midflight/unsure"
_STAND_IN = """#!/bin/sh
root="${{0%/*}}/{up}"
if [ $# -gt 0 ] || [ -p /dev/stdin ] || [ -p /dev/stdout ]; then
    : > "$root/{unsure}"  # It is to talk with another program, and nobody knows what it would say.
    exit 0
fi
exec cat "$root/correct_output.txt"
"""
_HERE = Path(__file__).parent
_KERNEL = _HERE.parent / "sandbox" / "kernel.py"
_RUN = f"exec 3>&1; {SCORE}=$(stat -L -c %d:%i /proc/self/fd/3); exec 3>&-; export {SCORE}; exec bash ./run.sh"
_LAST_CPP = re.compile(r"```cpp[^\S\n]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_WAITS = re.compile(r'^([ \t]*)wait "\$user_pid"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Compiled:
    """What became of the compilation."""

    fine: bool
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one test."""

    test: str
    group: str | None
    score: float
    stderr: str
    error: str
    """Why there is no score, if there is none."""
    run_time_s: float

    def told(self) -> dict[str, Any]:
        """As it stands in the response."""
        grouped = {} if self.group is None else {"test_group": self.group}
        said = {"run_stderr": self.stderr, "error": self.error, "run_time_s": self.run_time_s}
        return {"test_name": self.test, **grouped, "score": self.score, "compile_success": True, **said}


def last_cpp(text: str) -> str:
    """The last fenced block of C++; empty if there is none."""
    found = _LAST_CPP.findall(text)
    return str(found[-1]) if found else ""


def with_includes(code: str, problem: Problem) -> str:
    """The submission with what it did not include itself; one of several files is left as it is."""
    if problem.task_type == "MULTIFILE":
        return code
    lines = [] if "bits/stdc++.h" in code else ["#include <bits/stdc++.h>"]
    if problem.header and f'#include "{problem.header}"' not in code:
        lines.append(f'#include "{problem.header}"')
    if "using namespace std;" not in code and "std::" not in code:
        lines.append("using namespace std;")
    return "\n".join([*lines, code, ""])


class Submission:
    """One submission in a folder of its own."""

    def __init__(self, sandbox: Sandbox, problem: Problem, folder: Path, *, time_scale: float) -> None:
        """The folder is empty, and this submission's own."""
        self._sandbox = sandbox
        self._problem = problem
        self._folder = folder
        self._scale = time_scale
        self._mark = f"midflight_{secrets.token_hex(16)}"

    async def compile(self, code: str) -> Compiled:
        """Compile it. Raises `executor_failed` where that is not the submission's fault."""
        await anyio.to_thread.run_sync(self._lay_out, code)
        ran = await self._sandbox.run(Program(command=["bash", "./compile.sh"], folder=self._folder), COMPILE_LIMITS)
        stdout, stderr = _told(ran.stdout), _told(ran.stderr)
        if ran.exit_code in CANNOT_START:
            raise _failure(f"the compile script of problem {self._problem.problem_id} cannot run: {stderr}")
        if ran.exit_code != 0:
            return Compiled(False, stdout, stderr or ran.ended)
        marked = await anyio.to_thread.run_sync(self._put_behind_launchers)
        if not marked and "error" in stderr:
            return Compiled(False, stdout, stderr)
        if not marked:
            raise _failure(f"compiling problem {self._problem.problem_id} made no program of the submission: {stderr}")
        return Compiled(True, stdout, stderr)

    async def run(self, name: str, test: TestData) -> Outcome:
        """Run one test in a copy of the folder. Raises `executor_failed`."""
        async with scratch_folder() as folder:
            await anyio.to_thread.run_sync(self._lay_out_test, folder, test)
            ran = await self._sandbox.run(self._program(folder), self._limits())
            trace = await anyio.to_thread.run_sync(_trace, folder)
        if FAILED in trace or STARTED not in trace:
            raise self._broken(f"the submission was never started: {_told(ran.stderr)}")
        if _gave_up(ran) and await self._gives_up_anyway(test):
            told = f"it ends with exit code {ran.exit_code} and no score for the expected output too"
            raise self._broken(f"{told}: {_told(ran.stderr)}")
        score, error = self._score(ran)
        return Outcome(
            test=name, group=test.group, score=score, stderr=_told(ran.stderr), error=error, run_time_s=ran.wall_s
        )

    async def _gives_up_anyway(self, test: TestData) -> bool:
        """Whether the script fails also with what is expected of a submission; False where nobody can tell."""
        async with scratch_folder() as folder:
            await anyio.to_thread.run_sync(self._lay_out_test, folder, test)
            await anyio.to_thread.run_sync(_put_stand_ins, folder)
            ran = await self._sandbox.run(self._program(folder), self._limits())
            return _gave_up(ran) and not await anyio.to_thread.run_sync((folder / UNSURE).exists)

    def _program(self, folder: Path) -> Program:
        memory = self._problem.memory_limit
        tmp = f"{WORK}/tmp" if self._sandbox.contained_by == "bubblewrap" else str(folder / "tmp")
        environment = {"TIME_LIMIT_SCALE": str(self._scale), "TMPDIR": tmp}
        environment |= {MEMORY: str(memory)} if memory else {}
        return Program(command=["bash", "-c", _RUN], folder=folder, environment=environment)

    def _limits(self) -> SandboxLimits:
        """Of all that the run script starts together."""
        wall_s = self._problem.time_limit_s * max(1.0, self._scale)
        given = SandboxLimits(wall_s=wall_s, cpu_s=2 * wall_s, processes=PROCESSES)
        memory = max(given.memory_bytes, self._problem.memory_limit or 0) + MEMORY_BESIDE
        return replace(given, memory_bytes=memory)

    def _score(self, ran: Ran) -> tuple[float, str]:
        """The score that the script printed, or 0 and why. Raises `executor_failed` if the script does not work."""
        if ran.ended != "exited":
            return 0.0, ran.ended
        text = ran.stdout.decode(errors="replace").strip()
        if ran.exit_code in CANNOT_START:
            raise self._broken(f"a program is missing: {_told(ran.stderr)}")
        if ran.exit_code != 0 and not text:
            return 0.0, f"exit code {ran.exit_code}"
        try:
            score = float(text)
        except ValueError:
            raise self._broken(f"it printed no score: {text!r:.100}") from None
        if not 0 <= score <= 1:
            raise self._broken(f"it printed the score {score}")
        return score, ""

    def _broken(self, why: str) -> ParticipantError:
        return _failure(f"the run script of problem {self._problem.problem_id} does not work: {why}")

    def _lay_out(self, code: str) -> None:
        problem = self._problem
        mark = f'extern "C" {{ extern const char {self._mark}[] __attribute__((used)) = "{self._mark}"; }}\n'
        run = _WAITS.sub(r'\1kill "$user_pid" 2>/dev/null || true' + "\n" + r"\g<0>", problem.run)
        files = {
            **problem.grader_files,
            "compile.sh": problem.compile,
            "run.sh": run,
            f"graders/{problem.problem_id}.cpp": f'{mark}#line 1 "submission"\n{code}',
            ".midflight/kernel.py": _KERNEL.read_text(encoding="utf-8"),
        }
        for path, text in files.items():
            target = self._folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8", errors="replace")
            target.chmod(0o755 if path.endswith(".sh") else 0o644)

    def _put_behind_launchers(self) -> int:
        """The number of programs that the submission is in."""
        programs = [path for path in self._folder.rglob("*") if _is_program(path)]
        marked = [path for path in programs if self._mark.encode() in path.read_bytes()]
        for path in marked:
            kept = path.with_name(path.name + KEPT)
            path.rename(kept)
            up = _up(path, self._folder)
            python, _ = python_paths()
            text = (_HERE / "launcher.py").read_text(encoding="utf-8")
            path.write_text(f"#!{python} -IS\nROOT = {up!r}\n{text}", encoding="utf-8")
            path.chmod(0o755)
        return len(marked)

    def _lay_out_test(self, folder: Path, test: TestData) -> None:
        shutil.copytree(self._folder, folder, symlinks=True, dirs_exist_ok=True)
        (folder / "tmp").mkdir(exist_ok=True)
        (folder / "input.txt").write_bytes(_bytes(test.given))
        (folder / "correct_output.txt").write_bytes(_bytes(test.expected))


def _gave_up(ran: Ran) -> bool:
    """Whether a run script ended as one that failed, and left no score."""
    return ran.ended == "exited" and ran.exit_code not in (0, *CANNOT_START) and not ran.stdout.strip()


def _put_stand_ins(folder: Path) -> None:
    """What gives the expected output, in the place of each program that a submission is in."""
    for kept in list(folder.rglob(f"*{KEPT}")):
        path = kept.with_name(kept.name.removesuffix(KEPT))
        path.write_text(_STAND_IN.format(up=_up(path, folder), unsure=UNSURE), encoding="utf-8")


def _up(path: Path, folder: Path) -> str:
    """From where a program is to its working folder."""
    return "/".join([".."] * (len(path.relative_to(folder).parts) - 1)) or "."


def _trace(folder: Path) -> bytes:
    try:
        return (folder / TRACE).read_bytes()
    except FileNotFoundError:
        return b""


def _is_program(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and bool(path.stat().st_mode & 0o111)


def _bytes(text: str) -> bytes:
    """Test data is bytes that were read as Latin-1; what cannot have been is UTF-8."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode(errors="replace")


def _told(data: bytes) -> str:
    return data[-MAX_TOLD:].decode(errors="replace")


def _failure(why: str) -> ParticipantError:
    return ParticipantError(Code.EXECUTOR_FAILED, why)
