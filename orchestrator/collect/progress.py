"""What a person sees of a run: a live table on a terminal, plain lines elsewhere, JSON lines for programs."""

import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import orjson
from rich.console import Console
from rich.live import Live
from rich.table import Table

from .collector import Collector, Emit

REFRESH_S = 0.5
_QUIET = frozenset({"row"})


def json_events(write: Callable[[str], object]) -> Emit:
    """Each event as one line: `{"event", "time_s", ...}`; the time is monotonic."""
    began = time.monotonic()

    def emit(name: str, facts: Mapping[str, Any]) -> None:
        document = {"event": name, "time_s": round(time.monotonic() - began, 3), **facts}
        write(orjson.dumps(document, default=str).decode() + "\n")

    return emit


def plain_events(console: Console) -> Emit:
    """Each event but single rows as a line for people."""

    def emit(name: str, facts: Mapping[str, Any]) -> None:
        if name not in _QUIET:
            told = ", ".join(f"{key} {_short(value)}" for key, value in facts.items())
            console.print(f"[bold]{name}[/bold] {told}", highlight=False)

    return emit


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


@asynccontextmanager
async def live_table(collector: Collector, console: Console, *, on: bool) -> AsyncIterator[None]:
    """Keep a table of the run up to date while the context is open."""
    if not on:
        yield
        return
    with Live(status_table(collector), console=console, refresh_per_second=4, transient=True) as live:
        async with anyio.create_task_group() as group:

            async def refresh() -> None:
                while True:
                    await anyio.sleep(REFRESH_S)
                    live.update(status_table(collector))

            group.start_soon(refresh)
            yield
            group.cancel_scope.cancel()


def status_table(collector: Collector) -> Table:
    """The run as it stands."""
    ledger, tally = collector.ledger, collector.tally
    table = Table(title=f"epoch {ledger.epoch}", show_header=False)
    table.add_row("rollouts", f"{len(ledger.done)} of {len(ledger.rollouts)} done, {len(ledger.open)} in flight")
    table.add_row("waiting", f"{len(ledger.waiting)} new, {len(ledger.restored)} restored")
    table.add_row("turns in flight", str(collector.turns_in_flight))
    table.add_row("tokens", f"{tally.tokens} delivered, {collector.tokens_at_risk} at risk")
    table.add_row("checkpoint", _age(tally.last_checkpoint, tally.checkpoints))
    if tally.blocked:
        table.add_row("[red]blocked[/red]", f"{tally.blocked} checkpoints in a row")
    if tally.failures:
        table.add_row("failures", str(tally.failures))
    return table


def _age(last: float | None, count: int) -> str:
    if last is None:
        return "none yet"
    return f"{count} taken, the last {time.monotonic() - last:.0f} s ago"


def is_terminal() -> bool:
    """Whether stderr is looked at by a person."""
    return sys.stderr.isatty()
