"""The control plane with a real holder over a store in memory: every operation, its repeats, and what cuts it short."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from participants import Code, ControlPlane, Floor, ParticipantError
from participants.wire import Abort, Activate, Adopt, Commit, Committed, Message, Modes, Prepare, Renew, Resume
from participants.wire import Retire, Stage
from store import CheckpointId, Controller, Draft, Life, Ref, Store, claim, open_checkpoint
from tests.support.checkpoints import memory_store
from tests.support.owners import (
    NOWHERE,
    ON_PUSHED_LOOP,
    Notebook,
    Pause,
    PausedBackend,
    controlled,
    failing,
    lives,
    next_life,
    notebook,
    push,
    settle,
)

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LIFE, OTHER = lives(2)


@pytest.fixture
def anyio_backend() -> Any:
    """A clock to push."""
    return ON_PUSHED_LOOP


@dataclass
class Desk:
    """One plane, and the calls of one controller to it."""

    owner: Notebook
    plane: ControlPlane
    store: Store
    epoch: int = 1

    def call(self, kind: type[Message], k: int = 1, **fields: Any) -> Any:
        """A call of round `<epoch>.<k>`."""
        envelope = {"run": self.store.run_id, "epoch": self.epoch, "incarnation": self.plane.book.incarnation}
        return kind(**envelope, round=CheckpointId(self.epoch, k), **fields)

    def prepare(self, k: int = 1, *, timeout_s: float = 5, lease_s: float = 30) -> Awaitable[Any]:
        return self.plane.prepare(self.call(Prepare, k, timeout_s=timeout_s, lease_s=lease_s))

    def commit(self, k: int = 1, scope: tuple[Life, ...] = (LIFE,), parent: Ref | None = None) -> Awaitable[Committed]:
        return self.plane.commit(self.call(Commit, k, scope=scope, parent=parent))

    def renew(self, k: int = 1, lease_s: float = 30) -> Awaitable[Any]:
        return self.plane.renew(self.call(Renew, k, lease_s=lease_s))

    def resume(self, k: int = 1) -> Awaitable[Any]:
        return self.plane.resume(self.call(Resume, k))

    def abort(self, k: int = 1) -> Awaitable[Any]:
        return self.plane.abort(self.call(Abort, k))

    def stage(self, ref: Ref, k: int = 1, scope: tuple[Life, ...] = (LIFE,)) -> Awaitable[Any]:
        return self.plane.stage(self.call(Stage, k, checkpoint=ref, scope=scope))

    def activate(self, k: int = 1) -> Awaitable[Any]:
        return self.plane.activate(self.call(Activate, k))

    def retire(self, *lives: Life, timeout_s: float = 10) -> Awaitable[Any]:
        envelope = {"run": self.store.run_id, "epoch": self.epoch, "incarnation": self.plane.book.incarnation}
        return self.plane.retire(Retire(**envelope, lives=lives, timeout_s=timeout_s))

    async def adopt(self, epoch: int, floor: Floor | None = None) -> Any:
        answer = await self.plane.adopt(Adopt(run=self.store.run_id, epoch=epoch, floor=floor or Floor(epoch, 0)))
        self.epoch = epoch
        return answer

    @property
    def phase(self) -> str:
        return self.plane.status().phase


@asynccontextmanager
async def desk(store: Store | None = None, epoch: int = 1) -> AsyncIterator[Desk]:
    """An adopted plane with a fresh notebook."""
    owner, shared = notebook(), store or memory_store()
    async with controlled(owner, shared).run() as plane:
        made = Desk(owner, plane, shared)
        await made.adopt(epoch)
        yield made


async def published(store: Store, *notes: str, scope: tuple[Life, ...] = (LIFE,)) -> Ref:
    """A checkpoint that has these notes for each life of the scope."""
    async with claim(store, take_over=True) as controller, desk(store, controller.epoch) as at:
        for life in scope:
            for note in notes:
                await at.owner.write(life, note, creates=True)
        return await publish(at, controller, scope)


async def publish(at: Desk, controller: Controller, scope: tuple[Life, ...]) -> Ref:
    """One checkpoint of the one participant."""
    k = controller.next_round().k
    await at.prepare(k)
    committed = await at.commit(k, scope, controller.head)
    await at.renew(k)
    await at.resume(k)
    parent = controller.head.checkpoint if controller.head else None
    draft = Draft(
        checkpoint=CheckpointId(at.epoch, k), parent=parent, participants=[committed.manifest], scope=list(scope)
    )
    return await controller.publish(draft, timeout_s=10)


async def refused(asked: Awaitable[Any], code: Code) -> ParticipantError:
    with pytest.raises(ParticipantError) as caught:
        await asked
    assert caught.value.code is code, caught.value
    return caught.value


class Asked:
    """A call that runs beside the test."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.error: ParticipantError | None = None
        self.done = anyio.Event()

    async def run(self, asked: Awaitable[Any]) -> None:
        try:
            self.answer = await asked
        except ParticipantError as error:
            self.error = error
        self.done.set()

    @property
    def code(self) -> Code | None:
        return self.error.code if self.error else None


@asynccontextmanager
async def beside(*asked: Awaitable[Any]) -> AsyncIterator[list[Asked]]:
    """Calls that run while the block does; it ends when they have."""
    running = [Asked() for _ in asked]
    async with anyio.create_task_group() as group:
        for each, call in zip(running, asked, strict=True):
            group.start_soon(each.run, call)
        yield running


# A checkpoint


async def test_a_checkpoint_of_one_participant_holds_the_scope() -> None:
    """Prepare, commit, renew, resume; what is published is what was noted, and work goes on."""
    store = memory_store()
    ref = await published(store, "a", "b")
    checkpoint = await open_checkpoint(store, ref)
    async with checkpoint.records() as records:
        assert [(r.life, r.payload["state"]) async for r in records] == [(LIFE, ["a", "b"])]


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
            group.start_soon(lambda life=life: at.owner.write(life, "a", creates=True))
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
    """The commit fails, the participant has reopened, and no manifest was written unless its write was already going."""
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
            pause.released.set()
        assert commit.code is Code.STALE_ROUND
        del at.owner.hooks["freeze"]
        assert (await at.commit(2)).manifest.records == 1


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


# Restores


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
