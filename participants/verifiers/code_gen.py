"""Scores programs by unit tests, each run contained: stdin and stdout in Python or C++, or calls of a Python function.

A run of the program is given the input of one test. What it gives back is compared here, outside of the sandbox, with
what is expected, which never goes in: a program may do to its own process whatever it likes, and knows no answer by it.

    result codes    True right, -2 wrong answer, -3 time limit, -4 runtime error (also no compilation, too much output)

Tests run one after the other until one fails; a reward of 1.0 wants all of them. Programs that are wrong in any way are
a reward of 0; tests that are wrong are `invalid_request`, and a sandbox that cannot run is `executor_failed`.
"""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from ..cases import Conformance
from ..errors import Code, ParticipantError
from ..output_text import output_text
from ..resources import ResourcesServer
from ..sandbox import Program, Ran, Sandbox, SandboxLimits, compile_cpp, python_paths
from ..sessions import ResourcesSession
from .code_gen_cases import cases
from .same_output import NoValue, same_text, same_value, value_of
from .scratch import scratch_folder
from .unit_tests import UnitTests, unit_tests_of

WRONG, TIME_LIMIT, RUNTIME_ERROR = -2, -3, -4
MESSAGES = {WRONG: "Wrong Answer", TIME_LIMIT: "Time Limit Exceeded", RUNTIME_ERROR: "Runtime Error"}
MAX_TOLD = 300
"""Characters of what a program wrote, in the response."""
MAX_CODE_BYTES = 1 << 20
"""Of a program; a longer one is not run."""
SPARE_BYTES = 1 << 20
"""A program may write so much beside twice what is expected, which no right one does."""
_DEEP = 'ulimit -s "$(ulimit -Hs)"; exec "$0"'
"""Lets a program recurse as deep as its memory allows."""
_HARNESS = Path(__file__).with_name("python_harness.py")
_TAGS = ("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of one test."""

    code: bool | int
    said: Mapping[str, Any]


class CodeGenServer(ResourcesServer):
    """Unit tests of programs."""

    checkpoint_mode = "stateless"
    checkpoint_verify = "replay"
    measured = frozenset({"unit_tests_time_taken"})

    def __init__(
        self,
        name: str = "main",
        *,
        num_processes: int = 8,
        unit_test_timeout_secs: float = 10.0,
        debug: bool = False,
        reasoning_format_penalty: float = 0.0,
        memory_bytes: int = 1 << 30,
        **options: Any,
    ) -> None:
        """`num_processes` verifies run at once; `debug` tells the expected output in the response's metadata.

        `memory_bytes` bound each run. Raises ValueError for a number that is not above 0.
        """
        super().__init__(name, **options)
        if num_processes < 1 or not 0 < unit_test_timeout_secs < math.inf:
            raise ValueError("num_processes and unit_test_timeout_secs must be above 0")
        self.timeout_s = unit_test_timeout_secs
        self.debug = debug
        self.penalty = reasoning_format_penalty
        self.limits = SandboxLimits(
            wall_s=unit_test_timeout_secs, cpu_s=unit_test_timeout_secs, memory_bytes=memory_bytes
        )
        self._turns = anyio.Semaphore(num_processes)
        self.sandbox = Sandbox(at_once=num_processes)
        self._command: Sequence[str] = ()

    @classmethod
    def conformance(cls) -> Conformance:
        """Small programs, right and wrong."""
        return Conformance(cases=cases(), options={"num_processes": 2})

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """1.0 if every test passes, 0.0 if not, and the penalty where the reasoning's tags are malformed."""
        metadata = row.get("verifier_metadata")
        tests = await anyio.to_thread.run_sync(unit_tests_of, metadata)
        text = output_text(row["response"])
        code = last_fenced(text)
        reply: dict[str, Any] = {
            "reward": 0.0,
            "extracted_model_output": text or None,
            "extracted_model_code": code or None,
            "result": None,
            "metadata": None,
            "unit_tests_time_taken": None,
            "reasoning_format_violation_rate": 0.0,
            "difficulty": metadata.get("difficulty") if isinstance(metadata, dict) else None,
        }
        if not code.strip():
            return reply
        async with self._turns:
            started = time.monotonic()
            judged = await self._judge(code, tests)
            reply["unit_tests_time_taken"] = time.monotonic() - started
        result = [each.code for each in judged]
        broken = has_broken_tags(text, row["response"])
        passed = all(code is True for code in result)
        return {
            **reply,
            "reward": self.penalty if broken else float(passed),
            "result": result,
            "metadata": judged[-1].said,
            "reasoning_format_violation_rate": float(broken),
        }

    async def _judge(self, code: str, tests: UnitTests) -> list[Judged]:
        """Of each test, up to the first that failed; never an empty list."""
        if len(code.encode(errors="replace")) > MAX_CODE_BYTES:
            return [_failed(RUNTIME_ERROR, 0, f"the program has over {MAX_CODE_BYTES} bytes")]
        judged: list[Judged] = []
        async with AsyncExitStack() as stack:
            with anyio.move_on_after((self.timeout_s + 1) * len(tests.inputs) + 5) as whole:
                await self._judge_all(code, tests, judged, stack)
        if whole.cancelled_caught:
            judged.append(_failed(TIME_LIMIT, len(judged), "the tests together took too long"))
        return judged

    async def _judge_all(self, code: str, tests: UnitTests, judged: list[Judged], stack: AsyncExitStack) -> None:
        program: Program | None = None
        if tests.language == "cpp":
            folder = await stack.enter_async_context(scratch_folder())
            compiled = await compile_cpp(self.sandbox, code, folder)
            if compiled.exit_code != 0:
                judged.append(_failed(RUNTIME_ERROR, 0, "Compilation Error", compiled.stderr))
                return
            built = folder / "program"
            program = Program(command=["sh", "-c", _DEEP, str(built)], read_only={str(built): built})
        else:
            await self._start_python()
            program = self._python(code, tests.fn_name)
        for number, (given, expected) in enumerate(zip(tests.inputs, tests.outputs, strict=True)):
            limits = replace(self.limits, output_bytes=SPARE_BYTES + 2 * len(expected.encode()))
            ran = await self.sandbox.run(replace(program, stdin=program.stdin + given.encode()), limits)
            one = await anyio.to_thread.run_sync(self._judge_one, ran, number, expected, tests.fn_name)
            judged.append(one)
            if one.code is not True:
                return

    def _judge_one(self, ran: Ran, number: int, expected: str, fn_name: str | None) -> Judged:
        if (code := self._broken(ran)) is not None:
            return _failed(code, number, _why(ran), ran.stderr)
        given = ran.stdout.decode(errors="replace")
        if _same_result(expected, given) if fn_name else same_text(expected, given):
            return Judged(True, {"tests": number + 1})
        told = {"output": given[:MAX_TOLD], **({"expected": expected[:MAX_TOLD]} if self.debug else {})}
        wrong = _failed(WRONG, number, "")
        return Judged(WRONG, {**wrong.said, **told})

    def _broken(self, ran: Ran) -> int | None:
        """The code of a program that did not end well."""
        if ran.ended == "exited" and ran.exit_code == 0:
            return None
        return TIME_LIMIT if ran.ended == "timed_out" else RUNTIME_ERROR

    async def _start_python(self) -> None:
        """Once, so that a missing interpreter is no fault of a program's."""
        if self._command:
            return
        command = await anyio.to_thread.run_sync(_interpreter)
        ran = await self.sandbox.run(Program(command=[*command, "0"]))
        if ran.exit_code != 0:
            told = f"{_why(ran) or ran.ended}: {ran.stderr.decode(errors='replace')[-MAX_TOLD:]}"
            raise ParticipantError(Code.EXECUTOR_FAILED, f"Python does not start in the sandbox: {told}")
        self._command = command

    def _python(self, code: str, fn_name: str | None) -> Program:
        source = code.encode(errors="replace")
        return Program(command=[*self._command, str(len(source)), fn_name or ""], stdin=source)


def last_fenced(text: str) -> str:
    """What stands between the last two lines that have a fence of three backticks; empty where there are fewer."""
    lines = text.split("\n")
    fences = [number for number, line in enumerate(lines) if "```" in line]
    return "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) > 1 else ""


def has_broken_tags(text: str, response: Mapping[str, Any]) -> bool:
    """Whether the answer has a tag of reasoning, or the reasoning more than one of a kind."""
    if any(tag in text for tag in _TAGS):
        return True
    items = [item for item in response.get("output") or () if isinstance(item, Mapping)]
    parts = [part for item in items if item.get("type") == "reasoning" for part in item.get("summary") or ()]
    reasoning = "".join(str(part.get("text") or "") for part in parts if isinstance(part, Mapping))
    return any(reasoning.count(tag) > 1 for tag in _TAGS)


def _interpreter() -> list[str]:
    return [python_paths()[0], "-I", "-c", _HARNESS.read_text(encoding="utf-8")]


def _same_result(expected: str, given: str) -> bool:
    try:
        return same_value(value_of(expected), value_of(given))
    except (NoValue, RecursionError):
        return False


def _failed(code: int, number: int, why: str, stderr: bytes = b"") -> Judged:
    message = f"{MESSAGES[code]}: {why}" if why else MESSAGES[code]
    said = {"error_code": code, "error_message": message, "test": number}
    return Judged(code, {**said, "error": stderr.decode(errors="replace")[-MAX_TOLD:]} if stderr else said)


def _why(ran: Ran) -> str:
    match ran.ended:
        case "exited":
            return f"exit code {ran.exit_code}"
        case "signalled":
            return f"signal {ran.signal}"
        case "output_limit":
            return "too much output"
        case "stopped":
            return "too much memory, or too many files"
    return ""
