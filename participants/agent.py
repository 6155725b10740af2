"""Agents: sessions that advance from boundary to boundary, and the SDK to write one whose continuation is exact.

An author subclasses `Agent` and writes `start` (the state from the input) and `step` (the next state from the last).
A step makes at most one call, of the model or of a tool; after it comes a boundary. The state is JSON and immutable: a
step returns a new one. So a continuation is the next step from the state of the boundary, and nothing else.

A model call is a `replay` step: repeated under the same call id it gives the kept or held reply, or is generated again.
A tool call is a `wait` step, and lasts until its boundary is made. A peer that is closed for a checkpoint is a signal
to park and try again, never an error that the model sees.

The boundaries of a session are numbered through: those of its activations and, under its own `/run`, those of the
episode around them. An agent that cannot say its state overrides `run_activation` instead, and is restart-only.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio

from .activation import Activation, Final, Next, OutOfTime, Session, StepContext
from .containment import contained
from .data import MODE_HEADER, Peer, Reply, Request, digest_of, uncaptured
from .episode import RUN_STEPS, Episode, EpisodeRunner, body_of_run, export_episode, import_episode, reply_of_run
from .errors import Code, ParticipantError
from .exact import check_exact
from .gate import Gate
from .holder import Held, Holder
from .routing import AGENT_SESSION_HEADER
from .wire import Modes
from .work import Count, added, of_response

__all__ = ["SESSION_HEADER", "Activation", "Agent", "Final", "Next", "OutOfTime", "Session", "StepContext"]

OPEN, CLOSE, ACTIVATE = "/v1/agent_sessions", "/v1/agent_sessions/close", "/v1/responses"
SESSION_HEADER = AGENT_SESSION_HEADER
"""Names the session of an activation that has no life."""
Serve = Callable[[Held[Session], Request], Awaitable[Reply]]


class Agent(Holder[Session]):
    """Base of all agents; kind `agent`."""

    kind = "agent"
    dispatches = True
    modes = Modes(checkpoint_mode="exported")

    def __init_subclass__(cls, **options: Any) -> None:
        """An agent that runs activations in its own way says nothing of their state: it is restart-only."""
        super().__init_subclass__(**options)
        if "run_activation" in vars(cls) and "modes" not in vars(cls):
            cls.modes = Modes(checkpoint_mode="restart")

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
        self._uncaptured: dict[str, Held[Session]] = {}
        self._episodes = EpisodeRunner(
            self.role, self.gate, self._own_activation, self.resources, RUN_STEPS, advance=_advance
        )

    @asynccontextmanager
    async def run(self) -> AsyncIterator["Agent"]:
        """Serve while the context is open; an agent that needs something running meanwhile overrides it."""
        yield self

    # What an author writes

    async def start(self, held: Held[Session], body: Mapping[str, Any]) -> Any:
        """The first state of an activation, from its request body. Makes no call."""
        raise NotImplementedError(f"{type(self).__name__} has no start")

    async def step(self, context: StepContext, state: Any) -> Next | Final:
        """The next boundary, or the end. At most one call through the context."""
        raise NotImplementedError(f"{type(self).__name__} has no step")

    # Data calls

    async def handle(self, request: Request) -> Reply:
        """Serve one data call."""
        if not isinstance(request.body, dict):
            raise ParticipantError(Code.INVALID_REQUEST, f"the body of {request.route} is not a JSON object")
        match request.route:
            case "/v1/agent_sessions":
                return await self._waited(await self._enter(request, creates=True), request, self._open)
            case "/v1/agent_sessions/close":
                return await self._waited(await self._enter(request), request, self._close)
            case "/v1/responses":
                held = await self._enter(request)
                return await self.once(held, request, lambda: self._activate(held, request))
            case "/run":
                return await self._run(await self._enter(request, dispatches=True), request)
            case "/acknowledge" if request.life is not None:
                self.check_adopted(request.life)
                self.finish(request.life)
                return Reply(200, {})
        raise ParticipantError(Code.INVALID_REQUEST, f"{self.role} has no route {request.route}")

    async def _enter(self, request: Request, *, creates: bool = False, dispatches: bool = False) -> Held[Session]:
        """The life's state; for a client that sends none, that of its session, or one for this call alone."""
        if request.life is not None:
            return await self.enter(request.life, creates=creates, dispatches=dispatches)
        session_id = request.headers.get(SESSION_HEADER) or request.body.get("agent_session_id", "")
        found = self._uncaptured.get(session_id) if isinstance(session_id, str) else None
        if found is not None:
            return found
        held = Held(uncaptured(), Session())
        if request.route == OPEN and session_id:
            self._uncaptured[_session_id(request)] = held
        elif request.route == ACTIVATE and len(self.resources) == 1:
            held.state.session_id = held.life.rollout_id
            cookie = {"cookie": request.headers["cookie"]} if "cookie" in request.headers else {}
            held.state.config = {"resources": {"role": next(iter(self.resources)), **cookie}}
        return held

    async def _waited(self, held: Held[Session], request: Request, serve: Serve) -> Reply:
        """A call that opens or closes a session: the caller waits for it across a prepare."""

        async def counted() -> Reply:
            with self.working(held):
                reply = await serve(held, request)
            if request.route == CLOSE:
                held.forget_peers()  # Nothing is between this life and anybody any more.
            elif request.call is not None:
                held.count_wait(request.call.caller, _session_id(request))
            return reply

        return await self.once(held, request, counted)

    async def _open(self, held: Held[Session], request: Request) -> Reply:
        session_id = _session_id(request)
        if held.state.session_id not in ("", session_id):
            raise ParticipantError(Code.INVALID_REQUEST, f"{held.life} has session {held.state.session_id} open")
        held.state.session_id = session_id
        held.state.config = dict(request.body)
        restart = self.modes.checkpoint_mode == "restart"
        return Reply(200, {"agent_session_id": session_id}, {MODE_HEADER: "restart"} if restart else {})

    async def _close(self, held: Held[Session], request: Request) -> Reply:
        session = held.state
        if session.scope is not None:
            session.scope.cancel()
        async with session.lock:
            session.activation = None
        self._uncaptured.pop(session.session_id, None)
        return Reply(200, {"agent_session_id": _session_id(request), "agent_observations": []})

    async def _activate(self, held: Held[Session], request: Request) -> Reply:
        if not held.state.session_id:
            raise ParticipantError(Code.LOST_SESSION, f"{self.role} has no session of {held.life}")
        with self.working(held):
            return Reply(200, await self._activated(held, request))

    async def _activated(self, held: Held[Session], request: Request) -> dict[str, Any]:
        """One activation at a time; from its last boundary where this very call began it before."""
        session = held.state
        async with session.lock:
            try:
                with anyio.CancelScope() as session.scope:
                    if not _continues(session.activation, request):
                        session.activation = _begin(session, request)
                    with contained(f"the activation of {held.life} at {self.role}"):
                        return await self.run_activation(held, request.body)
            finally:
                session.scope = None
        raise ParticipantError(Code.STALE_CALL, f"session {session.session_id} was closed meanwhile")

    # Its own /run

    async def _run(self, held: Held[Session], request: Request) -> Reply:
        """`POST /run`: the agent owns the whole episode. A duplicate joins it or gets its result."""
        session = held.state
        restart_only = self.modes.checkpoint_mode == "restart"
        asked = replace(body_of_run(held.life, request.body), restart_only=restart_only)
        if session.episode is None:
            session.session_id = f"agent-{held.life.rollout_id}"
            session.episode = asked
        session.episode.check_same(asked, held.life)
        while session.episode.step != "done":
            if session.running:
                await session.finished.wait()
                continue
            session.running, session.finished = True, anyio.Event()
            try:
                await self._run_episode(held, session.episode)
            finally:
                session.running = False
                session.finished.set()
        with self.working(held):
            await self.gate.wait_open()  # No result leaves while prepared.
        return reply_of_run(held.life, session.episode)

    async def _run_episode(self, held: Held[Session], episode: Episode) -> None:
        def save(boundary: Episode) -> None:
            held.state.episode = boundary

        with self.working(held):
            held.state.config = {"resources": self._episodes.access_of(episode, held.life)}
            await self._episodes.run(held, episode, save)

    def _own_activation(self, held: Held[Session]) -> Peer:
        return _OwnActivation(self, held)

    # The steps of an activation

    async def run_activation(self, held: Held[Session], body: Mapping[str, Any]) -> dict[str, Any]:
        """Run the session's activation from its last boundary to its end; gives the Responses object."""
        assert held.state.activation is not None
        activation = held.state.activation
        if activation.state is None:
            first = self._exact(await self.start(held, body), "the state that start gave")
            activation = held.state.activation = replace(activation, state=first)
        while True:
            await self.gate.wait_open()
            outcome = await self._one_step(held, activation)
            if isinstance(outcome, Final):
                held.state.activation = replace(activation, done=True)
                return outcome.response
            activation = outcome

    async def _one_step(self, held: Held[Session], activation: Activation) -> "Activation | Final":
        began = held.state.began = self.gate.active_time()
        async with AsyncExitStack() as steps:
            steps.callback(setattr, held.state, "began", None)
            peers = (self.model, self.resources)
            context = StepContext(self.role, self.gate, peers, held, steps, self._time_left(activation))
            outcome = await self.step(context, activation.state)
            self._check_outcome(outcome)
            context.complete()
            if isinstance(outcome, Final):
                return outcome
            spent = activation.active_s + self.gate.active_time() - began
            calls, tokens = added((activation.calls, activation.tokens), context.work)
            following = replace(
                activation,
                state=outcome.state,
                boundary=activation.boundary + 1,
                active_s=spent,
                calls=calls,
                tokens=tokens,
            )
            # Before the step ends, so that a prepare finds the boundary.
            held.state.activation, held.state.began = following, None
            return following

    def _check_outcome(self, given: Any) -> None:
        if isinstance(given, Next):
            self._exact(given.state, "the state that step gave")
        elif isinstance(given, Final):
            self._exact(given.response, "the response that step gave", dict)
        else:
            problem = f"step of {self.role} must return Next or Final, not a {type(given).__name__}"
            raise ParticipantError(Code.INTERNAL, problem)

    def _exact(self, value: Any, what: str, kind: type = object) -> Any:
        if not isinstance(value, kind):
            given = type(value).__name__
            raise ParticipantError(Code.INTERNAL, f"{what} at {self.role} must be a {kind.__name__}, not a {given}")
        if self.modes.checkpoint_mode != "restart":
            try:
                check_exact(value, f"{what} at {self.role}")
            except TypeError as error:
                raise ParticipantError(Code.INTERNAL, str(error)) from error
        return value

    def _time_left(self, activation: Activation) -> float | None:
        return max(0.0, self.max_wall_s - activation.active_s) if self.max_wall_s else None

    # State

    def restarts(self) -> list[Any]:
        """Lives of an agent, or of a resources server under its own `/run`, that cannot be captured."""
        every = self.modes.checkpoint_mode == "restart"
        return [held.life for held in self._held.values() if every or _is_restart(held.state.episode)]

    def is_episode(self, state: Session) -> bool:
        """Under its own `/run` the agent owns the episode; else its environment does."""
        return state.episode is not None

    def new_state(self, life: Any) -> Session:
        """No session yet."""
        return Session()

    def export_state(self, held: Held[Session]) -> Any:
        """The session at its last boundary; the time of its step in flight is spent, and no crash gives it back."""
        session, activation = held.state, held.state.activation
        if activation is not None and session.began is not None:
            spent = activation.active_s + self.gate.active_time() - session.began
            activation = replace(activation, active_s=spent)
        episode = export_episode(session.episode)
        if session.episode is not None and episode is not None:
            episode["active_s"] = self._episodes.active_s(held.life, session.episode)
        return {
            "session_id": session.session_id,
            "config": session.config,
            "episode": episode,
            "activation": activation and {name: getattr(activation, name) for name in Activation.__slots__},
        }

    def import_state(self, payload: Any) -> Session:
        """The session again."""
        activation = payload["activation"]
        return Session(
            payload["session_id"],
            payload["config"],
            activation and Activation(**activation),
            import_episode(payload["episode"]),
        )

    def is_lost(self, state: Session) -> bool:
        """Under its own `/run`: whether the episode failed because a participant was lost."""
        return state.episode is not None and state.episode.is_lost

    def work_of(self, held: Held[Session]) -> tuple[Count, int | None]:
        """What its state counts; all of it, of its own episode past its activation."""
        return _worked(held.state)

    def work_in(self, payload: Any) -> tuple[Count, int | None]:
        """The same of a record."""
        return _worked(self.import_state(payload["state"]))


class _OwnActivation:
    """The agent as the peer of its own `/run`."""

    def __init__(self, agent: Agent, held: Held[Session]) -> None:
        self.role = agent.role
        self._agent = agent
        self._held = held

    async def call(self, request: Request) -> Reply:
        return Reply(200, await self._agent._activated(self._held, request))


def _begin(session: Session, request: Request) -> Activation:
    boundary = session.episode.boundary if session.episode else session.next_boundary
    call = str(request.call) if request.call else ""
    return Activation(None, boundary, call=call, request=digest_of(request.route, request.body))


def _continues(activation: Activation | None, request: Request) -> bool:
    """Whether a call is the one that an activation answers; without an id, whether it asks the same before the end."""
    if activation is None:
        return False
    if request.call is not None:
        return activation.call == str(request.call)
    return not activation.done and activation.request == digest_of(request.route, request.body)


def _advance(held: Held[Session], episode: Episode) -> int:
    return max(episode.boundary + 1, held.state.next_boundary)


def _worked(session: Session) -> tuple[Count, int | None]:
    if session.episode is not None and (found := of_response(session.episode.response)) is not None:
        return found, None
    activation = session.activation
    return ((activation.calls, activation.tokens), activation.boundary) if activation else ((0, 0), 0)


def _is_restart(episode: Episode | None) -> bool:
    return episode is not None and episode.restart_only


def _session_id(request: Request) -> str:
    session_id = request.body.get("agent_session_id")
    if not isinstance(session_id, str) or not session_id:
        raise ParticipantError(Code.INVALID_REQUEST, "the body has no agent_session_id")
    return session_id
