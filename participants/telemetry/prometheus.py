"""What a server has counted, as Prometheus reads it: one page for all of its workers.

Whichever worker is asked asks the others, at their own addresses and all at once. One that does not answer in time is
left out and counted, so that a page always comes, and says what it lacks. Each series has the labels `role` and
`process` beside its own, so that a counter of a worker that was replaced is seen to begin again.

The page has counts, durations and sizes alone, no text of any rollout; so it needs no token.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .collected import Distribution, Labels, Snapshot, bounds_of
from .names import SERVER_WORKERS, SERVER_WORKERS_MISSING, TABLE, Instrument

if TYPE_CHECKING:
    from prometheus_client.core import Metric

METRICS_PATH = "/metrics"
OWN_METRICS_PATH = "/midflight/v1/metrics"
"""What one worker has counted, as JSON, for the others of its server."""
ASK_S = 2.0
"""How long a page waits for a worker: Prometheus gives up after ten seconds unless it is told otherwise."""
MAX_SNAPSHOT_BYTES = 4_000_000
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Page:
    """All that one page shows."""

    role: str
    """Of the participant, or `controller`."""
    processes: dict[str, Snapshot]
    """By name, those that have answered."""
    missing: int = 0
    """How many have not."""


def render(page: Page) -> bytes:
    """The page, in Prometheus' text format."""
    from prometheus_client.exposition import generate_latest

    class Families:
        def collect(self) -> Iterator["Metric"]:
            return _families(page)

    return generate_latest(Families())


def _families(page: Page) -> "Iterator[Metric]":
    """In the order of the table; what nobody has counted yet is left out."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    about = {SERVER_WORKERS: len(page.processes) + page.missing, SERVER_WORKERS_MISSING: page.missing}
    for instrument in TABLE:
        name, means = instrument.prometheus, instrument.means
        if instrument.name in about:
            family: Metric = GaugeMetricFamily(name, means)
            family.add_sample(name, {"role": page.role}, about[instrument.name])
            yield family
        elif instrument.shape == "counter":
            family = CounterMetricFamily(name.removesuffix("_total"), means)
            for labels, value in _values(page, instrument):
                family.add_sample(name, labels, value)
        elif instrument.shape == "gauge":
            family = GaugeMetricFamily(name, means)
            for labels, value in _values(page, instrument):
                family.add_sample(name, labels, value)
        elif instrument.shape == "histogram":
            family = HistogramMetricFamily(name, means)
            for labels, found in _distributions(page, instrument):
                _add_histogram(family, name, labels, bounds_of(instrument), found)
        else:
            continue
        if family.samples and instrument.name not in about:
            yield family


def _values(page: Page, instrument: Instrument) -> Iterator[tuple[dict[str, str], float]]:
    for process, snapshot in page.processes.items():
        found = snapshot.counters if instrument.shape == "counter" else snapshot.gauges
        for key, value in found.get(instrument.name, {}).items():
            yield _labels(page, process, key), value


def _distributions(page: Page, instrument: Instrument) -> Iterator[tuple[dict[str, str], Distribution]]:
    for process, snapshot in page.processes.items():
        for key, found in snapshot.histograms.get(instrument.name, {}).items():
            yield _labels(page, process, key), found


def _labels(page: Page, process: str, key: Labels) -> dict[str, str]:
    return {**dict(key), "role": page.role, "process": process}


def _add_histogram(
    family: "Metric", name: str, labels: dict[str, str], bounds: Sequence[float], found: Distribution
) -> None:
    """With counts that add up from bucket to bucket, as Prometheus wants them."""
    so_far = 0
    for bound, count in zip((*map(str, bounds), "+Inf"), found.counts, strict=True):
        so_far += count
        family.add_sample(f"{name}_bucket", {**labels, "le": bound}, so_far)
    family.add_sample(f"{name}_count", labels, so_far)
    family.add_sample(f"{name}_sum", labels, found.total)


class Metrics:
    """The pages of one worker process, which knows the others of its server."""

    def __init__(
        self,
        role: str,
        process: str,
        snapshot: Callable[[], Snapshot],
        others: dict[str, str] | None = None,
        session: aiohttp.ClientSession | None = None,
    ) -> None:
        """`others` are the further processes of the server, by name, with the URL of each; asked over `session`."""
        self._role, self._process, self._snapshot = role, process, snapshot
        self._others = others or {}
        self._session = session

    def routes(self) -> list[Route]:
        """Both pages."""
        return [
            Route(METRICS_PATH, self._page, methods=["GET"]),
            Route(OWN_METRICS_PATH, self._own, methods=["GET"]),
        ]

    async def _own(self, _: Request) -> Response:
        return JSONResponse(self._snapshot().document())

    async def _page(self, _: Request) -> Response:
        found = {self._process: self._snapshot()}
        async with anyio.create_task_group() as group:
            for process, url in self._others.items():
                group.start_soon(self._ask, process, url, found)
        processes = {process: found[process] for process in sorted(found)}
        page = Page(self._role, processes, len(self._others) + 1 - len(processes))
        # A long page takes some milliseconds, which the work does not wait for.
        return Response(await anyio.to_thread.run_sync(render, page), media_type=CONTENT_TYPE)

    async def _ask(self, process: str, url: str, found: dict[str, Snapshot]) -> None:
        """Whoever does not answer, or not with a snapshot, is not in `found` then."""
        assert self._session is not None
        with anyio.move_on_after(ASK_S):
            try:
                async with self._session.get(url + OWN_METRICS_PATH) as response:
                    if response.status == 200:
                        found[process] = Snapshot.parse(json.loads(await _body(response)))
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError, RecursionError):
                return


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """Raises ValueError where it is longer than a snapshot can be."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MAX_SNAPSHOT_BYTES:
            raise ValueError(f"it has more than {MAX_SNAPSHOT_BYTES} bytes")
    return bytes(body)
