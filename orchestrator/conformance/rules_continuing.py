"""Rules about checkpoints and continuations."""

import time
from typing import Any

from participants import ResourcesServer, ResourcesSession
from store import LazyBytes

from .answers import difference, shown
from .playing import Outputs, Play, Step, begin, call_id, steps_of, take, words
from .reports import Violation
from .stand import NotExported, Stand, stand
from .subject import Group
from .trials import CRASH, Trial

BOUNDARIES = 6
"""Of a recording, that a rule tries unless it is to be thorough."""


async def can_be_played(trial: Trial, group: Group) -> None:
    """Cases are what everything else is measured by."""
    answers, _ = await trial.plain(group)
    steps = steps_of(group)
    for number, (step, answer) in enumerate(zip(steps, answers, strict=True), 1):
        if answer.failed or (answer.refused and step.kind != "call"):
            raise Violation(f"the last ended in {answer}", [words(group, each) for each in steps[:number]])
        if answer.status == 404 and (missing := _no_tool(trial, group[step.who].calls[step.number].name)):
            raise Violation(missing, [words(group, each) for each in steps[:number]])
    results = answers[-1].body if isinstance(answers[-1].body, list) else [answers[-1].body]
    trial.measures.verified += len(results)
    rewards = [repr(result["reward"]) for result in results]
    trial.measures.rewards.update(rewards)
    trial.scores[id(group)] = rewards


def _no_tool(trial: Trial, name: str) -> str:
    """What is wrong with a call that was not found; empty where the server has such a tool, or says of none."""
    server = trial.subject.made[-1]
    known = [str(schema["name"]) for schema in server.tool_schemas()]
    silent = not known and type(server).call_tool is not ResourcesServer.call_tool
    if silent or name in known:
        return ""
    return f"there is no tool {name}, so that call tries nothing; there are {', '.join(sorted(known)) or 'none at all'}"


async def can_be_exported(trial: Trial, group: Group) -> None:
    """Also measures exports."""
    run = await trial.record(group)
    if run.not_exported:
        raise Violation(f"the session cannot be exported then: {run.not_exported}", run.told(_exported(run.refs) + 1))
    async with trial.restored(run, len(run.steps) - 1) as found:
        session = await first_session(found.at, found.play)
        began = time.perf_counter()
        exported = await found.at.server.export_session(session)
        trial.measures.exported(size_of(exported), time.perf_counter() - began)


def _exported(refs: dict[int, Any]) -> int:
    return max(refs, default=0)


async def first_session(at: Stand, play: Play) -> ResourcesSession:
    """The session of the first case, once its next life has taken it up."""
    await take(at, play, Step("seed"), Outputs(), again=1)
    [held] = [held for held in at.server.held() if held.life == play.lives[0]]
    session: ResourcesSession = next(iter(held.state.open.values()))
    return session


def plain(value: Any) -> Any:
    """A copy of an export that can be compared: of what is read later its digest."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return ("read later", value.sha256, value.size) if isinstance(value, LazyBytes) else value


def size_of(value: Any) -> int:
    """Bytes of an export, roughly: of its text and of what stands in it as bytes."""
    if isinstance(value, dict):
        return 2 + sum(len(str(key)) + 4 + size_of(each) for key, each in value.items())
    if isinstance(value, list):
        return 2 + sum(1 + size_of(each) for each in value)
    if isinstance(value, str | bytes):
        return len(value) + 2
    return int(getattr(value, "size", 0)) or len(str(value))


async def continues(trial: Trial, group: Group) -> None:
    """From every boundary."""
    run = await trial.record(group)
    for done in trial.boundaries(run.refs, BOUNDARIES):
        async with trial.restored(run, done) as found:
            await found.go_on()
            if done == len(run.steps):
                replays = trial.subject.server.checkpoint_verify == "replay"
                answer = await found.take(run.steps[-1], again=int(replays))
                found.check(answer, run.answers[-1], "before the interruption")


async def restores_thrice(trial: Trial, group: Group) -> None:
    """Each restore is checkpointed twice, crashes, and the last one goes on to the end."""
    run = await trial.record(group)
    if not run.refs:
        return
    done, told = min(run.refs), list[str]()
    ref, play, space, outputs = run.refs[done], run.play, run.space, run.outputs(done)
    for turn in range(3):
        async with stand(trial.subject.make(), space, run.run) as at:
            await at.restore(ref, play.lives)
            told.append(CRASH)
            until = len(run.steps) if turn == 2 else min(done + 1, len(run.steps) - 1)
            play = play.continued(at) if until > done else play
            for number in range(done, until):
                told.append(words(group, run.steps[number]))
                answer = await take(at, play, run.steps[number], outputs)
                if not answer.same(run.answers[number]):
                    raise Violation(
                        f"the last was answered {answer}, and {run.answers[number]} without the interruptions",
                        [*run.told(min(run.refs)), *told],
                    )
            done = max(done, until)
            try:
                for _ in range(2):
                    ref = await at.checkpoint(play.lives)
            except NotExported as error:
                raise Violation(f"what was restored cannot be exported: {error}", [*run.told(1), *told]) from error
            space = at.space


async def checkpoints_change_nothing(trial: Trial, group: Group) -> None:
    """One continuation with checkpoints in between, and one without."""
    run = await trial.record(group)
    if not run.refs:
        return
    first = min(run.refs)
    async with trial.restored(run, first) as without:
        wanted = [await without.take(step) for step in run.steps[first:]]
    async with trial.restored(run, first) as found:
        for number, step in enumerate(run.steps[first:]):
            found.check(await found.take(step), wanted[number], "where no checkpoint is taken")
            try:
                await found.at.checkpoint(found.play.lives)
            except NotExported as error:
                raise Violation(f"the session cannot be exported: {error}", found.told) from error
            found.between.append("a checkpoint; the server goes on")


async def exports_are_copies(trial: Trial, group: Group) -> None:
    """What `export_session` has given stays as it was, whatever the session does then."""
    async with stand(trial.subject.make()) as at:
        play, outputs, told = begin(at, group), Outputs(), list[str]()
        given: list[tuple[Any, Any]] = []
        for step in steps_of(group):
            told.append(words(group, step))
            await take(at, play, step, outputs)
            for exported, before in given:
                if (now := plain(exported)) != before:
                    where, became, was = difference(now, before)
                    raise Violation(f"the export{where} became {shown(became)}, and it was {shown(was)}", told)
            sessions = [s for held in at.server.held() for s in held.state.open.values() if not s.lost]
            exports = [await at.server.export_session(session) for session in sessions]
            given = [(exported, plain(exported)) for exported in exports]
            told.append("export_session")


class Clock:
    """Seconds, as the trial says."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        """The time."""
        return self.now


async def time_down_does_not_count(trial: Trial, group: Group) -> None:
    """A session that was idle for half of its time is parked, lost in a crash, and parked again, for far longer."""
    run = await trial.record(group)
    for done in trial.boundaries(run.refs, 3):
        clock = Clock(1000.0)
        server = trial.subject.make(clock=clock)
        long, told = 10 * server.session_ttl_s, [*run.told(done)]
        async with stand(server, run.space, run.run) as at:
            await at.restore(run.refs[done], run.play.lives)
            play = run.play.continued(at)
            await at.call(play.lives[0], "/seed_session", dict(group[0].row), call_id("environment", 0, 1))
            clock.now += 0.5 * server.session_ttl_s
            server.gate.close()
            clock.now += long
            server.gate.reopen()
            ref = await at.checkpoint(play.lives)
            space = at.space
        clock = Clock(100 * server.session_ttl_s)  # Of another machine, which has been up for longer.
        server = trial.subject.make(clock=clock)
        async with stand(server, space, run.run) as at:
            await at.restore(ref, play.lives)
            server.gate.close()
            clock.now += long
            server.gate.reopen()
            play, outputs = play.continued(at), run.outputs(done)
            told += ["idle for half of session_ttl_s", "parked for ten times session_ttl_s", CRASH, "parked once more"]
            for number in range(done, len(run.steps)):
                told.append(words(group, run.steps[number]))
                answer = await take(at, play, run.steps[number], outputs)
                if not answer.same(run.answers[number]):
                    raise Violation(f"the last was answered {answer}, and {run.answers[number]} without the wait", told)
