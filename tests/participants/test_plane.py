"""The control plane with a real holder over a store in memory: every operation, its repeats, and what cuts it short."""

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest

from participants import Code, Floor
from participants.wire import (
    Modes,
    Renew,
)
from store import open_checkpoint
from tests.support.checkpoints import memory_store
from tests.support.desk import LIFE, OTHER, Desk, beside, desk, published, refused
from tests.support.owners import (
    ON_PUSHED_LOOP,
    Pause,
    PausedBackend,
    controlled,
    failing,
    lives,
    notebook,
    push,
    settle,
)

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


@pytest.fixture
def anyio_backend() -> Any:
    """A clock to push."""
    return ON_PUSHED_LOOP


# A checkpoint


async def test_a_checkpoint_of_one_participant_holds_the_scope() -> None:
    """Prepare, commit, renew, resume; what is published is what was noted, and work goes on."""
    store = memory_store()
    ref = await published(store, "a", "b")
    checkpoint = await open_checkpoint(store, ref)
    async with checkpoint.records() as records:
        assert [(r.life, r.payload["state"]) async for r in records] == [(LIFE, ["a", "b"])]


async def test_the_status_counts_what_is_asked_of_the_store() -> None:
    """By verb: what the memory behind the store saw after the plane was made, and nothing before."""
    async with desk() as at:
        await at.owner.write(LIFE, "a", creates=True)
        calls = at.store.backend.calls  # type: ignore[attr-defined]
        before = len(calls)
        assert at.plane.status().store_requests == {}
        await at.prepare()
        await at.commit()
        assert at.plane.status().store_requests == Counter(call.verb for call in calls[before:])


@pytest.mark.fault(44)
async def test_every_operation_may_be_repeated() -> None:
    """The second answer equals the first, and nothing is done twice."""
    async with desk() as at:
        await at.owner.write(LIFE, "a", creates=True)
        asks: list[Callable[[], Awaitable[Any]]] = [at.prepare, at.commit, at.renew, at.resume]
        for ask in asks:
            first, writes = await ask(), len(at.store.backend.calls)  # type: ignore[attr-defined]
            assert await ask() == first
            assert ask is at.commit or len(at.store.backend.calls) == writes  # type: ignore[attr-defined]
        await at.prepare(2)
        assert (await at.abort(2)).phase == "idle"
        assert (await at.abort(2)).phase == "idle"
        await at.owner.write(LIFE, "b")


@pytest.mark.fault(44)
async def test_concurrent_repeats_join() -> None:
    """Two prepares wait for the same step, and two commits write one manifest."""
    async with desk() as at:
        pause = at.owner.hooks["write"] = Pause()
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: at.owner.write(LIFE, "a", creates=True))
            await pause.reached.wait()
            async with beside(at.prepare(), at.prepare()) as prepares:
                await settle()
                pause.released.set()
        async with beside(at.commit(), at.commit()) as commits:
            pass
        assert [p.answer.prepared for p in prepares] == [True, True]
        assert commits[0].answer == commits[1].answer
        manifests = [c for c in at.store.backend.calls if c.verb == "create" and "manifest" in c.key]  # type: ignore[attr-defined]
        assert len(manifests) == 1


@pytest.mark.fault(36)
async def test_a_prepare_that_misses_its_deadline_names_the_blocker_and_goes_on_with_more_time() -> None:
    """Admission stays closed; the same prepare again waits on and succeeds."""
    async with desk() as at, anyio.create_task_group() as group:
        pause = at.owner.hooks["write"] = Pause()
        group.start_soon(lambda: at.owner.write(LIFE, "a", creates=True))
        await pause.reached.wait()
        async with beside(at.prepare()) as [first]:
            await push(5)
        [blocker] = first.answer.blockers
        assert (first.answer.prepared, first.answer.blocker_count) == (False, 1)
        named = blocker.life, blocker.participant, blocker.step, blocker.reason
        assert named == (LIFE, "agent.main", "write", "it writes a")
        assert (at.phase, at.owner.gate.closed) == ("preparing", True)
        async with beside(at.prepare()) as [second]:
            await settle()
            pause.released.set()
        assert (second.answer.prepared, at.phase) == (True, "prepared")


@pytest.mark.fault(57)
async def test_the_list_of_blockers_is_bounded_and_restarts_are_complete() -> None:
    """Twenty of a hundred blockers are named; all of a hundred restarts are."""
    async with desk() as at, anyio.create_task_group() as group:
        at.owner.modes = Modes(checkpoint_mode="restart")
        pause = at.owner.hooks["write"] = Pause()
        for life in lives(100):
            group.start_soon(partial(at.owner.write, life, "a", creates=True))
        await settle()
        async with beside(at.prepare()) as [first]:
            await push(5)
        assert (len(first.answer.blockers), first.answer.blocker_count) == (20, 100)
        status = at.plane.status()
        assert (len(status.blockers), status.blocker_count) == (20, 100)
        pause.released.set()
        second = await at.prepare()
        assert set(second.restarts) == set(lives(100))
        error = await refused(at.commit(scope=tuple(lives(30))), Code.RESTART_IN_SCOPE)
        assert len(error.details["lives"]) == 20


@pytest.mark.fault(40, 51)
@pytest.mark.parametrize("committed", [False, True])
async def test_a_participant_whose_controller_died_reopens_by_itself(committed: bool) -> None:
    """At the end of its lease, not before; late calls of that round are refused."""
    async with desk() as at:
        await at.owner.write(LIFE, "a", creates=True)
        await at.prepare()
        if committed:
            await at.commit()
        await push(29)
        assert at.owner.gate.closed
        await push(2)
        assert (at.phase, at.owner.gate.closed) == ("idle", False)
        for late in (at.prepare(), at.commit(), at.renew(), at.resume()):
            await refused(late, Code.LEASE_EXPIRED)
        assert "the lease of round 1.1 ran out" in at.plane.status().last_errors[0]
        assert (await at.prepare(2)).prepared


async def test_a_renew_that_came_in_time_keeps_it_closed() -> None:
    """The old end of the lease passes unnoticed."""
    async with desk() as at:
        await at.prepare()
        await push(29)
        await at.renew()
        await push(29)
        assert at.owner.gate.closed
        await push(2)
        assert not at.owner.gate.closed


@pytest.mark.fault(50)
@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("key", ["part", "manifest"])
async def test_a_lease_that_runs_out_in_a_long_commit_leaves_nothing_to_publish(where: str, key: str) -> None:
    """The commit fails, the participant has reopened, and no manifest stands unless it was on its way already."""
    backend = PausedBackend()
    async with desk(memory_store(backend)) as at:
        await at.owner.write(LIFE, "a", creates=True)
        pause = getattr(backend, where)[".jsonl" if key == "part" else "agent.main/w0/manifest"] = Pause()
        await at.prepare()
        async with beside(at.commit()) as [commit]:
            await pause.reached.wait()
            await push(31)
            assert not at.owner.gate.closed
            await at.owner.write(LIFE, "b")
        assert commit.code in (Code.STALE_ROUND, Code.LEASE_EXPIRED)
        written = any("manifest" in name for name in backend.space.objects)
        assert written is ((where, key) == ("after", "manifest"))


@pytest.mark.fault(50)
@pytest.mark.parametrize("ended", ["lease", "renew"])
async def test_a_commit_that_cannot_be_cancelled_does_not_keep_a_participant_closed(ended: str) -> None:
    """A worker thread may hang in a file system: the lease reopens all the same, and the late commit writes nothing."""
    async with desk() as at:
        await at.owner.write(LIFE, "a", creates=True)
        pause = at.owner.hooks["freeze"] = Pause(shielded=True)
        await at.prepare()
        async with beside(at.commit()) as [commit]:
            await pause.reached.wait()
            await push(31)
            if ended == "renew":
                await refused(at.renew(), Code.LEASE_EXPIRED)
            assert (at.phase, at.owner.gate.closed) == ("idle", False)
            assert (await at.prepare(2)).prepared
            del at.owner.hooks["freeze"]
            assert (await at.commit(2)).manifest.records == 1
            pause.released.set()
        assert (commit.code, at.phase) == (Code.STALE_ROUND, "prepared")


async def test_abort_cancels_a_running_commit_and_answers_when_it_has_stopped() -> None:
    """Not before; then everything is open, and the next round writes."""
    async with desk() as at:
        await at.owner.write(LIFE, "a", creates=True)
        pause = at.owner.hooks["freeze"] = Pause(shielded=True)
        await at.prepare()
        async with beside(at.commit(), at.commit()) as commits:
            await pause.reached.wait()
            async with beside(at.abort(), at.abort()) as aborts:
                await push(3)
                assert not aborts[0].done.is_set()
                assert at.owner.gate.closed
                pause.released.set()
            assert [abort.answer.phase for abort in aborts] == ["idle", "idle"]
        assert [commit.code for commit in commits] == [Code.STALE_ROUND] * 2
        assert not any("manifest" in name for name in at.store.backend.space.objects)  # type: ignore[attr-defined]


@pytest.mark.fault(50)
async def test_an_abort_waits_only_so_long_for_work_that_does_not_listen() -> None:
    """Then it answers all the same; the next round is taken, and what was left behind changes nothing of it."""
    async with desk() as at:
        await at.owner.write(LIFE, "a", creates=True)
        pause = at.owner.hooks["freeze"] = Pause(shielded=True)
        await at.prepare()
        async with beside(at.commit()) as [commit]:
            await pause.reached.wait()
            async with beside(at.abort()) as [abort]:
                await push(5)
                await abort.done.wait()
            assert (abort.answer.phase, at.owner.gate.closed) == ("idle", False)
            del at.owner.hooks["freeze"]
            await at.prepare(2)
            assert (await at.commit(2)).manifest.records == 1
            pause.released.set()
        assert (commit.code, at.phase) == (Code.STALE_ROUND, "prepared")


async def test_a_prepare_whose_freeze_fails_says_so_each_time_until_it_is_aborted() -> None:
    """A defect of a participant: it is named in the status, and the next round begins anew."""
    async with desk() as at:
        at.owner.hooks["park"] = failing(ZeroDivisionError("planted"))
        for _ in range(2):
            assert "planted" in (await refused(at.prepare(), Code.INTERNAL)).message
        assert "planted" in at.plane.status().last_errors[-1]
        await at.abort()
        del at.owner.hooks["park"]
        assert (await at.prepare(2)).prepared


@pytest.mark.fault(36, 51)
@pytest.mark.parametrize("end", ["abort", "resume", "lease"])
async def test_a_freeze_that_goes_on_is_no_standstill_and_ends_with_its_round(end: str) -> None:
    """The prepare answers at its deadline that it is not prepared, though nobody is named."""
    async with desk() as at:
        pause = at.owner.hooks["park"] = Pause()
        async with beside(at.prepare()) as [asked]:
            await pause.reached.wait()
            await push(5)
        assert (asked.answer.prepared, asked.answer.blocker_count, at.phase) == (False, 0, "preparing")
        await (push(31) if end == "lease" else getattr(at, end)())
        assert (at.phase, at.owner.gate.closed) == ("idle", False)
        pause.released.set()
        assert (await at.prepare(2)).prepared


async def test_a_failed_commit_leaves_prepared_and_may_be_tried_again() -> None:
    """A hook that raises is `internal`, and named in the status."""
    async with desk() as at:
        await at.owner.write(LIFE, "a", creates=True)
        at.owner.hooks["freeze"] = failing(ZeroDivisionError("planted"))
        await at.prepare()
        error = await refused(at.commit(), Code.INTERNAL)
        assert "planted" in error.message
        assert at.phase == "prepared"
        assert "planted" in at.plane.status().last_errors[-1]
        del at.owner.hooks["freeze"]
        await at.commit()


async def test_a_commit_without_a_store_is_refused() -> None:
    """A participant that was started without one cannot take part."""
    owner = notebook()
    async with controlled(owner, None).run() as plane:
        at = Desk(owner, plane, memory_store())
        await at.adopt(1)
        await at.prepare()
        await refused(at.commit(), Code.INVALID_REQUEST)


async def test_a_call_outside_an_epoch_is_refused() -> None:
    """Before the first adopt there is no epoch, and so no round."""
    owner, store = notebook(), memory_store()
    async with controlled(owner, store).run() as plane:
        await refused(Desk(owner, plane, store).prepare(), Code.STALE_EPOCH)
        assert not owner.gate.closed


# Adopting


@pytest.mark.fault(43)
async def test_a_higher_epoch_ends_what_a_lower_one_has_open() -> None:
    """A checkpoint is aborted and reopened; the first controller is refused from then on."""
    async with desk() as at:
        await at.owner.write(LIFE, "a", creates=True)
        await at.prepare()
        answer = await at.adopt(2, Floor(1, 0))
        assert (answer.lives, at.phase, at.owner.gate.closed) == ((LIFE,), "idle", False)
        at.epoch = 1
        await refused(at.commit(), Code.STALE_EPOCH)
        await refused(at.retire(LIFE), Code.STALE_EPOCH)


@pytest.mark.fault(43)
async def test_an_adopt_that_was_cut_short_is_finished_by_its_repeat() -> None:
    """The first one's caller gave up while a commit did not stop; the second one still ends the round."""
    async with desk() as at:
        pause = at.owner.hooks["freeze"] = Pause(shielded=True)
        await at.prepare()
        async with beside(at.commit(scope=())):
            await pause.reached.wait()
            async with anyio.create_task_group() as group:
                group.start_soon(at.adopt, 2)
                await settle()
                group.cancel_scope.cancel()
            async with beside(at.adopt(2)):
                await settle()
                pause.released.set()
        assert (at.phase, at.owner.gate.closed) == ("idle", False)


# Retiring


@pytest.mark.fault(53)
async def test_a_retire_is_refused_while_a_round_is_open() -> None:
    """It says what to do first; nothing is freed."""
    async with desk() as at:
        await at.owner.write(LIFE, "a", creates=True)
        await at.prepare()
        error = await refused(at.retire(LIFE), Code.INVALID_PHASE)
        assert "resume or abort it first" in error.message
        await at.resume()
        assert (await at.retire(LIFE)).not_stopped == ()
        assert (await at.retire(LIFE)).not_stopped == ()
        assert at.owner.freed == [LIFE]


@pytest.mark.fault(36, 54)
async def test_work_that_does_not_stop_is_reported_and_fenced() -> None:
    """The answer comes at the deadline, names the life, and nothing of it can act again."""
    async with desk() as at, anyio.create_task_group() as group:
        pause = at.owner.hooks["write"] = Pause(shielded=True)

        async def write() -> None:
            await refused(at.owner.write(LIFE, "a", creates=True), Code.STALE_LIFE)

        group.start_soon(write)
        await pause.reached.wait()
        async with beside(at.retire(LIFE, OTHER)) as [retire]:
            await push(10)
        assert retire.answer.not_stopped == (LIFE,)
        await refused(at.owner.write(LIFE, "late"), Code.STALE_LIFE)
        pause.released.set()


async def test_the_floor_of_any_call_reaches_the_owner() -> None:
    """Also that of a renew: what is below can never act again."""
    async with desk() as at:
        await at.owner.write(LIFE, "a", creates=True)
        await at.prepare()
        await at.plane.renew(at.call(Renew, lease_s=30, floor=Floor(1, 1)))
        assert list(at.owner.live()) == []


async def test_status_and_capabilities_say_who_and_where() -> None:
    """Kind, name, process, incarnation, epoch, phase, round and what is left of the lease."""
    async with desk() as at:
        await at.prepare()
        status, can = at.plane.status(), at.plane.capabilities()
        assert (status.kind, status.name, status.process, status.phase, str(status.round)) == (
            *("agent", "main", "w0", "prepared", "1.1"),
        )
        assert 29 < (status.lease_left_s or 0) <= 30
        assert (can.kind, can.run, can.epoch, can.incarnation) == ("agent", at.store.run_id, 1, status.incarnation)
        assert "round 1.1 prepared" in repr(at.plane)
