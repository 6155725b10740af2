"""A run of a server's cases in a process that stops all of them at one boundary, checkpoints, and dies by SIGKILL.

    python -m tests.support.sweep '<order as JSON>'

The same order with another `stop` continues from the checkpoint. Every model call, tool call and verification is
appended to the log before it is made, and so survives the kill.
"""

import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import orjson

from orchestrator import Fleet, LocalLink, RoundLimits, adopt, checkpoint, discover, restore, resume
from participants import (
    Case,
    ControlPlane,
    EnvironmentServer,
    Final,
    LocalPeer,
    ModelServer,
    Next,
    Reply,
    ResourcesServer,
    ResourcesSession,
    Result,
    StepContext,
)
from participants.gymnasium_agent import GymnasiumAgent
from participants.serving.loading import find_class, make_resources
from participants.simple_agent import SimpleAgent
from store import Controller, Life, Store, claim, open_checkpoint, open_store
from tests.support.journal import Journal
from tests.support.scripted import ScriptedUpstream, task_of, turn_of

VERIFY, DONE = "verify", "done"
"""Stops past the agent: each rollout is inside its verification; each has a result that nobody has acknowledged."""
AGENTS: Mapping[str, type[SimpleAgent]] = {"simple": SimpleAgent, "gymnasium": GymnasiumAgent}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a child is told."""

    server: str
    """`module:Class`."""
    store: str
    log: str
    stop: int | str | None
    """The boundary of the activation at which everybody stands when it is saved; VERIFY, DONE; None to finish."""
    agent: str = "simple"
    count: int = 50
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the class, beside those that it says itself."""


class Log:
    """Appended to, a line an event."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def note(self, *what: object) -> None:
        os.write(self._file, " ".join(map(str, what)).encode() + b"\n")


class Stops:
    """Who stands where it is told to."""

    def __init__(self, at: int | str | None) -> None:
        self.at = at
        self.standing: set[str] = set()
        self.changed = anyio.Event()

    async def stand(self, life: Life | None) -> None:
        """For good."""
        assert life is not None
        self.arrived(life)
        await anyio.sleep_forever()

    def arrived(self, life: Life) -> None:
        self.standing.add(life.rollout_id)
        self.changed.set()
        self.changed = anyio.Event()

    async def all_of(self, count: int) -> None:
        while len(self.standing) < count:
            await self.changed.wait()


class LoggedUpstream(ScriptedUpstream):
    """Writes its calls down."""

    def __init__(self, log: Log) -> None:
        super().__init__(Journal())
        self._log = log

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        self._log.note("model", task_of(body)[0], turn_of(body))
        return await super().complete(route, body, life)


def stopping(agent: type[SimpleAgent], stops: Stops) -> type[SimpleAgent]:
    """The agent, which stands still at a boundary, before anything of its next step."""

    class Stopping(agent):  # type: ignore[misc, valid-type]
        async def step(self, context: StepContext, state: Any) -> Next | Final:
            activation = context._held.state.activation
            assert activation is not None
            if activation.boundary == stops.at:
                await stops.stand(context.life)
            return await super().step(context, state)  # type: ignore[no-any-return]

    return Stopping


def logged(server: type[ResourcesServer], log: Log, stops: Stops) -> type[ResourcesServer]:
    """The server, which writes down what it does, and stands still in its verifications if told to."""

    class Logged(server):  # type: ignore[misc, valid-type]
        async def call_tool(self, session: ResourcesSession, name: str, arguments: Any) -> Any:
            log.note("tool", session.life and session.life.rollout_id, name, session.revision)
            return await super().call_tool(session, name, arguments)

        async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> Mapping[str, Any]:
            log.note("verify", session.life and session.life.rollout_id)
            if stops.at == VERIFY:
                await stops.stand(session.life)
            return await super().verify(session, row)  # type: ignore[no-any-return]

    return Logged


def cases_of(server: type[ResourcesServer], count: int) -> Sequence[Case]:
    """The first so many, and as many more as the last one's cohort needs."""
    cases = server.conformance().cases
    last = cases[count - 1].cohort
    while last and count < len(cases) and cases[count].cohort == last:
        count += 1
    return cases[:count]


def row_of(number: int, case: Case, tools: Sequence[Mapping[str, Any]], agent: str) -> dict[str, Any]:
    """A row whose model says what the case says."""
    name = name_of(number)
    if agent == "gymnasium":
        turns: list[Any] = [f"<action>{call.name}</action>" for call in case.calls if call.name in ("hit", "stand")]
        tools = ()
    else:
        turns = [["raw", call.name, orjson.dumps(dict(call.arguments)).decode()] for call in case.calls]
        turns.append(case.said)
    content = f"{name} {orjson.dumps(turns).decode()}"
    parameters = {"input": [{"role": "user", "content": content}], "tools": list(tools), "model": "scripted"}
    return {**case.row, "responses_create_params": {**case.row.get("responses_create_params", {}), **parameters}}


def name_of(number: int) -> str:
    """Of a case's rollout."""
    return f"case{number}x"


class Run:
    """One life of the whole run."""

    def __init__(self, order: Order) -> None:
        self._order = order
        found = find_class("resources.main", order.server, ResourcesServer)
        self._log, self._stops = Log(order.log), Stops(order.stop)
        self._class = logged(found, self._log, self._stops)
        self._cases = cases_of(found, order.count)
        self.results: dict[str, Result] = {}

    @asynccontextmanager
    async def _world(self, store: Store) -> AsyncIterator[tuple[EnvironmentServer, Fleet, ResourcesServer]]:
        said = self._class.conformance()
        options = {**said.options, **self._order.options}
        server = make_resources("resources.main", self._order.server, self._class, options, "main", said.peers)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(server.aclose)
            model = ModelServer(LoggedUpstream(self._log))
            resources = {server.role: LocalPeer(server)}
            agent = stopping(AGENTS[self._order.agent], self._stops)(LocalPeer(model), resources)
            environment = await stack.enter_async_context(EnvironmentServer(LocalPeer(agent), resources).run())
            holders: list[Any] = [environment, model, agent, server]
            planes = [await stack.enter_async_context(ControlPlane(holder, store).run()) for holder in holders]
            yield environment, await discover([LocalLink(plane) for plane in planes], store.run_id), server

    async def live(self) -> None:
        """From the head, if there is one, to the stop; then save, and die."""
        async with (
            open_store(self._order.store, "write") as store,
            claim(store) as controller,
            self._world(store) as (environment, fleet, server),
            anyio.create_task_group() as group,
        ):
            fleet, _ = await adopt(fleet, controller.epoch)
            scope = await self._restored(store, controller, fleet)
            rows = [row_of(n, case, server.tool_schemas(), self._order.agent) for n, case in enumerate(self._cases)]
            lives = [Life(name_of(n), controller.epoch, scope.get(name_of(n), -1) + 1, n) for n in range(len(rows))]
            group.start_soon(self._read, environment)
            for life, row in zip(lives, rows, strict=True):
                await environment.dispatch(life, row)
            await self._stops.all_of(len(lives))
            if self._order.stop is not None:
                async with checkpoint(fleet, controller, RoundLimits()) as standing:
                    standing.take(scope=lives)
                os.kill(os.getpid(), signal.SIGKILL)
            group.cancel_scope.cancel()

    async def _restored(self, store: Store, controller: Controller, fleet: Fleet) -> dict[str, int]:
        """The attempt of each rollout in the head."""
        if controller.head is None:
            return {}
        scope = (await open_checkpoint(store, controller.head)).manifest.scope
        round_ = controller.next_round()
        await restore(fleet, round_, controller.head, scope, timeout_s=60)
        await resume(fleet, round_)
        return {life.rollout_id: life.attempt for life in scope}

    async def _read(self, environment: EnvironmentServer) -> None:
        """Whoever has come to its end stands as well."""
        async for result in environment.results():
            self.results[result.life.rollout_id] = result
            self._stops.arrived(result.life)


def main(text: str) -> None:
    """Print what became of each rollout, where nothing stopped them."""
    run = Run(Order(**orjson.loads(text)))
    anyio.run(run.live)
    found = {name: {"row": result.row, "failure": result.failure} for name, result in run.results.items()}
    sys.stdout.buffer.write(orjson.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
