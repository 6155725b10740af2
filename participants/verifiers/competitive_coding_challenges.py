"""Scores C++ submissions to problems of programming contests, with the problems' own graders, by subtask.

The row names a problem of the metadata file (`problems.py` has its form), and perhaps a subtask of it. The submission
is the last block of C++ of the answer; it is compiled once (`submissions.py`), its tests are run in batches, and their
scores become those of subtasks and a reward (`subtasks.py`).

A submission that is missing, does not compile or fails tests is a reward of 0, with details. An unknown problem or
subtask is `invalid_request`; a metadata file, script or tool that does not work is `executor_failed`, and no reward.

Unlike the reference there is no log of generations: the rollout's row has everything that one would hold, once.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from ..cases import Conformance
from ..errors import Code, ParticipantError
from ..output_text import output_text
from ..resources import ResourcesServer
from ..sandbox import Sandbox
from ..sessions import ResourcesSession
from .competitive_cases import PROBLEMS, cases
from .problems import Problem, Problems
from .scratch import scratch_folder
from .submissions import Compiled, Outcome, Submission, last_cpp, with_includes
from .subtasks import binary_reward, fraction_reward, next_tests, shown, worth_of

TEST_FILE = "CCC_TEST_FILE"
"""Environment variable with the path of the metadata file, where no option has it."""
REWARD_MODES = ("binary", "fraction")
MAX_CODE_BYTES = 1 << 20


class CompetitiveCodingChallengesServer(ResourcesServer):
    """Contest problems with subtasks."""

    checkpoint_mode = "stateless"
    checkpoint_verify = "replay"
    measured = frozenset({"run_time_s", "total_test_execution_time_s", "mean_test_execution_time_s"})

    def __init__(
        self,
        name: str = "main",
        *,
        test_file: str = "",
        problems: Sequence[Mapping[str, Any]] = (),
        test_batch_size: int = 32,
        num_parallel_requests: int = 16,
        time_scale: float = 2.0,
        reward_mode: str = "binary",
        **options: Any,
    ) -> None:
        """`problems` are entries as the metadata file has them on its lines, for tasks that need no file."""
        super().__init__(name, **options)
        if reward_mode not in REWARD_MODES:
            raise ValueError(f"reward_mode must be one of {', '.join(REWARD_MODES)}, and not {reward_mode!r}")
        if test_batch_size < 1 or num_parallel_requests < 1 or not 0 < time_scale < math.inf:
            raise ValueError("test_batch_size, num_parallel_requests and time_scale must be above 0")
        path = "" if problems else test_file or os.environ.get(TEST_FILE, "")
        if (not path and not problems) or (test_file and problems):
            raise ValueError(f"name the metadata file in test_file or in {TEST_FILE}, or give problems")
        if path and not os.path.isfile(path):
            raise ValueError(f"there is no metadata file {path}; a relative path begins where the command was started")
        self.problems = Problems(None if problems else Path(path), problems)
        self._batch_size = test_batch_size
        self._time_scale = time_scale
        self._all_tests = reward_mode == "fraction"
        self._turns = anyio.Semaphore(num_parallel_requests)
        self.sandbox = Sandbox()

    @classmethod
    def conformance(cls) -> Conformance:
        """Small problems with graders, and submissions that are right, partly right and wrong."""
        return Conformance(cases=cases(), options={"problems": PROBLEMS, "test_batch_size": 2})

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """1.0 or 0.0 in mode binary, the share of tests that pass in mode fraction."""
        problem_id, competition_id = row.get("problem_id"), row.get("competition_id") or None
        if not isinstance(problem_id, str) or not problem_id:
            raise ParticipantError(Code.INVALID_REQUEST, "the row has no problem_id")
        worth = _worth(row.get("subtask_score"))
        async with self._turns:
            problem = await anyio.to_thread.run_sync(self.problems.find, problem_id, competition_id)
            names = _subtasks(problem, row.get("subtask"))
            if not self._all_tests:
                _check_reachable(problem, names, worth)
            code = last_cpp(output_text(row["response"]))
            name = row.get("name") or problem_id
            told = {"name": name, "extracted_code": code or None}
            if why := _unusable(code):
                return {**told, **_reply(0.0, {"error": why, "test_case_results": {}}, [])}
            async with scratch_folder() as folder:
                submission = Submission(self.sandbox, problem, folder, time_scale=self._time_scale)
                compiled = await submission.compile(with_includes(code, problem))
                if not compiled.fine:
                    return {**told, **_reply(0.0, _not_compiled(compiled, names), [])}
                outcomes = await self._run_all(submission, problem, names)
        scores = {each.test: each.score for each in outcomes.values()}
        subtasks = [problem.subtasks[name] for name in names]
        reward = fraction_reward(subtasks, scores) if self._all_tests else binary_reward(subtasks, scores, worth)
        results = {name: _result(problem, name, scores, outcomes) for name in names}
        return {**told, **_reply(reward, {"test_case_results": results}, list(outcomes.values()))}

    async def _run_all(self, submission: Submission, problem: Problem, names: Sequence[str]) -> dict[str, Outcome]:
        """Batch after batch, so that which tests run depends on scores alone, and not on who is faster."""
        outcomes: dict[str, Outcome] = {}

        async def run(name: str) -> None:
            test = await anyio.to_thread.run_sync(self.problems.test, problem, name)
            outcomes[name] = await submission.run(name, test)

        while True:
            scores = {each.test: each.score for each in outcomes.values()}
            batch = next_tests(problem, names, scores, self._batch_size, all_of_them=self._all_tests)
            if not batch:
                return outcomes
            await _together(run, batch)


async def _together(run: Any, names: Sequence[str]) -> None:
    """At the same time; the first failure is that of all."""
    try:
        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(run, name)
    except* ParticipantError as errors:
        raise _first(errors) from errors


def _first(errors: BaseExceptionGroup[ParticipantError]) -> ParticipantError:
    inner = errors.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


def _worth(given: Any) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise ParticipantError(Code.INVALID_REQUEST, f"subtask_score is {given!r:.50}, which is no number")
    return float(given)


def _subtasks(problem: Problem, subtask: Any) -> list[str]:
    """The names of those that count."""
    if not subtask:
        return list(problem.subtasks)
    if subtask not in problem.subtasks:
        known = ", ".join(list(problem.subtasks)[:10])
        told = f"problem {problem.problem_id} has no subtask {subtask!r:.50}; it has {known}"
        raise ParticipantError(Code.INVALID_REQUEST, told)
    return [subtask]


def _check_reachable(problem: Problem, names: Sequence[str], worth: float | None) -> None:
    """Refuse a row that wants more than there is to win: its reward would always be 0."""
    subtasks = [problem.subtasks[name] for name in names]
    if worth is not None and not binary_reward(subtasks, dict.fromkeys(problem.tests, 1.0), worth):
        told = f"subtask_score is {worth:g}, and all tests together score {sum(map(worth_of, subtasks)):g}"
        raise ParticipantError(Code.INVALID_REQUEST, f"{told} in problem {problem.problem_id}; leave it out")


def _unusable(code: str) -> str:
    if not code.strip():
        return "the answer has no block of C++"
    too_long = len(code.encode(errors="replace")) > MAX_CODE_BYTES
    return f"the submission has over {MAX_CODE_BYTES} bytes" if too_long else ""


def _not_compiled(compiled: Compiled, names: Sequence[str]) -> dict[str, Any]:
    said = {"compile_success": False, "compile_stdout": compiled.stdout, "compile_stderr": compiled.stderr}
    nothing = {name: {"score": 0.0, "outputs": []} for name in names}
    return {"error": "it does not compile", **said, "test_case_results": nothing}


def _result(
    problem: Problem, name: str, scores: Mapping[str, float], outcomes: Mapping[str, Outcome]
) -> dict[str, Any]:
    subtask = problem.subtasks[name]
    outputs = [outcomes[test].told() for test in subtask.tests if test in outcomes]
    return {"score": shown(subtask, scores), "outputs": outputs}


def _reply(reward: float, details: Mapping[str, Any], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    total_s = sum(each.run_time_s for each in outcomes)
    figures = {
        "num_tests_run": len(outcomes),
        "total_test_execution_time_s": total_s,
        "mean_test_execution_time_s": total_s / len(outcomes) if outcomes else 0.0,
    }
    return {"reward": reward, "details": {**details, **figures}, **figures}
