"""A run that was told to stop ends within its limits, whatever the hooks do, and at once when told twice."""

import signal
import time
from pathlib import Path

import pytest

from tests.support.waiting import until

from .harness import Run, Start, read_rows

pytestmark = pytest.mark.process
SPARE_S = 8.0
"""What a busy machine may add to a limit."""
STOPPED = "stopped at once"


def stubborn(run: Run, how: str, *, checkpoints: bool = True, close_s: float = 0.5) -> Path:
    """Let hooks hang in this way; the file says that one does."""
    once = run.folder / "hangs"
    run.server = "tests.support.stubborn_counter:StubbornCounter"
    run.options = {"how": how, "once": str(once)}
    run.run = {"close_s": close_s}
    run.checkpoint |= {"grace_s": 0.5}
    if not checkpoints:
        run.checkpoint_url = None
    return once


def ends(start: Start, code: int, within_s: float) -> None:
    """It ends with this code, in this time but for what a busy machine adds."""
    began = time.monotonic()
    start.wait(code)
    assert time.monotonic() - began < within_s + SPARE_S, start.told()


@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize("how", ["swallow", "block"])
def test_a_tool_that_never_ends_does_not_outlive_the_limits_of_sigterm(run: Run, how: str, checkpoints: bool) -> None:
    """Whether it swallows cancellation or blocks the event loop; the same command then delivers every row."""
    once = stubborn(run, how, checkpoints=checkpoints)
    with run.start() as start:
        until(once.exists, told=start.told)
        start.signal(signal.SIGTERM)
        ends(start, 75, within_s=6.0 if how == "block" else 12.0)
        assert STOPPED in start.told()
    assert run.finish().summary["rows"] == 4 - len(start.events("row"))
    assert len(read_rows(run.folder / "out.jsonl")) == 4


def test_what_can_be_saved_is_saved_beside_a_tool_that_swallows_cancellation(run: Run) -> None:
    """The last checkpoint has the other rollouts, which continue, and the summary was told before the end."""
    once = stubborn(run, "swallow")
    run.backend.control.hold(substring="success")
    with run.start() as start:
        until(once.exists, told=start.told)
        until(lambda: run.backend.control.counts()["held"] == 3, told=start.told)
        start.signal(signal.SIGTERM)
        ends(start, 75, within_s=12.0)
    assert (start.summary["checkpoints"], start.summary["exit_code"]) == (1, 75)
    run.backend.control.release()
    summary = run.finish().summary
    assert (summary["continued"], summary["restarted"], summary["rows"]) == (3, 1, 4)


def test_sessions_that_take_long_to_close_do_not_outlive_the_limits_of_sigterm(run: Run) -> None:
    """Everything is durable when they are closed, so the process ends with 75 at its limit."""
    stubborn(run, "close")
    run.backend.control.hold(substring="success")
    with run.start() as start:
        until(lambda: run.backend.control.counts()["held"] == 4, told=start.told)
        start.signal(signal.SIGTERM)
        ends(start, 75, within_s=1.0)
    assert start.summary["checkpoints"] == 1
    run.backend.control.release()
    run.options = {}
    assert run.finish("--accept", "resources.counter").summary["continued"] == 4


@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_at_once_also_while_sessions_close(
    run: Run, second: signal.Signals, checkpoints: bool
) -> None:
    """With 75, however much time the first one gave."""
    once = stubborn(run, "close", checkpoints=checkpoints, close_s=60.0)
    run.backend.control.hold(substring="success")
    with run.start() as start:
        until(lambda: run.backend.control.counts()["held"] == 4, told=start.told)
        start.signal(signal.SIGTERM)
        until(once.exists, told=start.told)
        start.signal(second)
        ends(start, 75, within_s=0.0)
        assert STOPPED in start.told()


def test_a_signal_while_a_finished_run_closes_ends_it_with_its_own_code(run: Run) -> None:
    """Every row is there and the output is whole, so it is 0; what still closes is given `close_s`, or nothing."""
    once = stubborn(run, "aclose", close_s=0.5)
    with run.start() as start:
        until(once.exists, told=start.told)
        start.signal(signal.SIGUSR1)
        start.signal(signal.SIGTERM)
        ends(start, 0, within_s=0.5)
    assert len(read_rows(run.folder / "out.jsonl")) == start.summary["rows"] == 4


LATE = """
import atexit
import os
import signal
from tests.support.logged_counter import LoggedCounter as Server

NUMBERS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)

class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), numbers=NUMBERS):
        for number in numbers:
            kill(pid, number)

late = Late()
atexit.register(os.kill, os.getpid(), signal.SIGUSR1)
"""


def test_a_signal_while_the_interpreter_ends_changes_no_exit_code(run: Run) -> None:
    """Sent while modules are torn down, after Python has given up its handlers; and before that, SIGUSR1."""
    (run.folder / "late_server.py").write_text(LATE)
    run.server = "late_server:Server"
    assert run.finish(code=0).summary["rows"] == 4


def test_sigterm_and_sigusr1_before_the_first_episode_end_with_75_or_do_nothing(run: Run) -> None:
    """A start that waits, here for a store that a live collector has, hears them as any other."""
    run.backend.control.hold(substring="Task")
    with run.start() as start:
        until(lambda: start.errors.exists() and start.process.poll() is None, told=start.told)
        until(lambda: _handles(start, signal.SIGTERM), told=start.told)
        start.signal(signal.SIGUSR1)
        start.signal(signal.SIGTERM)
        start.wait(75)
    run.backend.control.release()
    assert run.finish().summary["rows"] == 4


def _handles(start: Start, number: signal.Signals) -> bool:
    """Whether the process has a handler for a signal."""
    status = Path(f"/proc/{start.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
