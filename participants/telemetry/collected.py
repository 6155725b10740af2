"""What one process has counted so far: added up once, and read by every exporter.

Counters and histograms only grow, from the start of the process on. Gauges are asked for whenever somebody reads. All
of it can be written as JSON, which is how the workers of one server tell each other.
"""

import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from .names import BY_NAME, Instrument
from .records import Readings, Span

Labels = tuple[tuple[str, str], ...]
"""Names and values, by name."""

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_BYTES = tuple(float(4**power) for power in range(5, 17))
_COUNTS = tuple(float(4**power) for power in range(11))

log = logging.getLogger("midflight.telemetry")


def bounds_of(instrument: Instrument) -> tuple[float, ...]:
    """The upper bounds of a histogram's buckets; one more bucket has what is above the last."""
    return {"s": _SECONDS, "By": _BYTES}.get(instrument.unit, _COUNTS)


class Distribution(NamedTuple):
    """The values of a histogram so far."""

    counts: tuple[int, ...]
    """How many are in each bucket alone, and above the last bound."""
    total: float
    """Their sum."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a process had counted at one moment: by name, and by labels."""

    counters: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)
    histograms: Mapping[str, Mapping[Labels, Distribution]] = field(default_factory=dict)
    gauges: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As JSON: a list of name, labels and value for each of the three."""
        return {
            "counters": [[n, dict(key), v] for n, series in self.counters.items() for key, v in series.items()],
            "histograms": [[n, dict(key), [*v]] for n, series in self.histograms.items() for key, v in series.items()],
            "gauges": [[n, dict(key), v] for n, series in self.gauges.items() for key, v in series.items()],
        }

    @classmethod
    def parse(cls, document: Any) -> Self:
        """What another process said. Raises ValueError where it is none of this."""
        try:
            found = cls(
                _series(document["counters"], float),
                _series(document["histograms"], lambda value: Distribution(tuple(map(int, value[0])), float(value[1]))),
                _series(document["gauges"], float),
            )
            for name, series in found.histograms.items():
                buckets = len(bounds_of(BY_NAME[name])) + 1
                if wrong := [value for value in series.values() if len(value.counts) != buckets]:
                    raise ValueError(f"{name} has {len(wrong[0].counts)} buckets, and not {buckets}")
        except (AttributeError, KeyError, TypeError, IndexError, OverflowError) as error:
            raise ValueError(f"this is no snapshot: {error!r:.200}") from error
        return found


def _series(rows: Any, read: Callable[[Any], Any]) -> dict[str, dict[Labels, Any]]:
    found: dict[str, dict[Labels, Any]] = {}
    for name, labels, value in rows:
        for text in (name, *labels, *labels.values()):
            text.encode()  # It is one, and can be written.
        found.setdefault(name, {})[_key(labels)] = read(value)
    return found


def _key(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted(labels.items())) if len(labels) > 1 else tuple(labels.items())


class Collected:
    """A recorder that adds up, and passes spans on. It may be read from any thread."""

    def __init__(
        self, on_span: Callable[[Span], None] | None = None, instruments: Mapping[str, Instrument] = BY_NAME
    ) -> None:
        """Nothing was counted yet; `on_span` is given each span that has ended."""
        self.on_span = on_span
        self._instruments = instruments
        self._lock = threading.Lock()
        self._counters: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, list[float]]] = {}
        """In each bucket how many, and last the sum."""
        self._bounds: dict[str, tuple[float, ...]] = {}
        self._readers: dict[str, Callable[[], Readings]] = {}
        self._failed: set[str] = set()

    def __repr__(self) -> str:
        return f"<Collected {len(self._counters)} counters, {len(self._histograms)} histograms>"

    def span(self, span: Span) -> None:
        """A span has ended."""
        if self.on_span is not None:
            self.on_span(span)

    def add(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """A counter has risen by `value`. Raises KeyError for one that the table does not have."""
        key = _key(labels)
        with self._lock:
            series = self._counters.get(name)
            if series is None:
                series = self._counters[self._instruments[name].name] = {}
            series[key] = series.get(key, 0) + value

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """A histogram has one more value. Raises KeyError for one that the table does not have."""
        key = _key(labels)
        with self._lock:
            bounds = self._bounds.get(name)
            if bounds is None:
                bounds = self._bounds[name] = bounds_of(self._instruments[name])
                self._histograms[name] = {}
            found = self._histograms[name].get(key)
            if found is None:
                found = self._histograms[name][key] = [0] * (len(bounds) + 2)
            found[bisect_left(bounds, value)] += 1
            found[-1] += value

    def gauge(self, name: str, read: Callable[[], Readings]) -> None:
        """Ask this one, from now on, what the gauge stands at. Raises KeyError for one that the table does not have."""
        self._readers[self._instruments[name].name] = read

    def snapshot(self) -> Snapshot:
        """What there is now. A gauge that cannot be read is left out, which is logged once for each."""
        gauges = {name: series for name, read in list(self._readers.items()) if (series := self._read(name, read))}
        with self._lock:
            counters = {name: dict(series) for name, series in self._counters.items()}
            histograms = {
                name: {key: _distribution(found) for key, found in series.items()}
                for name, series in self._histograms.items()
            }
        return Snapshot(counters, histograms, gauges)

    def _read(self, name: str, read: Callable[[], Readings]) -> dict[Labels, float]:
        try:
            return {_key(labels): float(value) for labels, value in read()}
        except Exception:
            if name not in self._failed:
                self._failed.add(name)
                log.warning("the gauge %s cannot be read, and is left out", name, exc_info=True)
            return {}


def _distribution(found: list[float]) -> Distribution:
    return Distribution(tuple(map(int, found[:-1])), found[-1])
