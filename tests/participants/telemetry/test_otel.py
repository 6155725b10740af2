"""Spans and metrics arrive over OTLP as they were recorded, and an endpoint that fails costs one line."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from bench.otlp_sink import Sink, otlp_sink
from participants.telemetry import Span
from participants.telemetry import names as n
from participants.telemetry.collected import Collected, bounds_of
from participants.telemetry.otel import BATCH, MAX_SPANS, Exporters, Identity, OtelExporter, open_exporters, resource_of
from tests.support.waiting import until

pytestmark = pytest.mark.unit

IDENTITY = Identity("agent.main", "w1")
START_NS = 1_700_000_000_000_000_000
AGENT = {"participant": "agent.main"}
SOON_S = 0.005


@pytest.fixture
def sink() -> Iterator[Sink]:
    """An endpoint that decodes with OpenTelemetry's own messages."""
    with otlp_sink() as found:
        yield found


def span(number: int = 1, parent: int | None = None, error: str | None = None, **attributes: Any) -> Span:
    """A span of trace 2, whose id is `number`."""
    parent_id = None if parent is None else f"{parent:016x}"
    return Span(n.COMMIT, f"{2:032x}", f"{number:016x}", parent_id, START_NS, 0.25, attributes, error)


class Exporting(SpanExporter, MetricExporter):
    """Both exporters in one: keeps what it is given, and fails or waits where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[ReadableSpan] = []
        self.batches: list[int] = []
        self.metrics = 0
        self.fails = False
        self.raises = False
        self.go_on = threading.Event()
        self.go_on.set()

    def export(self, given: Sequence[ReadableSpan] | MetricsData, **_: Any) -> Any:  # type: ignore[override]
        self.go_on.wait(30)
        if self.raises:
            raise RuntimeError("a defect")
        if isinstance(given, MetricsData):
            self.metrics += 1
            return MetricExportResult.FAILURE if self.fails else MetricExportResult.SUCCESS
        self.batches.append(len(given))
        if not self.fails:
            self.spans += given
        return SpanExportResult.FAILURE if self.fails else SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 0, **_: Any) -> None:
        pass

    def open(self) -> Exporters:
        return Exporters(resource_of(IDENTITY), self, self)


def exporter_to(open_: Callable[[], Exporters], collected: Collected | None = None) -> OtelExporter:
    """Sends at once, and not each second."""
    snapshot = (collected or Collected()).snapshot
    return OtelExporter(open_, snapshot, "http://there", spans_every_s=SOON_S, metrics_every_s=SOON_S)


def test_spans_arrive_with_our_ids_and_who_sent_them(sink: Sink) -> None:
    """Trace, span and parent, both times, attributes of each type, the error, and the resource."""
    exporter = exporter_to(partial(open_exporters, sink.url, IDENTITY))
    exporter.put(span(5, records=3, held_s=0.5, whole=True, kind="agent"))
    exporter.put(span(6, parent=5, error="TimeoutError: too late"))
    assert exporter.close(10)
    outer, inner = sink.spans
    assert (outer.name, outer.trace_id, outer.span_id, outer.parent_id) == (n.COMMIT, f"{2:032x}", f"{5:016x}", None)
    assert (outer.start_ns, outer.end_ns) == (START_NS, START_NS + 250_000_000)
    assert outer.attributes == {"records": 3, "held_s": 0.5, "whole": True, "kind": "agent"}
    assert (inner.trace_id, inner.parent_id, inner.error) == (outer.trace_id, outer.span_id, "TimeoutError: too late")
    assert outer.error is None
    assert outer.resource["service.name"] == "midflight"
    assert (outer.process, outer.resource["host.name"] != "") == ("agent.main w1", True)


def test_metrics_arrive_with_units_and_temporality(sink: Sink) -> None:
    """Counters are sums that only grow, histograms have their bounds, and both are counted from the start on."""
    collected = Collected()
    collected.add(n.SIZE, 4096, {**AGENT, "way": "written"})
    collected.observe(n.PARTICIPANT_HOLD, 0.5, AGENT)
    collected.gauge(n.CHECKPOINT_AGE, lambda: [({}, 7)])
    exporter = OtelExporter(partial(open_exporters, sink.url, IDENTITY), collected.snapshot, sink.url)
    assert exporter.close(10)
    found = {metric.name: metric for _, metric in sink.metrics}
    assert {name: metric.unit for name, metric in found.items()} == {
        n.SIZE: "By",
        n.PARTICIPANT_HOLD: "s",
        n.CHECKPOINT_AGE: "s",
    }
    size, hold = found[n.SIZE].sum, found[n.PARTICIPANT_HOLD].histogram
    assert size.is_monotonic
    assert {size.aggregation_temporality, hold.aggregation_temporality} == {AGGREGATION_TEMPORALITY_CUMULATIVE}
    assert size.data_points[0].as_double == 4096
    assert {pair.key: pair.value.string_value for pair in size.data_points[0].attributes} == {**AGENT, "way": "written"}
    [point] = hold.data_points
    assert (point.count, point.sum, tuple(point.explicit_bounds)) == (
        1,
        0.5,
        bounds_of(n.BY_NAME[n.PARTICIPANT_HOLD]),
    )
    assert not point.HasField("min")
    assert 0 < point.start_time_unix_nano < point.time_unix_nano
    assert found[n.CHECKPOINT_AGE].gauge.data_points[0].as_double == 7


def test_an_endpoint_that_is_away_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever fails meanwhile says nothing more, until something arrives again, which is one line as well."""
    exporting = Exporting()
    exporting.fails = True
    with caplog.at_level(logging.DEBUG):
        exporter = exporter_to(exporting.open)
        for number in range(1, 4):
            exporter.put(span(number))
            until(lambda number=number: len(exporting.batches) == number)  # type: ignore[misc]
        exporting.fails = False
        exporter.put(span(9))
        until(lambda: exporting.spans)
        assert exporter.close(10)
    told = [record.getMessage() for record in caplog.records if record.name == "midflight.telemetry"]
    assert len(told) == 2
    assert told[0].startswith("telemetry does not arrive at http://there")
    assert told[1] == "telemetry goes to http://there again"
    assert [found.context.span_id for found in exporting.spans if found.context] == [9]


@pytest.mark.parametrize("status", [403, 302, 308])
def test_a_real_endpoint_that_refuses_is_one_line_with_its_reason(
    sink: Sink, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenTelemetry's own lines, one for each request, are not logged beside it. A redirect takes nothing, either."""
    sink.refuses = status
    with caplog.at_level(logging.DEBUG):
        exporter = exporter_to(partial(open_exporters, sink.url, IDENTITY))
        for number in range(1, 3):
            exporter.put(span(number))
            until(lambda number=number: sink.requests >= number)  # type: ignore[misc]
        assert exporter.close(10)
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.name for record in told] == ["midflight.telemetry"]
    assert str(status) in told[0].getMessage()


def test_what_others_export_is_still_logged(sink: Sink, caplog: pytest.LogCaptureFixture) -> None:
    """A program that has exporters of its own hears of them, while ours is silent."""
    exporter = exporter_to(partial(open_exporters, sink.url, IDENTITY))
    exporter.put(span())
    until(lambda: sink.spans)
    logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter").error("somebody else's")
    assert exporter.close(10)
    assert [record.getMessage() for record in caplog.records] == ["somebody else's"]


def test_an_endpoint_that_hangs_holds_up_nobody() -> None:
    """Giving a span takes no time, the oldest are dropped, and the end waits as long as it was told to."""
    exporting = Exporting()
    exporting.go_on.clear()
    exporter = exporter_to(exporting.open)
    for number in range(1, MAX_SPANS + 100):
        exporter.put(span(number))
    assert not exporter.close(0.01)
    exporting.go_on.set()
    assert exporter.close(10)
    assert max(exporting.batches) <= BATCH
    assert MAX_SPANS <= sum(exporting.batches) < MAX_SPANS + 100
    assert exporting.spans[-1].context is not None
    assert exporting.spans[-1].context.span_id == MAX_SPANS + 99


def test_a_defect_of_an_exporter_ends_telemetry_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """It is one line with its traceback; spans go nowhere from then on."""
    exporting = Exporting()
    exporting.raises = True
    exporter = exporter_to(exporting.open)
    exporter.put(span())
    until(lambda: caplog.records)
    exporter.put(span())
    assert exporter.close(10)
    [record] = caplog.records
    assert record.getMessage() == "no telemetry goes to http://there any more"
    assert record.exc_info is not None


def test_nothing_counted_is_nothing_sent() -> None:
    """A process that is idle makes no requests."""
    exporting = Exporting()
    exporter = exporter_to(exporting.open)
    assert exporter.close(10)
    assert (exporting.batches, exporting.metrics) == ([], 0)
