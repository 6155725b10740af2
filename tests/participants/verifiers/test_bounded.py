"""Work in children: it answers, or is ended, and the next work is not troubled by it."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from participants import Code, ParticipantError
from participants.verifiers.bounded import BoundedWork, UsedUp
from tests.support.waiting import until, until_asked

pytestmark = [pytest.mark.process, pytest.mark.anyio]

SLOW = {"pattern": r"(a+)+$", "text": "a" * 64 + "!"}
QUICK = {"pattern": r"a+", "text": "baa"}
LONG_S = 50.0
ROOT = Path(__file__).parents[3]
PARENT = f"""
from functools import partial
import anyio
from participants.verifiers.bounded import BoundedWork
async def main():
    work = BoundedWork(2)
    await work.do("find_answer", 1.0, **{QUICK!r})
    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(partial(work.do, "find_answer", 1.0, **{SLOW!r}))
anyio.run(main)
"""


def children(pid: int | None = None) -> list[int]:
    """Pids of a process's children that do such work, of this one's without; it may have others."""
    found: list[int] = []
    for path in Path(f"/proc/{pid or os.getpid()}/task").glob("*/children"):
        found += [int(child) for child in path.read_text().split()]
    return [child for child in found if b"bounded_child" in _command(child) and is_there(child)]


def is_there(pid: int) -> bool:
    """Whether it lives, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
async def work() -> AsyncIterator[BoundedWork]:
    """One child at a time; none is left in the end."""
    made = BoundedWork(1)
    yield made
    await made.aclose()
    assert await anyio.to_thread.run_sync(children) == []


async def test_work_that_does_not_end_is_ended_and_its_child_replaced(work: BoundedWork) -> None:
    """By the kernel, after its processor time; the next work has a new child, and the one after that the same."""
    with pytest.raises(UsedUp, match="SIGPROF"):
        await work.do("find_answer", 0.2, **SLOW)
    assert await work.do("find_answer", 0.2, **QUICK) == {"found": "aa"}
    assert await work.do("find_answer", 0.2, **QUICK) == {"found": "aa"}
    assert work.started == 2


async def test_whatever_is_ended_for_its_time_is_told_as_that() -> None:
    """Who ends a child that has just died must not take away what it died of, else it is a failure of the host's."""
    many = BoundedWork(4)
    told: list[str] = []

    async def slow() -> None:
        try:
            await many.do("find_answer", 0.03, **SLOW)
        except (UsedUp, ParticipantError) as error:
            told.append(type(error).__name__)

    async with anyio.create_task_group() as group:
        for _ in range(32):
            group.start_soon(slow)
    await many.aclose()
    assert told == ["UsedUp"] * 32


async def test_a_child_that_somebody_kills_is_a_failure_and_no_answer(work: BoundedWork) -> None:
    """It says nothing of the work, which is neither done nor used up; the next one is done."""

    def kill() -> None:
        until(children)
        [child] = children()
        os.kill(child, signal.SIGKILL)

    failures: list[ParticipantError] = []

    async def slow() -> None:
        with pytest.raises(ParticipantError) as failed:
            await work.do("find_answer", LONG_S, **SLOW)
        failures.append(failed.value)

    async with anyio.create_task_group() as group:
        group.start_soon(slow)
        await anyio.to_thread.run_sync(kill)
    assert [(error.code, "ended with -9" in error.message) for error in failures] == [(Code.EXECUTOR_FAILED, True)]
    assert await work.do("find_answer", 0.2, **QUICK) == {"found": "aa"}


async def test_a_child_that_dies_while_it_waits_is_replaced_unseen(work: BoundedWork) -> None:
    """Whoever comes next has an answer."""

    async def noticed() -> bool:
        return work.waiting == []

    await work.do("find_answer", 0.2, **QUICK)
    os.kill(work.waiting[0], signal.SIGKILL)
    await until_asked(noticed)
    assert await work.do("find_answer", 0.2, **QUICK) == {"found": "aa"}
    assert work.started == 2


async def test_a_caller_that_gives_up_leaves_no_child_at_work(work: BoundedWork) -> None:
    """It is killed before the cancellation goes on; nothing waits for its time to be over."""
    with anyio.fail_after(LONG_S / 2):
        async with anyio.create_task_group() as group:

            async def slow() -> None:
                await work.do("find_answer", LONG_S, **SLOW)

            group.start_soon(slow)
            await anyio.to_thread.run_sync(until, children)
            group.cancel_scope.cancel()
    assert await anyio.to_thread.run_sync(children) == []


async def test_what_a_library_prints_is_no_reply(work: BoundedWork) -> None:
    """Nor does the input: many lines, any sign, and more than a pipe holds come through whole."""
    text = "\x00\u2028\u00e4\U0001f600\n\\" * 50_000 + "a"
    assert await work.do("find_answer", 5.0, pattern=r".+", text=text) == {"found": text.strip()}


async def test_unknown_work_is_a_defect_and_costs_no_child(work: BoundedWork) -> None:
    """It raises in the child, which serves on."""
    with pytest.raises(ParticipantError, match="KeyError") as failed:
        await work.do("no_such_work", 1.0)
    assert failed.value.code is Code.INTERNAL
    await work.do("find_answer", 1.0, **QUICK)
    assert work.started == 1


def test_children_end_with_the_process_that_they_work_for() -> None:
    """SIGKILL leaves those at work the rest of their time, and no more."""
    process = subprocess.Popen([sys.executable, "-c", PARENT], cwd=ROOT)
    try:
        until(lambda: len(children(process.pid)) == 2)
        left = children(process.pid)
    finally:
        process.kill()
        process.wait()
    until(lambda: not any(map(is_there, left)), within_s=30.0)
