"""What people and programs are told while a run goes on."""

import errno
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.collect import (
    Collector,
    Options,
    RunLedger,
    Summary,
    collect,
    json_events,
    open_segments,
    plain_events,
    plan_rollouts,
)
from orchestrator.collect.progress import facts_of, report_progress, status_table
from orchestrator.collect.saved import Totals
from orchestrator.collect.segments import Writer

from .test_dropped import refusing_world
from .test_in_process import OneTool, configured

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


def terminal() -> tuple[Console, io.StringIO]:
    """A terminal that keeps what it was shown."""
    shown = io.StringIO()
    return Console(file=shown, force_terminal=True, width=120), shown


async def test_a_table_shows_rollouts_turns_tokens_and_what_is_at_risk(tmp_path: Path) -> None:
    """Each figure that an operator looks for has a row, from the first moment on."""
    config = configured(tmp_path)
    segments = await open_segments(config.run.output, "run")
    console, shown = terminal()
    async with refusing_world(ValueError()) as world:
        ledger = RunLedger.begin(1, plan_rollouts([{"n": 1}], 3), ())
        collector = Collector(config, world, ledger, Writer(segments, 1))
        collector.tally.blocked = collector.tally.failures = 2
        async with report_progress(collector, None, lambda name, facts: None, console):
            console.print(await status_table(collector, None))
        facts = await facts_of(collector, None)
    await segments.aclose()
    text = shown.getvalue()
    for word in ("epoch 1", "0 of 3 done", "3 new", "turns", "tokens", "blocked", "failures"):
        assert word in text
    assert (facts["waiting"], facts["in_flight"], facts["checkpoint_age_s"]) == (3, 0, None)


async def test_a_run_with_a_live_table_ends_like_any_other(tmp_path: Path) -> None:
    """The table comes and goes; events are printed above it."""
    console, shown = terminal()
    summary = await collect(configured(tmp_path), Options(console=console), plain_events(console), OneTool())
    assert summary.rows == 3
    assert "started: epoch 1" in shown.getvalue()


def test_each_event_is_one_line_of_json() -> None:
    """With its name, a time that rises, and its facts, whatever their type."""
    lines: list[str] = []
    emit = json_events(lines.append)
    emit("started", {"epoch": 1, "where": Path("x")})
    emit("row", {"reward": 0.5})
    documents: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert [document["event"] for document in documents] == ["started", "row"]
    assert documents[0]["where"] == "x"
    assert documents[0]["time_s"] <= documents[1]["time_s"]


def test_a_reader_that_goes_away_does_not_end_the_run() -> None:
    """Whoever pipes the events into a program that ends loses the events, not the run."""

    def closed(line: str) -> None:
        raise BrokenPipeError

    json_events(closed)("row", {})


def test_people_are_not_told_of_single_rows() -> None:
    """A line for each of a hundred thousand rows is no progress; long values are cut."""
    console, shown = terminal()
    emit = plain_events(console)
    emit("row", {"reward": 1.0})
    emit("blocked", {"blockers": "[x] " * 200})
    assert "reward" not in shown.getvalue()
    assert "[x] [x]" in shown.getvalue()
    assert len(shown.getvalue()) < 400


def test_a_summary_says_in_sentences_what_was_continued_started_over_and_saved() -> None:
    """Of this start, and of all starts where earlier ones have continued something too."""
    console, shown = terminal()
    facts = Summary(exit_code=0, rollouts=24, done=24, found_done=10, rows=14, continued=8, saved_calls=21).as_facts()
    first = {"continued": 8, "restarted": 0, "saved_calls": 21, "saved_tokens": 0}
    held = {"p50": 0.0123, "p99": 0.5, "longest": 0.5}
    plain_events(console)("summary", {**facts, "checkpoints": 3, "held_s": held, "all_starts": first})
    assert "24 of 24 rollouts done (10 of them before this start), 0 failed for good" in shown.getvalue()
    assert "8 continued (21 model calls and 0 tokens not made again), 0 started over" in shown.getvalue()
    assert "3 taken, 0 failed; work was held 0.012 s at the median, 0.500 s at most" in shown.getvalue()
    assert "all starts" not in shown.getvalue()
    assert "mean reward" not in shown.getvalue()
    later = {**facts, "mean_reward": 2 / 3, "all_starts": {**first, "continued": 30, "restarted": 2}}
    plain_events(console)("summary", later)
    assert "0 failed for good, mean reward 0.667; exit code 0" in shown.getvalue()
    assert "all starts: 30 continued (21 model calls and 0 tokens not made again), 2 started over" in shown.getvalue()


def test_the_summary_says_where_failures_are_and_how_to_try_them_again() -> None:
    """Where some are for good, and else nothing."""
    console, shown = terminal()
    facts = Summary(exit_code=0, rollouts=2, done=2).as_facts()
    plain_events(console)("summary", facts)
    assert "--retry-failed" not in shown.getvalue()
    plain_events(console)("summary", {**facts, "failed_for_good": 2, "failures_file": "out_failures.jsonl"})
    assert "why they failed is in out_failures.jsonl; --retry-failed tries them again" in shown.getvalue()


def test_the_summary_says_how_often_servers_were_lost_and_what_went_on() -> None:
    """Where it happened, and else nothing."""
    console, shown = terminal()
    facts = Summary(exit_code=0, rollouts=2, done=2).as_facts()
    plain_events(console)("summary", facts)
    assert "server" not in shown.getvalue()
    plain_events(console)("summary", {**facts, "servers_lost": 2, "adopted": 5})
    assert "2 times a server or worker was lost and came back; 5 episodes went on" in shown.getvalue()


def test_totals_of_earlier_starts_are_read_from_a_checkpoint_and_added() -> None:
    """A state without them, or with something else in their place, counts for nothing."""
    totals = Totals(3, 1, 20, 300)
    assert Totals.of({"totals": asdict(totals)}) + Totals(1, 0, 2, 3) == Totals(4, 1, 22, 303)
    assert [Totals.of(state) for state in (None, {}, {"totals": 1}, {"totals": {"continued": "x"}})] == [Totals()] * 4


class Gone(io.StringIO):
    """A reader that went away."""

    def write(self, text: str) -> int:
        """Refuse."""
        raise BrokenPipeError


def test_a_reader_of_stderr_that_goes_away_ends_no_run() -> None:
    """As with `midflight collect run.toml 2>&1 | head`: the run is worth more than its log."""
    emit = plain_events(Console(file=Gone(), force_terminal=False))
    for _ in range(2):
        emit("started", {"epoch": 1})


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.ENOSPC, "No space left on device"), ValueError()])
def test_an_event_that_cannot_be_printed_does_not_end_a_run(error: Exception) -> None:
    """Neither a reader that went away, nor a full disk behind stdout, nor a stream that is closed."""

    def fail(line: str) -> None:
        raise error

    json_events(fail)("row", {"reward": 1.0})
