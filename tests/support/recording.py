"""A recorder for tests: keeps everything, and finds what the table of names does not allow."""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio.to_thread

from participants.telemetry import Readings, Recorder, Span, drain, install, uninstall
from participants.telemetry.names import BY_NAME, PARTICIPANT, Instrument

DIGITS = {"trace_id": re.compile("[0-9a-f]{32}"), "span_id": re.compile("[0-9a-f]{16}")}


@dataclass(frozen=True, slots=True)
class Value:
    """One call of `add` or `observe`, or one reading of a gauge."""

    name: str
    shape: str
    value: float
    labels: Mapping[str, str]


@dataclass(slots=True)
class Recording:
    """What was recorded."""

    spans: list[Span] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    gauges: dict[str, Callable[[], Readings]] = field(default_factory=dict)

    def span(self, span: Span) -> None:
        self.spans.append(span)

    def add(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self.values.append(Value(name, "counter", value, labels))

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self.values.append(Value(name, "histogram", value, labels))

    def gauge(self, name: str, read: Callable[[], Readings]) -> None:
        self.gauges[name] = read

    async def read_gauges(self) -> None:
        """Keep what every gauge stands at now."""
        await anyio.to_thread.run_sync(drain)
        for name, read in self.gauges.items():
            self.values += [Value(name, "gauge", value, labels) for labels, value in read()]

    @property
    def names(self) -> set[str]:
        """Everything that something was said of."""
        return {span.name for span in self.spans} | {value.name for value in self.values}

    def total(self, name: str, **labels: str) -> float:
        """The sum of the values that have these labels, among others."""
        found = [each for each in self.values if each.name == name and labels.items() <= each.labels.items()]
        return sum(each.value for each in found)

    def named(self, name: str) -> list[Span]:
        """The spans of a name, in the order of their ends."""
        return [span for span in self.spans if span.name == name]

    def problems(self) -> list[str]:
        """What the table does not allow."""
        spans = [problem for span in self.spans for problem in _problems_of_span(span)]
        return sorted({*spans, *(problem for value in self.values for problem in _problems_of_value(value))})


def _problems_of_span(span: Span) -> list[str]:
    known = BY_NAME.get(span.name)
    if known is None or known.shape != "span":
        return [f"the table has no span {span.name}"]
    found = [f"{span.name} has {key}" for key in span.attributes if key not in known.attributes]
    return found + [f"{span.name}: {key}" for key, form in DIGITS.items() if not form.fullmatch(getattr(span, key))]


def _problems_of_value(value: Value) -> list[str]:
    known = BY_NAME.get(value.name)
    if known is None or known.shape != value.shape:
        return [f"the table has no {value.shape} {value.name}"]
    if set(value.labels) != set(known.labels):
        return [f"{value.name} has the labels {sorted(value.labels)}"]
    found = [
        f"{value.name}: {key} is {label!r}" for key, label in value.labels.items() if not _allowed(known, key, label)
    ]
    return found + ([f"{value.name} is {value.value}"] if value.value < 0 else [])


def _allowed(known: Instrument, key: str, label: str) -> bool:
    values = known.labels[key]
    return PARTICIPANT.fullmatch(label) is not None if values is None else label in values


@asynccontextmanager
async def installed(recorder: Recorder) -> AsyncIterator[None]:
    """A recorder is given everything until the block ends, and has had it then."""
    install(recorder)
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(uninstall, recorder)


@asynccontextmanager
async def recorded() -> AsyncIterator[Recording]:
    """Everything that the block does; look at it when the block has ended."""
    recording = Recording()
    async with installed(recording):
        yield recording
        await recording.read_gauges()
