"""What a person sees of a run: a live table on a terminal, plain lines elsewhere, JSON lines for programs."""

import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import orjson
from rich.console import Console
from rich.live import Live
from rich.table import Table

from .checkpoints import Checkpoints
from .collector import Collector, Emit

REFRESH_S = 0.5
PROGRESS_S = 10.0
"""Between two events that say how far the run is."""
_QUIET = frozenset({"row"})


def json_events(write: Callable[[str], object]) -> Emit:
    """Each event as one line: `{"event", "time_s", ...}`; time is monotonic. Readers go away, and disks are full."""
    began = time.monotonic()

    def emit(name: str, facts: Mapping[str, Any]) -> None:
        document = {"event": name, "time_s": round(time.monotonic() - began, 3), **facts}
        try:
            write(orjson.dumps(document, default=str).decode() + "\n")
        except (OSError, ValueError):
            return  # The run is worth more than its log.

    return emit


def plain_events(console: Console) -> Emit:
    """Each event but single rows as a line for people, and the summary as a few. A reader may go away."""

    def emit(name: str, facts: Mapping[str, Any]) -> None:
        if name in _QUIET:
            return
        if name == "summary":
            lines = summary_lines(facts)
        elif "message" in facts:
            lines = [f"{name}: {facts['message']}"]
        else:
            lines = [f"{name}: " + ", ".join(f"{key} {_short(value)}" for key, value in facts.items())]
        for line in lines:
            print_plainly(console, line)

    return emit


def print_plainly(console: Console, text: str, style: str | None = None) -> None:
    """Print text as it is. A reader may go away."""
    with suppress(OSError, ValueError, SystemExit):  # The last is what rich makes of a reader that went away.
        console.print(text, style=style, highlight=False, markup=False, emoji=False, soft_wrap=True)


def summary_lines(facts: Mapping[str, Any]) -> list[str]:
    """What a start came to, in sentences."""
    every, held, mean = facts["all_starts"], facts["held_s"], facts["mean_reward"]
    scored = "" if mean is None else f", mean reward {mean:.3f}"
    lines = [
        f"summary: {facts['done']} of {facts['rollouts']} rollouts done ({facts['found_done']} of them before this "
        f"start), {facts['failed_for_good']} failed for good{scored}; exit code {facts['exit_code']}",
        f"  this start: {facts['rows']} rows with {facts['tokens']} tokens, {facts['failures']} failures; "
        f"{_gone_on(facts)}, {facts['dropped']} dropped",
    ]
    if facts["servers_lost"] or facts["adopted"]:
        lost = f"{facts['servers_lost']} times a server or worker was lost and came back"
        lines.append(
            f"  {lost}; {facts['adopted']} episodes went on at servers that outlived that, or their controller"
        )
    if facts["failed_for_good"]:
        why = f"why they failed is in {facts['failures_file']}; " if facts["failures_file"] else ""
        lines.append(f"  {why}--retry-failed tries them again")
    if every.get("continued", 0) > facts["continued"] or every.get("restarted", 0) > facts["restarted"]:
        lines.append(f"  all starts: {_gone_on(every)}")
    if facts["checkpoints"] or facts["failed_checkpoints"]:
        waited = f"; work was held {held['p50']:.3f} s at the median, {held['longest']:.3f} s at most" if held else ""
        lines.append(f"  checkpoints: {facts['checkpoints']} taken, {facts['failed_checkpoints']} failed{waited}")
    return lines


def _gone_on(counts: Mapping[str, Any]) -> str:
    saved = f"{counts['saved_calls']} model calls and {counts['saved_tokens']} tokens not made again"
    return f"{counts['continued']} continued ({saved}), {counts['restarted']} started over"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


async def facts_of(collector: Collector, checkpoints: Checkpoints | None) -> dict[str, Any]:
    """How far the run is, for programs."""
    ledger, tally = collector.ledger, collector.tally
    in_flight, age = await collector.work_in_flight(), collector.checkpoint_age_s()
    flight, risk = in_flight.values(), checkpoints and checkpoints.at_risk(in_flight)
    return {
        "done": len(ledger.done),
        "in_flight": len(ledger.open),
        "waiting": len(ledger.waiting) + len(ledger.restored),
        "turns": tally.delivered.calls + sum(work.calls for work in flight),
        "tokens": tally.delivered.tokens + sum(work.tokens for work in flight),
        "failures": tally.failures,
        "checkpoints": tally.checkpoints,
        "checkpoint_age_s": age and round(age, 1),
        "tokens_at_risk": risk and risk.tokens,
        "blocked": tally.blocked,
    }


@asynccontextmanager
async def report_progress(
    collector: Collector, checkpoints: Checkpoints | None, emit: Emit, console: Console | None
) -> AsyncIterator[None]:
    """Say how far the run is while the context is open: in a live table where there is a terminal, else as events."""

    async def events() -> None:
        while True:
            await anyio.sleep(PROGRESS_S)
            emit("progress", await facts_of(collector, checkpoints))

    async def table(live: Live) -> None:
        while True:
            await anyio.sleep(REFRESH_S)
            live.update(await status_table(collector, checkpoints))

    async with anyio.create_task_group() as group:
        if console is None:
            group.start_soon(events)
            yield
        else:
            table_now = await status_table(collector, checkpoints)
            with Live(table_now, console=console, auto_refresh=False, transient=True) as live:
                group.start_soon(table, live)
                yield
        group.cancel_scope.cancel()


async def status_table(collector: Collector, checkpoints: Checkpoints | None) -> Table:
    """The run as it stands."""
    ledger, facts = collector.ledger, await facts_of(collector, checkpoints)
    table = Table(title=f"epoch {ledger.epoch}", show_header=False)
    table.add_row("rollouts", f"{facts['done']} of {len(ledger.rollouts)} done, {facts['in_flight']} in flight")
    table.add_row("waiting", f"{len(ledger.waiting)} new, {len(ledger.restored)} restored")
    table.add_row("turns", str(facts["turns"]))
    table.add_row("tokens", str(facts["tokens"]))
    if checkpoints is not None:
        age = facts["checkpoint_age_s"]
        last = "none yet" if age is None else f"{facts['checkpoints']} taken, the last {age:.0f} s ago"
        table.add_row("checkpoint", f"{last}; {facts['tokens_at_risk']} tokens at risk")
    if facts["blocked"]:
        table.add_row("[red]blocked[/red]", f"{facts['blocked']} checkpoints in a row: see the last event")
    if facts["failures"]:
        table.add_row("failures", str(facts["failures"]))
    return table


def is_terminal() -> bool:
    """Whether stderr is looked at by a person."""
    return sys.stderr.isatty()
