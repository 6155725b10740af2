"""Spans and metrics to whatever speaks OTLP: OpenTelemetry's collector, and most systems that show traces.

A thread of its own sends, over HTTP as protobuf: spans each second, metrics every ten. It is started in the process
that it is for, so not before a fork. Nothing here holds up the work, or fails it:

    the endpoint is down, or refuses     one error, and one line when it is there again; spans of that time are lost,
                                         and metrics are what they are when it is there again
    more spans than it takes             the oldest of them are lost
    the end of the process               what is left is sent within a limit

The ids of spans are ours, so that the spans of all processes of a run join. Headers, such as credentials, certificates
and compression are taken from the environment, as OpenTelemetry names it (`OTEL_EXPORTER_OTLP_HEADERS`, ...).
"""

import logging
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from itertools import islice
from typing import TYPE_CHECKING, Any

from .collected import Distribution, Labels, Snapshot, bounds_of
from .names import BY_NAME, Instrument
from .records import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricsData
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

SPANS_EVERY_S = 1.0
METRICS_EVERY_S = 10.0
TIMEOUT_S = 5.0
"""For one request, with all its tries."""
MAX_SPANS = 8_192
"""That wait to be sent."""
BATCH = 512
"""Spans of one request."""
_LOGGERS = tuple(f"opentelemetry.exporter.otlp.proto.http.{kind}_exporter" for kind in ("trace", "metric"))
_SCOPE = "midflight"

log = logging.getLogger("midflight.telemetry")


@dataclass(frozen=True, slots=True)
class Identity:
    """Which process of a run it is that tells."""

    role: str
    """`<kind>.<name>`, or `controller`."""
    process: str = "main"
    """Its name among those of the role."""


@dataclass(slots=True)
class Exporters:
    """Where spans and metrics go."""

    resource: "Resource"
    spans: "SpanExporter"
    metrics: "MetricExporter"


def open_exporters(endpoint: str, identity: Identity) -> Exporters:
    """Exporters to the base URL of an OTLP endpoint. Raises ImportError without the extra `otel`."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    base = endpoint.rstrip("/")
    return Exporters(
        resource_of(identity),
        OTLPSpanExporter(f"{base}/v1/traces", timeout=TIMEOUT_S, session=_session()),
        OTLPMetricExporter(f"{base}/v1/metrics", timeout=TIMEOUT_S, session=_session()),
    )


def _session() -> Any:
    """One that takes a redirect for a failure: OpenTelemetry does not follow it, and counts it as sent."""
    if any(name.endswith("CREDENTIAL_PROVIDER") for name in os.environ):
        return None  # OpenTelemetry makes one then, with credentials.
    session: Any = import_module("requests").Session()
    session.hooks["response"].append(_refuse_redirect)
    return session


def _refuse_redirect(response: Any, *_: object, **__: object) -> None:
    if 300 <= response.status_code < 400:
        response.reason = f"it redirects ({response.status_code}), so name the URL that it redirects to"
        response.status_code = 400


def resource_of(identity: Identity) -> "Resource":
    """What OpenTelemetry calls a resource: who tells, and where it runs."""
    from opentelemetry.sdk.resources import Resource

    return Resource.create(
        {
            "service.name": "midflight",
            "service.version": version("midflight"),
            "service.instance.id": secrets.token_hex(16),
            "host.name": socket.gethostname(),
            "process.pid": os.getpid(),
            "midflight.participant": identity.role,
            "midflight.process": identity.process,
        }
    )


def readable_spans(spans: Iterable[Span], resource: "Resource") -> "list[ReadableSpan]":
    """Our spans as OpenTelemetry's, with our ids."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, TraceFlags
    from opentelemetry.trace.status import Status, StatusCode

    scope, sampled, unset = InstrumentationScope(_SCOPE), TraceFlags(TraceFlags.SAMPLED), Status()

    def context(trace_id: str, span_id: str) -> SpanContext:
        return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=sampled)

    return [
        ReadableSpan(
            span.name,
            context(span.trace_id, span.span_id),
            context(span.trace_id, span.parent_id) if span.parent_id else None,
            resource,
            dict(span.attributes),
            status=Status(StatusCode.ERROR, span.error) if span.error else unset,
            start_time=span.start_unix_ns,
            end_time=span.start_unix_ns + round(span.duration_s * 1e9),
            instrumentation_scope=scope,
        )
        for span in spans
    ]


def metrics_data(
    snapshot: Snapshot, resource: "Resource", since_ns: int, now_ns: int, table: Mapping[str, Instrument] = BY_NAME
) -> "MetricsData":
    """A snapshot as OpenTelemetry's metrics: counters and histograms from `since_ns` on, gauges as of now."""
    from opentelemetry.sdk.metrics import export as otel
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    cumulative = otel.AggregationTemporality.CUMULATIVE

    def number(labels: Labels, value: float, start_ns: int | None) -> otel.NumberDataPoint:
        return otel.NumberDataPoint(dict(labels), start_ns, now_ns, float(value))  # type: ignore[arg-type]  # None for gauges.

    def histogram(labels: Labels, found: Distribution, bounds: Sequence[float]) -> otel.HistogramDataPoint:
        about: dict[str, Any] = {"attributes": dict(labels), "start_time_unix_nano": since_ns}
        values: dict[str, Any] = {"count": sum(found.counts), "sum": found.total, "bucket_counts": found.counts}
        values |= {"min": None, "max": None}  # They are not kept.
        return otel.HistogramDataPoint(time_unix_nano=now_ns, explicit_bounds=bounds, **about, **values)

    def metrics() -> Iterator[otel.Metric]:
        for name, series in snapshot.counters.items():
            points = [number(labels, value, since_ns) for labels, value in series.items()]
            yield _metric(table[name], otel.Sum(points, cumulative, is_monotonic=True))
        for name, buckets in snapshot.histograms.items():
            bounds = bounds_of(table[name])
            found = [histogram(labels, value, bounds) for labels, value in buckets.items()]
            yield _metric(table[name], otel.Histogram(found, cumulative))
        for name, series in snapshot.gauges.items():
            yield _metric(table[name], otel.Gauge([number(labels, value, None) for labels, value in series.items()]))

    scoped = otel.ScopeMetrics(InstrumentationScope(_SCOPE), list(metrics()), "")
    return otel.MetricsData([otel.ResourceMetrics(resource, [scoped], "")])


def _metric(instrument: Instrument, data: Any) -> Any:
    from opentelemetry.sdk.metrics.export import Metric

    return Metric(instrument.name, instrument.means, instrument.unit, data)


class OtelExporter:
    """Sends what it is given, from a thread of its own, until it is closed."""

    def __init__(
        self,
        open_: Callable[[], Exporters],
        snapshot: Callable[[], Snapshot],
        where: str,
        *,
        spans_every_s: float = SPANS_EVERY_S,
        metrics_every_s: float = METRICS_EVERY_S,
    ) -> None:
        """`open_` is called in the thread; `where` is for people."""
        self._open, self._snapshot, self._where = open_, snapshot, where
        self._spans_every_s, self._metrics_every_s = spans_every_s, metrics_every_s
        self._spans: deque[Span] = deque(maxlen=MAX_SPANS)
        self._closing = threading.Event()
        self._since_ns = time.time_ns()
        self._silent = False
        self._said = ""
        self._thread = threading.Thread(target=self._run, name="midflight-otlp", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<OtelExporter to {self._where}, {len(self._spans)} spans wait>"

    def put(self, span: Span) -> None:
        """Send it with the next request."""
        self._spans.append(span)

    def close(self, within_s: float) -> bool:
        """Send what is left; whether that was done in time. Blocks for up to `within_s`; what is late is lost."""
        self._closing.set()
        self._thread.join(within_s)
        if late := self._thread.is_alive():
            self._said = f"nobody answered within {within_s:g} s"
            self._tell(sent=False)
        return not late

    def _run(self) -> None:
        try:
            with _log_heard(self._hear):
                self._send_until_closed(self._open())
        except Exception:  # A defect of ours or of OpenTelemetry's, which is no reason to disturb the work.
            log.error("no telemetry goes to %s any more", self._where, exc_info=True)

    def _send_until_closed(self, exporters: Exporters) -> None:
        metrics_at, closing = time.monotonic() + self._metrics_every_s, False
        while not closing:
            closing = self._closing.wait(self._spans_every_s)
            self._send_spans(exporters)
            if closing or time.monotonic() >= metrics_at:
                metrics_at = time.monotonic() + self._metrics_every_s
                self._send_metrics(exporters)
        exporters.spans.shutdown()
        exporters.metrics.shutdown()

    def _send_spans(self, exporters: Exporters) -> None:
        while batch := list(islice(iter(self._pop, None), BATCH)):
            sent = exporters.spans.export(readable_spans(batch, exporters.resource))
            self._tell(sent=sent.name == "SUCCESS")

    def _pop(self) -> Span | None:
        return self._spans.popleft() if self._spans else None

    def _send_metrics(self, exporters: Exporters) -> None:
        snapshot = self._snapshot()
        if snapshot.counters or snapshot.histograms or snapshot.gauges:
            data = metrics_data(snapshot, exporters.resource, self._since_ns, time.time_ns())
            self._tell(sent=exporters.metrics.export(data).name == "SUCCESS")

    def _tell(self, *, sent: bool) -> None:
        """Once that nothing arrives, and once that it does again."""
        if sent == self._silent:
            self._silent = not sent
            if sent:
                log.info("telemetry goes to %s again", self._where)
            else:  # An error, since the log of a collection run shows nothing less.
                log.error("telemetry does not arrive at %s, and is lost: %s", self._where, self._said or "no reason")

    def _hear(self, message: str) -> None:
        self._said = message


@contextmanager
def _log_heard(hear: Callable[[str], None]) -> Iterator[None]:
    """What OpenTelemetry would log from this thread, at every request that fails, is told to `hear` and not logged."""
    own = threading.get_ident()

    def unless_ours(record: logging.LogRecord) -> bool:
        if record.thread == own:
            hear(record.getMessage())
        return record.thread != own

    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(unless_ours)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(unless_ours)
