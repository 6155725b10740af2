"""Rules about what a crash really leaves: a restore in another process, and at another time."""

from .playing import words
from .reports import Violation
from .subject import Group
from .trials import Trial

BOUNDARIES = 3
LATER_S = 30 * 24 * 3600.0


async def restores_elsewhere(trial: Trial, group: Group) -> None:
    """In a process that has nothing but the import of the class."""
    await _elsewhere(trial, group, 0.0, "a checkpoint; the process dies; restored in another process")


async def restores_later(trial: Trial, group: Group) -> None:
    """There, with the clocks of the module `time` 30 days ahead."""
    await _elsewhere(trial, group, LATER_S, "a checkpoint; the process dies; restored in another process 30 days later")


async def _elsewhere(trial: Trial, group: Group, later_s: float, told: str) -> None:
    run = await trial.record(group)
    boundaries = [done for done in run.refs if done < len(run.steps)]
    for done in trial.boundaries(boundaries, BOUNDARIES):
        answers = await trial.elsewhere(run, done, later_s)
        for number, (answer, wanted) in enumerate(zip(answers, run.answers[done:], strict=True), done):
            if not answer.same(wanted):
                between = [words(group, step) for step in run.steps[done : number + 1]]
                said = f"the last was answered {answer}, and {wanted} without the interruption"
                raise Violation(said, [*run.told(done), told, *between])
