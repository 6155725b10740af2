"""Scenarios of the embedded mode with real processes: signals, the timer, tool calls that do not end, kills."""

import signal

import pytest

from store import Life
from tests.support.waiting import until

from .harness import Run, Start, counter_row, read_rows

pytestmark = pytest.mark.process


def hold_second_calls(run: Run) -> None:
    """Hold every model call that comes after a first tool result."""
    run.backend.control.hold(substring="success")


def wait_held(run: Run, start: Start, count: int) -> None:
    """Until so many calls are held."""
    until(lambda: run.backend.control.counts()["held"] == count, told=start.told)


def repeated_prompts(run: Run) -> list[str]:
    """Digests of the prompts that were seen more than once."""
    seen: dict[str, int] = {}
    for _, digest in run.seen_calls():
        seen[digest] = seen.get(digest, 0) + 1
    return [digest for digest, count in seen.items() if count > 1]


def test_sigterm_checkpoints_and_stops_and_the_same_command_continues(run: Run) -> None:
    """It ends with 75; the next start writes each row once, with its new life, and repeats no completed call."""
    hold_second_calls(run)
    with run.start() as start:
        wait_held(run, start, 4)
        start.signal(signal.SIGTERM)
        start.wait(75)
    assert start.summary["checkpoints"] == 1
    assert not (run.folder / "out.jsonl").exists()
    run.backend.control.release()
    summary = run.finish().summary
    assert (summary["continued"], summary["saved_calls"], summary["rows"]) == (4, 4, 4)
    assert len(repeated_prompts(run)) == 4  # The second call of each, which was in flight; the first is not repeated.
    calls = run.seen_calls()
    assert {life.attempt for life, _ in calls[8:]} == {1}
    rows = [row for row in (run.folder / "out.jsonl").read_text().splitlines() if '"reward":1.0' in row]
    assert len(rows) == 4
    assert all("/2.1#" in row for row in rows)


def test_a_second_sigterm_stops_at_once(run: Run) -> None:
    """While the first one waits for a tool call that does not end, the second one ends the run, also with 75."""
    run.hold.touch()
    with run.start() as start:
        until(lambda: len(run.seen_tools()) == 4, told=start.told)
        start.signal(signal.SIGTERM)
        until(lambda: start.events("stopping"), told=start.told)
        start.signal(signal.SIGTERM)
        start.wait(75)
    run.hold.unlink()
    assert run.finish().summary["rows"] == 4


def test_sigterm_without_checkpoints_stops_with_what_is_durable(run: Run) -> None:
    """It ends with 75 at once; finished rows are kept, and the rest starts over."""
    run.checkpoint_url = None
    run.backend.control.hold(substring="Task 3")
    with run.start() as start:
        until(lambda: len(start.events("row")) == 3, told=start.told)
        start.signal(signal.SIGTERM)
        start.wait(75)
    run.backend.control.release()
    summary = run.finish().summary
    assert (summary["found_done"], summary["rows"], summary["continued"]) == (3, 1, 0)
    assert len(read_rows(run.folder / "out.jsonl")) == 4


def test_sigusr1_checkpoints_and_goes_on(run: Run) -> None:
    """A checkpoint exists, and the same start finishes; with a kill after it, the next start continues from it."""
    hold_second_calls(run)
    with run.start() as start:
        wait_held(run, start, 4)
        start.signal(signal.SIGUSR1)
        until(lambda: start.events("checkpoint"), told=start.told)
        run.backend.control.release()
        start.wait(0)
    assert start.summary["checkpoints"] == 1
    assert repeated_prompts(run) == []


def test_sigkill_after_a_checkpoint_continues_from_it(run: Run) -> None:
    """Killed with calls in flight: only those calls are made again."""
    hold_second_calls(run)
    with run.start() as start:
        wait_held(run, start, 4)
        start.signal(signal.SIGUSR1)
        until(lambda: start.events("checkpoint"), told=start.told)
        start.kill()
    run.backend.control.release()
    summary = run.finish().summary
    assert (summary["continued"], summary["saved_calls"], summary["rows"]) == (4, 4, 4)
    assert len(run.seen_calls()) == 4 * 5 + 4


def test_a_checkpoint_after_a_restore_is_what_the_next_start_continues_from(run: Run) -> None:
    """Killed, restored, checkpointed and killed again, with some taken up and some still parked: all four continue."""
    hold_second_calls(run)
    with run.start() as start:
        wait_held(run, start, 4)
        start.signal(signal.SIGUSR1)
        until(lambda: start.events("checkpoint"), told=start.told)
        start.kill()
    run.backend.control.wait(live_at_most=0)
    run.run = {"concurrency": 2}
    with run.start() as start:
        wait_held(run, start, 2)
        start.signal(signal.SIGUSR1)
        until(lambda: start.events("checkpoint"), told=start.told)
        start.kill()
    assert start.events("started")[0]["restored"] == 4
    assert start.events("checkpoint")[0]["rollouts"] == 4
    run.backend.control.wait(live_at_most=0)
    run.backend.control.release()
    with run.start() as start:
        start.wait(0)
    assert (start.events("started")[0]["epoch"], start.events("started")[0]["restored"]) == (3, 4)
    assert (start.summary["continued"], start.summary["saved_calls"], start.summary["rows"]) == (4, 4, 4)
    assert len(run.seen_calls()) == 4 * 5 + 4 + 2  # Only what was in flight at each kill.
    assert sorted(life.attempt for life, _ in run.seen_calls()[-16:]) == [1] * 8 + [2] * 8


def test_a_timer_reports_what_blocks_it_and_goes_on(run: Run) -> None:
    """One long tool call holds checkpoints back: each is reported with the call, and the run goes on and finishes."""
    run.checkpoint = {"interval_s": 0.2, "prepare_timeout_s": 0.2, "more_time_s": 0.2}
    run.hold.touch()
    hold_second_calls(run)
    with run.start() as start:
        until(lambda: len(start.events("blocked")) >= 2, told=start.told)
        run.hold.unlink()
        until(lambda: start.events("checkpoint"), told=start.told)
        run.backend.control.release()
        start.wait(0)
    first, second = start.events("blocked")[:2]
    assert (first["times"], second["times"]) == (1, 2)
    assert "tool call increment_counter" in str(first["blockers"])
    assert start.summary["checkpoints"] > 0
    assert len(read_rows(run.folder / "out.jsonl")) == 4


def test_at_the_grace_of_sigterm_a_tool_call_that_does_not_end_is_retired(run: Run) -> None:
    """The rest is saved: three rollouts continue, and the one of the tool call starts over from its input."""
    run.rows = [counter_row(0, adds=4), *(counter_row(number) for number in range(1, 4))]
    run.checkpoint |= {"grace_s": 0.7}
    run.backend.control.hold(substring="Task 1")
    run.backend.control.hold(substring="Task 2")
    run.backend.control.hold(substring="Task 3")
    run.hold.touch()
    with run.start() as start:
        until(lambda: len(run.seen_tools()) == 1, told=start.told)
        wait_held(run, start, 3)
        start.signal(signal.SIGTERM)
        start.wait(75)
    [retired] = start.events("retired")
    assert [Life.parse(life).n for life in retired["lives"]] == [0]
    assert start.summary["checkpoints"] == 1
    run.hold.unlink()
    run.backend.control.release()
    summary = run.finish().summary
    assert (summary["continued"], summary["restarted"], summary["rows"]) == (3, 1, 4)
    [began] = [line for line in run.seen_tools() if line["life"] == retired["lives"][0]]
    assert began["what"] == 1
