"""Progress of long work: on stderr, and only where that is a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

Advance = Callable[[int], None]


@contextmanager
def watching(
    what: str, unit: Literal["bytes", "records", "objects"] = "bytes", total: int | None = None
) -> Iterator[Advance | None]:
    """Show progress while the context is open; yields what to call with how much was just done, or None."""
    if not sys.stderr.isatty():
        yield None
        return
    # Here and not above: no command whose stderr is a pipe waits for it.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    number = (
        (DownloadColumn(), TransferSpeedColumn()) if unit == "bytes" else (TextColumn(f"{{task.completed}} {unit}"),)
    )
    with Progress(
        TextColumn("{task.description}"), BarColumn(), *number, console=Console(stderr=True), transient=True
    ) as progress:
        task = progress.add_task(what, total=total)
        yield lambda size: progress.advance(task, size)
