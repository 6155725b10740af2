"""Rules about single calls: one that is in flight, is cancelled, is refused, or claims to change nothing."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel

from participants import ToolCall

from ..coordination import commit, prepare, resume
from ..errors import CommitFailed
from .answers import Answer
from .awaits import Watched, watched_class
from .playing import Recording, Step, call_id
from .reports import Violation
from .stand import LEASE_S, WORK_S, stand
from .subject import Group
from .trials import Restored, Trial

NOT_YET_S = 0.02
"""How long a prepare is given that must not succeed."""
AWAITS = 4
"""Of a call, at which it is held or cancelled, unless the trial is thorough."""


@asynccontextmanager
async def _watched(trial: Trial, run: Recording, done: int) -> AsyncIterator[tuple[Restored, Watched]]:
    watched = Watched()
    made = trial.subject.make(watched_class(trial.subject.server, watched))
    async with stand(made, run.space, run.run) as at:
        await at.restore(run.refs[done], run.play.lives)
        yield Restored(at, run.play.continued(at), run, done, run.outputs(done)), watched


async def _awaits_of(trial: Trial, run: Recording, done: int) -> int:
    """How often the step after a boundary gives way."""
    async with _watched(trial, run, done) as (found, watched):
        watched.at = _nothing
        await found.take(run.steps[done])
        return watched.awaits


async def _nothing(number: int) -> None:
    """Let the hook go on."""


def _before(trial: Trial, run: Recording, *, verify: bool) -> Iterator[int]:
    """Boundaries that a call of a tool follows, or with `verify` also the score of a case alone."""
    wanted = {"call", "verify"} if verify and len(run.play.group) == 1 else {"call"}
    return trial.boundaries([done for done in run.refs if done < len(run.steps) and run.steps[done].kind in wanted], 4)


async def checkpoints_wait(trial: Trial, group: Group) -> None:
    """A call is held at each of its awaits while a checkpoint is asked for."""
    run, seen = await trial.record(group), 0
    for done in _before(trial, run, verify=trial.subject.server.checkpoint_verify == "wait"):
        count = await _awaits_of(trial, run, done)
        seen += count
        for number in trial.some(range(1, count + 1), AWAITS):
            await _checkpoint_at(trial, run, done, number)
    if run.refs and not seen:
        trial.measures.note("no call of these cases gives way in the middle, so none can be caught there")


async def _checkpoint_at(trial: Trial, run: Recording, done: int, number: int) -> None:
    reached, go_on = anyio.Event(), anyio.Event()

    async def hold(awaited: int) -> None:
        if awaited == number:
            reached.set()
            await go_on.wait()

    async with _watched(trial, run, done) as (found, watched):
        watched.at = hold
        answers = list[Answer]()

        async def call() -> None:
            answers.append(await found.take(run.steps[done]))
            reached.set()  # It may give way less often than it did when that was counted.

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await reached.wait()
            said = "" if answers else await _checkpoint_now(found)
            go_on.set()
        if said:
            line = f"at await {number} of it, a checkpoint"
            raise Violation(f"{said} while the call was in the middle", [*found.told, line])
        found.check(answers[0], run.answers[done], "where no checkpoint is asked for in the middle of it")
        await found.go_on(start=done + 1)


async def _checkpoint_now(found: Restored) -> str:
    """What of a checkpoint succeeds that must not."""
    at, round_ = found.at, found.at.controller.next_round()
    standstill = await prepare(at.fleet, round_, timeout_s=NOT_YET_S, lease_s=LEASE_S)
    said = "the prepare succeeded" if standstill.prepared else ""
    try:
        await commit(at.fleet, round_, found.play.lives, at.controller.head, timeout_s=WORK_S)
    except CommitFailed:
        said = ""
    else:
        said = said or "the commit succeeded"
    await resume(at.fleet, round_)
    return said


async def cancelled_calls(trial: Trial, group: Group) -> None:
    """A call is cancelled at each of its awaits, and then made once more."""
    run, seen, lost = await trial.record(group), 0, 0
    for done in _before(trial, run, verify=True):
        count = await _awaits_of(trial, run, done)
        for number in trial.some(range(1, count + 1), AWAITS):
            seen += 1
            lost += await _cancelled_at(trial, run, done, number)
    if run.refs and not seen:
        trial.measures.note("no call of these cases gives way in the middle, so none can be cancelled there")
    if lost:
        trial.measures.note(f"{lost} of {seen} cancelled calls lose the session: its rollout starts over")


async def _cancelled_at(trial: Trial, run: Recording, done: int, number: int) -> bool:
    """Whether the session is lost by that, as it may be where its state is no JSON."""
    async with _watched(trial, run, done) as (found, watched):
        answers = list[Answer]()
        with anyio.CancelScope() as scope:

            async def cancel(awaited: int) -> None:
                if awaited == number:
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()

            watched.at = cancel
            answers.append(await found.take(run.steps[done]))
        found.between[-1] += f", cancelled at its await {number}"
        if answers:  # Too late: it had come to its end.
            found.check(answers[0], run.answers[done], "where it is not cancelled")
            await found.go_on(start=done + 1)
            return False
        found.outputs = run.outputs(done)
        return await _as_before(found, run, done)


async def _as_before(found: Restored, run: Recording, done: int) -> bool:
    """Go on as if the last call had not been. Gives whether the session says itself that it is lost."""
    for number in range(done, len(run.steps)):
        answer = await found.take(run.steps[number], again=1)
        if answer.code == "lost_session":
            return True
        found.check(answer, run.answers[number], "without that call")
    return False


async def refused_calls(trial: Trial, group: Group) -> None:
    """Calls that are refused or fail come before each step: those of the case, and some with odd arguments."""
    run = await trial.record(group)
    for done in trial.boundaries([done for done in run.refs if done < len(run.steps)], 4):
        odd = [each for case in group for each in odd_calls(case.calls)]
        for call in odd if trial.thorough else odd[:8]:
            await _refused(trial, run, done, call)


async def _refused(trial: Trial, run: Recording, done: int, call: ToolCall) -> None:
    async with trial.restored(run, done) as found:
        life = found.play.lives[0]
        answer = await found.at.call(life, f"/{call.name}", dict(call.arguments), call_id("agent", 800, 800))
        if answer.failed or answer.refused:
            found.between.append(f"{call.name} with {dict(call.arguments)}, which is answered {answer}")
            await _as_before(found, run, done)


def odd_calls(calls: Sequence[ToolCall]) -> list[ToolCall]:
    """The calls themselves, and each with one argument that is hardly right."""
    found = list(calls)
    for call in calls:
        for name, value in call.arguments.items():
            odd = _odd_values(value)
            found += [ToolCall(name=call.name, arguments={**call.arguments, name: each}) for each in odd]
    unique = {repr((call.name, dict(call.arguments))): call for call in found}
    return list(unique.values())


def _odd_values(value: object) -> list[object]:
    if isinstance(value, bool) or value is None:
        return ["no"]
    if isinstance(value, int | float):
        return [-1, 1000]
    if isinstance(value, str):
        return ["", f"{value} not"]
    return [[], {}]


async def stateless_keeps_nothing(trial: Trial, group: Group) -> None:
    """Each call alone, in a session of a fresh instance, is answered as it was after all those before it."""
    run = await trial.record(group)
    for step, answer in zip(run.steps, run.answers, strict=True):
        if answer.failed and "declares stateless" in str(answer.body):
            raise Violation(f"the last was answered {answer}", run.told(run.steps.index(step) + 1))
    first = min(run.refs, default=None)
    if first is None:
        return
    for done in trial.boundaries(range(first, len(run.steps)), 6):
        async with trial.restored(run, first) as found:
            found.outputs = run.outputs(done)
            answer = await found.take(run.steps[done])
            if not answer.same(run.answers[done]):
                told = [*run.told(done + 1), "the last once more, alone, in a session of another process"]
                raise Violation(f"it was answered {run.answers[done]}, and alone {answer}", told)


async def replayed_verify(trial: Trial, group: Group) -> None:
    """Verify comes twice at every boundary, and then everything goes on."""
    run = await trial.record(group)
    verify: Step = run.steps[-1]
    for done in trial.boundaries([done for done in run.refs if done < len(run.steps)], 6):
        async with trial.restored(run, done) as found:
            first = await found.take(verify, again=1)
            found.check(await found.take(verify, again=2), first, "the first time")
            await found.go_on()
