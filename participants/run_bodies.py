"""The two bodies of `POST /run`, and its replies, as NeMo Gym has them.

    flat     the dataset row: `responses_create_params` and the task's fields; the reply is the verified row or an
             error
    typed    `episode_id`, `task{task_id, task_input{responses_create_params, task_data}}`; the reply has both ids and
             exactly one of `result` and `failure`

A failure is never a row, so nobody can count it as a reward of 0.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from store import Life

from .data import Reply, on_the_wire
from .errors import Code, ParticipantError
from .sessions import EpisodeId, TaskId, parse

MAX_REASON_CHARS = 2000
_LOCAL = "_ng_"
"""Keys of a row that say where it stands in a collection, and not what is asked."""


class _TaskInput(BaseModel):
    model_config = ConfigDict(extra="forbid")

    responses_create_params: dict[str, Any] = Field(default_factory=dict)
    task_data: dict[str, Any] = Field(default_factory=dict)


class _Task(BaseModel):
    model_config = ConfigDict(extra="forbid")

    task_id: TaskId
    task_input: _TaskInput


class _RunBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    episode_id: EpisodeId
    task: _Task


class Asked(BaseModel):
    """What a run is to do, whichever body said it."""

    model_config = ConfigDict(frozen=True)

    row: dict[str, Any]
    """Flat: the task's fields and `responses_create_params`."""
    task_id: dict[str, Any] | None = None
    """Of a typed body, and None for a flat one."""
    episode_id: dict[str, Any] | None = None


def asked_of(life: Life, body: Mapping[str, Any]) -> Asked:
    """Read a body of `/run`, or a materialized row. Raises `invalid_request`."""
    if "task" in body and "episode_id" in body:
        typed = parse(_RunBody, dict(body))
        _check_episode(typed.episode_id, life)
        return _typed(typed.task, typed.episode_id.model_dump())
    if "task_input" in body and "task_id" in body:
        task = {"task_id": body["task_id"], "task_input": body["task_input"]}
        return _typed(parse(_Task, task), None)
    if not isinstance(body.get("responses_create_params", {}), dict):
        raise ParticipantError(Code.INVALID_REQUEST, "the row's responses_create_params is not an object")
    return Asked(row=dict(body))


def _typed(task: _Task, episode_id: dict[str, Any] | None) -> Asked:
    row = {**task.task_input.task_data, "responses_create_params": task.task_input.responses_create_params}
    return Asked(row=row, task_id=task.task_id.model_dump(), episode_id=episode_id)


def _check_episode(episode: EpisodeId, life: Life) -> None:
    if on_the_wire(life) and (episode.rollout_id, episode.attempt) != (life.rollout_id, life.attempt):
        raise ParticipantError(
            Code.INVALID_REQUEST, f"episode {episode.rollout_id}, attempt {episode.attempt} is not that of {life}"
        )


def same_task(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two rows ask the same."""
    return _of_task(one) == _of_task(other)


def _of_task(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not key.startswith(_LOCAL)}


def episode_id_of(life: Life, asked: Mapping[str, Any] | None) -> dict[str, Any]:
    """The typed name of an episode."""
    if asked is not None and not on_the_wire(life):
        return dict(asked)
    return {"rollout_id": life.rollout_id, "attempt": life.attempt}


def flat_reply(result: Any, failure: Mapping[str, Any] | None) -> Reply:
    """The verified row. Raises `step_failed` where there is none."""
    if failure is not None:
        raise ParticipantError(Code.STEP_FAILED, str(failure["message"]), failure)
    return Reply(200, result)


def typed_reply(
    ids: Mapping[str, Any], result: Any, failure: Mapping[str, Any] | None, response: Any, observations: Any
) -> Reply:
    """Both ids and exactly one of `result` and `failure`."""
    if failure is None:
        return Reply(200, {**ids, "result": {**result, "ng_agent_observations": observations}})
    told: dict[str, Any] = {
        "failure_reason": str(failure["message"])[:MAX_REASON_CHARS],
        "terminal": failure["terminal"],
        "failure_kind": failure["class"],
        "stage": failure["stage"],
    }
    if response is not None:
        told["partial_response"] = response
    return Reply(200, {**ids, "failure": told})
