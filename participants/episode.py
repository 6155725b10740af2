"""Episodes: a row taken through a table of steps, with a boundary after each.

`EPISODE_STEPS` is how an environment server runs one over an agent; `RUN_STEPS` is how an agent runs one itself, for
its own `/run`. A boundary holds the next step and everything it needs, so a continued life goes on with that step.

A step that fails ends the episode with a typed failure, after its sessions are closed; a step of a life that was
stopped ends with nothing.
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal

import anyio

from store import Life

from .containment import contained
from .data import MODE_HEADER, VERIFY_HEADER, CallId, Peer, Reply, Request, on_the_wire
from .errors import Code, ParticipantError
from .gate import Gate, StepMode
from .holder import Held
from .run_bodies import asked_of, episode_id_of, flat_reply, same_task, typed_reply
from .wire import INFRASTRUCTURE

RETRY_CLOSED_S = 0.05
log = logging.getLogger("midflight.environment")

FAILURE_CLASSES: Mapping[Code, str] = {
    Code.STALE_LIFE: "session_lost",
    Code.LOST_SESSION: "session_lost",
    Code.STALE_CALL: "protocol_error",
    Code.INVALID_REQUEST: "invalid_request",
    Code.DEADLINE_EXCEEDED: "timeout",
    Code.MODEL_FAILED: "model_failed",
    Code.UNREACHABLE: "unreachable",
    Code.JUDGE_FAILED: "judge_failed",
    Code.COHORT_FAILED: "cohort_failed",
    Code.EXECUTOR_FAILED: "executor_failed",
    Code.AGENT_FAILED: "agent_failed",
}
STAGES: Mapping[str, str] = {
    "seed": "seed",
    "open": "agent",
    "activate": "agent",
    "verify": "verification",
    "close": "cleanup",
}
"""Each step as NeMo Gym names where an episode failed."""


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
    """The agent or the resources server can export nothing, so this rollout cannot be captured."""
    response: Any = None
    result: Any = None
    failure: Mapping[str, Any] | None = None
    active_s: float = 0.0
    task_id: Mapping[str, Any] | None = None
    """Of a typed body, and None for a flat row."""
    episode_id: Mapping[str, Any] | None = None
    observations: Any = field(default_factory=list)
    """What the agent had to say when its session was closed."""

    @property
    def is_lost(self) -> bool:
        """Whether it failed because a participant was lost."""
        return self.failure is not None and self.failure["class"] in INFRASTRUCTURE

    def check_same(self, asked: "Episode", life: Life) -> None:
        """Refuse another task under the same life."""
        if not same_task(self.row, asked.row) or self.task_id != asked.task_id:
            raise ParticipantError(Code.INVALID_REQUEST, f"{life} runs another row already")


def body_of_run(life: Life, body: Mapping[str, Any]) -> Episode:
    """The episode that a body of `/run` or a row asks for. Raises `invalid_request`."""
    asked = asked_of(life, body)
    return Episode(row=asked.row, task_id=asked.task_id, episode_id=asked.episode_id)


def reply_of_run(life: Life, episode: Episode) -> Reply:
    """The answer to `/run`, as its body asked for it. Raises `step_failed` for a flat row that failed."""
    if episode.task_id is None:
        return flat_reply(episode.result, episode.failure)
    ids = {"episode_id": episode_id_of(life, episode.episode_id), "task_id": episode.task_id}
    return typed_reply(ids, episode.result, episode.failure, episode.response, episode.observations)


def _one_more(held: Held[Any], episode: Episode) -> int:
    """The next boundary where an owner makes no others."""
    return episode.boundary + 1


class EpisodeRunner:
    """Carries out the steps of episodes for one owner."""

    def __init__(
        self,
        role: str,
        gate: Gate,
        agent: Callable[[Held[Any]], Peer],
        resources: Mapping[str, Peer],
        steps: Mapping[str, Plan],
        *,
        max_wall_s: float = 0.0,
        advance: Callable[[Held[Any], Episode], int] = _one_more,
    ) -> None:
        """`advance` numbers the next boundary: call ids follow from it, so an owner never uses one twice."""
        self.role = role
        self.gate = gate
        self._agent = agent
        self._resources = dict(resources)
        self._steps = steps
        self._max_wall_s = max_wall_s
        self._advance = advance
        self._began: dict[Life, float] = {}
        """When the step in flight of each began, in active time."""

    def active_s(self, life: Life, episode: Episode) -> float:
        """With the active time of its step in flight, so that a crash does not give it back."""
        began = self._began.get(life)
        return episode.active_s if began is None else self._spent(episode, began)

    def _spent(self, episode: Episode, began: float) -> float:
        return episode.active_s + self.gate.active_time() - began

    async def run(self, held: Held[Any], episode: Episode, save: Save) -> Episode:
        """Take an episode to its end, keeping each boundary. Raises `stale_life` where its life was stopped."""
        while episode.step != "done":
            await self.gate.wait_open()
            episode = await self._one_step(held, episode, save)
        return episode

    async def _one_step(self, held: Held[Any], episode: Episode, save: Save) -> Episode:
        plan = self._steps[episode.step]
        mode = _mode_of(episode, plan)
        reason = f"{episode.step} at {plan.peer}"
        async with self.gate.step(held.life, episode.step, mode, reason=reason):
            began = self._began[held.life] = self.gate.active_time()
            try:
                following = await self._outcome(held, episode, plan, mode)
            finally:
                del self._began[held.life]
            spent, boundary = self._spent(episode, began), self._advance(held, episode)
            following = replace(following, boundary=boundary, active_s=spent)
            save(following)  # Before the step ends, so that a prepare finds the boundary.
        return following

    async def _outcome(self, held: Held[Any], episode: Episode, plan: Plan, mode: StepMode) -> Episode:
        """The next boundary, whatever the step came to; raises only where this life itself was stopped."""
        left = self._time_left(episode)
        try:
            async with self.gate.time_limit(left, f"the episode of {held.life}"):
                with contained(f"{episode.step} at {plan.peer}"):
                    return await self._carry_out(held, episode, plan, mode)
        except ParticipantError as error:
            if held.stopped:
                raise
            if error.code is Code.DEADLINE_EXCEEDED and self._is_over(held.life, left):
                error.details["limit"] = "active_time"
            return _failed(episode, error)
        except Exception as error:  # A defect of a hook costs its episode, not the run.
            log.exception("step %s of %s failed", episode.step, held.life)
            return _failed(episode, ParticipantError(Code.INTERNAL, f"{type(error).__name__}: {error}"))

    def _is_over(self, life: Life, left: float | None) -> bool:
        return left is not None and self.gate.active_time() - self._began[life] >= left

    def _time_left(self, episode: Episode) -> float | None:
        if not self._max_wall_s or episode.step == "close":
            return None
        return max(0.0, self._max_wall_s - episode.active_s)

    async def _carry_out(self, held: Held[Any], episode: Episode, plan: Plan, mode: StepMode) -> Episode:
        life, resources = held.life, self._resources_of(episode)
        if episode.step == "close":
            return await self._close(held, episode, plan, resources)
        session, agent_session = _session_of(life), f"agent-{life.rollout_id}"
        peer = resources if plan.peer == "resources" else self._agent(held)
        body = _body(life, episode, resources.role, session, agent_session)
        reply = await self._call(held, episode, peer, plan.route, body, 0)
        if mode == "wait" and on_the_wire(life):
            held.count_wait(peer.role, session if peer is resources else agent_session)
        return _after(episode, plan.then, reply)

    async def _close(self, held: Held[Any], episode: Episode, plan: Plan, resources: Peer) -> Episode:
        """Close every session, whatever becomes of the others; the first error counts."""
        agent, session = f"agent-{held.life.rollout_id}", _session_of(held.life)
        targets = [(resources, "/close_session", {"resources_session_id": session})]
        never_opened = episode.failure is not None and episode.failure["stage"] == "seed"
        if plan.peer == "agent" and not never_opened:
            targets.insert(0, (self._agent(held), plan.route, {"agent_session_id": agent}))
        errors: list[ParticipantError] = []
        for k, (peer, route, body) in enumerate(targets):
            try:
                reply = await self._call(held, episode, peer, route, body, k)
                if peer is not resources:
                    episode = replace(episode, observations=reply.body.get("agent_observations", []))
            except ParticipantError as error:
                errors.append(error)
        held.forget_peers()  # Nothing is between this life and anybody any more.
        if errors:
            raise errors[0]
        return replace(episode, step=plan.then)

    def access_of(self, episode: Episode, life: Life) -> dict[str, Any]:
        """Where the tools of an episode are: role and session. Raises `invalid_request`."""
        return _access_to(self._resources_of(episode).role, episode, life)

    def _resources_of(self, episode: Episode) -> Peer:
        role = episode.row.get("resources")
        if role is None and episode.task_id is not None:
            role = f"resources.{episode.task_id['taskset']}"
            role = role if role in self._resources else None
        if role is None and len(self._resources) == 1:
            return next(iter(self._resources.values()))
        peer = self._resources.get(str(role))
        if peer is None:
            raise ParticipantError(
                Code.INVALID_REQUEST,
                f"the row names the resources server {role!r}, and there is {sorted(self._resources)}",
            )
        return peer

    async def _call(self, held: Held[Any], episode: Episode, peer: Peer, route: str, body: Any, k: int) -> Reply:
        held.touched.add(peer.role)
        life = on_the_wire(held.life)
        call = CallId(self.role, episode.boundary, k) if life else None
        headers = {
            "x-resources-session-id": _session_of(held.life),
            "x-agent-session-id": f"agent-{held.life.rollout_id}",
            **({MODE_HEADER: "restart"} if episode.restart_only else {}),
        }
        request = Request(route=route, body=body, life=life, call=call, headers=headers)
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


def _mode_of(episode: Episode, plan: Plan) -> StepMode:
    """Nobody waits for a step of what is started over anyway."""
    if episode.restart_only:
        return "replay"
    return episode.verify_mode if episode.step == "verify" else plan.mode


def _access_to(role: str, episode: Episode, life: Life) -> dict[str, Any]:
    """What an agent is told of the tools of an episode; `restart_only` only where it is so."""
    restart_only = {"restart_only": True} if episode.restart_only else {}
    return {"role": role, "session_id": _session_of(life), **restart_only}


def _body(life: Life, episode: Episode, resources: str, session: str, agent_session: str) -> dict[str, Any]:
    """The body of the step's call."""
    row = episode.row
    match episode.step:
        case "seed" if episode.task_id is not None:
            data = {key: value for key, value in row.items() if key != "responses_create_params"}
            ids = {"episode_id": episode_id_of(life, episode.episode_id), "task_id": episode.task_id}
            return {"resources_session_id": session, **ids, "task_data": data}
        case "seed":
            return {**row, "resources_session_id": session}
        case "open":
            return {"agent_session_id": agent_session, "resources": _access_to(resources, episode, life)}
        case "activate":
            return dict(row.get("responses_create_params") or {})
    return {**row, "response": episode.response, "resources_session_id": session}


def _after(episode: Episode, then: str, reply: Reply) -> Episode:
    """The boundary after a step that succeeded."""
    match episode.step:
        case "seed":
            mode: StepMode = "replay" if reply.headers.get(VERIFY_HEADER) == "replay" else "wait"
            return replace(episode, step=then, verify_mode=mode, restart_only=_is_restart(episode, reply))
        case "open":
            return replace(episode, step=then, restart_only=_is_restart(episode, reply))
        case "activate":
            return replace(episode, step=then, response=reply.body)
        case "verify":
            return _verified(replace(episode, step=then), reply.body)
    return replace(episode, step=then)


def _is_restart(episode: Episode, reply: Reply) -> bool:
    return episode.restart_only or reply.headers.get(MODE_HEADER) == "restart"


def _verified(episode: Episode, body: Any) -> Episode:
    """With its result; a verifier that says that it failed, or gives no reward, gives a failure and no row."""
    named = body.get("_ng_failure_class") if isinstance(body, dict) else None
    if named:
        message = str(body.get("_ng_failure_message") or body.get("failure_reason") or named)
        return replace(episode, failure=_failure(str(named), message, "verify", terminal=False))
    reward = body.get("reward") if isinstance(body, dict) else None
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise ParticipantError(Code.INTERNAL, f"verify gave the reward {reward!r:.100}, which is no finite number")
    return replace(episode, result=body)


def _failure(named: str, message: str, step: str, *, terminal: bool) -> dict[str, Any]:
    return {"class": named, "message": message[:2000], "stage": STAGES[step], "terminal": terminal}


def is_terminal(error: ParticipantError) -> bool:
    """Whether another try must end the same way: what is asked is wrong, or uses up its own limit."""
    if error.code is Code.MODEL_FAILED:
        return 400 <= int(error.details.get("status", 0)) < 500
    return error.code is Code.INVALID_REQUEST or error.details.get("limit") == "active_time"


def _failed(episode: Episode, error: ParticipantError) -> Episode:
    """The boundary after a step that failed: sessions are closed all the same, unless that is what failed."""
    if episode.step == "close":
        log.warning("sessions of an episode could not be closed: %s", error)
        return replace(episode, step="done")
    named = FAILURE_CLASSES.get(error.code, "step_failed")
    failure = _failure(named, str(error), episode.step, terminal=is_terminal(error))
    return replace(episode, step="close", failure=failure, result=None)


def failed_outside(episode: Episode, error: ParticipantError) -> Episode:
    """The end of an episode that could not even be parked: too many are."""
    failure = _failure(FAILURE_CLASSES.get(error.code, "step_failed"), str(error), episode.step, terminal=False)
    return replace(episode, step="done", failure=failure, result=None)


_fields_of = attrgetter(*Episode.__slots__)


def export_episode(episode: Episode | None) -> dict[str, Any] | None:
    """An episode as JSON."""
    return None if episode is None else dict(zip(Episode.__slots__, _fields_of(episode), strict=True))


def import_episode(payload: Mapping[str, Any] | None) -> Episode | None:
    """The episode again. Raises TypeError where it is malformed."""
    return Episode(**payload) if payload else None
