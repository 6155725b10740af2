"""Turning telemetry on in one process, as its configuration says, and off again at its end.

In a process that forks, this comes after the fork: threads of its parent do not run in a child.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from .collected import Collected
from .hook import install, uninstall
from .otel import Identity, OtelExporter, open_exporters

DRAIN_S = 1.0
"""For what is queued when the process ends."""
CLOSE_S = 2.0
"""For sending what is left then; whoever does not answer gets it no more."""
_NEEDS = {
    "otlp": ("otel", ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk.metrics.export")),
    "prometheus": ("prometheus", ("prometheus_client.exposition",)),
}
"""What each key of the configuration imports, and the extra that brings it."""


class MissingExtra(Exception):
    """Telemetry was asked for, and the library for it is not installed."""

    def __init__(self, key: str, extra: str) -> None:
        told = f"pip install 'midflight[{extra}]', or in a checkout pip install -e '.[{extra}]'"
        super().__init__(f"{key} needs a library that is not installed. Install the extra {extra}: {told}")


def endpoint(url: str) -> str:
    """The base URL of an OTLP endpoint, which logs may show. Raises ValueError for what is none."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known or "@" in url or "?" in url or "#" in url or not url.isascii() or any(map(str.isspace, url)):
        raise ValueError(
            "it is no http:// or https:// URL without credentials or a query; those stand in the environment, as "
            "OTEL_EXPORTER_OTLP_HEADERS"
        )
    base = url.rstrip("/")
    for added in ("/v1/traces", "/v1/metrics"):
        if base.endswith(added):
            raise ValueError(f"it ends in {added}, which is added to it: leave that out")
    return base


def import_exporters(otlp: str | None, prometheus: bool) -> None:
    """Import what the exporters need, once for all processes that are forked later. Raises MissingExtra."""
    for key, wanted in (("otlp", otlp), ("prometheus", prometheus)):
        extra, modules = _NEEDS[key]
        try:
            for module in modules if wanted else ():
                import_module(module)
            if otlp is not None and key == "otlp":  # Making one imports the rest.
                open_exporters(otlp, Identity("none"))
        except ImportError as error:
            raise MissingExtra(key, extra) from error


@asynccontextmanager
async def telemetry(otlp: str | None, prometheus: bool, identity: Identity) -> AsyncIterator[Collected | None]:
    """Record while the block runs; gives what is collected, or None where neither is asked for.

    `otlp` is the base URL of an endpoint; `prometheus` whether somebody is going to ask for pages.
    """
    if otlp is None and not prometheus:
        yield None
        return
    collected = Collected()
    exporter = None
    if otlp is not None:
        exporter = OtelExporter(partial(open_exporters, otlp, identity), collected.snapshot, otlp)
        collected.on_span = exporter.put
    install(collected)
    try:
        yield collected
    finally:
        with anyio.CancelScope(shield=True):  # Its two waits have limits of their own.
            await anyio.to_thread.run_sync(_close, collected, exporter)


def _close(collected: Collected, exporter: OtelExporter | None) -> None:
    uninstall(collected, timeout_s=DRAIN_S)
    if exporter is not None:
        exporter.close(CLOSE_S)
