"""The SDK for agents: boundaries, one call a step, sessions and activations, and what a restart-only agent is."""

from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from participants import Agent, Code, EnvironmentServer, Final, LocalPeer, Next, ParticipantError, Reply, Request
from participants.data import CallId
from participants.servers import CounterServer
from store import Life
from tests.support.owners import Pause, settle

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LIFE = Life("r0", 1, 0, 0)


class Model:
    """Answers with the number of the call; refuses and holds as told."""

    role = "model.main"

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.closed = 0
        self.pause: Pause | None = None

    async def call(self, request: Request) -> Reply:
        self.asked.append(request)
        if self.closed:
            self.closed -= 1
            raise ParticipantError(Code.ADMISSION_CLOSED, "closed")
        if self.pause is not None:
            await self.pause()
        return Reply(200, {"number": len(self.asked)})


class Twice(Agent):
    """Asks the model twice, then says what it heard."""

    async def start(self, held: Any, body: Mapping[str, Any]) -> Any:
        return {"heard": [], **body}

    async def step(self, context: Any, state: Any) -> Next | Final:
        if len(state["heard"]) == 2:
            return Final({"heard": state["heard"], "input": state["input"]})
        reply = await context.model("/v1/responses", {})
        return Next({**state, "heard": [*state["heard"], reply.body["number"]]})


class Greedy(Twice):
    """Makes two calls in one step."""

    async def step(self, context: Any, state: Any) -> Next | Final:
        await context.model("/v1/responses", {})
        await context.tool("increment_counter", {})
        return Final({})


class Session:
    """One open session of an agent."""

    def __init__(self, kind: type[Agent] = Twice) -> None:
        self.model, self.counter = Model(), CounterServer()
        self.agent = kind(self.model, {self.counter.role: LocalPeer(self.counter)})
        self.boundary = 0

    async def call(self, route: str, body: Any, *, repeat: bool = False) -> Any:
        """One call of the environment server."""
        self.boundary += not repeat
        call = CallId("environment.main", self.boundary, 0)
        return (await self.agent.handle(Request(route=route, body=body, life=LIFE, call=call))).body

    async def open(self) -> None:
        await self.call("/v1/agent_sessions", {"agent_session_id": "s"})


async def test_a_second_activation_begins_anew_and_a_repeat_gets_the_same_reply() -> None:
    """The calls of the second have ids of their own, so that nothing kept of the first answers them."""
    one = Session()
    await one.open()
    assert await one.call("/v1/responses", {"input": "a"}) == {"heard": [1, 2], "input": "a"}
    assert await one.call("/v1/responses", {"input": "a"}, repeat=True) == {"heard": [1, 2], "input": "a"}
    assert await one.call("/v1/responses", {"input": "b"}) == {"heard": [3, 4], "input": "b"}
    ids = [str(request.call) for request in one.model.asked]
    assert (len(set(ids)), len(ids)) == (4, 4)


async def test_a_second_call_in_a_step_is_refused_by_name() -> None:
    """The first is made, the second is not, and the error names both."""
    one = Session(Greedy)
    await one.open()
    with pytest.raises(ParticipantError, match="/v1/responses and then tool increment_counter"):
        await one.call("/v1/responses", {"input": "a"})
    assert len(one.model.asked) == 1


async def test_a_paused_model_is_asked_again_and_no_error() -> None:
    """The same call id each time; the state knows nothing of it."""
    one = Session()
    await one.open()
    one.model.closed = 2
    reply = await one.call("/v1/responses", {"input": "a"})
    assert reply["heard"] == [3, 4]
    assert len({str(request.call) for request in one.model.asked[:3]}) == 1


async def test_closing_ends_the_activation_that_runs() -> None:
    """Its caller is told, its model call is cancelled, and another one may be opened."""
    one = Session()
    await one.open()
    one.model.pause = Pause()
    told: list[Code] = []

    async def activate() -> None:
        with pytest.raises(ParticipantError) as caught:
            await one.call("/v1/responses", {"input": "a"})
        told.append(caught.value.code)

    async with anyio.create_task_group() as group:
        group.start_soon(activate)
        await one.model.pause.reached.wait()
        assert (await one.call("/v1/agent_sessions/close", {"agent_session_id": "s"}))["agent_session_id"] == "s"
        await settle()
        assert told == [Code.STALE_CALL]


async def test_two_activations_of_a_session_run_one_after_the_other() -> None:
    """The second waits for the first; neither uses the other's state."""
    one = Session()
    await one.open()
    pause = one.model.pause = Pause()
    replies: list[Any] = []

    async def activate(text: str, boundary: int) -> None:
        call = CallId("environment.main", 2, boundary)
        request = Request(route="/v1/responses", body={"input": text}, life=LIFE, call=call)
        replies.append((await one.agent.handle(request)).body)

    async with anyio.create_task_group() as group:
        group.start_soon(activate, "a", 0)
        await pause.reached.wait()
        group.start_soon(activate, "b", 1)
        await settle()
        assert len(one.model.asked) == 1
        pause.released.set()
    assert replies == [{"heard": [1, 2], "input": "a"}, {"heard": [3, 4], "input": "b"}]


@pytest.mark.parametrize(
    ("route", "body", "code"),
    [
        ("/v1/responses", {"input": "a"}, Code.LOST_SESSION),
        ("/v1/agent_sessions", {}, Code.INVALID_REQUEST),
        ("/v1/agent_sessions", {"agent_session_id": "other"}, Code.INVALID_REQUEST),
        ("/nowhere", {}, Code.INVALID_REQUEST),
        ("/run", [], Code.INVALID_REQUEST),
    ],
)
async def test_what_has_no_session_or_no_sense_is_refused(route: str, body: Any, code: Code) -> None:
    """An activation without a session, a session without a name or beside another one, an unknown route."""
    one = Session()
    if route == "/v1/agent_sessions":
        await one.open()
    else:
        await one.agent.enter(LIFE, creates=True)
    with pytest.raises(ParticipantError) as caught:
        await one.call(route, body)
    assert caught.value.code is code


async def test_overriding_run_activation_makes_an_agent_restart_only() -> None:
    """Unless it declares something itself; one that overrides `step` stays exported."""

    class Own(Agent):
        async def run_activation(self, held: Any, body: Any) -> dict[str, Any]:
            return {}

    class Declared(Own):
        modes = Agent.modes

        async def run_activation(self, held: Any, body: Any) -> dict[str, Any]:
            return {}

    modes = [kind.modes.checkpoint_mode for kind in (Own, Declared, Twice)]
    assert modes == ["restart", "exported", "exported"]


class Odd(Twice):
    """Its first state, its step or its response are what a test says."""

    first: Any = None
    outcome: Any = Final({})

    async def start(self, held: Any, body: Mapping[str, Any]) -> Any:
        return self.first or {}

    async def step(self, context: Any, state: Any) -> Any:
        return self.outcome


@pytest.mark.parametrize(("fields", "said"), [
    ({"first": {"seen": {1}}}, r"start gave .*set \{1\} at \['seen'\]"),
    ({"outcome": Next({"seen": (1, 2)})}, r"step gave .*tuple \(1, 2\) at \['seen'\]"),
    ({"outcome": Final({"score": float("nan")})}, r"step gave .*float nan at \['score'\]"),
    ({"outcome": {"text": "done"}}, "must return Next or Final, not a dict"),
    ({"outcome": None}, "must return Next or Final, not a NoneType"),
    ({"outcome": Final("done")}, "must be a dict, not a str"),  # type: ignore[arg-type]
])  # fmt: skip
async def test_what_a_step_may_not_return_is_refused_where_it_returns_it(fields: Any, said: str) -> None:
    """Not at a checkpoint or after a crash; the boundary before it stays."""
    one = Session(type("Odd", (Odd,), fields))
    await one.open()
    with pytest.raises(ParticipantError, match=said) as caught:
        await one.call("/v1/responses", {"input": "a"})
    assert caught.value.code is Code.INTERNAL
    [held] = one.agent.held()
    assert held.state.activation is not None
    assert held.state.activation.boundary == 0


class Speechless(Agent):
    """Restart-only: asks for one tool call in a way of its own."""

    async def run_activation(self, held: Any, body: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"x-midflight-checkpoint-mode": "restart", "x-resources-session-id": f"resources-{LIFE.rollout_id}"}
        call = CallId(self.role, held.state.activation.boundary, 0)
        [counter] = self.resources.values()
        await counter.call(
            Request(route="/increment_counter", body={"count": 1}, life=LIFE, call=call, headers=headers)
        )
        return {"output": []}


class SlowCounter(CounterServer):
    """Every tool call and every verify waits to be let go; a checkpoint would wait for both."""

    checkpoint_verify = "wait"  # type: ignore[assignment]  # The other one of its base.
    pauses = (Pause(), Pause())

    async def call_tool(self, session: Any, name: str, arguments: Any) -> Any:
        await self.pauses[0]()
        return await super().call_tool(session, name, arguments)

    async def verify(self, session: Any, row: dict[str, Any]) -> dict[str, Any]:
        await self.pauses[1]()
        return await super().verify(session, row)


@pytest.mark.parametrize("own", [False, True], ids=["environment", "own /run"])
async def test_nobody_waits_for_a_rollout_whose_agent_says_nothing_of_itself(own: bool) -> None:
    """Neither in its tool call nor in its verify; its session is not exported, and all name it as a restart."""
    counter = SlowCounter()
    counter.pauses = SlowCounter.pauses = (Pause(), Pause())
    peers = {counter.role: LocalPeer(counter)}
    agent = Speechless(Model(), peers)
    row = {"responses_create_params": {}, "initial_count": 1, "expected_count": 2}
    async with EnvironmentServer(LocalPeer(agent), peers).run() as environment, anyio.create_task_group() as group:
        owner = agent if own else environment
        group.start_soon(owner.handle, Request(route="/run", body=row, life=LIFE))
        for pause in counter.pauses:
            await pause.reached.wait()
            assert [holder.gate.in_flight(1)[1] for holder in (environment, agent, counter)] == [0, 0, 0]
            await counter.freeze()
            assert list(owner.restarts()) == list(counter.restarts()) == [LIFE]
            assert all(session.exported is None for session in counter.held()[0].state.open.values())
            pause.released.set()
