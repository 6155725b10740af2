"""Coordination with several real participants of each kind, each of which may hang, fail or die at each step."""

from collections.abc import Awaitable
from typing import Any

import anyio
import pytest

from orchestrator.coordination import (
    NEXT_KIND_S,
    abort,
    check_tallies,
    commit,
    prepare,
    renew,
    restore,
    resume,
    retire,
)
from orchestrator.errors import (
    CommitFailed,
    ControlFailed,
    CoordinationError,
    PrepareFailed,
    RenewFailed,
    TalliesDiffer,
)
from orchestrator.fleet import CALL_TIMEOUT_S, RESUME_ORDER
from participants import Floor, PairTally, ParticipantError
from participants.wire import Committed, Renew
from store import Draft, Life, ParticipantRef, claim, find_checkpoint, open_checkpoint
from tests.support.checkpoints import memory_store
from tests.support.owners import ON_PUSHED_LOOP, Party, Pause, party, push, round_id, settle
from tests.support.parties import FAULTS, LIVES, failing_with, party_if, published, ready, working_party

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


@pytest.fixture
def anyio_backend() -> Any:
    """A clock to push."""
    return ON_PUSHED_LOOP


# Prepare


async def test_a_prepare_closes_everybody_in_order() -> None:
    """Environment, model, agent, resources; all are prepared."""
    async with working_party() as at:
        answer = await ready(at)
        assert (answer.prepared, answer.blocker_count, answer.restarts) == (True, 0, frozenset())
        assert at.phases() == {"prepared"}


@pytest.mark.fault(36)
async def test_a_prepare_has_one_deadline_for_all_kinds() -> None:
    """Where steps of two kinds are in the way it takes no longer than for one, and names both."""
    async with working_party(workers=1) as at, anyio.create_task_group() as group:
        pauses, answers = [], []
        for kind in ("environment", "agent"):
            pause = at.of(kind).owner.hooks["write"] = Pause()
            group.start_soon(at.of(kind).owner.write, LIVES[0], "slow")
            await pause.reached.wait()
            pauses.append(pause)

        async def ask() -> None:
            answers.append(await ready(at))

        group.start_soon(ask)
        await push(5)
        await push(1)
        in_time = list(answers)
        for pause in pauses:
            pause.released.set()
    assert [(answer.prepared, answer.blocker_count) for answer in in_time] == [(False, 2)]


@pytest.mark.fault(36, 44)
async def test_a_blocker_is_named_and_the_same_prepare_goes_on_with_more_time() -> None:
    """Admission stays closed everywhere meanwhile; the round is the same."""
    async with working_party() as at, anyio.create_task_group() as group:
        pause = at.of("agent").owner.hooks["write"] = Pause()
        group.start_soon(lambda: at.of("agent").owner.write(LIVES[0], "slow"))
        await pause.reached.wait()
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await ready(at))

        group.start_soon(ask)
        await push(5)
        await settle()
        [blocker] = answers[0].blockers
        assert (answers[0].prepared, blocker.participant, blocker.life) == (False, "agent.main", LIVES[0])
        assert all(server.owner.gate.closed for server in at.servers)
        group.start_soon(ask)
        await settle()
        pause.released.set()
        await settle()
        assert answers[1].prepared


@pytest.mark.fault(36)
async def test_a_blocker_is_retired_after_a_resume_and_the_next_checkpoint_succeeds() -> None:
    """It stops, is fenced everywhere, and can be dispatched anew."""
    async with working_party() as at, anyio.create_task_group() as group:
        pause = at.of("agent").owner.hooks["write"] = Pause()

        async def blocked() -> None:
            with pytest.raises(ParticipantError):
                await at.of("agent").owner.write(LIVES[0], "slow")

        group.start_soon(blocked)
        await pause.reached.wait()
        del at.of("agent").owner.hooks["write"]
        answer = await prepare(at.fleet, round_id(), timeout_s=0.001, lease_s=9)
        assert not answer.prepared
        await resume(at.fleet, round_id())
        assert await retire(at.fleet, [LIVES[0]], timeout_s=5) == frozenset()
        await at.write(Life("r0", 1, 0, 7), "again", creates=True)
        assert (await ready(at, 2)).prepared


@pytest.mark.fault(37)
@pytest.mark.parametrize("kind", ["environment", "resources"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_participant_that_fails_in_prepare_is_named_and_the_others_go_on(kind: str, fault: str) -> None:
    """No half scope: every other one has reopened when the error comes."""
    async with working_party() as at:
        bad = at.of(kind)
        bad.link.faults["prepare"] = fault
        error = await failing_with(PrepareFailed, ready(at), party_if(at, fault))
        assert list(error.failures) == [bad.name]
        assert all(not s.owner.gate.closed for s in at.servers if s is not bad)
        assert bad.link.dead or not bad.owner.gate.closed


@pytest.mark.fault(37)
async def test_a_prepare_that_is_cancelled_reopens() -> None:
    """The controller gives up; nobody waits for a lease."""
    async with working_party() as at, anyio.create_task_group() as group:
        at.of("resources").link.faults["prepare"] = "hangs"
        group.start_soon(ready, at)
        await settle()
        assert at.of("agent").owner.gate.closed
        group.cancel_scope.cancel()
    await settle()
    assert at.phases() == {"idle"}


async def test_restarts_of_everybody_are_added_up() -> None:
    """Each life once, complete."""
    async with working_party() as at:
        for kind in ("agent", "resources"):
            owner = at.of(kind).owner
            owner.modes = owner.modes.model_copy(update={"checkpoint_mode": "restart"})
        assert (await ready(at)).restarts == frozenset(LIVES)
        with pytest.raises(CommitFailed, match="restart_in_scope"):
            await commit(at.fleet, round_id(), LIVES, None, timeout_s=5)


# Commit


@pytest.mark.fault(38, 39)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_participant_that_fails_in_commit_fails_it_for_all_and_the_older_one_stays(fault: str) -> None:
    """It is named; after the abort all others work, and the head is what it was."""
    store = memory_store()
    head = await published(store)
    async with working_party(store) as at, claim(store, take_over=True) as controller:
        await at.adopt(controller.epoch, Floor(1, 0))
        bad = at.of("agent")
        bad.link.faults["commit"] = fault
        round_ = controller.next_round()
        await prepare(at.fleet, round_, timeout_s=5, lease_s=500)
        error = await failing_with(
            CommitFailed, commit(at.fleet, round_, LIVES, head, timeout_s=10), party_if(at, fault)
        )
        assert list(error.failures) == [bad.name]
        with anyio.move_on_after(1):
            await failing_quietly(abort(at.fleet, round_))
        assert at.phases() == {"idle"}
        assert await find_checkpoint(store) == head
        await (await open_checkpoint(store, head)).verify()


async def failing_quietly(asked: Awaitable[Any]) -> None:
    """What a dead participant does not hear is no concern of the test."""
    try:
        await asked
    except ControlFailed:
        return


@pytest.mark.fault(46)
async def test_a_worker_restarted_while_prepared_fails_the_commit_by_its_incarnation() -> None:
    """Not a silently empty worker."""
    async with working_party() as at:
        await ready(at)
        bad = at.of("agent")
        old = bad.link
        await at.restart(bad)
        old.inner = bad.link.inner
        error = await failing_with(CommitFailed, commit(at.fleet, round_id(), LIVES, None, timeout_s=5))
        assert "wrong_incarnation" in str(error.failures[bad.name])


@pytest.mark.fault(50)
async def test_a_renew_after_a_lease_ran_out_is_no_proof() -> None:
    """The one that reopened is named; nothing may be published."""
    async with working_party() as at:
        await prepare(at.fleet, round_id(), timeout_s=5, lease_s=10)
        for server in at.servers[1:]:
            await server.plane.renew(_renewing(at, server))
        await push(11)
        error = await failing_with(RenewFailed, renew(at.fleet, round_id(), lease_s=10))
        assert list(error.failures) == [at.servers[0].name]


def _renewing(at: Party, server: Any) -> Any:
    return Renew(**at.fleet.envelope(at.member(server)), round=round_id(), lease_s=100)


def _committed(kind: str, *tallies: tuple[str, int, str]) -> Committed:
    manifest = ParticipantRef(kind=kind, name="main", process="w0", digest="d" * 64, size=1, records=0, bytes=0)
    pairs = tuple(PairTally(kind=k, name="main", count=c, digest=d * 64) for k, c, d in tallies)
    return Committed(manifest=manifest, bytes_written=0, tallies=pairs)


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        ([("resources", 1, "1")], [("agent", 1, "1")], False),
        ([], [], False),
        ([("resources", 0, "0")], [], False),
        ([("elsewhere", 3, "1")], [], False),
        ([("resources", 1, "1")], [("agent", 1, "2")], True),
        ([("resources", 2, "1")], [("agent", 1, "1")], True),
        ([("resources", 1, "1")], [], True),
        ([], [("agent", 1, "1")], True),
    ],
)
async def test_tallies_that_differ_refuse_the_checkpoint(one: list[Any], other: list[Any], differ: bool) -> None:
    """Both sides count what is between them; whom nobody knows is left out."""
    async with party(kinds=("agent", "resources")) as at:
        answers = [_committed("agent", *one), _committed("resources", *other)]
        if not differ:
            check_tallies(at.fleet, answers)
            return
        with pytest.raises(TalliesDiffer, match=r"main and \w+.main"):
            check_tallies(at.fleet, answers)


async def test_tallies_of_several_processes_are_added_up() -> None:
    """A session may lie on another worker than its caller."""
    async with party(kinds=("agent", "resources"), workers=2) as at:
        a, _, b, _ = [server.owner for server in at.servers]
        await a.write(LIVES[0], "x", creates=True, peer="resources.main")
        await at.servers[1].owner.write(LIVES[1], "x", creates=True, peer="resources.main")
        for life in LIVES[:2]:
            await b.write(life, "x", creates=True, peer="agent.main")
        await ready(at)
        assert len(await commit(at.fleet, round_id(), LIVES[:2], None, timeout_s=5)) == 4
        await abort(at.fleet, round_id())
        await b.write(LIVES[0], "y", peer="agent.main")
        await ready(at, 2)
        with pytest.raises(TalliesDiffer):
            await commit(at.fleet, round_id(2), LIVES[:2], None, timeout_s=5)


# Endings


@pytest.mark.fault(36, 41)
@pytest.mark.parametrize("end", [resume, abort])
async def test_whoever_hangs_in_an_ending_holds_the_others_up_for_a_moment_only(end: Any) -> None:
    """One process of each kind hangs: the others have reopened long before the one deadline, which names those."""
    async with working_party() as at:
        await ready(at)
        for server in at.servers[::2]:
            server.link.faults[end.__name__] = "hangs"
        async with anyio.create_task_group() as group:
            group.start_soon(_fails_naming, end(at.fleet, round_id()), {server.name for server in at.servers[::2]})
            for _ in RESUME_ORDER:
                await push(NEXT_KIND_S)
            assert not any(server.owner.gate.closed for server in at.servers[1::2])
            await push(CALL_TIMEOUT_S - len(RESUME_ORDER) * NEXT_KIND_S)


async def _fails_naming(asked: Awaitable[None], names: set[str]) -> None:
    began = anyio.current_time()
    with pytest.raises(ControlFailed) as caught:
        await asked
    assert set(caught.value.failures) == names
    assert anyio.current_time() - began < CALL_TIMEOUT_S + 1


# The controller dies


@pytest.mark.fault(40, 41)
@pytest.mark.parametrize("done", ["prepare", "commit", "publish"])
async def test_a_dead_controllers_participants_reopen_by_their_leases(done: str) -> None:
    """After prepare, after commit, and after the chain entry: then the checkpoint is valid and found."""
    store = memory_store()
    async with working_party(store) as at:
        async with claim(store) as controller:
            round_ = controller.next_round()
            await prepare(at.fleet, round_, timeout_s=5, lease_s=30)
            if done != "prepare":
                answers = await commit(at.fleet, round_, LIVES, None, timeout_s=5)
            if done == "publish":
                await renew(at.fleet, round_, lease_s=30)
                manifests = [answer.manifest for answer in answers]
                draft = Draft(checkpoint=round_, parent=None, participants=manifests, scope=LIVES)
                ref = await controller.publish(draft, timeout_s=5)
        assert all(server.owner.gate.closed for server in at.servers)
        await push(31)
        await at.assert_open()
        chain = await store.chain()
        assert chain.state.head == (ref if done == "publish" else None)
        await at.servers[0].owner.write(LIVES[0], "b")


@pytest.mark.fault(43)
@pytest.mark.parametrize("step", [prepare, commit, renew, resume, abort, retire, restore])
async def test_a_controller_that_was_taken_over_is_refused_everywhere(step: Any) -> None:
    """The higher epoch wins, and no call of the lower one changes anything."""
    async with working_party() as at:
        old = at.fleet
        await at.adopt(2, Floor(1, 0))
        arguments: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {
            prepare: ((round_id(),), {"timeout_s": 1, "lease_s": 9}),
            commit: ((round_id(), LIVES, None), {"timeout_s": 1}),
            renew: ((round_id(),), {"lease_s": 9}),
            resume: ((round_id(),), {}),
            abort: ((round_id(),), {}),
            retire: ((LIVES,), {"timeout_s": 1}),
            restore: ((round_id(), await published(at.store), LIVES), {"timeout_s": 1}),
        }
        positional, named = arguments[step]
        with pytest.raises(CoordinationError, match="stale_epoch"):
            await step(old, *positional, **named)
        assert at.phases() == {"idle"}
        assert at.of("agent").owner.notes("r0") == ["a"]
