"""What telemetry costs at the places that measure, with nothing installed and with a recorder that drops everything.

    python -m bench.telemetry_points --json

`off` is what everybody pays who has not asked for telemetry; `on` is until a record is queued for the recorder's own
thread, and what that thread does beside it. Each is the median over rounds, in nanoseconds a call, less the bare loop.
`kept_bytes` is what very many calls have left in memory while nothing is installed: nothing. What telemetry costs a
whole run is in `bench.telemetry`.
"""

import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from participants import telemetry
from participants.telemetry import Readings, Span, names

from . import command_line

ROUNDS = 7
CALLS = 20_000
"""Of a round with nothing installed."""
QUEUED = 2_000
"""Of a round with a recorder: fewer than would be dropped."""
PARTICIPANT = "agent.main"


class Nothing:
    """A recorder that drops everything."""

    def span(self, span: Span) -> None:
        """Dropped."""

    def add(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """Dropped."""

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """Dropped."""

    def gauge(self, name: str, read: Callable[[], Readings]) -> None:
        """Dropped."""


def bare() -> None:
    """The loop alone."""


def a_span() -> None:
    """As round an operation."""
    with telemetry.span(names.COMMIT, rollouts=3) as span:
        span.set("bytes", 7)


def a_counter() -> None:
    """As where something is counted."""
    telemetry.add(names.HELD, participant=PARTICIPANT)


def a_histogram() -> None:
    """As at the end of an operation."""
    telemetry.observe(names.BARRIER_WAIT, 0.5, participant=PARTICIPANT)


def a_look() -> None:
    """As before what would cost something."""
    telemetry.active()


POINTS: Mapping[str, Callable[[], None]] = {
    "span": a_span,
    "counter": a_counter,
    "histogram": a_histogram,
    "active": a_look,
}


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured."""

    off_ns: Mapping[str, float]
    on_ns: Mapping[str, float]
    kept_bytes: int


@contextmanager
def recording() -> Iterator[None]:
    """With a recorder that drops everything."""
    nothing = Nothing()
    telemetry.install(nothing)
    try:
        yield
    finally:
        telemetry.uninstall(nothing)


def nanoseconds(point: Callable[[], None], calls: int) -> float:
    """The median of rounds, a call."""
    found = []
    for _ in range(ROUNDS):
        telemetry.drain()
        began = time.perf_counter_ns()
        for _ in range(calls):
            point()
        found.append((time.perf_counter_ns() - began) / calls)
    return statistics.median(found)


def costs(calls: int) -> dict[str, float]:
    """Of each point, less the loop."""
    loop = nanoseconds(bare, calls)
    return {name: round(nanoseconds(point, calls) - loop, 1) for name, point in POINTS.items()}


def kept_bytes() -> int:
    """What is left of very many calls with nothing installed."""
    for point in POINTS.values():
        point()
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(CALLS):
        for point in POINTS.values():
            point()
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return after - before


def measure() -> Figures:
    """All of it."""
    off = costs(CALLS)
    kept = kept_bytes()
    with recording():
        on = costs(QUEUED)
    return Figures(off, on, kept)


def main(given: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = command_line.Command("bench.telemetry_points", __doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the table")
    arguments = parser.parse_args(given)
    figures = measure()
    if arguments.json:
        print(json.dumps(asdict(figures)))
        return
    print(f"{'ns a call':12}{'off':>10}{'on':>10}")
    for name in POINTS:
        print(f"{name:12}{figures.off_ns[name]:10.0f}{figures.on_ns[name]:10.0f}")
    print(f"{figures.kept_bytes} bytes are left of {CALLS * len(POINTS)} calls while off")


if __name__ == "__main__":
    main()
