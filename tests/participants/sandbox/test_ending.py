"""Nothing outlives its run: cancelled, the server killed, the keeper killed; and a forked worker can run programs."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from participants.sandbox import Program, Sandbox, SandboxLimits, python_paths
from tests.support.waiting import until
from tests.tidy.tree import ROOT

from .ways import MARK, Target, descriptors, left_of, processes_marked, wait_until_gone

pytestmark = pytest.mark.process

PYTHON, _ = python_paths()
DAEMONS = "setsid sleep 100000 & (setsid sh -c 'sleep 100000; :' &) ; sleep 100000"
ALL_DAEMONS = 4
"""At least so many processes come of it: the shell, and three that sleep."""


@contextmanager
def server(way: str, mark: str, *command: str) -> Iterator[subprocess.Popen[str]]:
    """A server with a program, in a process of its own; left to itself if it is not over at the end."""
    line = [sys.executable, "-m", "tests.participants.sandbox.server", way, mark, *command]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        yield process


def keepers_of(pid: int) -> list[int]:
    """Direct children of a process, of all its threads."""
    children = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for line in children for child in line]


@pytest.mark.anyio
async def test_a_cancelled_run_leaves_nothing(sandbox: Sandbox, target: Target) -> None:
    """Once the cancelled call has returned there is no process, folder or descriptor of it."""
    await sandbox.run(Program(command=["true"]))
    before = descriptors()
    program = Program(command=["sh", "-c", DAEMONS], environment=target.environment)
    async with anyio.create_task_group() as group:
        group.start_soon(sandbox.run, program, SandboxLimits(wall_s=300.0))
        await anyio.to_thread.run_sync(until, lambda: len(target.processes()) >= ALL_DAEMONS)
        group.cancel_scope.cancel()
    assert not left_of(target.mark, os.getpid())
    assert descriptors() == before


@pytest.mark.anyio
@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.01, 0.03])
async def test_a_run_cancelled_while_it_starts_leaves_nothing(sandbox: Sandbox, target: Target, delay_s: float) -> None:
    """Whenever that is."""
    await sandbox.run(Program(command=["true"]))
    before = descriptors()
    program = Program(command=["sh", "-c", DAEMONS], environment=target.environment)
    with anyio.move_on_after(delay_s):
        await sandbox.run(program, SandboxLimits(wall_s=300.0))
    assert not left_of(target.mark, os.getpid())
    assert descriptors() == before


@pytest.mark.timeout(120)
def test_a_program_does_not_survive_its_server(way: str) -> None:
    """The server is killed with SIGKILL: every process goes, also those that made a session of their own."""
    mark = secrets.token_hex(8)
    with server(way, mark, "sh", "-c", DAEMONS) as process:
        until(lambda: len(processes_marked(mark)) >= ALL_DAEMONS)
        process.kill()
        process.wait()
        wait_until_gone(mark)
        until(lambda: not left_of(mark, process.pid))


@pytest.mark.timeout(120)
def test_a_copy_of_the_server_keeps_no_program_alive(way: str) -> None:
    """A process that a hook forked still holds the socket of the keeper when the server is killed."""
    mark = secrets.token_hex(8)
    with server(way, mark, "copied", "sh", "-c", DAEMONS) as process:
        assert process.stdout is not None
        copy = int(process.stdout.readline())
        try:
            process.kill()
            process.wait()
            wait_until_gone(mark)
        finally:
            os.kill(copy, signal.SIGKILL)


@pytest.mark.timeout(120)
def test_under_bubblewrap_nothing_survives_the_keeper_either(way: str) -> None:
    """Server and keeper are killed at once: under bubblewrap all goes, without it the program's first process."""
    mark = secrets.token_hex(8)
    command = DAEMONS if way == "bubblewrap" else "exec sleep 100000"
    with server(way, mark, "sh", "-c", command) as process:
        until(lambda: len(processes_marked(mark)) >= (ALL_DAEMONS if way == "bubblewrap" else 1))
        keepers = keepers_of(process.pid)
        assert keepers
        process.kill()
        for keeper in keepers:
            os.kill(keeper, signal.SIGKILL)
        process.wait()
        wait_until_gone(mark)
        for folder in left_of(mark, process.pid):
            assert way == "rlimits"  # Nobody is there any more to remove it.
            Path(folder).rmdir()


def test_a_forked_worker_runs_programs(way: str) -> None:
    """Signals held back and a hook for forks do not reach the program."""
    source = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    with server(way, secrets.token_hex(8), "forked", PYTHON, "-c", source) as process:
        said, _ = process.communicate(timeout=60)
    assert said == "exited 0 []\n"


@pytest.mark.anyio
async def test_a_keeper_that_is_killed_is_a_failure_of_the_executor(sandbox: Sandbox, target: Target) -> None:
    """It is no result of the program."""
    failed: list[BaseException] = []
    program = Program(command=["sleep", "100000"], environment=target.environment)

    async def run() -> None:
        try:
            await sandbox.run(program, SandboxLimits(wall_s=300.0))
        except Exception as error:
            failed.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await anyio.to_thread.run_sync(until, target.processes)
        for keeper in keepers_of(os.getpid()):
            os.kill(keeper, signal.SIGKILL)
    assert [str(error)[:15] for error in failed] == ["executor_failed"]
    await anyio.to_thread.run_sync(wait_until_gone, target.mark)


def test_marks_are_seen(target: Target) -> None:
    """The check for what is left behind finds a process that is."""
    with subprocess.Popen(["sleep", "100"], env={MARK: target.mark}) as process:
        until(target.processes)
        assert left_of(target.mark, os.getpid()) == [str(process.pid)]
        process.kill()
    assert not target.processes()
