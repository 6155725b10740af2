"""`[telemetry]`: where what the run does is told, beside its own output; off without the table.

The servers of a fleet are given the same (see `deployment.plan`): they send to the same endpoint, and have pages of
their own at their own addresses.
"""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
from pydantic import field_validator, model_validator
from starlette.applications import Starlette

from participants.serving import ConfigError
from participants.serving.settings import Table
from participants.serving.sockets import bind, server_of
from participants.telemetry.collected import Collected
from participants.telemetry.otel import Identity
from participants.telemetry.prometheus import Metrics
from participants.telemetry.starting import MissingExtra, endpoint, import_exporters, telemetry

ROLE = "controller"
SHUTDOWN_S = 1.0


class TelemetryTable(Table):
    """`[telemetry]`: at least one of them."""

    prometheus: str | None = None
    """`host:port` where the collector has its page of metrics; servers have theirs at their own addresses."""
    otlp: str | None = None
    """Base URL of an OTLP endpoint, which everybody sends to."""

    @field_validator("prometheus")
    @classmethod
    def _is_address(cls, prometheus: str | None) -> str | None:
        if prometheus is not None:
            _host_and_port(prometheus)
        return prometheus

    @field_validator("otlp")
    @classmethod
    def _is_url(cls, otlp: str | None) -> str | None:
        return None if otlp is None else endpoint(otlp)

    @model_validator(mode="after")
    def _says_something(self) -> "TelemetryTable":
        if self.prometheus is None and self.otlp is None:
            raise ValueError("give prometheus or otlp or both; without the table there is no telemetry")
        return self


def _host_and_port(text: str) -> tuple[str, int]:
    """Unlike the address of a server, this one may be that of all networks. Raises ValueError."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or set("@/?#") & set(text) or any(map(str.isspace, text)):
        raise ValueError(f"{text!r} is no host:port, such as 127.0.0.1:9464")
    return host, port


@asynccontextmanager
async def recording(table: TelemetryTable | None) -> AsyncIterator[None]:
    """Tell what this process does while the block runs. Raises ConfigError where that cannot be."""
    if table is None:
        yield
        return
    try:
        await anyio.to_thread.run_sync(import_exporters, table.otlp, table.prometheus is not None)
    except MissingExtra as error:
        raise ConfigError(f"telemetry.{error}") from error
    async with telemetry(table.otlp, table.prometheus is not None, Identity(ROLE)) as collected:
        assert collected is not None
        async with _page(table.prometheus, collected):
            yield


@asynccontextmanager
async def _page(address: str | None, collected: Collected) -> AsyncIterator[None]:
    if address is None:
        yield
        return
    host, port = _host_and_port(address)
    try:
        listener = bind(host, port)
    except OSError as error:
        told = f"telemetry.prometheus: cannot listen on {address}: {error.strerror or error}"
        raise ConfigError(told) from error
    app = Starlette(routes=Metrics(ROLE, Identity(ROLE).process, collected.snapshot).routes())
    server = server_of(app, shutdown_s=SHUTDOWN_S)
    with contextlib.closing(listener):
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [listener])
            try:
                yield
            finally:
                server.should_exit = True
