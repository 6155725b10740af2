"""What people and programs are told while a run goes on."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.collect import (
    Collector,
    Options,
    RunLedger,
    collect,
    json_events,
    open_segments,
    plain_events,
    plan_rollouts,
)
from orchestrator.collect.progress import facts_of, report_progress, status_table
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
            console.print(status_table(collector, None))
        facts = facts_of(collector, None)
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
