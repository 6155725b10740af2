"""The three sets of a checkpoint: what is dispatched and not acknowledged stands in just one, or nothing is written."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from orchestrator.errors import CommitFailed
from orchestrator.rounds import RoundLimits, checkpoint
from participants import Code, ParticipantError, Request
from store import Life, open_checkpoint
from tests.support.checkpoints import memory_store
from tests.support.scripted import counter_row
from tests.support.world import World, world

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

ROWS = {name: counter_row(name, 2) for name in ("r0", "r1", "r2")}


async def take(one: World, scope: Sequence[Life], **sets: Any) -> Any:
    """One checkpoint with the sets as they are given."""
    async with checkpoint(one.fleet, one.controller, RoundLimits()) as opened:
        opened.take(scope=scope, **sets)
    return (await open_checkpoint(one.store, "head")).manifest


async def is_refused(one: World, *named: Life, scope: Sequence[Life], **sets: Any) -> None:
    """The commit is, naming the lives; the head stays, and work goes on."""
    head = one.controller.head
    with pytest.raises(CommitFailed) as caught:
        await take(one, scope, **sets)
    [error] = {str(error): error for error in caught.value.failures.values()}.values()
    assert isinstance(error, ParticipantError)
    assert error.code is Code.SCOPE_MISMATCH
    assert error.details["lives"] == [str(life) for life in named]
    assert (await one.store.chain()).state.head == head
    assert not one.environment.gate.closed


async def run_at_agent(one: World, life: Life) -> None:
    """A whole episode under the agent's own `/run`."""
    await one.agent.handle(Request(route="/run", body=ROWS[life.rollout_id], life=life))


async def run_at_environment(one: World, life: Life) -> None:
    """A whole episode under `/run` of the environment."""
    await one.environment.handle(Request(route="/run", body=ROWS[life.rollout_id], life=life))


async def test_a_dispatched_life_that_stands_in_no_set_is_refused_and_named() -> None:
    """A controller that forgets half of what it has open writes nothing; with all of it named it does."""
    async with world() as one:
        lives = await one.start(ROWS)
        await is_refused(one, *lives[1:], scope=lives[:1])
        assert (await take(one, lives)).scope == tuple(lives)
        manifest = await take(one, lives[:1], restarts=lives[1:2], dropped={lives[2]: "its row changed"})
        assert (manifest.scope, manifest.restarts, manifest.dropped[0].life) == ((lives[0],), (lives[1],), lives[2])


async def test_a_life_that_is_dispatched_inside_the_block_is_missed_too() -> None:
    """The commit looks once the block is left."""
    async with world() as one:
        lives = await one.start({"r0": ROWS["r0"]})
        late = one.next_life("r1")

        async def dispatching() -> None:
            async with checkpoint(one.fleet, one.controller, RoundLimits()) as opened:
                opened.take(scope=lives)
                await one.environment.dispatch(late, ROWS["r1"])

        with pytest.raises(CommitFailed, match="r1/"):
            await dispatching()
        assert (await take(one, [*lives, late])).scope == (*lives, late)


@pytest.mark.parametrize("run", [run_at_agent, run_at_environment])
async def test_a_result_is_owed_until_it_is_acknowledged(run: Callable[[World, Life], Awaitable[None]]) -> None:
    """Wherever the episode was run: its reply may be lost, so that only an acknowledgement ends it."""
    async with world() as one:
        life = one.next_life("r0")
        await run(one, life)
        await is_refused(one, life, scope=[])
        assert (await take(one, [life])).scope == (life,)
        one.agent.finish(life)
        one.environment.finish(life)
        assert (await take(one, [])).scope == ()


async def test_a_restored_rollout_is_owed_until_it_is_taken_up_and_then_as_its_next_life() -> None:
    """Restored and dispatched again, or not yet: left out of the next checkpoint it would be gone."""
    store = memory_store()
    async with world(store) as one:
        before = await one.start(ROWS)
        await one.checkpoint()
    async with world(store) as two:
        await is_refused(two, *before[1:], scope=before[:1])
        [life] = await two.start({"r0": ROWS["r0"]})
        await is_refused(two, life, scope=before)
        assert set((await take(two, [life, *before[1:]])).scope) == {life, *before[1:]}


async def test_a_restored_run_of_an_agent_is_owed_too() -> None:
    """Its record says that the agent owns the episode."""
    store = memory_store()
    async with world(store) as one:
        life = one.next_life("r0")
        await run_at_agent(one, life)
        await take(one, [life])
    async with world(store) as two:
        await is_refused(two, life, scope=[])
        assert (await take(two, [life])).scope == (life,)


@pytest.mark.parametrize("sets", [
    lambda life: {"scope": [life], "restarts": [life]},
    lambda life: {"scope": [life], "dropped": {life: "no reason"}},
    lambda life: {"scope": [life, life]},
    lambda life: {"scope": [], "restarts": [life], "dropped": {life: "no reason"}},
])  # fmt: skip
async def test_a_life_that_stands_twice_is_refused_before_anything_is_written(sets: Any) -> None:
    """In two sets, or twice in one, though everybody could export it."""
    async with world() as one:
        [life] = await one.start({"r0": ROWS["r0"]})
        await is_refused(one, life, **sets(life))


async def test_what_is_left_out_may_have_ended_already() -> None:
    """A restart or dropped life that nobody knows any more is recorded as it is given."""
    async with world() as one:
        lives = await one.start(ROWS)
        await one.retire(*lives[1:])
        manifest = await take(one, lives[:1], restarts=lives[1:2], dropped={lives[2]: "its row changed"})
        assert (manifest.restarts, manifest.dropped[0].life) == ((lives[1],), lives[2])
