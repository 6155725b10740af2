"""The servers of a run, as its `[fleet]` says: started, attached to or adopted, and brought back where some are lost.

    mode       at the beginning                      where one is lost                   at the end
    start      ends what a killed start left,        is started again                    all are stopped
               starts all anew
    adopt      goes on with what a killed start      is started again                    all are stopped
               left, starts what is missing
    attach     all must answer                       is waited for as long as `start_s`  all go on

A worker that dies alone is started again by its own server. Nothing is brought back for ever: where servers were lost
`max_restarts` times in a row without a row in between, the run ends, and the same command continues it.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx

from participants.serving import Endpoint
from participants.serving.settings import secret
from store import Store

from ..deployment import CannotBe, Deployment, DeploymentError, FleetTable, NotAnswering, NotUp
from ..deployment.hosts import ON, host_of, named, names_by_url, spans_of
from ..deployment.plan import roles_of
from ..errors import ControlFailed, CoordinationError, OtherStore
from ..fleet import Fleet, discover
from ..links import HttpLink, http_client
from .collector import Emit
from .config import Config
from .served import ServedWorld
from .world import Lost

PAUSES_S = (0.0, 0.5, 1.0, 2.0, 5.0)
"""Before the first, second and each later try in a row to bring servers back."""
AGAIN_S = 0.2


class ServersGone(CoordinationError):
    """The run cannot go on without servers that are lost, or did not come up."""

    what = "the run cannot go on without its servers"
    hint = "Every row is kept, and the same command continues from the last checkpoint"


class AttachedGone(ServersGone):
    """The same where somebody else runs them."""

    hint = (
        "Every row is kept, and the same command continues from the last checkpoint once they run again: end "
        "`midflight up`, or what else runs them, and start it again"
    )


class HostsGone(ServersGone):
    """The same where there are several hosts, of which one may be gone for good."""

    hint = (
        "Every row is kept, and the same command continues from the last checkpoint once they answer; a host that does "
        "not come back is taken out of [fleet.hosts], and `midflight up --host` run again on all others, from one "
        "and the same file"
    )


def by_server(lost: Lost) -> Lost:
    """One entry a server: of several lost workers of one, the server, with each reason once; of each host its own."""
    servers: dict[str, list[str]] = {}
    for name in lost:
        process, on, host = name.partition(ON)
        servers.setdefault(process.partition("/")[0] + on + host, []).append(name)
    return {
        names[0] if len(names) == 1 else server: "; ".join(dict.fromkeys(lost[name] for name in names))
        for server, names in servers.items()
    }


class ServedWorlds:
    """One fleet for all epochs of one start."""

    def __init__(
        self,
        config: Config,
        table: FleetTable,
        emit: Emit,
        *,
        path: Path | None,
        patience_s: float,
        deployment: Deployment | None = None,
    ) -> None:
        """`path` is the folder of servers of one's own; another controller of the folder is waited for so long.

        `deployment` is made from the table unless it is given.

        Raises ConfigError where the variable with the endpoint's key, or with the control token, is not set.
        """
        secret(table.token_env)  # Before the store is touched.

        def tell(event: str, facts: Mapping[str, Any]) -> None:
            emit(event, dict(facts))

        self._table = table
        self._spans = spans_of(table, roles_of(config))
        self._gone = HostsGone if table.hosts else AttachedGone if table.mode == "attach" else ServersGone
        self._emit = emit
        self._patience_s = patience_s
        self._deployment = deployment or Deployment(config, table, path=path, tell=tell)
        self._endpoints = [] if table.mode == "attach" else list(self._make_endpoints(config))
        self._client: httpx.AsyncClient | None = None
        self._run_id = ""
        self._in_row, self._rows = 0, 0

    def __repr__(self) -> str:
        return f"<ServedWorlds {self._table.mode} {self._deployment.folder}>"

    def _make_endpoints(self, config: Config) -> Iterator[Endpoint]:
        def tell(base_url: str, message: str) -> None:
            self._emit("endpoint", {"base_url": base_url, "message": message})

        for settings in config.endpoints.values():
            yield Endpoint(settings, partial(tell, settings.base_url))

    async def look(self) -> None:
        """What is attached to must answer. Raises DeploymentError."""
        if self._table.mode == "attach":
            await self._deployment.attach()

    @asynccontextmanager
    async def open(self, store: Store | None) -> AsyncIterator[None]:
        """Whatever runs here is stopped in the end, however the block is left; an error of it comes out as it is."""
        self._run_id = store.run_id if store is not None else ""
        try:
            yield
        finally:
            try:
                if self._client is not None:
                    await self._client.aclose()
            finally:
                await self._end()

    async def _end(self) -> None:
        """What goes wrong with it is told, and hides neither an error of the run nor what the run came to."""
        try:
            await self._deployment.stop()
        except Exception as error:
            self._deployment.kill_at_once()
            told = f"servers could not be ended in order, and were killed: {type(error).__name__}: {error}"
            self._emit("servers_not_ended", {"message": told})

    async def world(self) -> ServedWorld:
        """The servers as they are now; the first time they are started. Raises ServersGone, DeploymentError."""
        try:
            if self._client is None:
                await self._begin()
            return ServedWorld(await self._discover(), self._ended)
        except CannotBe:
            raise  # The same command would fail again.
        except (NotUp, NotAnswering) as error:
            raise self._gone(error.failures) from error

    async def _begin(self) -> None:
        if self._table.mode == "start":
            await self._deployment.start(self._patience_s)
        elif self._table.mode == "adopt":
            await self._deployment.adopt(self._patience_s)
        self._client = http_client(self._deployment.token)

    async def _discover(self) -> Fleet:
        """Every worker of every server; one that is being replaced is waited for. Raises ServersGone, OtherStore."""
        assert self._client is not None
        names = names_by_url(self._spans)
        links = [HttpLink(server.url, self._client, names) for server in self._deployment.servers]
        deadline = anyio.current_time() + self._table.start_s
        while True:
            try:
                return await discover(links, self._run_id)
            except OtherStore as error:
                raise OtherStore(self._by_host(error.failures)) from error
            except ControlFailed as error:
                if anyio.current_time() > deadline or self._deployment.lost():
                    raise self._gone(by_server({name: str(why) for name, why in error.failures.items()})) from error
            await anyio.sleep(AGAIN_S)

    def _ended(self) -> Lost:
        return {server.role: f"its process {server.ended}" for server in self._deployment.lost()}

    def _by_host(self, failures: Mapping[str, BaseException | str]) -> Lost:
        """What failed at workers as people are told of it: by server and host."""
        return by_server({named(name, host_of(self._spans, name)): str(why) for name, why in failures.items()})

    async def recover(self, lost: Lost, rows: int) -> None:
        """Start again what has ended, or wait for what somebody else runs. Raises ServersGone."""
        lost = self._by_host(lost)
        for name, why in lost.items():
            self._emit("server_lost", {"server": name, "message": f"{name} is lost: {why}"})
        self._in_row = 0 if rows > self._rows else self._in_row
        self._rows = rows
        while True:
            if self._in_row >= self._table.max_restarts:
                times = f"{self._in_row} times in a row without a row in between: see max_restarts in [fleet]"
                raise self._gone({name: f"{why}; servers were lost {times}" for name, why in lost.items()})
            await anyio.sleep(PAUSES_S[min(self._in_row, len(PAUSES_S) - 1)])
            self._in_row += 1
            try:
                await self._bring_back()
                return
            except (NotUp, NotAnswering) as error:
                if self._table.mode == "attach":
                    raise self._gone(error.failures) from error
                lost = error.failures
                self._emit("servers_not_back", {"message": str(error)})
            except DeploymentError as error:
                raise self._gone({name: str(error) for name in lost}) from error

    async def _bring_back(self) -> None:
        if self._table.mode == "attach":
            await self._deployment.attach()  # They may be somewhere else by now.
            return
        for server in self._deployment.lost():
            await self._deployment.restart(server.role)
        for role in await self._deployment.unanswering():  # What hangs is there, and answers nobody.
            if self._is_here(role):
                await self._deployment.restart(role)
        if wrong := await self._deployment.unanswering(self._table.start_s):
            raise NotAnswering(wrong)

    def _is_here(self, role: str) -> bool:
        return any(server.role == role and server.pid is not None for server in self._deployment.servers)

    def die(self) -> None:
        """Kill what runs here."""
        self._deployment.kill_at_once()

    async def watch_endpoint(self) -> None:
        """Look whether each answers; what waits there the model servers know."""
        async with anyio.create_task_group() as group:
            for endpoint in self._endpoints:
                group.start_soon(self._watch, endpoint)

    async def _watch(self, endpoint: Endpoint) -> None:
        async with endpoint:
            await endpoint.watch()
