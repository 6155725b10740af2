"""Which changes a run may be continued with, and that only one collector owns it."""

import signal

import pytest

from tests.support.backend import start_backend
from tests.support.waiting import until

from .harness import Run, counter_row, read_rows
from .test_stopping import hold_second_calls, wait_held

pytestmark = pytest.mark.process


def stop_in_the_middle(run: Run) -> None:
    """A start that leaves a checkpoint with four rollouts after their first tool call."""
    hold_second_calls(run)
    with run.start() as start:
        wait_held(run, start, 4)
        start.signal(signal.SIGTERM)
        start.wait(75)
    run.backend.control.release()


def test_another_dataset_or_model_is_refused_by_name_and_disturbs_nothing(run: Run) -> None:
    """The refusal names each field, exits with 2 and claims nothing; the unchanged command still continues."""
    stop_in_the_middle(run)
    rows, run.rows = run.rows, [*run.rows, counter_row(9)]
    run.parameters = {"temperature": 0.5}
    with run.start() as start:
        start.wait(2)
    [failed] = start.events("failed")
    assert "dataset (" in failed["message"]
    assert "parameters (" in failed["message"]
    assert "--accept dataset --accept parameters" in failed["message"]
    run.rows, run.parameters = rows, {}
    summary = run.finish()
    assert summary.events("started")[0]["epoch"] == 2
    assert summary.summary["continued"] == 4


def test_another_port_and_concurrency_continue(run: Run) -> None:
    """Where the endpoint is and how much runs at once is not what a run means."""
    stop_in_the_middle(run)
    other = run.folder / "other"
    other.mkdir()
    with start_backend(other) as backend:
        run.backend, run.run = backend, {"concurrency": 2}
        assert run.finish().summary["continued"] == 4


def test_an_accepted_change_never_continues_a_rollout_whose_own_row_changed(run: Run) -> None:
    """The rollout of the old row is listed as dropped, with a reason; the new row starts from its input."""
    stop_in_the_middle(run)
    run.rows = [*run.rows[:3], counter_row(9)]
    start = run.finish("--accept", "dataset")
    [dropped] = start.events("dropped")
    assert "removed or changed" in dropped["reason"]
    assert (start.summary["continued"], start.summary["dropped"], start.summary["rows"]) == (3, 1, 4)
    assert [row["initial_count"] for row in read_rows(run.folder / "out.jsonl")] == [0, 1, 2, 9]
    assert run.finish().summary["rows"] == 0  # What was accepted once need not be accepted again.


def test_a_fresh_start_must_be_asked_for_and_counts_nothing_of_before(run: Run) -> None:
    """With --fresh a finished run is made anew; without it, nothing is left to do."""
    run.finish()
    assert run.finish().summary["rows"] == 0
    assert run.finish("--fresh").summary["rows"] == 4
    assert len(read_rows(run.folder / "out.jsonl")) == 4
    run.checkpoint_url = None
    with run.start() as start:
        start.wait(2)
    assert "rows of another run" in start.told()
    assert run.finish("--fresh").summary["rows"] == 4


def test_a_second_collector_beside_a_live_one_is_refused(run: Run) -> None:
    """It exits with 2 and says how to take over; the first one is not disturbed."""
    hold_second_calls(run)
    with run.start() as first:
        wait_held(run, first, 4)
        with run.start() as second:
            second.wait(2)
        assert "--take-over" in second.events("failed")[0]["message"]
        run.backend.control.release()
        first.wait(0)
    assert first.summary["rows"] == 4


def test_take_over_fences_the_first_and_its_later_rows_do_not_count(run: Run) -> None:
    """The first ends with 76 and a clear message, writes no output, and each row is there once, from the second."""
    hold_second_calls(run)
    with run.start() as first:
        wait_held(run, first, 4)
        first.signal(signal.SIGUSR1)
        until(lambda: first.events("checkpoint"), told=first.told)
        first.signal(signal.SIGSTOP)
        with run.start("--take-over") as second:
            until(lambda: second.events("started"), told=second.told)
            assert second.events("started")[0]["restored"] == 4
            run.backend.control.release()
            second.wait(0)
        before = (run.folder / "out.jsonl").read_bytes()
        first.signal(signal.SIGCONT)
        first.wait(76)
    assert "epoch 1 is fenced" in first.events("failed")[0]["message"]
    assert (run.folder / "out.jsonl").read_bytes() == before
    assert run.finish().summary["rows"] == 0
    assert (run.folder / "out.jsonl").read_bytes() == before


def test_off_means_off(run: Run) -> None:
    """Without [checkpoint] there is the output and its segments, and no other file, folder or lock."""
    run.checkpoint_url = None
    before = {path.name for path in run.folder.iterdir()}
    run.finish()
    new = {path.name for path in run.folder.iterdir()} - before
    assert new == {
        "out.jsonl",
        "out.jsonl.segments",
        "rows.jsonl",
        "run.toml",
        "counter.log",
        "events-1.jsonl",
        "err-1",
    }
    kinds = {path.suffix for path in (run.folder / "out.jsonl.segments").rglob("*") if path.is_file()}
    assert kinds == {".jsonl"}
