"""Scenario 9 with verifiers that ship: a judge that is saying its verdict, and a program that is running."""

import os
import signal
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
import pytest

from orchestrator.rounds import Round
from participants.sandbox import python_paths
from tests.support.backend import start_backend
from tests.support.marks import MARK, marked
from tests.support.waiting import until

from .controller import Controller
from .looking import state_of
from .shipped import SUPPORT, Shipped
from .stage import JUDGE, Stage
from .test_continuation import rewards
from .test_resources_verify import not_delivered
from .variants import one_and_two

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


# A judge

FILLER, CUT = 20, 6
"""Words of a verdict before its label, and tokens of it that stand when it is held."""
SAYS_EQUAL = f'<script>[{{"filler": {FILLER}, "text": "[[A=B]]"}}]</script>'
GENERATED, JUDGED, JUDGED_AGAIN = 1, 2, 3
"""The model calls of a rollout: the policy's, and the judge's on both orders of the answers."""


@dataclass(frozen=True, slots=True)
class Judge:
    """A verifier that asks the model for its verdict, twice."""

    server: str
    options: dict[str, Any]
    asks: str
    """Stands in its prompts alone."""
    said: str
    expected: str

    def at(self, stage: Stage) -> None:
        """Let the stage have it."""
        stage.resources = f"{SUPPORT}:{self.server}"
        stage.counter = {**self.options, "system_message": SAYS_EQUAL}

    def task(self, alias: str = "") -> Shipped:
        """An answer that only a judge can call right."""
        fields = {"question": "How many are they?", "expected_answer": self.expected}
        return Shipped(0, alias=alias, said=self.said, fields=fields)


EQUIVALENCE = Judge("LoggedEquivalence", {"check_twice_swap": True}, "Compare two answers", "a dozen", "twelve")
MATH = Judge("LoggedMath", {}, "Compare two final answers", r"\boxed{a dozen of them}", "twelve")


def verdicts(controller: Controller, task: Shipped) -> list[Any]:
    """The label and the words of each verdict of a row."""
    row = controller.output[task.rollout_id].row
    assert row is not None
    return [(each["verdict_label"], each["response"]["output"]) for each in row["judge_evaluations"]]


@one_and_two
@pytest.mark.parametrize("judge", [pytest.param(EQUIVALENCE, id="equivalence"), pytest.param(MATH, id="math")])
async def test_09_a_judge_in_flight_is_not_waited_for_and_says_the_rest_of_its_verdict(
    stage: Stage, judge: Judge
) -> None:
    """Verify runs once more after the crash, and of the verdict that was cut the rest alone is generated."""
    judge.at(stage)
    whole, task = judge.task("whole"), judge.task()
    async with stage.epoch() as before:
        [uncut] = await before.submit([whole])
        await before.deliver()
        stage.backend.control.hold(after_tokens=CUT, substring=judge.asks)
        [first] = await before.submit([task])
        await stage.held(1)
        taken = await before.checkpoint()
        assert taken.standstill.blocker_count == 0
        assert (await state_of(before, taken, "environment"))["step"] == "verify"
    stage.release()
    async with stage.epoch() as after:
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"whole": 1.0, "r0": 1.0}
        assert verdicts(after, task) == verdicts(after, whole)
        assert await after.left() == {}
    seen = stage.seen()
    calls = {uncut: [GENERATED, JUDGED, JUDGED_AGAIN], first: [GENERATED, JUDGED], second: [JUDGED, JUDGED_AGAIN]}
    seen.exactly(calls=calls, tools={}, verified=[uncut, first, second])
    assert seen.continued(second) == [CUT, 0]
    assert seen.generated(first)[1] == CUT
    assert [CUT + seen.generated(second)[0], seen.generated(second)[1]] == seen.generated(uncut)[1:]


@one_and_two
async def test_09_without_a_crash_the_judge_in_flight_is_used_and_asked_nothing_twice(stage: Stage) -> None:
    """Its verdict comes while all stand still, and is not delivered then; the next one is asked for after that."""
    EQUIVALENCE.at(stage)
    task = EQUIVALENCE.task()
    stage.backend.control.hold(after_tokens=CUT, substring=EQUIVALENCE.asks)
    async with stage.epoch() as epoch:
        [life] = await epoch.submit([task])
        await stage.held(1)

        async def standing(_: Round) -> None:
            stage.release()
            await epoch.until_count("model", "held", 1)
            await not_delivered(epoch, life)
            assert stage.seen().calls == {life: [GENERATED, JUDGED]}

        taken = await epoch.checkpoint(standing)
        assert taken.standstill.blocker_count == 0
        await epoch.deliver()
        assert rewards(epoch) == {"r0": 1.0}
        assert await epoch.left() == {}
    seen = stage.seen()
    seen.exactly(calls={life: [GENERATED, JUDGED, JUDGED_AGAIN]}, tools={}, verified=[life])
    assert seen.continued(life) == [0, 0, 0]


# A program

PYTHON = python_paths()[0]
PROGRAM = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.execve({python!r}, [{python!r}, "-c", "import signal; signal.sigwait([signal.SIGUSR1]); print(42)"], {environment!r})
"""
"""Waits for a signal, under the mark of its test, and then prints."""


def running(stage: Stage) -> list[int]:
    """The processes of the program, as the host sees them."""
    return marked(str(stage.folder))


def program_task(stage: Stage) -> Shipped:
    """A program that is right, once it ends."""
    program = PROGRAM.format(python=PYTHON, environment={MARK: str(stage.folder)})
    tests = {"unit_tests": {"inputs": [""], "outputs": ["42"]}}
    return Shipped(0, said=f"```python\n{program}```", fields={"verifier_metadata": tests})


async def program_runs(stage: Stage) -> None:
    """Until it does."""
    await anyio.to_thread.run_sync(until, lambda: running(stage))


async def end_program(stage: Stage) -> None:
    """Let it print."""
    [process] = await anyio.to_thread.run_sync(running, stage)
    os.kill(process, signal.SIGUSR1)


@pytest.fixture
def runs_programs(stage: Stage) -> Stage:
    """A stage with a verifier that runs programs, and has time for them."""
    stage.resources = f"{SUPPORT}:LoggedCodeGen"
    stage.counter = {"unit_test_timeout_secs": 60.0}
    return stage


@one_and_two
async def test_09_of_a_program_that_runs_at_a_crash_nothing_is_left_and_it_runs_once_more(runs_programs: Stage) -> None:
    """No checkpoint waits for it; the verify of the replacement runs it again, and gives its reward."""
    stage, task = runs_programs, program_task(runs_programs)
    async with stage.epoch() as before:
        [first] = await before.submit([task])
        await program_runs(stage)
        taken = await before.checkpoint()
        assert taken.standstill.blocker_count == 0
        assert (await state_of(before, taken, "environment"))["step"] == "verify"
        assert await anyio.to_thread.run_sync(running, stage)
    await anyio.to_thread.run_sync(until, lambda: not running(stage))
    async with stage.epoch() as after:
        [second] = await after.go_on([task])
        await program_runs(stage)
        await end_program(stage)
        await after.deliver()
        assert result_of(after) == (1.0, [True])
        assert await after.left() == {}
    stage.seen().exactly(calls={first: [1]}, tools={}, verified=[first, second])


@one_and_two
async def test_09_without_a_crash_a_program_goes_on_across_the_checkpoint(runs_programs: Stage) -> None:
    """It ends while all stand still; its reward is delivered after that, and it is not run twice."""
    stage, task = runs_programs, program_task(runs_programs)
    async with stage.epoch() as epoch:
        [life] = await epoch.submit([task])
        await program_runs(stage)

        async def standing(_: Round) -> None:
            await end_program(stage)
            await epoch.until_count("environment", "parked", 1)
            await not_delivered(epoch, life)

        await epoch.checkpoint(standing)
        await epoch.deliver()
        assert result_of(epoch) == (1.0, [True])
    assert await anyio.to_thread.run_sync(running, stage) == []
    stage.seen().exactly(calls={life: [1]}, tools={}, verified=[life])


def result_of(controller: Controller) -> tuple[Any, Any]:
    """The reward, and what became of each test."""
    row = controller.output["r0"].row
    assert row is not None
    return row["reward"], row["result"]


# A judge that goes away


@one_and_two
async def test_09_a_judge_that_goes_away_is_a_failure_and_no_reward_until_it_is_back(stage: Stage) -> None:
    """In the middle of its verdict, after a checkpoint; the rollout's next attempt is rewarded."""
    EQUIVALENCE.at(stage)
    stage.counter |= {"judge": JUDGE}
    stage.model = {"retry_for_s": 0.2}
    task = EQUIVALENCE.task()
    folder = stage.folder / "judge"
    folder.mkdir()
    with start_backend(folder) as judge:
        stage.judge = judge
        judge.control.hold(after_tokens=CUT)
        async with stage.epoch() as epoch:
            [first] = await epoch.submit([task])
            await anyio.to_thread.run_sync(lambda: judge.control.wait(held=1))
            taken = await epoch.checkpoint()
            assert taken.standstill.blocker_count == 0
            await anyio.to_thread.run_sync(judge.kill)
            result = (await epoch.deliver())["r0"]
            assert result.row is None
            assert result.failure is not None
            assert (result.failure["class"], result.failure["stage"]) == ("judge_failed", "verification")
            assert not result.failure["terminal"]
            with await anyio.to_thread.run_sync(lambda: start_backend(folder, port=judge.port)) as back:
                epoch.restarts["r0"] = first
                [second] = await epoch.submit([task])
                await epoch.deliver()
                asked = [call for call in back.control.calls() if call.life]
            assert rewards(epoch) == {"r0": 1.0}
            assert await epoch.left() == {}
    assert [(call.life, call.continued) for call in asked] == [(str(second), 0)] * 2
    stage.seen().exactly(calls={first: [1], second: [1]}, tools={}, verified=[first, second])
