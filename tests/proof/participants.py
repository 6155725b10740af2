"""Simulated participant processes: the real holders, gates and control planes, served over the simulated network."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import anyio
import orjson
from pydantic import ValidationError

from participants import (
    CONTROL_PREFIX,
    OPERATIONS,
    Code,
    ControlPlane,
    EnvironmentServer,
    Gate,
    HttpPeer,
    ModelServer,
    ParticipantError,
    Peer,
    Reply,
    Request,
    ResourcesSession,
    SimpleAgent,
    worker_of,
)
from participants.data import CALL_HEADER, LIFE_HEADER
from participants.data_http import answered, ends_with_client, identified, passed_on
from participants.routing import routing_key
from participants.servers import CounterServer
from participants.wire import RESULTS, Results
from store import Store, StoreError
from store.backends.retry import Retrying
from store.root import load_format

from .loop import elapse
from .machine import CALL, Process
from .model import SimUpstream
from .network import Connection, Inbox, Network, SimClient
from .scenario import LIMITS, Scenario
from .stores import SimBackend, Space
from .weather import Skies

ROLES = ("environment.main", "agent.main", "model.main", "resources.counter")
COUNTER = "resources.counter"
REOPEN_S = 1.0


@dataclass(frozen=True)
class Grounds:
    """What every process of a simulation is given."""

    scenario: Scenario
    network: Network
    skies: Skies
    space: Space
    output: Space


def addresses_of(scenario: Scenario, role: str) -> tuple[str, ...]:
    """Of each worker of a role."""
    return tuple(f"http://{role}-{k}" for k in range(scenario.workers[role]))


class Routed:
    """A server as its callers see it: each call goes to the worker that owns it."""

    def __init__(self, role: str, addresses: Sequence[str], client: Any) -> None:
        self.role = role
        self._workers = [HttpPeer(address, role, client) for address in addresses]

    async def call(self, request: Request) -> Reply:
        key = routing_key(request, self.role) or ""
        return await self._workers[worker_of(key, len(self._workers))].call(request)


class NotedGate(Gate):
    """Tells the history when admission closes and reopens."""

    def __init__(self, process: Process, max_parked: int) -> None:
        super().__init__(clock=process.clock, max_parked=max_parked)
        self._process = process

    def close(self) -> None:
        self._process.note("gate", closed=True)
        super().close()

    def reopen(self) -> None:
        if self.closed:
            self._process.note("gate", closed=False)
        super().reopen()


class SimCounter(CounterServer):
    """The counter that ships; what it does takes time, and is noted in the moment in which it is done."""

    def __init__(self, process: Process, scenario: Scenario, gate: Gate) -> None:
        super().__init__("counter", gate=gate)
        self._process, self._scenario = process, scenario

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> None:
        await self._take_time("seed")
        await super().seed(session, row)
        self._did("seed", session)

    async def call_tool(self, session: ResourcesSession, name: str, arguments: Any) -> Any:
        await self._take_time("tool")
        given = await super().call_tool(session, name, arguments)
        self._did(name, session)
        return given

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        await self._take_time("verify")
        given = await super().verify(session, row)
        self._did("verify", session)
        return given

    async def _take_time(self, what: str) -> None:
        await elapse(self._scenario.work_s(self._process.site.chance, what))

    def _did(self, effect: str, session: ResourcesSession) -> None:
        request: Request | None = CALL.get()
        call = str(request.call) if request and request.call else ""
        count = session.state.get("count")
        self._process.note("did", role=COUNTER, effect=effect, life=str(session.life), call=call, count=count)


class WaitingCounter(SimCounter):
    """A checkpoint waits for its verify."""

    checkpoint_verify: ClassVar[Any] = "wait"


class RestartCounter(SimCounter):
    """Says nothing of its sessions."""

    checkpoint_mode: ClassVar[Any] = "restart"


COUNTERS: Mapping[str, type[SimCounter]] = {"replay": SimCounter, "wait": WaitingCounter, "restart": RestartCounter}


class Server:
    """One participant process, from its start on."""

    def __init__(self, grounds: Grounds, role: str, worker: int) -> None:
        self._grounds = grounds
        self._role = role
        self._worker = worker

    async def __call__(self, process: Process) -> str:
        """Serve until the process is gone."""
        grounds, scenario = self._grounds, self._grounds.scenario
        store = await open_store(grounds, process)
        async with AsyncExitStack() as stack:
            holder = self._make(process)
            holder.needs_adoption = True
            if isinstance(holder, EnvironmentServer | SimpleAgent):
                await stack.enter_async_context(holder.run())
            urls = addresses_of(scenario, self._role)
            plane = ControlPlane(
                holder, store, process=f"w{self._worker}", worker=self._worker, workers=len(urls), urls=urls,
                clock=process.clock,
            )  # fmt: skip
            await stack.enter_async_context(plane.run())
            group = await stack.enter_async_context(anyio.create_task_group())
            inbox = process.inbox = Inbox()
            process.site.listening[process.address] = process
            process.holder, process.plane = holder, plane
            serving = Serving(process, holder, plane, grounds.network)
            while True:
                connection = await inbox.take()
                group.start_soon(serving.serve, connection)

    def _make(self, process: Process) -> Any:
        scenario = self._grounds.scenario
        gate = NotedGate(process, scenario.max_parked)
        client = SimClient(self._grounds.network, process)

        def peer(role: str) -> Peer:
            return Routed(role, addresses_of(scenario, role), client)

        match self._role:
            case "environment.main":
                limit = scenario.max_wall_s
                return EnvironmentServer(peer("agent.main"), {COUNTER: peer(COUNTER)}, max_wall_s=limit, gate=gate)
            case "agent.main":
                return SimpleAgent(peer("model.main"), {COUNTER: peer(COUNTER)}, gate=gate)
            case "model.main":
                return ModelServer(SimUpstream(process, scenario), gate=gate)
        return COUNTERS[scenario.verify](process, scenario, gate)


async def open_store(grounds: Grounds, process: Process) -> Store:
    """As a worker that is started again until it can."""
    backend = Retrying(SimBackend(grounds.space, process, grounds.skies), LIMITS.retry_for_s)
    while True:
        with suppress(StoreError):
            found = await load_format(backend, LIMITS, create=True)
            return Store(backend, found.run_id, LIMITS)
        await elapse(REOPEN_S)


class Serving:
    """The web server of one process."""

    def __init__(self, process: Process, holder: Any, plane: ControlPlane, network: Network) -> None:
        self._process, self._holder, self._plane, self._network = process, holder, plane, network

    async def serve(self, connection: Connection) -> None:
        """One request, to its end."""
        if connection.is_data:
            await self._serve_data(connection)
            return
        operation = connection.path.removeprefix(f"{CONTROL_PREFIX}/").partition("?")[0]
        try:
            if operation == RESULTS:
                await self._stream(connection)
                return
            status, body = 200, (await self._operate(operation, connection)).encode()
        except ParticipantError as error:
            status, body = error.status, orjson.dumps(error.to_body())
        self._network.answer(connection, status, {}, body)

    # Control

    async def _operate(self, operation: str, connection: Connection) -> str:
        if operation == "capabilities":
            return self._plane.capabilities().model_dump_json()
        if operation == "status":
            return self._plane.status(int(connection.path.partition("=")[2])).model_dump_json()
        message = _parsed(OPERATIONS[operation][0], connection.content)
        facts, code = self._facts(operation, message), "ok"
        restoring = self._plane.book.staged if operation == "resume" else None
        try:
            answer: Any = await getattr(self._plane, operation)(message)
            facts |= _of_answer(operation, answer)
            return str(answer.model_dump_json())
        except ParticipantError as error:
            code = error.code.value
            facts["why"] = error.message[:200]
            self._process.site.history.reached[f"code: {code} of {operation}"] += 1
            raise
        except Exception as error:
            code = "defect"
            self._process.site.broken.append(f"{operation} at {self._process.name} raised {error!r}")
            raise ParticipantError(Code.INTERNAL, f"{error!r:.300}") from error
        finally:
            if restoring is not None and code == "ok":
                self._note_settled(restoring)
            self._process.note("control", operation=operation, code=code, ghost=connection.ghost, **facts)

    def _note_settled(self, restoring: Any) -> None:
        wanted = {life.rollout_id for life in restoring.scope}
        lives = sorted(str(life) for life in self._holder.adoption().brought if life.rollout_id in wanted)
        self._process.note("settled", role=self._holder.role, round=str(restoring.round), lives=lives,
                           checkpoint=str(restoring.checkpoint.checkpoint))  # fmt: skip

    def _facts(self, operation: str, message: Any) -> dict[str, Any]:
        book = self._plane.book
        facts: dict[str, Any] = {"role": self._holder.role, "epoch": message.epoch, "phase": book.phase.value}
        for name in ("round", "lease_s", "timeout_s", "floor"):
            if (value := getattr(message, name, None)) is not None:
                facts[name] = str(value) if name == "round" else value if name != "floor" else [value.epoch, value.n]
        for name in ("scope", "left_out", "lives"):
            if (lives := getattr(message, name, None)) is not None:
                facts[name] = [str(life) for life in lives]
        if operation == "submit":
            facts["lives"] = [str(episode.life) for episode in message.episodes]
        if operation == "stage":
            facts["checkpoint"] = str(message.checkpoint.checkpoint)
        return facts

    async def _stream(self, connection: Connection) -> None:
        lines = self._plane.results(_parsed(Results, connection.content))
        self._network.begin(connection, 200, {})
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def watch() -> None:
                    await connection.gone.wait()
                    scope.cancel()

                group.start_soon(watch)
                try:
                    async for line in lines:
                        self._network.push(connection, line.model_dump_json().encode())
                except ParticipantError as error:  # In the middle of an answer: a web server can only break it off.
                    self._process.site.history.reached[f"code: {error.code} of results"] += 1
                    self._network.sever(connection)
                group.cancel_scope.cancel()
        await lines.aclose()
        self._network.finish(connection)

    # Data

    async def _serve_data(self, connection: Connection) -> None:
        headers, holder = connection.headers, self._holder
        life, route, call = headers.get(LIFE_HEADER), connection.path, headers.get(CALL_HEADER)
        identity = {"role": holder.role, "route": route, "life": life, "call": call, "ghost": connection.ghost}

        async def work() -> Reply:
            parsed = identified(holder, route, life, call)
            body = orjson.loads(connection.content)
            request = Request(route=parsed[1], body=body, life=parsed[0], call=parsed[2], headers=passed_on(headers))
            CALL.set(request)
            reply: Reply = await holder.handle(request)
            return reply

        self._process.note("asked", **identity)
        replies: list[Reply] = []
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def watch() -> None:
                    await connection.gone.wait()
                    scope.cancel()

                if ends_with_client(holder):
                    group.start_soon(watch)
                replies.append(await answered(holder, route, work))
                group.cancel_scope.cancel()
        code = replies[0].headers.get("x-midflight-error", "ok") if replies else "gone"
        if code != "ok":
            self._process.site.history.reached[f"code: {code} of {route}"] += 1
        if code == Code.INTERNAL:
            self._process.site.broken.append(f"{route} at {self._process.name}: {replies[0].body}")
        self._process.note("answered", code=code, **identity)
        if replies:
            reply = replies[0]
            about = {**reply.headers, "content-type": "application/json"}
            self._network.answer(connection, reply.status, about, orjson.dumps(reply.body))


def _of_answer(operation: str, answer: Any) -> dict[str, Any]:
    match operation:
        case "prepare":
            return {"prepared": answer.prepared, "restarts": [str(life) for life in answer.restarts]}
        case "retire":
            return {"not_stopped": [str(life) for life in answer.not_stopped]}
        case "submit":
            return {"refused": [str(refused.life) for refused in answer.refused]}
        case "adopt":
            return {"dispatched": [str(life) for life in answer.dispatched]}
    return {}


def _parsed(model: Any, content: bytes) -> Any:
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise ParticipantError(Code.INVALID_REQUEST, str(error)[:200]) from error


def make_process(grounds: Grounds, role: str, worker: int) -> Process:
    """A worker of a role, not yet started."""
    site, scenario = grounds.network.site, grounds.scenario
    skew, rate = (site.chance.uniform(-600, 600), site.chance.uniform(0.99, 1.01)) if scenario.skewed else (0.0, 1.0)
    return Process(site, f"{role}-{worker}", addresses_of(scenario, role)[worker], skew=skew, rate=rate)


def start_process(grounds: Grounds, role: str, worker: int) -> Process:
    """As a supervisor does."""
    process = make_process(grounds, role, worker)
    process.start(Server(grounds, role, worker))
    return process


__all__ = ["COUNTER", "ROLES", "Grounds", "Serving", "addresses_of", "open_store", "start_process"]
