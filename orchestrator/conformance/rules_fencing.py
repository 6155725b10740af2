"""Rules about lives, seeds and closings."""

import gc
import os
import shutil
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from participants import ResourcesServer
from store import Life

from ..coordination import retire
from .answers import Answer
from .playing import CLOSE, SEED, VERIFY, Outputs, Play, begin, call_id, steps_of, take, verify_body, words
from .reports import Violation
from .stand import Stand, stand
from .subject import Group, Subject
from .trials import Trial, differing, names_between

RETIRE_S = 10.0
POOLED = ("AnyIO worker thread", "asyncio_", "ThreadPoolExecutor")
"""Names of threads that are kept for further work, and bounded in number."""
ROUNDS = 4
"""Sessions that are opened and closed before what is left is counted; one more opens what stays open for good."""


async def stale_attempts_change_nothing(trial: Trial, group: Group) -> None:
    """Attempt N tries everything while attempt N + 1 goes on."""
    run = await trial.record(group)
    for done in trial.boundaries(run.refs, 3):
        async with trial.restored(run, done) as found:
            for number in range(done, len(run.steps)):
                await _all_refused(found.at, run.play, "stale_life", found.told, "the attempt that is over")
                await found.go_on(number + 1, start=number)
            await _all_refused(found.at, run.play, "stale_life", found.told, "the attempt that is over")


async def _all_refused(at: Stand, play: Play, code: str, told: list[str], whose: str, *, seeds: bool = True) -> None:
    """Every route answers the lives of a play with this failure."""
    for life, case in zip(play.lives, play.group, strict=True):
        calls = [(f"/{call.name}", dict(call.arguments)) for call in case.calls[:2]]
        routes = [*([(SEED, dict(case.row))] if seeds else []), *calls, (VERIFY, verify_body(case, []))]
        for number, (route, body) in enumerate(routes):
            answer = await at.call(life, route, body, call_id("agent", 900 + number, 900))
            if answer.code != code:
                line = f"{whose} calls {route.strip('/')}"
                raise Violation(f"the last was answered {answer}, and not with {code}", [*told, line])


async def seeding_twice(trial: Trial, group: Group) -> None:
    """A repeated seed returns the session, and what it had done."""
    run = await trial.record(group)
    for done in trial.boundaries(run.refs, 3):
        async with trial.restored(run, done) as found:
            for number, step in enumerate(run.steps):
                if step.kind == "seed":
                    answer = await found.take(step, again=1)
                    found.check(answer, run.answers[number], "the first time")
            await found.go_on()


async def seeds_at_once(trial: Trial, group: Group) -> None:
    """Two seeds of one session come at the same time."""
    wanted, other = await sure(trial, group)
    async with stand(trial.subject.make()) as at:
        play, outputs = begin(at, group), Outputs()
        answers = [await _two_seeds(at, play, who) for who in range(len(group))]
        told = [f"{words(group, step)}, twice at the same time" for step in steps_of(group)[: len(group)]]
        for first, second in answers:
            if not first.same(second):
                raise Violation(f"one was answered {first}, and the other one {second}", told)
        opened = sum(len(held.state.open) for held in at.server.held())
        if opened != len(group):
            raise Violation(f"there are {opened} sessions of {len(group)} rollouts", told)
        for number, step in enumerate(steps_of(group)[len(group) :], len(group)):
            told.append(words(group, step))
            answer = await take(at, play, step, outputs)
            if wanted and not answer.same(wanted[number], names_between(play, other)):
                raise Violation(f"the last was answered {answer}, and {wanted[number]} after one seed", told)


async def _two_seeds(at: Stand, play: Play, who: int) -> tuple[Answer, Answer]:
    answers: dict[int, Answer] = {}

    async def seed(number: int) -> None:
        row = dict(play.group[who].row)
        answers[number] = await at.call(play.lives[who], SEED, row, call_id("environment", 0, number))

    async with anyio.create_task_group() as tasks:
        for number in range(2):
            tasks.start_soon(seed, number)
    return answers[0], answers[1]


async def sure(trial: Trial, group: Group) -> tuple[list[Answer], Play]:
    """The answers of a plain run, where a second one has the same; else none: the server seeds by chance."""
    wanted, play = await trial.plain(group)
    again, other = await trial.plain(group)
    return ([] if differing(again, wanted, names_between(other, play)) is not None else wanted), play


async def closed_stays_closed(trial: Trial, group: Group) -> None:
    """Close, close before seed, and retire; others go on."""
    run = await trial.record(group)
    for done in trial.boundaries(run.refs, 2):
        async with trial.restored(run, done) as found:
            at, before = found.at, found.told
            late = begin(at, group)
            await close(at, late)
            told = ["close a session that was never seeded"]
            await _all_refused(at, late, "stale_call", told, "its rollout")
            await found.go_on()
            for life in found.play.lives:
                await at.call(life, CLOSE, {}, call_id("environment", 2))
            await _all_refused(at, found.play, "stale_call", [*before, "close"], "its rollout")
            lives = [*late.lives, *found.play.lives]
            left = await retire(at.fleet, lives, timeout_s=RETIRE_S)
            if left:
                raise Violation(
                    f"{len(left)} of {len(lives)} rollouts did not stop in {RETIRE_S:g} s", [*before, "retire"]
                )
            await _all_refused(at, found.play, "stale_life", [*before, "retire"], "its rollout")
            _nothing_open(at.server, [*before, "close", "retire"])


async def close(at: Stand, play: Play) -> None:
    """Close the sessions of a play."""
    for life in play.lives:
        await at.call(life, CLOSE, {}, call_id("environment", 2))


def _nothing_open(server: ResourcesServer, told: list[str]) -> None:
    counts = server.counts()
    open_ = {name: counts[name] for name in ("lives", "restored", "sessions", "stopping") if counts[name]}
    if open_:
        raise Violation(f"afterwards there are still {open_}", told)


async def retiring_frees(trial: Trial, group: Group) -> None:
    """A rollout that is retired in the middle leaves nothing, and its next attempt starts over."""
    wanted, other = await sure(trial, group)
    async with stand(trial.subject.make()) as at:
        steps, play = steps_of(group), begin(at, group)
        for step in steps[:-1]:
            await take(at, play, step, Outputs())
        await retire(at.fleet, play.lives, timeout_s=RETIRE_S)
        told = [*(words(group, step) for step in steps[:-1]), "retire"]
        _nothing_open(at.server, told)
        lives = tuple(Life(life.rollout_id, life.epoch, life.attempt + 1, life.n + 100) for life in play.lives)
        again, outputs = Play(group, lives), Outputs()
        told.append("dispatch the rollout again, under its next attempt")
        for number, step in enumerate(steps):
            told.append(words(group, step))
            answer = await take(at, again, step, outputs)
            if wanted and not answer.same(wanted[number], names_between(again, other)):
                raise Violation(f"the last was answered {answer}, and {wanted[number]} the first time", told)


async def closing_frees(trial: Trial, group: Group) -> None:
    """The same rollout again and again: what grows each time is of sessions that are over."""
    folder = await anyio.to_thread.run_sync(tempfile.mkdtemp)
    with _temporary(folder):
        async with stand(trial.subject.make()) as at:
            await _rollout(at, group)
            before = await anyio.to_thread.run_sync(_held, trial.subject, at.server, folder)
            for _ in range(ROUNDS):
                await _rollout(at, group)
            after = await anyio.to_thread.run_sync(_held, trial.subject, at.server, folder)
    await anyio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))
    told = [*(words(group, step) for step in steps_of(group)), "close", f"all that {ROUNDS} times more"]
    for what, count in after.items():
        if count - before.get(what, 0) >= ROUNDS:
            raise Violation(f"{what}: {count}, and {before.get(what, 0)} after the first time", told)


async def _rollout(at: Stand, group: Group) -> None:
    play, outputs = begin(at, group), Outputs()
    for step in steps_of(group):
        await take(at, play, step, outputs)
    await close(at, play)
    await retire(at.fleet, play.lives, timeout_s=RETIRE_S)


@contextmanager
def _temporary(folder: str) -> Iterator[None]:
    """Where the server makes temporary files meanwhile."""
    before, tempfile.tempdir = tempfile.tempdir, folder
    try:
        yield
    finally:
        tempfile.tempdir = before


def _held(subject: Subject, server: ResourcesServer, folder: str) -> dict[str, int]:
    """What the server holds beside what every one holds: items, threads, open files, temporary files, processes."""
    gc.collect()
    base = vars(ResourcesServer())
    found = {f"items of self.{name}": _items(value) for name, value in vars(server).items() if name not in base}
    for each in subject.server.__mro__:
        if each.__module__.partition(".")[0] not in ("builtins", "abc", "participants"):
            found |= {f"items of {each.__name__}.{name}": _items(value) for name, value in vars(each).items()}
            module = vars(sys.modules[each.__module__])
            found |= {f"items of {name} in {each.__module__}": _items(value) for name, value in module.items()}
    found["files in the temporary folder"] = len(os.listdir(folder))
    with os.scandir("/proc/self/fd") as entries:
        found["open files"] = sum(1 for _ in entries)
    found["processes"] = len(_children())
    found["threads"] = sum(not thread.name.startswith(POOLED) for thread in threading.enumerate())
    return found


def _items(value: Any, depth: int = 3) -> int:
    if depth == 0:
        return 0
    if callable(cached := getattr(value, "cache_info", None)) and not isinstance(value, type):
        return int(cached().currsize)
    if not isinstance(value, dict | list | set | tuple | deque):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return len(value) + sum(_items(each, depth - 1) for each in inner)


def _children() -> list[str]:
    try:
        return Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    except OSError:
        return []
