"""What one participant process measures of itself: everything that it says has its name as a label."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from . import names
from .hook import NoSpan, OpenSpan, add, gauge, observe, span
from .records import Attribute

if TYPE_CHECKING:
    from store import ProcessName

    from ..gate import Gate


class Meter:
    """Of one control plane."""

    def __init__(self, process: "ProcessName", requests: Mapping[str, int]) -> None:
        """`requests` counts, verb by verb, what it has asked of its store."""
        self.participant = f"{process.kind}.{process.name}"
        self.who: Mapping[str, str] = {"participant": self.participant, "process": process.process}
        self._requests = requests
        self._told: Counter[str] = Counter()

    def span(self, name: str, **attributes: Attribute) -> OpenSpan | NoSpan:
        """As `telemetry.span`."""
        return span(name, **self.who, **attributes)

    def stage(self, what: str) -> OpenSpan | NoSpan:
        """The span of one stage of a commit, as the store calls it."""
        return self.span(names.WRITE_STAGES[what])

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        """As `telemetry.add`."""
        add(name, value, participant=self.participant, **labels)

    def observe(self, name: str, value: float) -> None:
        """As `telemetry.observe`."""
        observe(name, value, participant=self.participant)

    def count_requests(self) -> None:
        """Tell of the requests to the store since this was called last."""
        for verb, count in self._requests.items():
            if count > self._told[verb]:
                self.add(names.STORE_REQUESTS, count - self._told[verb], verb=verb)
                self._told[verb] = count

    @contextmanager
    def watching(self, gate: "Gate") -> Iterator[None]:
        """While the context is open, gauges tell how the gate stands."""
        labels = {"participant": self.participant}
        with ExitStack() as stack:
            stack.enter_context(gauge(names.GATE_CLOSED, lambda: [(labels, gate.closed)]))
            stack.enter_context(gauge(names.GATE_PARKED, lambda: [(labels, gate.parked)]))
            stack.enter_context(gauge(names.GATE_WAITED_FOR, lambda: [(labels, gate.waited_for)]))
            yield
