"""Telemetry is turned on as it is configured, where it is configured, and off again."""

import sys
import threading

import anyio
import pytest

from bench.otlp_sink import otlp_sink
from participants import telemetry as hook
from participants.telemetry import names as n
from participants.telemetry import starting
from participants.telemetry.otel import Identity
from participants.telemetry.starting import MissingExtra, endpoint, import_exporters, telemetry

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

IDENTITY = Identity("agent.main", "w0")


async def test_without_either_nothing_is_installed() -> None:
    """Off means off: no thread, no recorder."""
    threads = threading.active_count()
    async with telemetry(None, False, IDENTITY) as collected:
        assert collected is None
        assert not hook.active()
        assert threading.active_count() == threads


async def test_what_is_recorded_until_the_end_arrives() -> None:
    """The end of the block sends what is left, and leaves nothing installed and no thread."""
    threads = threading.active_count()
    with otlp_sink() as sink:
        serving = threading.active_count()
        async with telemetry(sink.url, False, IDENTITY):
            with hook.span(n.COMMIT, records=1):
                hook.add(n.RETIRED, participant="agent.main")
        assert not hook.active()
        assert [span.name for span in sink.spans] == [n.COMMIT]
        assert [metric.name for _, metric in sink.metrics] == [n.RETIRED]
        assert serving > threads
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("midflight-")]


async def test_the_end_comes_although_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint that is down costs a limited time, also where the block was cancelled."""
    monkeypatch.setattr(starting, "CLOSE_S", 0.05)
    with anyio.fail_after(10), anyio.CancelScope() as scope:
        async with telemetry("http://127.0.0.1:1", True, IDENTITY) as collected:
            assert collected is not None
            with hook.span(n.COMMIT):
                pass
            scope.cancel()
            await anyio.sleep_forever()
    assert not hook.active()


@pytest.mark.parametrize("url", [
    "", "h:4318", "http://", "http://[::1", "http://h:99999", "http://h:x", "http://h:0", "http://h h", "http://h\n",
    "http://me:hidden@h", "http://h/?token=hidden", "http://h#hidden", "http://h/v1/traces", "http://h/v1/metrics/",
])  # fmt: skip
def test_what_is_no_endpoint_is_refused_at_once_and_not_shown(url: str) -> None:
    """What has credentials would stand in logs, and what is none would fail with each request only."""
    with pytest.raises(ValueError, match=r"it (is no http|ends in /v1)") as caught:
        endpoint(url)
    assert "hidden" not in str(caught.value)
    assert [endpoint("http://h:4318/"), endpoint("https://[::1]/a")] == ["http://h:4318", "https://[::1]/a"]


@pytest.mark.parametrize(
    ("missing", "otlp", "prometheus", "says"),
    [
        ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "http://there", False, r"otlp .*midflight\[otel\]"),
        ("prometheus_client.exposition", None, True, r"prometheus .*midflight\[prometheus\]"),
    ],
)
def test_a_missing_extra_is_named(
    missing: str, otlp: str | None, prometheus: bool, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command that brings it; what is not asked for is not missed."""
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtra, match=says):
        import_exporters(otlp, prometheus)
    import_exporters(None, False)
