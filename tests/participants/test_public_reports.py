"""Faults that users reported to other projects, tried on rollouts in flight; docs/public-reports.md lists them."""

import pytest

from orchestrator.errors import RestoreFailed
from participants import Code, ParticipantError, Request
from store import MemoryBackend, TransientError, open_checkpoint
from store.backends import MemorySpace, Retrying
from tests.support.checkpoints import memory_store
from tests.support.journal import Journal
from tests.support.owners import settle
from tests.support.scripted import counter_row
from tests.support.world import JournalCounter, world

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


async def test_work_in_flight_at_a_commit_is_continued_and_nothing_vanishes() -> None:
    """Of eight rollouts three are in flight: delivered and continued ones together are all eight, each once."""
    rows = {f"r{n}": counter_row(f"r{n}", n + 1) for n in range(8)}
    store, journal = memory_store(), Journal()
    async with world(store, journal) as one:
        pauses = [one.hold(f"model r{n} 1") for n in (1, 4, 6)]
        await one.start(rows)
        for pause in pauses:
            await pause.reached.wait()
        delivered = set(await one.results(5))
        await one.checkpoint()
    async with world(store, journal) as two:
        continued = {life.rollout_id for life in two.restored}
        assert (delivered | continued, delivered & continued) == (set(rows), set())
        await two.start({name: rows[name] for name in continued})
        assert set(await two.results(3)) == {"r1", "r4", "r6"}


async def test_what_a_boundary_depends_on_is_in_the_same_checkpoint() -> None:
    """A boundary after a tool call never comes without the session that the call changed: the tool is not run again."""
    rows = {"r0": counter_row("r0", 5)}
    store, journal = memory_store(), Journal()
    async with world(store, journal) as one:
        next_call = one.hold("model r0 1")
        await one.start(rows)
        await one.checkpoint_at(next_call, go_on=False)
    async with world(store, journal) as two:
        record = two.resources.brought("r0")
        assert record["state"]["sessions"]["resources-r0"]["state"] == {"count": 6}
        assert two.agent.brought("r0")["state"]["activation"]["boundary"] == 2
        await two.start(rows)
        assert (await two.results(1))["r0"].row is not None
    assert journal.begun["tool resources-r0 increment_counter 0"] == 1


async def test_finished_work_that_nobody_took_survives() -> None:
    """Four results wait to be acknowledged when everything dies: all four are delivered once, and none runs again."""
    rows = {f"r{n}": counter_row(f"r{n}", n + 1) for n in range(4)}
    store, journal = memory_store(), Journal()
    async with world(store, journal) as one:
        await one.start(rows)
        for name in rows:
            await journal.wait(f"verify resources-{name}", ended=True)
        await settle()
        await one.checkpoint()
    order = list(journal.order)
    async with world(store, journal) as two:
        await two.start(rows)
        results = await two.results(4)
        assert all(result.row and result.row["reward"] == 1.0 for result in results.values())
        assert two.left() == {}
    assert journal.order == order


async def test_a_result_is_not_reported_before_it_survives_and_is_not_made_again() -> None:
    """Results that were taken after the checkpoint and lost with the controller are delivered by the continuation."""
    rows = {f"r{n}": counter_row(f"r{n}", 1) for n in range(3)}
    store, journal = memory_store(), Journal()
    async with world(store, journal) as one:
        pauses = [one.hold(f"before /close_session {n}") for n in range(3)]
        await one.start(rows)
        for pause in pauses:
            await pause.reached.wait()
            pause.released.set()
        await settle()
        await one.checkpoint()
        await one.results(3)
    async with world(store, journal) as two:
        await two.start(rows)
        assert set(await two.results(3)) == set(rows)
    assert journal.repeated() == {}


async def test_an_owner_that_was_replaced_stops_and_can_change_nothing() -> None:
    """A newer life takes over: the older one's task ends, and what it sends late is refused and touches nothing."""
    rows = {"r0": counter_row("r0", 2)}
    async with world() as one:
        assert isinstance(one.resources, JournalCounter)
        pause = one.hold("tool resources-r0 increment_counter 0")
        [old] = await one.start(rows)
        await pause.reached.wait()
        one.resources.holds.clear()
        one.journal.new_world()
        [new] = await one.start(rows)
        result = (await one.results(1))["r0"]
        assert result.row is not None
        assert (result.life, result.row["reward"]) == (new, 1.0)
        with pytest.raises(ParticipantError) as caught:
            await one.resources.handle(Request(route="/increment_counter", body={"count": 9}, life=old))
        assert caught.value.code is Code.STALE_LIFE
        assert one.left() == {}


async def test_changes_made_after_a_restore_are_in_the_next_checkpoint() -> None:
    """Two turns after the first restore, a checkpoint, a crash: the second restore has the two turns."""
    rows = {"r0": counter_row("r0", 1, 2, 3)}
    store, journal = memory_store(), Journal()
    for turn in (1, 3):
        async with world(store, journal) as one:
            await one.start(rows)
            await one.checkpoint_at(one.hold(f"model r0 {turn}"), go_on=False)
    async with world(store, journal) as last:
        assert last.resources.brought("r0")["state"]["sessions"]["resources-r0"]["state"] == {"count": 7}
        await last.start(rows)
        assert (await last.results(1))["r0"].row is not None
    assert journal.repeated() == {"model r0 1": 2, "model r0 3": 2}


async def test_a_transcript_has_each_call_with_its_result_wherever_the_crash_was() -> None:
    """Killed between a tool's effect and its boundary: no output without its call, none missing, none twice."""
    rows = {"r0": counter_row("r0", 2, 3)}
    for point in ("before /increment_counter 0", "after /increment_counter 0", "after /increment_counter 1"):
        store, journal = memory_store(), Journal()
        async with world(store, journal) as one:
            save, kill = one.hold("model r0 0"), one.hold(point)
            await one.start(rows)
            await one.checkpoint_at(save)
            await kill.reached.wait()
        async with world(store, journal) as two:
            await two.start(rows)
            row = (await two.results(1))["r0"].row
        assert row is not None
        items = row["response"]["output"]
        called = [item["call_id"] for item in items if item["type"] == "function_call"]
        answered = [item["call_id"] for item in items if item["type"] == "function_call_output"]
        assert (answered, len(set(called))) == (called, 3)
        assert row["reward"] == 1.0


async def test_a_rollout_that_is_killed_leaves_no_result_and_no_reward() -> None:
    """Killed in the middle of everything: no row, no failure; the checkpoint continues it to its real reward."""
    rows = {"r0": counter_row("r0", 2)}
    store = memory_store()
    async with world(store) as one:
        verify = one.hold("verify resources-r0")
        await one.start(rows)
        await verify.reached.wait()
        await one.checkpoint()
        assert not one.environment._results
    async with world(store) as two:
        assert two.controller.head is not None
        assert len((await open_checkpoint(store, two.controller.head)).manifest.scope) == 1
        await two.start(rows)
        result = (await two.results(1))["r0"]
        assert (result.failure, result.row and result.row["reward"]) == (None, 1.0)


class Flaky(MemoryBackend):
    """Fails every third read of a part, once `failing`; `lost` for good where it is told so."""

    failing = False
    lost = False
    reads = 0

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.reads += self.failing
        if self.failing and (self.lost or self.reads % 3 == 0):
            raise TransientError("get_range", key, "planted", applied=False)
        return await super().get_range(key, start, length)


@pytest.mark.parametrize("lost", [False, True])
async def test_a_restore_through_store_errors_brings_all_or_says_so(lost: bool) -> None:
    """One error in three reads: every rollout continues; a store that stays away: a clear failure, nothing opens."""
    rows = {f"r{n}": counter_row(f"r{n}", 1) for n in range(30)}
    backend = Flaky(space=MemorySpace())
    store = memory_store(Retrying(backend, 0.5 if lost else 30.0))
    journal = Journal()
    async with world(store, journal) as one:
        pauses = [one.hold(f"model r{n} 1") for n in range(30)]
        await one.start(rows)
        for pause in pauses:
            await pause.reached.wait()
        await one.checkpoint()
    backend.failing, backend.lost = True, lost
    if lost:
        with pytest.RaisesGroup(pytest.RaisesExc(RestoreFailed), flatten_subgroups=True):
            async with world(store, journal):
                pass
        backend.failing = False
    async with world(store, journal) as two:
        backend.failing = False
        assert len(two.restored) == 30
        await two.start(rows)
        assert set(await two.results(30)) == set(rows)
    assert backend.reads >= 3
