"""What a run tells of itself, with real processes: one trace over all of them, and a page for each server."""

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.otlp_sink import SeenSpan, Sink, otlp_sink
from participants.telemetry import names as n
from participants.wire import OPERATIONS
from tests.support.processes import free_port, running
from tests.support.waiting import until

from .harness import Run, Start
from .test_served import all_held, over_servers
from .test_stopping import hold_second_calls

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

PATIENCE_S = 60.0
WORKERS = {"environment.main": 1, "agent.main": 2, "model.main": 1, "resources.counter": 1}
PROCESSES = {f"{role} w{number}" for role, count in WORKERS.items() for number in range(count)}


def told_at(run: Run, otlp: str | None = None) -> str:
    """Turn telemetry on; gives the URL of the collector's page."""
    address = f"127.0.0.1:{free_port()}"
    run.telemetry = {"prometheus": address} | ({"otlp": otlp} if otlp else {})
    return f"http://{address}/metrics"


def page(url: str) -> dict[str, float]:
    """The samples of a page: name and labels as the page has them, and value."""
    response = httpx.get(url, timeout=20)
    assert response.status_code == 200, response.text
    return {
        f"{s.name}{json.dumps(s.labels, sort_keys=True)}": s.value
        for family in text_string_to_metric_families(response.text)
        for s in family.samples
    }


def total(samples: dict[str, float], name: str, *having: str) -> float:
    """The sum of all samples of a name whose labels have these texts."""
    found = [v for key, v in samples.items() if key.startswith(f"{name}{{") and all(text in key for text in having)]
    assert found, f"{name} {having} is not among {sorted(samples)}"
    return sum(found)


def server_urls(run: Run) -> dict[str, str]:
    """Role to URL of the servers of the fleet."""
    state = json.loads((run.folder / "fleet" / "fleet.json").read_text())
    return {server["role"]: server["url"] for server in state["servers"]}


def checkpointed(run: Run, start: Start) -> None:
    """Take one with the second call of each rollout in flight."""
    all_held(run, start)
    start.signal(signal.SIGUSR1)
    until(lambda: start.events("checkpoint"), PATIENCE_S, start.told)


def traces(sink: Sink, root: str) -> list[list[SeenSpan]]:
    """The spans of each trace that begins with a span of this name."""
    ids = [span.trace_id for span in sink.spans if span.name == root and span.parent_id is None]
    return [[span for span in sink.spans if span.trace_id == one] for one in ids]


def check_whole(trace: list[SeenSpan]) -> None:
    """One root, each parent is there, nothing twice, no child begins before its parent, all names of the table."""
    ids = {span.span_id: span for span in trace}
    assert len(ids) == len(trace)
    assert len([span for span in trace if span.parent_id is None]) == 1
    for span in trace:
        assert n.BY_NAME[span.name].shape == "span"
        assert span.attributes.keys() <= set(n.BY_NAME[span.name].attributes), span
        if span.parent_id is not None:
            assert span.parent_id in ids, f"{span} has no parent"
            assert ids[span.parent_id].start_ns <= span.start_ns  # All are of one host, and so of one clock.


def participant_spans(trace: list[SeenSpan], operation: str) -> set[str]:
    """The processes that have carried out an operation."""
    assert operation in OPERATIONS
    return {span.process for span in trace if span.name == f"{n.OPERATION}{operation}"}


@contextmanager
def collector_before(sink: Sink, folder: Path) -> Iterator[str]:
    """A real OpenTelemetry collector, Rotel, which decodes what it gets and passes it on; gives its URL."""
    rotel = pytest.importorskip("rotel", reason="Rotel is not installed; it is in the extra dev")
    program = Path(rotel.__file__).parent / "rotel-agent"
    port, grpc_port = free_port(), free_port()
    command = [str(program), "start", "--otlp-http-endpoint", f"127.0.0.1:{port}"]
    command += ["--otlp-grpc-endpoint", f"127.0.0.1:{grpc_port}", "--exporter", "otlp"]
    command += ["--otlp-exporter-endpoint", sink.url, "--otlp-exporter-protocol", "http"]

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    with running(command, folder / "rotel.log", answers):
        yield f"http://127.0.0.1:{port}"


@pytest.mark.real
def test_a_checkpoint_and_a_restore_are_one_trace_each_over_all_processes(run: Run) -> None:
    """As a real collector passes them on: controller, four servers, both workers of the agent, and every parent."""
    hold_second_calls(over_servers(run))
    assert run.fleet is not None
    run.fleet["workers"] = WORKERS
    with otlp_sink() as sink, collector_before(sink, run.folder) as url:
        controller = told_at(run, url)
        with run.start() as start:
            checkpointed(run, start)
            pages = {role: page(f"{url}/metrics") for role, url in server_urls(run).items()}
            pages["controller"] = page(controller)
            start.signal(signal.SIGTERM)
            start.wait(75)
        run.backend.control.release()
        summary = run.finish().summary
        assert (summary["rows"], summary["continued"]) == (4, 4)
        until(lambda: len(traces(sink, n.COLLECT_BEGIN)) == 2, PATIENCE_S)
    check_traces(sink)
    check_metrics(sink)
    check_pages(pages)


def check_traces(sink: Sink) -> None:
    """The checkpoint that was asked for, and the restore of the second start."""
    checkpoint, restored = traces(sink, n.COLLECT_CHECKPOINT)[0], traces(sink, n.COLLECT_BEGIN)[1]
    for trace in (checkpoint, restored):
        check_whole(trace)
        assert {span.process for span in trace} == PROCESSES | {"controller main"}
    for operation in ("prepare", "commit", "renew", "resume"):
        assert participant_spans(checkpoint, operation) == PROCESSES
    for operation in ("adopt", "stage", "activate", "resume"):
        assert participant_spans(restored, operation) == PROCESSES


def check_metrics(sink: Sink) -> None:
    """From everybody, each with the kind, the unit and the text that the table has."""
    assert {f"{r['midflight.participant']} {r['midflight.process']}" for r, _ in sink.metrics} == PROCESSES | {
        "controller main"
    }
    for _, metric in sink.metrics:
        wanted = n.BY_NAME[metric.name]
        kind = {"counter": "sum", "gauge": "gauge", "histogram": "histogram"}[wanted.shape]
        assert (metric.WhichOneof("data"), metric.unit, metric.description) == (kind, wanted.unit, wanted.means)


def check_pages(pages: dict[str, dict[str, float]]) -> None:
    """After a checkpoint: what each server has written, by all its workers, and what the controller knows."""
    for role, workers in WORKERS.items():
        assert total(pages[role], "midflight_records_total", "written") >= 4
        assert total(pages[role], "midflight_server_workers") == workers
        assert total(pages[role], "midflight_server_workers_missing") == 0
        for number in range(workers):
            commits = "midflight_participant_duration_seconds_count", f'"w{number}"', '"commit"'
            assert total(pages[role], *commits) == 1
    assert total(pages["controller"], "midflight_checkpoint_hold_seconds_count") == 1
    assert total(pages["controller"], "midflight_head_epoch") == 1


def test_an_endpoint_that_nobody_serves_changes_nothing(run: Run) -> None:
    """A run in one process ends as any other, and says once that its telemetry does not arrive."""
    told_at(run, f"http://127.0.0.1:{free_port()}")
    start = run.finish()
    assert start.summary["rows"] == 4
    assert start.errors.read_text().count("telemetry does not arrive") == 1
    assert "Traceback" not in start.errors.read_text()


def test_a_port_that_is_taken_is_refused_before_anything_is_begun(run: Run) -> None:
    """With code 2, and the key that names it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        run.telemetry = {"prometheus": f"127.0.0.1:{taken.getsockname()[1]}"}
        start = run.finish(code=2)
    assert "telemetry.prometheus: cannot listen on 127.0.0.1:" in start.errors.read_text()
    assert not (run.folder / "out.jsonl").exists()
