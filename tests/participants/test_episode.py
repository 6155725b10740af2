"""Steps of an episode as a table: what follows each, what a failure leads to, and the form that is exported."""

from collections.abc import Mapping
from typing import Any

import anyio
import orjson
import pytest

from participants import (
    EPISODE_STEPS,
    RUN_STEPS,
    Code,
    Episode,
    EpisodeRunner,
    Gate,
    Held,
    ParticipantError,
    Reply,
    Request,
)
from participants.episode import STAGES, export_episode, import_episode
from store import Life

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LIFE = Life("r0", 1, 0, 0)
ROW: dict[str, Any] = {"responses_create_params": {"input": "x"}, "n": 1}


class Answering:
    """A peer that answers by route, and keeps what it was asked."""

    def __init__(self, role: str, replies: Mapping[str, Any]) -> None:
        self.role = role
        self.replies = replies
        self.routes: list[str] = []

    async def call(self, request: Request) -> Reply:
        self.routes.append(request.route)
        reply = self.replies.get(request.route, {})
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, Reply) else Reply(200, reply)


async def run(replies: Mapping[str, Any], steps: Any = EPISODE_STEPS) -> tuple[Episode, list[Episode], list[str]]:
    """An episode to its end: the end, every boundary, and the routes called."""
    peer = Answering("resources.main", {"/verify": {"reward": 1}, "/v1/responses": {"output": []}, **replies})
    agent = Answering("agent.main", peer.replies)
    agent.routes = peer.routes
    runner = EpisodeRunner("environment.main", Gate(), lambda held: agent, {peer.role: peer}, steps)
    boundaries: list[Episode] = []
    held: Held[Any] = Held(LIFE, None)
    end = await runner.run(held, Episode(row=ROW), boundaries.append)
    assert held.waited == {}
    return end, boundaries, peer.routes


@pytest.mark.parametrize("steps", [EPISODE_STEPS, RUN_STEPS])
async def test_every_step_leads_to_the_one_that_the_table_names(steps: Any) -> None:
    """One boundary after each, numbered on; the table ends at `done`, and every step has a stage."""
    end, boundaries, _ = await run({}, steps)
    walked, at = [], "seed"
    while at != "done":
        walked.append(at)
        at = steps[at].then
    assert walked == list(steps)
    assert [each.step for each in boundaries] == [*walked[1:], "done"]
    assert [each.boundary for each in boundaries] == list(range(1, len(walked) + 1))
    assert (end.result, end.failure, set(walked) <= set(STAGES)) == ({"reward": 1}, None, True)


@pytest.mark.parametrize(
    ("route", "reply", "failure"),
    [
        ("/seed_session", ParticipantError(Code.INVALID_REQUEST, "x"), ("invalid_request", "seed", True)),
        ("/v1/agent_sessions", Reply(500, "oops"), ("step_failed", "agent", False)),
        ("/v1/responses", ParticipantError(Code.LOST_SESSION, "x"), ("session_lost", "agent", False)),
        ("/v1/responses", ZeroDivisionError("x"), ("step_failed", "agent", False)),
        ("/v1/responses", ParticipantError(Code.MODEL_FAILED, "x", {"status": 400}), ("model_failed", "agent", True)),
        ("/v1/responses", ParticipantError(Code.MODEL_FAILED, "x"), ("model_failed", "agent", False)),
        ("/v1/responses", ParticipantError(Code.DEADLINE_EXCEEDED, "x"), ("timeout", "agent", False)),
        ("/verify", {"reward": None}, ("step_failed", "verification", False)),
        ("/verify", {"reward": float("nan")}, ("step_failed", "verification", False)),
        ("/verify", "a page", ("step_failed", "verification", False)),
        ("/verify", {"reward": 0.0, "_ng_failure_class": "judge_failed"}, ("judge_failed", "verification", False)),
    ],
)
async def test_a_step_that_fails_ends_the_episode_typed_and_closes_its_sessions(
    route: str, reply: Any, failure: tuple[str, str, bool]
) -> None:
    """Class, stage and whether another try can help; there is no result, and never a reward of 0."""
    end, _, routes = await run({route: reply})
    assert end.failure is not None
    assert tuple(end.failure[key] for key in ("class", "stage", "terminal")) == failure
    assert (end.result, routes[-1]) == (None, "/close_session")


async def test_a_close_that_fails_costs_nothing_that_was_done() -> None:
    """The other session is closed all the same, and the result stands."""
    end, _, routes = await run({"/v1/agent_sessions/close": ParticipantError(Code.STALE_LIFE, "x")})
    assert (end.result, end.failure, routes[-1]) == ({"reward": 1}, None, "/close_session")


async def test_an_exported_episode_is_json_and_comes_back() -> None:
    """Every field, also of one that has failed."""
    episode = Episode(row=ROW, step="close", boundary=3, failure={"class": "x"}, task_id={"taskset": "a", "task_id": 1})
    assert import_episode(orjson.loads(orjson.dumps(export_episode(episode)))) == episode
    assert (export_episode(None), import_episode(None)) == (None, None)


async def test_the_time_of_a_step_in_flight_is_in_the_record() -> None:
    """A crash does not give it back, and time parked is not part of it."""
    now = [0.0]
    gate = Gate(clock=lambda: now[0])
    reached, go = anyio.Event(), anyio.Event()

    class Slow(Answering):
        async def call(self, request: Request) -> Reply:
            reached.set()
            await go.wait()
            return Reply(200, {})

    peer = Slow("resources.main", {})
    runner = EpisodeRunner("environment.main", gate, lambda held: peer, {peer.role: peer}, EPISODE_STEPS)
    held: Held[Any] = Held(LIFE, None)
    async with anyio.create_task_group() as group:
        group.start_soon(runner.run, held, Episode(row=ROW, active_s=1.0), lambda boundary: None)
        await reached.wait()
        now[0] += 5.0
        gate.close()
        now[0] += 100.0
        assert runner.active_s(LIFE, Episode(row=ROW, active_s=1.0)) == 6.0
        group.cancel_scope.cancel()
    assert runner.active_s(LIFE, Episode(row=ROW)) == 0.0
