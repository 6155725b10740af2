"""genrm_compare over time: limits of active time, checkpoints that wait for nobody, and what outlives a process."""

from typing import Any

import anyio
import pytest

from participants import Code, Floor, ParticipantError
from store import Life
from tests.support.owners import ON_PUSHED_LOOP, push, settle

from .cohort_workers import REWARDS, SCORES, Clock, Judge, Verifying, Workers, row_of

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


@pytest.mark.parametrize("anyio_backend", [ON_PUSHED_LOOP])
@pytest.mark.parametrize("limit", ["collection", "waiter", "evaluation"])
async def test_each_wait_has_a_limit_of_active_time(limit: str) -> None:
    """Time for which a checkpoint stands open does not count; then the failure is `cohort_failed`."""
    clock = Clock()
    judge = Judge(SCORES, hold=anyio.Event())
    options: dict[str, Any] = {f"cohort_{limit}_timeout_s": 60.0}
    workers = Workers.make(judge=judge, clock=clock, judge_timeout_s=5000.0, **options)
    [server] = workers.servers

    async def passes(seconds: float) -> None:
        clock.now += seconds
        await push(seconds)

    async with anyio.create_task_group() as group:
        verifying = Verifying(workers, group)
        await verifying.all(0, 1, *([2] if limit == "evaluation" else []))
        await passes(59)
        server.gate.close()
        await passes(500)
        server.gate.reopen()
        assert (verifying.errors, verifying.rewards) == ({}, {})
        await passes(2)
        await settle()
        assert {error.code for error in verifying.errors.values()} == {Code.COHORT_FAILED}
        assert len(verifying.errors) == (3 if limit == "evaluation" else 2)
        assert workers.counts("cohorts") == 0  # Who was told so is waited for no more.
    assert not server._rooms


# Checkpoints


async def test_a_prepare_waits_for_no_verify_and_nothing_is_decided_while_it_stands() -> None:
    """What comes meanwhile waits: a commit writes one point in time."""
    judge = Judge(SCORES, hold=anyio.Event())
    workers = Workers.make(2, judge)
    lives = [Life(f"r{index}", 1, 0, index) for index in range(3)]
    async with anyio.create_task_group() as group:
        verifying = Verifying(workers, group)
        await verifying.all(0, 1, 2)
        for server in workers.servers:
            server.gate.close()
            with anyio.fail_after(1):
                await server.gate.wait_quiet()
        assert judge.hold is not None
        judge.hold.set()
        await settle()
        assert verifying.rewards == {}
        _, states = await workers.export(lives)
        assert [item for state in states for item in state["cohorts"]] == []
        for server in workers.servers:
            server.gate.reopen()
    assert verifying.rewards == REWARDS


async def test_a_join_waits_while_admission_is_closed() -> None:
    """At the worker of the cohort, whoever asks."""
    workers = Workers.make(2, Judge(SCORES))
    owner = workers.of("group_id::g::group_attempt::0")
    async with anyio.create_task_group() as group:
        verifying = Verifying(workers, group)
        await verifying.all(0, 1)
        owner.gate.close()
        await verifying.all(2)
        cohort = owner.cohorts.find("group_id::g::group_attempt::0")
        assert cohort is not None
        assert cohort.missing == [2]
        owner.gate.reopen()
    assert verifying.rewards == REWARDS


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 2), (2, 1), (2, 3)])
async def test_a_decided_cohort_outlives_its_process_in_another_number_of_workers(before: int, after: int) -> None:
    """Who had no reward yet gets the decided one, without the judge and without the others."""
    old = Workers.make(before, Judge(SCORES))
    async with anyio.create_task_group() as group:
        await Verifying(old, group).all(0, 1, 2)
    left = Life("r1", 1, 0, 1)
    _, states = await old.export([left])
    new = Workers.make(after, Judge(SCORES))
    await new.restore(states, [left])
    assert new.counts("cohorts_decided") == 1
    new.of("group_id::g::group_attempt::0").raise_floor(Floor(2, 0))
    assert (await new.verify(Life("r1", 2, 1, 0), "answer 1", row_of(1)))["reward"] == 4.25
    assert new.judge.asked == []
    for server in new.servers:
        server.raise_floor(Floor(2, 1))
    assert new.counts("cohorts_decided") == 0


async def test_an_undecided_cohort_is_not_written_and_members_that_verify_again_rebuild_it() -> None:
    """Also one whose members were being compared."""
    judge = Judge(SCORES, hold=anyio.Event())
    old = Workers.make(judge=judge)
    lives = [Life(f"r{index}", 1, 0, index) for index in range(3)]
    async with anyio.create_task_group() as group:
        await Verifying(old, group).all(0, 1, 2)
        _, states = await old.export(lives)
        group.cancel_scope.cancel()
    new = Workers.make(2, Judge(SCORES))
    await new.restore(states, lives)
    async with anyio.create_task_group() as group:
        verifying = Verifying(new, group)
        for index in range(3):
            verifying.begin(index, life=Life(f"r{index}", 2, 1, index))
    assert verifying.rewards == REWARDS


@pytest.mark.parametrize("state", [{}, {"cohorts": [{}]}, {"cohorts": [5]}, [], {"cohorts": [{"key": "k"}]}])
async def test_a_malformed_own_state_is_refused_before_anything_is_active(state: Any) -> None:
    """As a corrupt checkpoint."""
    [server] = Workers.make().servers
    with pytest.raises(ParticipantError) as refused:
        server.import_own([state], frozenset([Life("r1", 1, 0, 1)]), 2)
    assert refused.value.code is Code.CORRUPT_CHECKPOINT
