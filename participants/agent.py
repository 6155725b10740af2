"""Agents: sessions that advance from boundary to boundary, and the SDK to write one whose continuation is exact.

An author subclasses `Agent` and writes `start` (the state from the input) and `step` (the next state from the last).
A step makes at most one call, of the model or of a tool; after it comes a boundary. The state is JSON and immutable: a
step returns a new one. So a continuation is the next step from the state of the boundary, and nothing else.

A model call is a `replay` step: repeated under the same call id it gives the kept or held reply, or is generated again.
A tool call is a `wait` step, and lasts until its boundary is made. A peer that is closed for a checkpoint is a signal
to park and try again, never an error that the model sees.

An agent that cannot say its state overrides `run_activation` and declares nothing: it is restart-only.
"""

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from store import Life

from .data import CallId, Peer, Reply, Request
from .episode import RUN_STEPS, Episode, EpisodeRunner, export_episode, import_episode
from .errors import Code, ParticipantError
from .gate import Gate
from .holder import Held, Holder
from .wire import Modes

RETRY_CLOSED_S = 0.05


@dataclass(frozen=True, slots=True)
class Next:
    """A boundary: go on from this state."""

    state: Any


@dataclass(frozen=True, slots=True)
class Final:
    """The end of an activation, with its Responses object."""

    response: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Activation:
    """One activation of a session, as of its last boundary. Immutable: each boundary makes a new one."""

    state: Any
    boundary: int = 0
    active_s: float = 0.0
    """Time spent so far, without what was parked or lost in a crash."""


@dataclass(slots=True)
class Session:
    """What an agent holds of one life."""

    session_id: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    """From the opening call: tool accesses, the resources session, limits."""
    activation: Activation | None = None
    episode: Episode | None = None
    """Of its own `/run`."""
    running: bool = False
    finished: anyio.Event = field(default_factory=anyio.Event)


class Agent(Holder[Session]):
    """Base of all agents; kind `agent`."""

    kind = "agent"
    modes = Modes(checkpoint_mode="exported")

    def __init__(
        self,
        model: Peer,
        resources: Mapping[str, Peer],
        *,
        name: str = "main",
        max_wall_s: float = 0.0,
        gate: Gate | None = None,
    ) -> None:
        """`resources` maps a role to the peer that serves its tools; `max_wall_s` of active time, 0 for no limit."""
        super().__init__(name, gate=gate)
        self.model = model
        self.resources = dict(resources)
        self.max_wall_s = max_wall_s

    @abstractmethod
    async def start(self, held: Held[Session], body: Mapping[str, Any]) -> Any:
        """The first state of an activation, from its request body. Makes no call."""

    @abstractmethod
    async def step(self, context: "StepContext", state: Any) -> Next | Final:
        """The next boundary, or the end. At most one call through the context."""

    async def handle(self, request: Request) -> Reply:
        """Serve one data call."""
        life = _need_life(request)
        match request.route:
            case "/v1/agent_sessions":
                held = await self.enter(life, creates=True)
                return await self._waited(held, request, self._open)
            case "/v1/agent_sessions/close":
                held = await self.enter(life)
                return await self._waited(held, request, self._close)
            case "/v1/responses":
                held = await self.enter(life)
                return await self.once(held, request, lambda: self._activate(held, request))
            case "/run":
                held = await self.enter(life, creates=True)
                return await self._run(held, request)
        raise ParticipantError(Code.INVALID_REQUEST, f"{self.role} has no route {request.route}")

    async def _waited(self, held: Held[Session], request: Request, run: Any) -> Reply:
        """A call that opens, closes or steps a session: the caller waits for it across a prepare."""

        async def counted() -> Reply:
            with self.working(held):
                reply: Reply = run(held, request)
            if request.route == "/v1/agent_sessions/close":
                held.waited.clear()  # Nothing is between this life and anybody any more.
            elif request.call is not None:
                held.count_wait(request.call.caller, _session_id(request))
            return reply

        return await self.once(held, request, counted)

    def _open(self, held: Held[Session], request: Request) -> Reply:
        session_id = _session_id(request)
        if held.state.session_id not in ("", session_id):
            raise ParticipantError(Code.INVALID_REQUEST, f"{held.life} has session {held.state.session_id} open")
        held.state.session_id = session_id
        held.state.config = dict(request.body)
        return Reply(200, {"agent_session_id": session_id})

    def _close(self, held: Held[Session], request: Request) -> Reply:
        held.state.activation = None
        return Reply(200, {"agent_session_id": _session_id(request), "agent_observations": []})

    async def _activate(self, held: Held[Session], request: Request) -> Reply:
        if not held.state.session_id:
            raise ParticipantError(Code.LOST_SESSION, f"{self.role} has no session of {held.life}")
        with self.working(held):
            return Reply(200, await self.run_activation(held, request.body))

    async def _run(self, held: Held[Session], request: Request) -> Reply:
        """`POST /run` with a flat row: the agent owns the whole episode. A duplicate joins it or gets its result."""
        session = held.state
        if session.episode is None:
            session.session_id = f"agent-{held.life.rollout_id}"
            session.episode = Episode(row=dict(request.body))
        if not session.running:
            session.running = True
            session.finished = anyio.Event()
            try:
                await self._run_episode(held, session.episode)
            finally:
                session.running = False
                session.finished.set()
        while session.episode.step != "done":
            await session.finished.wait()
            if session.episode.step != "done" and not session.running:
                return await self._run(held, request)  # Whoever ran it has left: go on with it.
        await self.gate.wait_open()  # No result leaves while prepared.
        if session.episode.failure is not None:
            raise ParticipantError(Code.STEP_FAILED, str(session.episode.failure["message"]), session.episode.failure)
        return Reply(200, session.episode.result)

    async def _run_episode(self, held: Held[Session], episode: Episode) -> None:
        def save(boundary: Episode) -> None:
            held.state.episode = boundary

        own = _OwnActivation(self, held)
        runner = EpisodeRunner(self.role, self.gate, own, self.resources, RUN_STEPS, parent="run")
        with self.working(held):
            held.state.config = {"resources": runner.access_of(episode, held.life)}
            await runner.run(held, episode, save)

    async def run_activation(self, held: Held[Session], body: Mapping[str, Any]) -> dict[str, Any]:
        """Run an activation from its last boundary, or from the start, to its end."""
        if held.state.activation is None:
            held.state.activation = Activation(await self.start(held, body))
        while True:
            await self.gate.wait_open()
            outcome = await self._one_step(held, held.state.activation)
            if isinstance(outcome, Final):
                return outcome.response
            held.state.activation = outcome

    async def _one_step(self, held: Held[Session], activation: Activation) -> "Activation | Final":
        began = self.gate.active_time()
        async with AsyncExitStack() as steps:
            context = StepContext(self, held, activation, steps, self._time_left(activation))
            outcome = await self.step(context, activation.state)
            spent = activation.active_s + self.gate.active_time() - began
            if isinstance(outcome, Final):
                return outcome
            following = replace(activation, state=outcome.state, boundary=activation.boundary + 1, active_s=spent)
            held.state.activation = following  # Before the step ends, so that a prepare finds the boundary.
            return following

    def _time_left(self, activation: Activation) -> float | None:
        return max(0.0, self.max_wall_s - activation.active_s) if self.max_wall_s else None

    # State

    def new_state(self, life: Life) -> Session:
        """No session yet."""
        return Session()

    def export_state(self, held: Held[Session]) -> Any:
        """The session at its last boundary."""
        session, activation = held.state, held.state.activation
        return {
            "session_id": session.session_id,
            "config": session.config,
            "episode": export_episode(session.episode),
            "activation": activation
            and {"state": activation.state, "boundary": activation.boundary, "active_s": activation.active_s},
        }

    def import_state(self, payload: Any) -> Session:
        """The session again."""
        activation = payload["activation"]
        return Session(
            payload["session_id"],
            payload["config"],
            activation and Activation(activation["state"], activation["boundary"], activation["active_s"]),
            import_episode(payload["episode"]),
        )


class StepContext:
    """What a step may do: one call, of the model or of a tool."""

    def __init__(
        self,
        agent: Agent,
        held: Held[Session],
        activation: Activation,
        steps: AsyncExitStack,
        time_left_s: float | None,
    ) -> None:
        """Made by the agent for each step."""
        self._agent = agent
        self._held = held
        self._activation = activation
        self._steps = steps
        self._calls = 0
        self.time_left_s = time_left_s
        """Active time left of the limit at the beginning of the step; None without a limit."""

    @property
    def config(self) -> Mapping[str, Any]:
        """What the session was opened with."""
        return self._held.state.config

    @property
    def life(self) -> Life:
        """Whose step it is."""
        return self._held.life

    async def model(self, route: str, body: Mapping[str, Any]) -> Reply:
        """Call the model, `/v1/responses` or `/v1/chat/completions`; a replay step."""
        call = self._next_call()
        await self._steps.enter_async_context(self._agent.gate.step(self.life, "model call", "replay"))
        return await self._send(self._agent.model, route, dict(body), call)

    async def tool(self, name: str, arguments: Mapping[str, Any]) -> Reply:
        """Call a tool of the session's resources server; a wait step that lasts until the boundary is made."""
        call = self._next_call()
        access = self.config.get("resources", {})
        peer = self._agent.resources.get(str(access.get("role")))
        if peer is None:
            raise ParticipantError(Code.INVALID_REQUEST, f"the session has no tools: {access}")
        gate = self._agent.gate
        await self._steps.enter_async_context(
            gate.step(self.life, f"tool:{name}", "wait", reason=f"tool call {name} at {peer.role}")
        )
        session = str(access.get("session_id", ""))
        reply = await self._send(peer, f"/{name}", dict(arguments), call, {"x-resources-session-id": session})
        self._held.count_wait(peer.role, session)
        return reply

    def _next_call(self) -> CallId:
        if self._calls:
            raise ParticipantError(Code.INTERNAL, "a step makes one call at most: return a boundary in between")
        self._calls += 1
        return CallId(self._agent.role, self._activation.boundary, 0)

    async def _send(
        self, peer: Peer, route: str, body: dict[str, Any], call: CallId, headers: Mapping[str, str] | None = None
    ) -> Reply:
        request = Request(route=route, body=body, life=self.life, call=call, headers=headers or {})
        while True:
            try:
                return await peer.call(request)
            except ParticipantError as error:
                if error.code is not Code.ADMISSION_CLOSED:
                    raise
            await self._agent.gate.wait_open()
            await anyio.sleep(RETRY_CLOSED_S)


class _OwnActivation:
    """The agent as the peer of its own `/run`."""

    def __init__(self, agent: Agent, held: Held[Session]) -> None:
        self.role = agent.role
        self._agent = agent
        self._held = held

    async def call(self, request: Request) -> Reply:
        return Reply(200, await self._agent.run_activation(self._held, request.body))


def _need_life(request: Request) -> Life:
    if request.life is None:
        raise ParticipantError(Code.INVALID_REQUEST, f"{request.route} needs a life: send x-midflight-life")
    return request.life


def _session_id(request: Request) -> str:
    session_id = request.body.get("agent_session_id") if isinstance(request.body, dict) else None
    if not isinstance(session_id, str) or not session_id:
        raise ParticipantError(Code.INVALID_REQUEST, "the body has no agent_session_id")
    return session_id
