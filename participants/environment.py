"""The environment server: owns episodes, from the row to the result.

An episode is a row of steps, each with a boundary after it (the table `STEPS`): seed the resources session, open the
agent session, activate the agent, verify, close both sessions, and then the result waits to be acknowledged. The
episode's next step and what it needs are all that a boundary holds, so a continued life simply goes on with that step.

Results leave only while admission is open, are kept until acknowledged, and are exported like any other state. An
episode that fails ends with a typed failure, never with a reward of 0; one whose life was retired or superseded ends
with nothing.
"""

import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import anyio
from anyio.abc import TaskGroup

from store import Life

from .data import MODE_HEADER, VERIFY_HEADER, CallId, Peer, Reply, Request
from .errors import Code, ParticipantError
from .gate import Gate, StepMode
from .holder import Held, Holder
from .wire import Modes

RETRY_CLOSED_S = 0.05
log = logging.getLogger("midflight.environment")

FAILURE_CLASSES: Mapping[Code, str] = {
    Code.STALE_LIFE: "session_lost",
    Code.LOST_SESSION: "session_lost",
    Code.STALE_CALL: "protocol_error",
    Code.INVALID_REQUEST: "invalid_request",
    Code.DEADLINE_EXCEEDED: "timeout",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """One kind of step: who is called, by which route, and how a checkpoint treats it."""

    peer: Literal["resources", "agent"]
    route: str
    mode: StepMode
    then: str


STEPS: Mapping[str, Plan] = {
    "seed": Plan("resources", "/seed_session", "wait", "open"),
    "open": Plan("agent", "/v1/agent_sessions", "wait", "activate"),
    "activate": Plan("agent", "/v1/responses", "replay", "verify"),
    "verify": Plan("resources", "/verify", "wait", "close"),
    "close": Plan("agent", "/v1/agent_sessions/close", "wait", "done"),
}
"""Verify has the mode that the resources server declares in its seed reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """An episode at a boundary. Immutable: each boundary makes a new one."""

    row: Mapping[str, Any]
    step: str = "seed"
    boundary: int = 0
    verify_mode: StepMode = "wait"
    restart_only: bool = False
    """The resources server declares no export, so this rollout cannot be captured."""
    response: Any = None
    result: Any = None
    failure: Mapping[str, Any] | None = None
    active_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of an episode; exactly one of `row` and `failure`."""

    life: Life
    row: Mapping[str, Any] | None
    failure: Mapping[str, Any] | None
    """`class`, `message`, `stage`, `terminal`."""
    active_s: float


@dataclass(slots=True)
class _State:
    episode: Episode | None = None
    running: bool = False
    finished: anyio.Event = field(default_factory=anyio.Event)


class EnvironmentServer(Holder[_State]):
    """Runs episodes over an agent and a resources server."""

    kind = "environment"
    modes = Modes(checkpoint_mode="exported")

    def __init__(
        self,
        agent: Peer,
        resources: Mapping[str, Peer],
        *,
        name: str = "main",
        max_wall_s: float = 0.0,
        gate: Gate | None = None,
    ) -> None:
        """`resources` maps a role to its peer; a row names one by `resources` or there is only one."""
        super().__init__(name, gate=gate)
        self._agent = agent
        self._resources = dict(resources)
        self._max_wall_s = max_wall_s
        self._group: TaskGroup | None = None
        self._results: dict[Life, Result] = {}
        self._fresh: deque[Life] = deque()
        self._news = anyio.Event()

    @asynccontextmanager
    async def run(self) -> AsyncIterator["EnvironmentServer"]:
        """Own the episodes' tasks while the context is open."""
        async with anyio.create_task_group() as group:
            self._group = group
            yield self
            group.cancel_scope.cancel()

    # What a controller does

    async def dispatch(self, life: Life, row: Mapping[str, Any]) -> None:
        """Start, or continue after a restore, the episode of a life; a repeat joins the running one."""
        held = await self.enter(life, creates=True)
        state = held.state
        if state.episode is None:
            state.episode = Episode(row=row)
        if not state.running and self._group is not None:
            state.running = True
            self._group.start_soon(self._run_episode, held)

    async def results(self) -> AsyncIterator[Result]:
        """Finished episodes, each once, to one reader; nothing while admission is closed. Never ends."""
        while True:
            await self.gate.wait_open()
            if self._fresh:
                result = self._results.get(self._fresh.popleft())
                if result is not None:
                    yield result
                continue
            self._news = anyio.Event()
            await self._news.wait()

    def acknowledge(self, life: Life) -> None:
        """The controller has the result for good: forget the episode."""
        self._results.pop(life, None)
        self.finish(life)

    async def handle(self, request: Request) -> Reply:
        """`POST /run`: run one episode to its end; a duplicate joins it or gets the same result."""
        if request.route != "/run" or request.life is None or not isinstance(request.body, dict):
            raise ParticipantError(Code.INVALID_REQUEST, f"{self.role} serves POST /run with a life and a row")
        await self.dispatch(request.life, request.body)
        held = await self.enter(request.life)
        with self.working(held):
            await held.state.finished.wait()
            await self.gate.wait_open()
        result = self._results[request.life]
        return Reply(200, dict(result.row or {"failure": result.failure}))

    # The episode

    async def _run_episode(self, held: Held[_State]) -> None:
        state = held.state
        try:
            with self.working(held):
                while state.episode is not None and state.episode.step != "done":
                    await self.gate.wait_open()
                    state.episode = await self._one_step(held, state.episode)
        except ParticipantError as error:
            if error.code is Code.STALE_LIFE:
                return  # Retired or superseded: whoever did that has said what becomes of it.
            raise
        if state.episode is not None and not held.stopped:
            self._publish(held.life, state.episode)
            state.finished.set()

    def _publish(self, life: Life, episode: Episode) -> None:
        self._results[life] = Result(life=life, row=episode.result, failure=episode.failure, active_s=episode.active_s)
        self._fresh.append(life)
        self._news.set()

    async def _one_step(self, held: Held[_State], episode: Episode) -> Episode:
        plan = STEPS[episode.step]
        mode = episode.verify_mode if episode.step == "verify" else plan.mode
        began = self.gate.active_time()
        reason = f"{episode.step} at {plan.peer}"
        async with self.gate.step(held.life, episode.step, mode, reason=reason):
            following = await self._outcome(held, episode, plan, mode)
            spent = episode.active_s + self.gate.active_time() - began
            following = replace(following, boundary=episode.boundary + 1, active_s=spent)
            held.state.episode = following  # Before the step ends, so that a prepare finds the boundary.
        return following

    async def _outcome(self, held: Held[_State], episode: Episode, plan: Plan, mode: StepMode) -> Episode:
        """The next boundary, whatever the step came to; raises only where this life itself was stopped."""
        try:
            async with self.gate.time_limit(self._time_left(episode), f"the episode of {held.life}"):
                return await self._carry_out(held, episode, plan, mode)
        except ParticipantError as error:
            if held.stopped:
                raise
            return _failed(episode, error)
        except Exception as error:  # A defect of a hook costs its episode, not the run.
            failure = _lone(error)
            if not isinstance(failure, ParticipantError):
                log.exception("step %s of %s failed", episode.step, held.life)
                failure = ParticipantError(Code.INTERNAL, f"{type(failure).__name__}: {failure}")
            elif held.stopped:
                raise failure from error
            return _failed(episode, failure)

    def _time_left(self, episode: Episode) -> float | None:
        if not self._max_wall_s or episode.step == "close":
            return None
        return max(0.0, self._max_wall_s - episode.active_s)

    async def _carry_out(self, held: Held[_State], episode: Episode, plan: Plan, mode: StepMode) -> Episode:
        life, resources = held.life, self._resources_of(episode)
        session, agent_session = f"resources-{life.rollout_id}", f"agent-{life.rollout_id}"
        peer = resources if plan.peer == "resources" else self._agent
        body = _body(episode, resources.role, session, agent_session)
        reply = await self._call(held, episode, peer, plan.route, body, 0, session)
        if mode == "wait":
            held.count_wait(peer.role, session if peer is resources else agent_session)
        if episode.step == "close":
            await self._call(held, episode, resources, "/close_session", {"resources_session_id": session}, 1, session)
            held.waited.clear()
        return _after(episode, plan.then, reply)

    def _resources_of(self, episode: Episode) -> Peer:
        role = episode.row.get("resources")
        if role is None and len(self._resources) == 1:
            return next(iter(self._resources.values()))
        peer = self._resources.get(str(role))
        if peer is None:
            raise ParticipantError(
                Code.INVALID_REQUEST,
                f"the row names the resources server {role!r}, and there is {sorted(self._resources)}",
            )
        return peer

    async def _call(
        self, held: Held[_State], episode: Episode, peer: Peer, route: str, body: Any, k: int, session: str
    ) -> Reply:
        call = CallId(self.role, episode.boundary, k)
        headers = {"x-resources-session-id": session}
        request = Request(route=route, body=body, life=held.life, call=call, headers=headers)
        while True:
            try:
                reply = await peer.call(request)
                break
            except ParticipantError as error:
                if error.code is not Code.ADMISSION_CLOSED:
                    raise
            await self.gate.wait_open()
            await anyio.sleep(RETRY_CLOSED_S)
        if not reply.ok:
            raise ParticipantError.from_body(reply.status, reply.body)
        return reply

    # State

    def new_state(self, life: Life) -> _State:
        """No episode yet."""
        return _State()

    def restarts(self) -> list[Life]:
        """Episodes whose resources server cannot export them."""
        return [h.life for h in self._held.values() if h.state.episode is not None and h.state.episode.restart_only]

    def free_state(self, held: Held[_State]) -> None:
        """Drop its result, if any."""
        self._results.pop(held.life, None)

    def export_state(self, held: Held[_State]) -> Any:
        """The episode at its last boundary."""
        episode = held.state.episode
        return episode and {name: getattr(episode, name) for name in Episode.__slots__}

    def import_state(self, payload: Any) -> _State:
        """The episode again."""
        return _State(Episode(**payload) if payload else None)


def _lone(error: BaseException) -> BaseException:
    """What an exception group is about."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _body(episode: Episode, resources: str, session: str, agent_session: str) -> dict[str, Any]:
    """The body of the step's call."""
    row = episode.row
    match episode.step:
        case "seed":
            return {**row, "resources_session_id": session}
        case "open":
            return {"agent_session_id": agent_session, "resources": {"role": resources, "session_id": session}}
        case "activate":
            return dict(row.get("responses_create_params") or {})
        case "verify":
            return {**row, "response": episode.response, "resources_session_id": session}
    return {"agent_session_id": agent_session}


def _after(episode: Episode, then: str, reply: Reply) -> Episode:
    """The boundary after a step that succeeded."""
    match episode.step:
        case "seed":
            mode: StepMode = "replay" if reply.headers.get(VERIFY_HEADER) == "replay" else "wait"
            restart_only = reply.headers.get(MODE_HEADER, "exported") == "restart"
            return replace(episode, step=then, verify_mode=mode, restart_only=restart_only)
        case "activate":
            return replace(episode, step=then, response=reply.body)
        case "verify":
            return replace(episode, step=then, result=reply.body)
    return replace(episode, step=then)


def _failed(episode: Episode, error: ParticipantError) -> Episode:
    """The boundary after a step that failed: sessions are still closed, unless that is what failed."""
    if episode.failure is not None or episode.step == "close":
        failure = episode.failure
        return replace(episode, step="done", failure=failure, result=episode.result)
    failure = {
        "class": FAILURE_CLASSES.get(error.code, "step_failed"),
        "message": str(error)[:2000],
        "stage": episode.step,
        "terminal": error.code in (Code.INVALID_REQUEST, Code.DEADLINE_EXCEEDED),
    }
    return replace(episode, step="close" if episode.step != "seed" else "done", failure=failure, result=None)
