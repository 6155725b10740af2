"""Taking over from a controller that died: which lives go on, by enumeration of who was started again, and when."""

import itertools
from typing import Any

import pytest

from orchestrator.adoption import Standing, standing
from orchestrator.coordination import restore, resume, retire
from orchestrator.fleet import Fleet, Member
from orchestrator.links import LocalLink
from orchestrator.rounds import RoundLimits, checkpoint
from participants import Adopted, Code, Dispatched, Floor, ParticipantError, Request, Submit, Submitted
from participants.data import CallId
from participants.routing import worker_of
from store import Life, claim
from tests.support.checkpoints import memory_store
from tests.support.owners import settle
from tests.support.replaceable import ROLES, Servers, servers
from tests.support.scripted import counter_row

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LIFE = Life("r0", 1, 0, 0)
ROW = counter_row("r0", 2)

ENVIRONMENT, AGENT, MODEL, RESOURCES = ROLES
STAGES = {
    "before its seed": ("gate", (ENVIRONMENT,), (ENVIRONMENT,)),
    "being seeded": ("seed resources-r0", (ENVIRONMENT, RESOURCES), (ENVIRONMENT, RESOURCES)),
    "seeded": ("after /seed_session", (ENVIRONMENT, RESOURCES), (ENVIRONMENT, RESOURCES)),
    "opened": ("after /v1/agent_sessions", (ENVIRONMENT, RESOURCES, AGENT), (ENVIRONMENT, RESOURCES, AGENT)),
    "in a model call": ("model r0 0", ROLES, ROLES),
    "in a tool call": ("tool resources-r0 increment_counter 0", ROLES, ROLES),
    "after a tool call": ("model r0 1", ROLES, ROLES),
    "verifying": ("verify resources-r0", ROLES, ROLES),
    "closing": ("before /close_session", (ENVIRONMENT, RESOURCES, AGENT), ROLES),
    "result unacknowledged": ("", (ENVIRONMENT,), ROLES),
}
"""Where an episode is held, who cannot be started again there without breaking it, and who knows of it."""


class Closed:
    """An environment that begins no step until it is released."""

    def __init__(self, at: Servers) -> None:
        self._gate = at.environment(LIFE).gate
        self._gate.close()
        self.released = self

    def set(self) -> None:
        self._gate.reopen()


async def hold_at(at: Servers, event: str) -> Any:
    """Dispatch the episode, and let it come so far; without an event to its end."""
    if event == "gate":
        closed = Closed(at)
        await submit(at, LIFE)
        return closed
    pause = at.hold(event) if event else None
    await submit(at, LIFE)
    if pause is None:
        await at.environment(LIFE).next_result(0)
    else:
        await pause.reached.wait()
    return pause


async def submit(at: Servers, life: Life) -> Submitted:
    """Over the control plane."""
    [member] = at.fleet.of_kind("environment")
    return await member.link.send(
        Submit(**at.fleet.envelope(member), episodes=(Dispatched(life=life, row=ROW),)), Submitted
    )


@pytest.mark.parametrize("again", [None, *ROLES])
@pytest.mark.parametrize("stage", STAGES)
async def test_a_life_is_whole_unless_who_holds_something_of_it_began_anew(stage: str, again: str | None) -> None:
    """A whole one goes on to its reward; of a broken one, no result is ever a row."""
    event, needed, knowing = STAGES[stage]
    async with servers() as at:
        pause = await hold_at(at, event)
        if again is not None:
            await at.restart(again)
        found = await at.adopt()
        assert found.whole == (frozenset() if again in needed else {LIFE})
        assert found.broken == ({LIFE} if again in needed and set(knowing) != {again} else frozenset())
        await retire(at.fleet, sorted(found.broken), timeout_s=5)
        if pause is not None:
            pause.released.set()
        await settle(400)
        if again in needed:
            assert all(worker.holder.held() == [] for server in at.by_role.values() for worker in server.workers)
        else:
            assert (await reward(at)) == 1.0


async def reward(at: Servers) -> float | str:
    """Of the first result; the class of its failure instead."""
    result = await at.environment(LIFE).next_result(0)
    assert result is not None
    return str(result.failure["class"]) if result.failure is not None else float((result.row or {})["reward"])


STILL_CALLED = {
    "before its seed": (AGENT, MODEL, RESOURCES),
    "being seeded": (AGENT, MODEL, RESOURCES),
    "seeded": (AGENT, MODEL, RESOURCES),
    "opened": (AGENT, MODEL, RESOURCES),
    "in a model call": (AGENT, MODEL, RESOURCES),
    "in a tool call": (AGENT, MODEL, RESOURCES),
    "after a tool call": (AGENT, MODEL, RESOURCES),
    "verifying": (RESOURCES,),
    "closing": (),
    "result unacknowledged": (),
}
"""Whom an episode needs for its result from that stage on."""


@pytest.mark.parametrize("again", ROLES)
@pytest.mark.parametrize("stage", STAGES)
async def test_an_empty_server_never_stands_in_for_the_one_before(stage: str, again: str) -> None:
    """Until a controller has come, whoever is asked of a life that it does not have says so, and that is the result."""
    async with servers() as at:
        pause = await hold_at(at, STAGES[stage][0])
        await at.restart(again)
        if pause is not None:
            pause.released.set()
        await settle(400)
        if again == ENVIRONMENT:
            assert at.environment(LIFE).held() == []
        else:
            assert await reward(at) == ("session_lost" if again in STILL_CALLED[stage] else 1.0)


async def test_a_life_whose_call_is_on_its_way_is_broken() -> None:
    """Nobody can tell whether it came to a server that is gone; it costs no more than the call."""
    async with servers() as at:
        pause = await hold_at(at, "before /seed_session")
        found = await at.adopt()
        assert (found.whole, found.broken) == (frozenset(), frozenset({LIFE}))
        pause.released.set()


@pytest.mark.parametrize("again", ["agent.main", "model.main", "resources.main"])
async def test_an_episode_that_failed_for_want_of_a_server_is_lost(again: str) -> None:
    """Its failure is a result like any other, and the next controller begins it again."""
    async with servers() as at:
        pause = await hold_at(at, "after /v1/agent_sessions")
        await at.restart(again)
        pause.released.set()
        result = await at.environment(LIFE).next_result(0)
        assert result is not None
        assert result.failure is not None
        assert (result.failure["class"], result.failure["terminal"]) == ("session_lost", False)
        found = await at.adopt()
        assert found.whole == frozenset()
        assert await retire(at.fleet, sorted(found.broken), timeout_s=5) == frozenset()
        at.journal.new_world()
        assert await submit(at, Life("r0", 2, 1, 0)) == Submitted()
        assert await reward(at) == 1.0


async def test_an_older_life_goes_on_under_a_new_controller_and_no_older_one_begins() -> None:
    """Its calls that make something are let in; a dispatch of an epoch that is over is refused by that."""
    async with servers() as at:
        pause = await hold_at(at, "seed resources-r0")
        found = await at.adopt()
        at.fleet = at.fleet.with_floor(found.floor(at.epoch))
        late = Life("r7", 1, 0, 7)
        with pytest.raises(ParticipantError) as caught:
            await at.by_role["environment.main"].call(Request(route="/run", body=ROW, life=late))
        assert caught.value.code is Code.STALE_EPOCH
        with pytest.raises(ParticipantError) as caught:
            await at.by_role["agent.main"].call(Request(route="/run", body=ROW, life=late))
        assert caught.value.code is Code.STALE_EPOCH
        [refused] = (await submit(at, late)).refused
        assert (refused.code, refused.terminal) == ("stale_epoch", False)
        pause.released.set()
        assert await reward(at) == 1.0


@pytest.mark.parametrize("role", ROLES)
async def test_a_server_that_was_started_again_answers_for_no_life(role: str) -> None:
    """Whatever it is asked, until it is adopted; then it takes new lives and says that it has no older one."""
    async with servers() as at:
        await at.restart(role)
        server = at.by_role[role]
        for route in ROUTES[role.partition(".")[0]]:
            with pytest.raises(ParticipantError) as caught:
                await server.call(Request(route=route, body={}, life=LIFE, call=CallId("environment.main", 3, 0)))
            assert caught.value.code is Code.LOST_SESSION
            assert "was started after this run's last adopt" in caught.value.message
        assert (server.owner(LIFE).holder.held(), at.journal.order) == ([], [])


ROUTES = {
    "environment": ("/run", "/acknowledge"),
    "agent": ("/run", "/acknowledge", "/v1/agent_sessions", "/v1/agent_sessions/close", "/v1/responses"),
    "model": ("/v1/responses", "/v1/chat/completions", "/v1/completions"),
    "resources": ("/seed_session", "/close_session", "/verify", "/increment_counter", "/no_such_tool"),
}
"""Every data route of every kind."""


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_life_that_was_adopted_is_saved_and_continued_like_any_other(workers: int) -> None:
    """By a checkpoint of the controller that adopted it, and a restore of a third one; nothing behind it runs again."""
    store = memory_store()
    async with claim(store) as controller:
        first = controller.epoch
    async with servers(store, workers=workers, epoch=first) as at:
        pause = at.hold("model r0 1")
        environment = next(m for m in at.fleet.of_kind("environment") if own(m, LIFE))
        episodes = (Dispatched(life=LIFE, row=ROW),)
        await environment.link.send(Submit(**at.fleet.envelope(environment), episodes=episodes), Submitted)
        await pause.reached.wait()
        async with claim(store, take_over=True) as controller:
            found = await at.adopt(controller.epoch)
            at.fleet = at.fleet.with_floor(found.floor(controller.epoch))
            assert found.whole == {LIFE}
            async with checkpoint(at.fleet, controller, RoundLimits()) as standing_still:
                standing_still.take(scope=[LIFE])
            assert standing_still.published is not None
    async with claim(store, take_over=True) as controller, servers(store, workers=3, epoch=controller.epoch) as at:
        assert controller.head is not None
        round_ = controller.next_round()
        await restore(at.fleet, round_, controller.head, [LIFE], timeout_s=20)
        await resume(at.fleet, round_)
        following = Life("r0", controller.epoch, 1, 0)
        await at.environment(following).dispatch(following, ROW)
        assert (await at.adopt(controller.epoch + 1)).whole == {following}
        result = await at.environment(following).next_result(0)
        assert result is not None
        assert (result.row or {})["reward"] == 1.0
        assert at.journal.order[0] == "model r0 1"


def own(member: Member, life: Life) -> bool:
    """Whether a life belongs to a worker."""
    return worker_of(life.rollout_id, member.capabilities.workers) == member.capabilities.worker


# The decision alone


def fleet_of(*names: str) -> Fleet:
    """Members of these names."""
    return Fleet(tuple(Member(LocalLink(None), _Named(name)) for name in names), "a" * 32)  # type: ignore[arg-type]


class _Named:
    """Capabilities of which nothing but the name is looked at."""

    def __init__(self, name: str) -> None:
        role, _, self.process = name.partition("/")
        self.kind, _, self.name = role.partition(".")


def answer(**given: Any) -> Adopted:
    return Adopted(incarnation="i", **given)


@pytest.mark.parametrize(
    ("live", "brought", "lost"), [*itertools.product([False, True], [None, -1, 0, 1], [False, True])]
)
def test_a_need_is_met_by_a_life_or_by_the_record_that_it_will_take_up(
    live: bool, brought: int | None, lost: bool
) -> None:
    """At any worker of the role; a record of another attempt is none, and a lost life is broken whatever is there."""
    life = Life("r0", 3, 2, 5)
    record = [] if brought is None else [Life("r0", 2, life.attempt + brought, 1)]
    answers = {
        "environment.main/w0": answer(
            lives=[life], dispatched=[life], needs={"agent.main": [life]}, lost=[life] if lost else []
        ),
        "agent.main/w0": answer(lives=[]),
        "agent.main/w1": answer(lives=[life] if live else [], brought=record),
    }
    found = standing(fleet_of(*answers), answers)
    assert found.whole == ({life} if not lost and (live or brought == -1) else frozenset())
    assert found.lives == {life, *record}


def test_the_floor_is_that_of_the_lowest_whole_life() -> None:
    """What is broken does not hold it down; without any, all that is older is over."""
    low, high, gone = Life("r1", 2, 0, 9), Life("r0", 3, 0, 1), Life("r2", 1, 0, 0)
    found = Standing(frozenset({low, high, gone}), frozenset({low, high}))
    assert (found.floor(5), found.broken) == (Floor(2, 9), frozenset({gone}))
    assert Standing(frozenset({gone}), frozenset()).floor(5) == Floor(5, 0)


def test_what_a_restore_brought_a_life_that_goes_on_is_not_ended() -> None:
    """Another server of the fleet may not have taken it up yet."""
    life, record, other = Life("r0", 2, 1, 0), Life("r0", 1, 0, 4), Life("r1", 1, 0, 5)
    assert Standing(frozenset({life, record, other}), frozenset({life})).broken == {other}
