"""What has cost results in silence elsewhere: an empty server, or the wrong one, that answers as the right one would.

Each row of the table has a claim here. A server started again under an episode, at each stage of it, is the subject of
`test_adoption`; here are the routes one by one, workers that are asked for what is not theirs, and callers that go.
"""

from typing import Any

import anyio
import pytest

from orchestrator.coordination import retire
from participants import Code, ParticipantError, Reply, Request
from participants.data import CallId
from store import Life
from tests.support.owners import settle
from tests.support.replaceable import ROLES, Servers, servers
from tests.support.scripted import counter_row

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LIFE = Life("r0", 1, 0, 0)
ROW = counter_row("r0", 2)
MODEL_BODY = ROW["responses_create_params"]
SESSION = {"resources_session_id": "resources-r0"}

MAKES = {
    ("agent", "/v1/agent_sessions"): {"agent_session_id": "agent-r0", "resources": {"role": "resources.main"}},
    ("model", "/v1/responses"): MODEL_BODY,
    ("resources", "/seed_session"): ROW,
    ("resources", "/close_session"): SESSION,
}
"""What may be the first call of a life at its server: it asks for nothing that was there before."""
CONTINUES = {
    ("agent", "/v1/responses"): MODEL_BODY,
    ("agent", "/v1/agent_sessions/close"): {"agent_session_id": "agent-r0"},
    ("resources", "/verify"): {**ROW, **SESSION, "response": {"output": []}},
    ("resources", "/increment_counter"): {"count": 1},
    ("resources", "/no_such_tool"): {},
}
"""What only a server that knows the life can answer."""
BEGINS = {("environment", "/run"): ROW, ("agent", "/run"): ROW}
"""What begins an episode."""


async def ask(at: Servers, kind: str, route: str, body: Any, life: Life = LIFE) -> Reply:
    """One data call."""
    call = CallId("environment.main", 3, 0)
    return await at.by_role[f"{kind}.main"].call(Request(route=route, body=body, life=life, call=call))


@pytest.mark.parametrize(("kind", "route"), [*CONTINUES, *BEGINS])
async def test_an_empty_server_that_was_adopted_has_nothing_to_go_on_from(kind: str, route: str) -> None:
    """It says which life it does not know; an epoch that is over begins no episode, and so nothing twice."""
    async with servers() as at:
        await at.restart(f"{kind}.main")
        await at.adopt()
        with pytest.raises(ParticipantError, match="is not known here") as caught:
            await ask(at, kind, route, {**CONTINUES, **BEGINS}[kind, route])
        assert caught.value.code is (Code.STALE_EPOCH if (kind, route) in BEGINS else Code.STALE_LIFE)
        assert str(LIFE) in caught.value.message
        assert (at.by_role[f"{kind}.main"].owner(LIFE).holder.held(), at.journal.order) == ([], [])


@pytest.mark.parametrize(("kind", "route"), MAKES)
async def test_an_older_life_makes_what_it_needs_where_it_has_nothing_yet(kind: str, route: str) -> None:
    """It was whole when the new controller came, so nothing of it can be missing there."""
    async with servers() as at:
        await at.restart(f"{kind}.main")
        await at.adopt()
        await retire(at.fleet, [], timeout_s=5)
        assert (await ask(at, kind, route, MAKES[kind, route])).ok
        assert [held.life for held in at.by_role[f"{kind}.main"].owner(LIFE).holder.held()] == [LIFE]


@pytest.mark.parametrize(("kind", "route"), [*MAKES, *CONTINUES, *BEGINS])
async def test_a_life_that_was_ended_gets_nothing_from_anybody(kind: str, route: str) -> None:
    """Whoever still works for it is told, by every route, also by one that has never heard of it."""
    async with servers() as at:
        await retire(at.fleet, [LIFE], timeout_s=5)
        with pytest.raises(ParticipantError) as caught:
            await ask(at, kind, route, {**MAKES, **CONTINUES, **BEGINS}[kind, route])
        assert caught.value.code is Code.STALE_LIFE


@pytest.mark.parametrize(("kind", "route"), CONTINUES)
async def test_a_worker_that_is_asked_for_another_ones_life_does_not_answer_for_it(kind: str, route: str) -> None:
    """As a plain balancer before several workers would ask it: an error, and never an empty session."""
    async with servers(workers=2) as at:
        await ask(at, "resources", "/seed_session", ROW)
        await ask(at, "agent", "/v1/agent_sessions", MAKES["agent", "/v1/agent_sessions"])
        server = at.by_role[f"{kind}.main"]
        [stranger] = [worker for worker in server.workers if worker is not server.owner(LIFE)]
        call = CallId("environment.main", 3, 0)
        with pytest.raises(ParticipantError, match="is not known here") as caught:
            await stranger.serve(Request(route=route, body=CONTINUES[kind, route], life=LIFE, call=call))
        assert caught.value.code is Code.STALE_LIFE


async def test_many_episodes_over_two_workers_each_have_their_full_reward() -> None:
    """No session is looked for where it is not."""
    async with servers(workers=2) as at:
        every = [Life(f"r{n}", 1, 0, n) for n in range(8)]
        for life in every:
            await at.environment(life).dispatch(life, counter_row(life.rollout_id, 2))
        rewards = {}
        for worker in at.by_role["environment.main"].workers:
            environment: Any = worker.holder
            for number in range(1, len(environment.held()) + 1):
                result = await environment.next_result(number - 1)
                rewards[result.life] = result.row["reward"]
        assert rewards == dict.fromkeys(every, 1.0)
        for role in ROLES:
            assert all(worker.holder.held() for worker in at.by_role[role].workers)


async def test_a_caller_that_goes_away_ends_no_episode() -> None:
    """It asks again, and has the one result; nothing ran twice."""
    async with servers() as at:
        pause = at.hold("model r0 1")
        async with anyio.create_task_group() as group:
            group.start_soon(ask, at, "environment", "/run", ROW)
            await pause.reached.wait()
            group.cancel_scope.cancel()
        pause.released.set()
        await settle(300)
        reply = await ask(at, "environment", "/run", ROW)
        assert reply.body["reward"] == 1.0
        assert at.journal.violations == []
