"""A server's page for Prometheus: the names of the table, all workers, and none that keeps the page waiting."""

import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import anyio
import httpx
import pytest
from prometheus_client import parser
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from participants.serving.sockets import bind, server_of, url_of
from participants.telemetry import names as n
from participants.telemetry import prometheus
from participants.telemetry.collected import Collected, Snapshot
from participants.telemetry.prometheus import METRICS_PATH, OWN_METRICS_PATH, Metrics, Page, render

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

AGENT = {"participant": "agent.main"}


def counted(times: int = 1) -> Snapshot:
    """A snapshot with something of everything that the table has."""
    collected = Collected()
    for metric in n.METRICS:
        labels = {name: min(values) if values else "agent.main" for name, values in metric.labels.items()}
        if metric.shape == "gauge":
            collected.gauge(metric.name, lambda labels=labels: [(labels, times)])  # type: ignore[misc]
        for _ in range(times if metric.shape != "gauge" else 0):
            record = collected.add if metric.shape == "counter" else collected.observe
            record(metric.name, 1, labels)
    return collected.snapshot()


def values(page: bytes, name: str) -> dict[str | None, float]:
    """What a page says under a name, by process."""
    families = parser.text_string_to_metric_families(page.decode())
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return {sample.labels.get("process"): sample.value for sample in samples}


def test_every_metric_of_the_table_has_its_name_and_its_kind() -> None:
    """Prometheus' own parser reads each as what it is, with its text, and finds nothing else."""
    page = render(Page("agent.main", {"w0": counted()}))
    found = {family.name: family for family in parser.text_string_to_metric_families(page.decode())}
    wanted = {metric.prometheus.removesuffix("_total"): metric for metric in n.METRICS}
    assert found.keys() == wanted.keys()
    for name, family in found.items():
        assert (family.type, family.documentation) == (wanted[name].shape, wanted[name].means)
        for sample in family.samples:
            own = set() if wanted[name].name in (n.SERVER_WORKERS, n.SERVER_WORKERS_MISSING) else {"process"}
            assert sample.labels.keys() - {"le"} == {*wanted[name].labels, "role", *own}


def test_each_process_has_series_of_its_own() -> None:
    """A histogram's buckets add up from bound to bound, to its count."""
    page = render(Page("agent.main", {"w0": counted(1), "w1": counted(3)}, missing=1))
    assert values(page, "midflight_retired_total") == {"w0": 1, "w1": 3}
    assert values(page, "midflight_participant_hold_seconds_count") == {"w0": 1, "w1": 3}
    buckets = [line for line in page.decode().splitlines() if "hold_seconds_bucket" in line and 'process="w1"' in line]
    assert [float(line.rpartition(" ")[2]) for line in buckets if "participant_hold" in line][-1] == 3
    assert (values(page, "midflight_server_workers"), values(page, "midflight_server_workers_missing")) == (
        {None: 3},
        {None: 1},
    )


def test_names_that_need_quoting_are_quoted() -> None:
    """Whatever a role is called, the page can be read."""
    odd = 'resources.a"b\\c\nd'
    page = render(Page(odd, {"w0": counted()}))
    [family] = [f for f in parser.text_string_to_metric_families(page.decode()) if f.name == "midflight_retired"]
    assert family.samples[0].labels["role"] == odd


def test_promtool_has_nothing_to_say() -> None:
    """The checker of Prometheus itself finds the page good, names and texts included."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; Debian has it in the package prometheus")
    page = render(Page("agent.main", {"w0": counted(), "w1": counted(2)}))
    checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, timeout=30, check=False)
    told = (checked.stdout + checked.stderr).decode()
    assert (checked.returncode, told) == (0, ""), told


Answer = Callable[[Request], Awaitable[Response]]


@asynccontextmanager
async def sibling(answer: Answer) -> AsyncIterator[str]:
    """Another worker, which answers for its own part as it is told to."""
    listener = bind("127.0.0.1", 0)
    server = server_of(Starlette(routes=[Route(OWN_METRICS_PATH, answer)]), shutdown_s=0.1)
    async with anyio.create_task_group() as group:
        group.start_soon(server.serve, [listener])
        yield url_of(listener)
        server.should_exit = True


async def page_with(others: dict[str, str]) -> bytes:
    """The page of a worker w0 that asks these."""
    async with aiohttp.ClientSession() as session:
        metrics = Metrics("agent.main", "w0", lambda: counted(2), others, session)
        transport = httpx.ASGITransport(Starlette(routes=metrics.routes()))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            response = await client.get(METRICS_PATH)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return response.content


async def test_whichever_worker_is_asked_shows_all() -> None:
    """It asks the others for what they have counted."""

    async def answer(_: Request) -> Response:
        return JSONResponse(counted(5).document())

    async with sibling(answer) as url:
        page = await page_with({"w1": url, "w2": url})
    assert values(page, "midflight_retired_total") == {"w0": 2, "w1": 5, "w2": 5}
    assert values(page, "midflight_server_workers_missing") == {None: 0}


BUCKETS = [[n.PARTICIPANT_HOLD, {"participant": "agent.main"}, [[1, 2], 3]]]
NONSENSE = {
    "talks nonsense": b'{"counters": 1}',
    "has other buckets": json.dumps({"counters": [], "histograms": BUCKETS, "gauges": []}).encode(),
    "has labels of its own kind": b'{"counters": [["midflight.retired", {"x": 5}, 1]], "histograms": [], "gauges": []}',
    "has what is no text": b'{"counters": [["a", {"x": "\\ud800"}, 1]], "histograms": [], "gauges": []}',
    "has too large a number": b'{"counters": [["a", {}, 1%s]], "histograms": [], "gauges": []}' % (b"0" * 400),
    "has no end": b" " * 5_000_000 + b"{}",
    "is bottomless": b"[" * 100_000,
}


@pytest.mark.parametrize("how", ["hangs", "refuses", "is no worker", *NONSENSE])
async def test_a_worker_that_does_not_answer_is_left_out_and_counted(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page comes in bounded time, with everybody else."""
    monkeypatch.setattr(prometheus, "ASK_S", 0.2)

    async def answer(_: Request) -> Response:
        if how == "hangs":
            await anyio.sleep_forever()
        return PlainTextResponse("so what", 500) if how == "refuses" else Response(NONSENSE[how])

    async with sibling(answer) as url:
        with anyio.fail_after(10):
            page = await page_with({"w1": "http://127.0.0.1:1" if how == "is no worker" else url})
    assert values(page, "midflight_retired_total") == {"w0": 2}
    assert values(page, "midflight_server_workers") == {None: 2}
    assert values(page, "midflight_server_workers_missing") == {None: 1}
