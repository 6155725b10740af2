"""Rules about sessions that are open at the same time."""

from collections.abc import Sequence

import anyio

from .answers import Answer
from .playing import Outputs, Play, begin, steps_of, take, words
from .reports import Violation
from .rules_fencing import close, sure
from .stand import Stand, stand
from .subject import Group
from .trials import Trial, names_between


async def sessions_do_not_meet(trial: Trial, group: Group) -> None:
    """Twice the same rollout, and one beside another one; in turns, and at the same time.

    A cohort has each member once: it is tried beside another cohort alone.
    """
    wanted, other = await sure(trial, group)
    if not wanted:
        trial.measures.note("seeded by chance: compared from a checkpoint on")
        await _from_a_checkpoint(trial, group)
        return
    for beside in [None if group[0].cohort else group, trial.neighbour(group)]:
        if beside is None:
            continue
        for at_once in (False, True):
            async with stand(trial.subject.make()) as at:
                plays = [begin(at, group), begin(at, beside)]
                answers, told = await _both(at, plays, at_once=at_once)
            names = names_between(plays[0], other)
            for number, (answer, one) in enumerate(zip(answers, wanted, strict=True)):
                if not answer.same(one, names):
                    lines = told[: told.index(f"one: {words(group, steps_of(group)[number])}") + 1]
                    how = "of two at the same time" if at_once else "beside another one"
                    raise Violation(f"the last was answered {answer}, {how}, and {one} alone", lines)
        await _beside_one_that_ends(trial, group, beside, wanted, other)


async def _beside_one_that_ends(
    trial: Trial, group: Group, beside: Group, wanted: Sequence[Answer], alone: Play
) -> None:
    """Another session is opened, scored and closed while one is open: that frees what is its own, and no more."""
    async with stand(trial.subject.make()) as at:
        play, outputs, told = begin(at, group), Outputs(), list[str]()
        names = names_between(play, alone)
        for number, step in enumerate(steps_of(group)):
            if number == len(group):
                await _another_ends(at, beside, told)
            told.append(f"one: {words(group, step)}")
            answer = await take(at, play, step, outputs)
            if not answer.same(wanted[number], names):
                problem = f"the last was answered {answer}, after another one was closed, and {wanted[number]} alone"
                raise Violation(problem, told)


async def _another_ends(at: Stand, beside: Group, told: list[str]) -> None:
    """All of it, with the close."""
    other, given = begin(at, beside), Outputs()
    for step in steps_of(beside):
        told.append(f"other: {words(beside, step)}")
        await take(at, other, step, given)
    await close(at, other)
    told.append("other: close")


async def _both(at: Stand, plays: Sequence[Play], *, at_once: bool) -> tuple[list[Answer], list[str]]:
    """Both go on in turns; the answers of the first, and what was done."""
    answers, told = list[Answer](), list[str]()
    queues = [steps_of(play.group) for play in plays]
    outputs = [Outputs(), Outputs()]

    async def step(which: int, number: int) -> None:
        taken = queues[which][number]
        told.append(f"{('one', 'other')[which]}: {words(plays[which].group, taken)}")
        answer = await take(at, plays[which], taken, outputs[which])
        if which == 0:
            answers.append(answer)

    for number in range(max(map(len, queues))):
        turns = [which for which in (1, 0) if number < len(queues[which])]
        if at_once:
            async with anyio.create_task_group() as tasks:
                for which in turns:
                    tasks.start_soon(step, which, number)
        else:
            for which in reversed(turns):
                await step(which, number)
    return answers, told


async def _from_a_checkpoint(trial: Trial, group: Group) -> None:
    """One goes on beside another session; restored without it, it must be answered the same."""
    run = await trial.record(group)
    if not run.refs:
        return
    first = min(run.refs)
    async with trial.restored(run, first) as found:
        beside, outputs = begin(found.at, group), Outputs()
        for step in steps_of(group)[: len(group)]:
            found.between.append(f"another rollout: {words(group, step)}")
            await take(found.at, beside, step, outputs)
        for number in range(first, len(run.steps)):
            await found.go_on(number + 1, start=number)
            found.between.append(f"another rollout: {words(group, run.steps[number])}")
            await take(found.at, beside, run.steps[number], outputs)
    async with trial.restored(run, first) as found:
        await _another_ends(found.at, group, found.between)
        await found.go_on()
