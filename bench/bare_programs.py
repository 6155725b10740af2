"""What verifiers of programs are compared with: the same programs, scripts and compilers, run without a sandbox.

The programs are those of our own cases, so nothing here needs to be contained.
"""

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from participants.cases import Case, Conformance
from participants.sandbox import python_paths
from participants.verifiers.code_gen import last_fenced
from participants.verifiers.submissions import last_cpp


@asynccontextmanager
async def bare_tests(conformance: Conformance) -> AsyncIterator[Any]:
    """A process a test, after a compiler where there is one; nothing is compared."""
    python, _ = python_paths()

    async def work(case: Case) -> None:
        metadata, code = case.row["verifier_metadata"], last_fenced(case.said)
        if not code:
            return
        with tempfile.TemporaryDirectory() as folder:
            command = [python, "-I", "-c", code]
            if metadata["language"] == "cpp":
                await anyio.Path(folder, "p.cpp").write_text(code)
                await anyio.run_process(["g++", "-O2", "-o", f"{folder}/p", f"{folder}/p.cpp"])
                command = [f"{folder}/p"]
            for given in metadata["unit_tests"]["inputs"]:
                await anyio.Path(folder, "input").write_text(given)
                async with await anyio.open_file(f"{folder}/input") as file:  # It need not be read to its end.
                    ran = await anyio.run_process(command, stdin=file.wrapped, check=False)
                if ran.returncode:
                    return

    yield work


@asynccontextmanager
async def bare_contest(conformance: Conformance) -> AsyncIterator[Any]:
    """The compile script of the problem once, and its run script for each test."""
    problems: dict[str, Mapping[str, Any]] = {}
    for entry in conformance.options["problems"]:
        problems |= entry["metadata"]

    async def work(case: Case) -> None:
        if not (code := last_cpp(case.said)):
            return
        name = case.row["problem_id"]
        problem, only = problems[name], case.row.get("subtask")
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            await anyio.to_thread.run_sync(_lay_out, folder, problem, name, code)
            if (await anyio.run_process(["bash", "compile.sh"], cwd=folder, check=False)).returncode:
                return
            for test in problem["subtasks"][only]["test_names"] if only else problem["all_tests"]:
                await anyio.Path(folder, "input.txt").write_text(problem["all_tests"][test]["input"])
                await anyio.Path(folder, "correct_output.txt").write_text(problem["all_tests"][test]["output"])
                await anyio.run_process(["bash", "run.sh"], cwd=folder, check=False)

    yield work


def _lay_out(folder: Path, problem: Mapping[str, Any], name: str, code: str) -> None:
    scripts = {"compile.sh": problem["compile"], "run.sh": problem["run"], f"graders/{name}.cpp": code}
    for path, text in {**dict(problem["grader_files"]), **scripts}.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
