"""What recorders are given, and what a recorder is."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

Attribute = str | int | float | bool
"""What a span may say of itself."""
Readings = Iterable[tuple[Mapping[str, str], float]]
"""What a gauge stands at: a value for each set of labels."""


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work that is over. Spans of one trace form a tree, over processes too."""

    name: str
    """One of `participants.telemetry.names`."""
    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    parent_id: str | None
    """The span inside which this one ran; None for the root of a trace."""
    start_unix_ns: int
    """By the clock of this host, which is not that of others."""
    duration_s: float
    """By the monotonic clock."""
    attributes: Mapping[str, Attribute]
    """Counts, bytes, and whom it was about."""
    error: str | None
    """The error that ended it, in one line; None where it ended well."""


class Recorder(Protocol):
    """Takes what was measured somewhere else.

    Each recorder is called by one thread of its own, so that a slow one delays nobody. What a method raises is logged
    once and goes no further. Labels have the names and values that `participants.telemetry.names` declares.
    """

    def span(self, span: Span) -> None:
        """A span has ended."""

    def add(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """A counter has risen by `value`."""

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """A histogram has one more value."""

    def gauge(self, name: str, read: Callable[[], Readings]) -> None:
        """Call `read` whenever the gauge is asked for, from any thread; told once for each name."""
