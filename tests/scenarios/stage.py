"""The stage of a scenario: the backend and the store, which survive, and the servers, which are killed.

`epoch()` is one life of everything: fresh servers, a controller that claims, adopts and restores the head; leaving it
is SIGKILL to every server's process group and the end of the controller in the middle of whatever it does.
"""

import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx

from orchestrator.adoption import standing
from orchestrator.fleet import adopt, discover
from orchestrator.links import HttpLink, http_client
from participants import Floor
from participants.ledger import Ledger, check
from participants.wire import Finished
from store import Life, Store, claim, open_store
from tests.support.backend import RunningBackend
from tests.support.fleet import Server
from tests.support.seaweed import S3Server
from tests.support.waiting import until

from .controller import Controller, bare_errors
from .seen import Seen, seen_by
from .tasks import Task

TOKEN_ENV = "MIDFLIGHT_TEST_TOKEN"
RESOURCES = "resources.counter"
JUDGE = "model.judge"
ROLES = ("environment.main", "agent.main", "model.main", RESOURCES)


@dataclass(frozen=True, slots=True)
class Workers:
    """How many worker processes the policy model has, and every other server."""

    model: int = 1
    others: int = 1

    def of(self, role: str) -> int:
        """Those of one server."""
        return self.model if role == "model.main" else self.others


@dataclass(slots=True)
class Stage:
    """One scenario's world. What is not said is as a user would have it."""

    folder: Path
    backend: RunningBackend
    plan: tuple[Workers, ...] = (Workers(),)
    """Worker counts of each start of the fleet; the last one holds for all later ones."""
    s3: S3Server | None = None
    model: dict[str, Any] = field(default_factory=dict)
    """Settings of the model server, beside those of its endpoint."""
    agent: dict[str, Any] = field(default_factory=dict)
    """Options of the agent."""
    agent_server: str | None = None
    """`module:Class`; the tool loop that ships if there is none."""
    environment: dict[str, Any] = field(default_factory=dict)
    """Options of the environment server."""
    resources: str = "tests.support.logged_counter:LoggedCounter"
    counter: dict[str, Any] = field(default_factory=dict)
    """Options of the resources server, beside its log and its hold."""
    judge: RunningBackend | None = None
    """Of a further model server, `model.judge`, which resources servers may call."""
    capture: bool = False
    script: bool = False
    """Start the installed script for each server; else the nursery forks them, which is quicker."""
    servers: dict[str, Server] = field(default_factory=dict)
    output: dict[str, Finished] = field(default_factory=dict)
    """Durable results by rollout."""
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    starts: int = 0
    left_behind: list[Server] = field(default_factory=list)
    """Zombies: others have taken their places."""

    # Where things are

    @property
    def store_url(self) -> str:
        """Of the checkpoints."""
        return str(self.folder / "checkpoints") if self.s3 is None else f"{self.s3.url}/checkpoints"

    @property
    def ledger(self) -> Path:
        """The capture ledger's folder."""
        return self.folder / "ledger"

    @property
    def counter_log(self) -> Path:
        """What the counter did."""
        return self.folder / "counter.log"

    def open_store(self) -> Any:
        """The store, as the controller opens it."""
        return open_store(self.store_url, "write", storage_options=self.s3.options() if self.s3 else None)

    # Servers

    @property
    def roles(self) -> tuple[str, ...]:
        """Of all servers."""
        return (*ROLES, JUDGE) if self.judge else ROLES

    def specs(self, urls: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """What each server is started from."""
        counter = {"log": str(self.counter_log), "hold": str(self._tool_hold), **self.counter}
        endpoint = {"base_url": self.backend.base_url, "model": self.backend.model, **self.model}
        resources = {RESOURCES: urls[RESOURCES]}
        agent = {"server": self.agent_server, "options": self.agent, "dialect": "chat"}
        own: dict[str, dict[str, Any]] = {
            "environment.main": {
                "peers": {"agent.main": urls["agent.main"], **resources},
                "options": self.environment,
            },
            "agent.main": {"peers": {"model.main": urls["model.main"], **resources}, **agent},
            "model.main": {"model": endpoint, "capture": str(self.ledger) if self.capture else None},
            RESOURCES: {"server": self.resources, "options": counter, "peers": {"model.main": urls["model.main"]}},
        }
        if self.judge:
            own[JUDGE] = {"model": {**endpoint, "base_url": self.judge.base_url}}
            own[RESOURCES]["peers"][JUDGE] = urls[JUDGE]
        return {role: {"store": self.store_url, "token_env": TOKEN_ENV, **spec} for role, spec in own.items()}

    async def start(self, workers: Workers | None = None) -> None:
        """Start fresh servers, all at once, at new addresses; return when all are ready."""
        workers = workers or self.plan[min(self.starts, len(self.plan) - 1)]
        folder = self.folder / f"servers-{self.starts}"
        folder.mkdir()
        self.starts += 1
        environment = {TOKEN_ENV: self.token, **(_s3_environment(self.s3) if self.s3 else {})}
        self.servers = {role: self._server(role, folder, environment) for role in self.roles}
        specs = self.specs({role: server.url for role, server in self.servers.items()})
        for role, server in self.servers.items():
            server.spec = {**specs[role], "workers": workers.of(role)}
            server.begin()
        await self._ready(*self.roles)

    def _server(self, role: str, folder: Path, environment: Mapping[str, str]) -> Server:
        """One that is not started yet."""
        return Server(role, {}, folder, environment, forked=not self.script)

    async def _ready(self, *roles: str) -> None:
        for role in roles:
            await anyio.to_thread.run_sync(self.servers[role].await_ready)

    async def kill(self, *roles: str) -> None:
        """SIGKILL the process groups of these servers, of all without any."""
        for role in roles or self.roles:
            await anyio.to_thread.run_sync(self.servers[role].kill)

    async def restart(self, *roles: str) -> None:
        """Kill these servers and start them again at their addresses, empty."""
        await self.kill(*roles)
        for role in roles or self.roles:
            self.servers[role].begin()
        await self._ready(*(roles or self.roles))

    async def supplant(self, *roles: str) -> dict[str, Server]:
        """Start fresh servers in place of these, at new addresses; give the old ones, which are left as they are."""
        folder = self.folder / f"servers-{self.starts}"
        folder.mkdir()
        self.starts += 1
        old = {role: self.servers[role] for role in roles}
        self.left_behind += old.values()
        self.servers |= {role: self._server(role, folder, old[role].environment) for role in roles}
        specs = self.specs({role: server.url for role, server in self.servers.items()})
        for role in roles:
            self.servers[role].spec = {**specs[role], "workers": old[role].spec["workers"]}
            self.servers[role].begin()
        await self._ready(*roles)
        return old

    async def crash(self) -> None:
        """SIGKILL every server; return when the backend has seen them go, so that its calls are final."""
        await self.kill()
        if self.backend.process.poll() is None:
            await self.wait(live_at_most=0)

    # The controller

    def http(self) -> httpx.AsyncClient:
        """A client with the control token."""
        return http_client(self.token)

    @asynccontextmanager
    async def controller(self, *, restore: bool = True, adopts: bool = False) -> AsyncIterator[Controller]:
        """Claim, discover, adopt, restore the head; leaving it is the controller's crash, and no server's.

        With `adopts` the whole lives that go on at the servers go on, and the head is restored for the others alone.
        """
        async with bare_errors(), AsyncExitStack() as stack:
            store: Store = await stack.enter_async_context(self.open_store())
            claimed = await stack.enter_async_context(claim(store, take_over=True))
            http = await stack.enter_async_context(self.http())
            fleet = await discover([HttpLink(server.url, http) for server in self.servers.values()], store.run_id)
            fleet, answers = await adopt(fleet, claimed.epoch, Floor() if adopts else None)
            group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(group.cancel_scope.cancel)
            controller = Controller(store, claimed, fleet, self.output, http, group)
            for member in fleet.of_kind("environment"):
                group.start_soon(controller.read_results, member)
            if adopts:
                await controller.take_on(standing(fleet, answers))
            elif restore:
                await controller.restore_head()
            yield controller

    @asynccontextmanager
    async def epoch(self, workers: Workers | None = None, *, restore: bool = True) -> AsyncIterator[Controller]:
        """Fresh servers and a controller; leaving it kills all of them."""
        await self.start(workers)
        try:
            async with self.controller(restore=restore) as controller:
                yield controller
        finally:
            with anyio.CancelScope(shield=True):
                await self.crash()

    def end(self) -> None:
        """Kill what is left."""
        for server in (*self.servers.values(), *self.left_behind):
            server.kill()

    # The backend

    def hold(self, task: Task, call: int, after_tokens: int = 0) -> int:
        """Hold a task's k-th model call, and later ones, at the backend after so many tokens."""
        return self.backend.control.hold(after_tokens=after_tokens, substring=task.prompt_of(call))

    def release(self, hold: int | None = None) -> None:
        """End a hold, or all of them."""
        self.backend.control.release(hold)

    async def wait(self, **order: float) -> None:
        """Until the backend's calls are so: held=1, live_at_most=0 and so on."""
        await anyio.to_thread.run_sync(lambda: self.backend.control.wait(**order))

    async def held(self, count: int) -> None:
        """Until so many model calls are held."""
        await self.wait(held=count)

    # The counter

    @property
    def _tool_hold(self) -> Path:
        return self.folder / "hold"

    def hold_tools(self, *names: str) -> None:
        """Hold tool calls (`tool 1001`, `tool get`) and verifications (`verify`) once they are logged, or all."""
        self._tool_hold.write_text("\n".join(names))

    def let_tools_go(self) -> None:
        """Hold none any more."""
        self._tool_hold.unlink(missing_ok=True)

    async def logged(self, count: int, kind: str = "tool") -> None:
        """Until the counter has so many tool calls, or verifications, in its log."""
        await anyio.to_thread.run_sync(until, lambda: self._lines().count(kind) >= count)

    def _lines(self) -> list[str]:
        lines = self.counter_log.read_text().splitlines() if self.counter_log.exists() else []
        return [json.loads(line)["kind"] for line in lines]

    # The witnesses

    async def lineage(self, life: Life) -> list[Life]:
        """The life of each row of the ledger of a rollout that ended as this life. Asserts that all is sound."""
        ledger = Ledger(str(self.ledger))
        key = life.rollout_id + (f"-a{life.attempt}" if life.attempt else "")
        manifest = await ledger.manifest(key)
        rows = [row.to_json() for row in await ledger.rows(key)]
        lives = [*manifest.origins, manifest.life]
        problems = check(rows, lives=lives, count=manifest.rows, last=manifest.last)
        assert not problems, problems
        assert manifest.life == str(life), f"{key} ends as {manifest.life}, not {life}"
        return [Life.parse(row["life"]) for row in rows]

    def seen(self) -> Seen:
        """What happened so far, from both witnesses."""
        return seen_by(self.backend.control.calls(), self.counter_log)


def _s3_environment(server: S3Server) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
