"""The control plane's restores: staged, activated, resumed or discarded, once, with a real holder and store."""

from typing import Any

import pytest

from participants import Code, Stage
from store import Life, claim
from tests.support.checkpoints import memory_store
from tests.support.desk import LIFE, OTHER, beside, desk, publish, published, refused
from tests.support.owners import NOWHERE, ON_PUSHED_LOOP, Pause, failing, next_life, push

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


@pytest.fixture
def anyio_backend() -> Any:
    """A clock to push."""
    return ON_PUSHED_LOOP


async def test_a_restore_brings_what_was_published_and_waits_for_the_next_life() -> None:
    """Nothing is active before resume; then the life of attempt N + 1 continues."""
    store = memory_store()
    ref = await published(store, "a")
    async with desk(store, 2) as at:
        for _ in range(2):
            assert (await at.stage(ref)).phase == "staged"
        for _ in range(2):
            assert (await at.activate()).phase == "restored"
        for _ in range(2):
            assert (await at.resume()).phase == "idle"
        assert await at.owner.write(next_life(LIFE, 2), "b") == ["a", "b"]


@pytest.mark.parametrize("own", [None, {"decided": [1.5]}])
async def test_an_own_state_is_given_to_every_new_worker_with_the_whole_scope(own: Any) -> None:
    """Whichever rollouts are the worker's: what it owns by other keys, it knows itself. Nothing is given as nothing."""
    store = memory_store()
    scope = (LIFE, OTHER)
    async with claim(store, take_over=True) as controller, desk(store, controller.epoch) as at:
        at.owner.own = own
        for life in scope:
            await at.owner.write(life, "a", creates=True)
        ref = await publish(at, controller, scope)
    for number in range(3):
        async with desk(store, 2) as at:
            await at.plane.stage(at.call(Stage, checkpoint=ref, scope=scope, shard=(number, 3)))
            states = [] if own is None else [{"own": own, "scope": sorted(map(str, scope))}]
            assert at.owner.given == (states, set(scope), 2)


async def test_concurrent_stages_read_once() -> None:
    """The second one joins the first."""
    store = memory_store()
    ref = await published(store, "a")
    async with desk(store, 2) as at:
        pause = at.owner.hooks["import"] = Pause()
        async with beside(at.stage(ref), at.stage(ref)) as stages:
            await pause.reached.wait()
            pause.released.set()
        assert [stage.answer.phase for stage in stages] == ["staged", "staged"]


@pytest.mark.fault(42)
async def test_a_restore_has_no_lease_and_a_higher_epoch_discards_it() -> None:
    """However long its controller is gone; then nothing of it is left."""
    store = memory_store()
    ref = await published(store, "a")
    for steps in (1, 2):
        async with desk(store, 2) as at:
            await at.stage(ref)
            if steps == 2:
                await at.activate()
            await push(100_000)
            assert at.phase == ("staged", "restored")[steps - 1]
            await at.adopt(3)
            assert (at.phase, at.owner.counts()["restored"]) == ("idle", 0)


@pytest.mark.parametrize("step", ["import", "activate"])
async def test_a_failed_restore_waits_for_its_abort_and_leaves_nothing(step: str) -> None:
    """Its phase says so; after the abort the same checkpoint restores."""
    store = memory_store()
    ref = await published(store, "a")
    async with desk(store, 2) as at:
        at.owner.hooks[step] = failing(ZeroDivisionError("planted"))
        if step == "activate":
            await at.stage(ref)
        await refused(at.stage(ref) if step == "import" else at.activate(), Code.INTERNAL)
        assert at.phase == "restore_failed"
        await refused(at.resume(), Code.INVALID_PHASE)
        await refused(at.retire(LIFE), Code.INVALID_PHASE)
        await at.abort()
        del at.owner.hooks[step]
        assert (at.phase, at.owner.counts()["restored"]) == ("idle", 0)
        await at.stage(ref, 2)


async def test_a_restore_of_what_is_not_there_is_refused() -> None:
    """A checkpoint that does not exist, and a scope with lives that the checkpoint has not."""
    store = memory_store()
    ref = await published(store, "a")
    async with desk(store, 2) as at:
        await refused(at.stage(NOWHERE), Code.CORRUPT_CHECKPOINT)
        await at.abort()
        for k, life in enumerate((OTHER, Life("r0", 1, 0, 7)), 2):
            error = await refused(at.stage(ref, k, (LIFE, life)), Code.SCOPE_MISMATCH)
            assert str(life) in error.message
            await at.abort(k)
        assert at.owner.counts()["restored"] == 0


async def test_a_late_abort_does_not_end_the_next_round() -> None:
    """Two aborts wait for the same discard; when the second one wakes, the next round is open already."""
    store = memory_store()
    ref = await published(store, "a")
    async with desk(store, 2) as at:
        await at.stage(ref)
        first, second = Pause(), Pause()
        at.owner.hooks["discard"] = first
        async with beside(at.abort()) as [one]:
            await first.reached.wait()
            at.owner.hooks["discard"] = second
            async with beside(at.abort()) as [other]:
                await second.reached.wait()
                first.released.set()
                await one.done.wait()
                await at.prepare(2)
                second.released.set()
            assert other.code is None
        assert (at.phase, at.owner.gate.closed) == ("prepared", True)
