"""Runs parts in several processes: the tasks of each part, then those of the next, until the time is over."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context

from .part import SEEDED, Part, Report, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How much is to be tried."""

    seconds: float
    seeds: int = 0
    """Exactly so many of the simulation, however long they take; 0 for as many as there is time for."""
    first: int = 0
    """The first seed."""


def run_parts(parts: Sequence[Part], wish: Wish, workers: int) -> Mapping[str, Report]:
    """What each part came to. A worker that dies ends it all with BrokenProcessPool."""
    reports = {part.name: Report() for part in parts}
    with ProcessPoolExecutor(workers, get_context("fork")) as pool:  # They need not import everything once more.
        running: dict[Future[Report], Part] = {}
        for part, task, until in _tasks(parts, wish):
            running[pool.submit(task, until)] = part
            if len(running) == workers:
                _collect(running, reports)
        while running:
            _collect(running, reports)
    return reports


def _collect(running: dict[Future[Report], Part], reports: Mapping[str, Report]) -> None:
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        reports[running.pop(future).name].add(future.result())


def _tasks(parts: Sequence[Part], wish: Wish) -> Iterator[tuple[Part, Task, float]]:
    """Each with the time at which it has to stop; asked for one only when a process is free."""
    ends = time.monotonic() + wish.seconds
    for part in parts:
        until = min(ends, time.monotonic() + wish.seconds * part.share) if part is not parts[-1] else ends
        if part.name == SEEDED and wish.seeds:
            until = math.inf
        for task in part.tasks(wish.first, wish.seeds):
            if time.monotonic() >= until:
                break
            yield part, task, until
