"""An OTLP endpoint that keeps what it gets, over HTTP with protobuf: for tests, for a picture, and for measuring.

    python -m bench.otlp_sink [PAGE SECONDS]

serves until its standard input ends, keeps nothing, and says its URL on stdout. Meanwhile it asks for a page every so
many seconds, as Prometheus does.
"""

import gzip
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric


@dataclass(frozen=True, slots=True)
class SeenSpan:
    """A span as it arrived."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    error: str | None
    resource: dict[str, Any]

    @property
    def process(self) -> str:
        """`<participant> <process>`, of whoever sent it."""
        return f"{self.resource['midflight.participant']} {self.resource['midflight.process']}"


@dataclass(slots=True)
class Sink:
    """What has arrived so far."""

    url: str
    keeps: bool = True
    spans: list[SeenSpan] = field(default_factory=list)
    metrics: list[tuple[dict[str, Any], Metric]] = field(default_factory=list)
    """Each with the resource that sent it, in the order of arrival."""
    requests: int = 0
    refuses: int = 0
    """The status that everything is answered with; 0 to take it."""

    def take(self, path: str, body: bytes) -> bytes:
        """One request; the answer to it. Raises ValueError for a path that there is not, DecodeError for a bad body."""
        if path == "/v1/traces":
            self._take_spans(ExportTraceServiceRequest.FromString(body))
            return bytes(ExportTraceServiceResponse().SerializeToString())
        if path == "/v1/metrics":
            self._take_metrics(ExportMetricsServiceRequest.FromString(body))
            return bytes(ExportMetricsServiceResponse().SerializeToString())
        raise ValueError(path)

    def _take_spans(self, request: ExportTraceServiceRequest) -> None:
        for group in request.resource_spans if self.keeps else ():
            resource = _values(group.resource.attributes)
            for scope in group.scope_spans:
                self.spans += [_seen(span, resource) for span in scope.spans]

    def _take_metrics(self, request: ExportMetricsServiceRequest) -> None:
        for group in request.resource_metrics if self.keeps else ():
            resource = _values(group.resource.attributes)
            for scope in group.scope_metrics:
                self.metrics += [(resource, metric) for metric in scope.metrics]


def _seen(span: Any, resource: dict[str, Any]) -> SeenSpan:
    return SeenSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex() or None,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _values(span.attributes),
        span.status.message if span.status.code == span.status.STATUS_CODE_ERROR else None,
        resource,
    )


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def otlp_sink(port: int = 0, *, keeps: bool = True) -> Iterator[Sink]:
    """Serve on 127.0.0.1 while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            body = gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body
            sink.requests += 1
            status, answer = sink.refuses or 200, b""
            if not sink.refuses:
                answer = sink.take(self.path, body)
            self.send_response(status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

    server = Server(("127.0.0.1", port), Handler)
    sink = Sink(f"http://127.0.0.1:{server.server_port}", keeps)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield sink
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _until_input_ends(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


if __name__ == "__main__":
    with otlp_sink(keeps=False) as served:
        print(served.url, flush=True)
        over = threading.Event()
        threading.Thread(target=_until_input_ends, args=(over,)).start()
        while not over.wait(float(sys.argv[2]) if sys.argv[2:] else None):
            with suppress(OSError):  # There is no page between two runs.
                urllib.request.urlopen(sys.argv[1], timeout=5).read()
