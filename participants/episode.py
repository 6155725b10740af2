"""Episodes: a row taken through a table of steps, with a boundary after each.

`EPISODE_STEPS` is how an environment server runs one over an agent; `RUN_STEPS` is how an agent runs one itself, for
its own `/run`. A boundary holds the next step and everything it needs, so a continued life simply goes on with that step.

A step that fails ends the episode with a typed failure, after its sessions are closed; a step of a life that was
stopped ends with nothing.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import anyio

from store import Life

from .data import MODE_HEADER, VERIFY_HEADER, CallId, Peer, Reply, Request
from .errors import Code, ParticipantError
from .gate import Gate, StepMode
from .holder import Held

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


EPISODE_STEPS: Mapping[str, Plan] = {
    "seed": Plan("resources", "/seed_session", "wait", "open"),
    "open": Plan("agent", "/v1/agent_sessions", "wait", "activate"),
    "activate": Plan("agent", "/v1/responses", "replay", "verify"),
    "verify": Plan("resources", "/verify", "wait", "close"),
    "close": Plan("agent", "/v1/agent_sessions/close", "wait", "done"),
}
RUN_STEPS: Mapping[str, Plan] = {
    "seed": Plan("resources", "/seed_session", "wait", "activate"),
    "activate": Plan("agent", "/v1/responses", "replay", "verify"),
    "verify": Plan("resources", "/verify", "wait", "close"),
    "close": Plan("resources", "/close_session", "wait", "done"),
}
"""Verify has the mode that the resources server declares in its seed reply, in both."""

Save = Callable[["Episode"], None]
"""Keeps a boundary at its owner."""


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


class EpisodeRunner:
    """Carries out the steps of episodes for one owner."""

    def __init__(
        self,
        role: str,
        gate: Gate,
        agent: Peer,
        resources: Mapping[str, Peer],
        steps: Mapping[str, Plan],
        *,
        max_wall_s: float = 0.0,
        parent: str = "",
    ) -> None:
        """`parent` sets the owner's episode calls apart from its other ones."""
        self.role = role
        self.gate = gate
        self._agent = agent
        self._resources = dict(resources)
        self._steps = steps
        self._max_wall_s = max_wall_s
        self._parent = parent

    async def run(self, held: Held[Any], episode: Episode, save: Save) -> Episode:
        """Take an episode to its end, keeping each boundary. Raises `stale_life` where its life was stopped."""
        while episode.step != "done":
            await self.gate.wait_open()
            episode = await self._one_step(held, episode, save)
        return episode

    async def _one_step(self, held: Held[Any], episode: Episode, save: Save) -> Episode:
        plan = self._steps[episode.step]
        mode = episode.verify_mode if episode.step == "verify" else plan.mode
        began = self.gate.active_time()
        reason = f"{episode.step} at {plan.peer}"
        async with self.gate.step(held.life, episode.step, mode, reason=reason):
            following = await self._outcome(held, episode, plan, mode)
            spent = episode.active_s + self.gate.active_time() - began
            following = replace(following, boundary=episode.boundary + 1, active_s=spent)
            save(following)  # Before the step ends, so that a prepare finds the boundary.
        return following

    async def _outcome(self, held: Held[Any], episode: Episode, plan: Plan, mode: StepMode) -> Episode:
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

    async def _carry_out(self, held: Held[Any], episode: Episode, plan: Plan, mode: StepMode) -> Episode:
        life, resources = held.life, self._resources_of(episode)
        session, agent_session = _session_of(life), f"agent-{life.rollout_id}"
        peer = resources if plan.peer == "resources" else self._agent
        body = _body(episode, resources.role, session, agent_session)
        reply = await self._call(held, episode, peer, plan.route, body, 0, session)
        if mode == "wait":
            held.count_wait(peer.role, session if peer is resources else agent_session)
        if episode.step == "close":
            if peer is not resources:
                closing = {"resources_session_id": session}
                await self._call(held, episode, resources, "/close_session", closing, 1, session)
            held.waited.clear()  # Nothing is between this life and anybody any more.
        return _after(episode, plan.then, reply)

    def access_of(self, episode: Episode, life: Life) -> dict[str, str]:
        """Where the tools of an episode are: role and session. Raises `invalid_request`."""
        return {"role": self._resources_of(episode).role, "session_id": _session_of(life)}

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
        self, held: Held[Any], episode: Episode, peer: Peer, route: str, body: Any, k: int, session: str
    ) -> Reply:
        call = CallId(self.role, episode.boundary, k, self._parent)
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


def _session_of(life: Life) -> str:
    """The resources session of a rollout; every attempt has the same name for it."""
    return f"resources-{life.rollout_id}"


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
    return {"agent_session_id": agent_session, "resources_session_id": session}


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


def export_episode(episode: Episode | None) -> dict[str, Any] | None:
    """An episode as JSON."""
    return episode and {name: getattr(episode, name) for name in Episode.__slots__}


def import_episode(payload: Mapping[str, Any] | None) -> Episode | None:
    """The episode again. Raises TypeError where it is malformed."""
    return Episode(**payload) if payload else None
