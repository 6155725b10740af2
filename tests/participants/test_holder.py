"""Holders: lives and their fences, work that is stopped, restores that are taken up, retiring; with a real notebook."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from participants import Code, Floor, ParticipantError
from participants.wire import Modes
from store import Life, RawRecord, Record
from store.records import encode_line
from store.values import BlobPlan
from tests.support.checkpoints import SMALL_PARTS
from tests.support.owners import ON_PUSHED_LOOP, Notebook, Pause, next_life, notebook, push, round_id, settle

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LIFE = Life("r0", 1, 0, 0)
NEWER = Life("r0", 1, 0, 5)
NEXT = next_life(LIFE, 2)


@pytest.fixture
def anyio_backend() -> Any:
    """A clock to push."""
    return ON_PUSHED_LOOP


def raw(life: Life, payload: Any) -> RawRecord:
    """A record as a checkpoint has it."""
    line = encode_line(Record(life, payload), BlobPlan(round_id(), (), SMALL_PARTS))
    return RawRecord(life, line.data)


def payload(*notes: str, waited: Iterable[Any] = ()) -> Any:
    return {"state": list(notes), "replies": [], "waited": list(waited)}


async def stream(*records: RawRecord) -> AsyncIterator[RawRecord]:
    for record in records:
        yield record


async def restored(owner: Notebook, *records: RawRecord) -> None:
    """A whole restore of these records."""
    await owner.stage({record.life for record in records}, stream(*records), epoch=2)
    owner.activate()
    owner.settle()


async def refused(owner: Notebook, life: Life, *, creates: bool = False) -> None:
    """A write of this life is stale and touches nothing."""
    before = [(held.life, list(held.state)) for held in owner.held()]
    with pytest.raises(ParticipantError) as caught:
        await owner.write(life, "late", creates=creates)
    assert caught.value.code is Code.STALE_LIFE
    assert [(held.life, list(held.state)) for held in owner.held()] == before


async def stuck(group: TaskGroup, owner: Notebook, life: Life, *, shielded: bool = False) -> Pause:
    """A write that is going on; `shielded` does not let itself be cancelled."""
    pause = owner.hooks["write"] = Pause(shielded=shielded)

    async def write() -> None:
        with pytest.raises(ParticipantError) as caught:
            await owner.write(life, "stuck", creates=True)
        assert caught.value.code is Code.STALE_LIFE

    group.start_soon(write)
    await pause.reached.wait()
    del owner.hooks["write"]
    return pause


# Calls


async def test_only_a_creating_call_creates_a_life() -> None:
    """Any other call of an unknown life is refused, and counted."""
    owner = Notebook()
    await refused(owner, LIFE)
    await owner.write(LIFE, "a", creates=True)
    await owner.write(LIFE, "b")
    assert (owner.notes("r0"), owner.refused, list(owner.live())) == (["a", "b"], 1, [LIFE])


@pytest.mark.fault(49)
async def test_a_newer_life_stops_the_older_ones_work_first() -> None:
    """The old work is cancelled and has ended before the new life begins; the old life can never act again."""
    owner = Notebook()
    async with anyio.create_task_group() as group:
        await stuck(group, owner, LIFE)
        assert await owner.write(NEWER, "new", creates=True) == ["new"]
    await refused(owner, LIFE, creates=True)
    assert (owner.freed, owner.notes("r0")) == ([LIFE], ["new"])


async def test_every_call_of_a_newer_life_waits_until_the_older_ones_work_has_stopped() -> None:
    """A second call that comes meanwhile does not get the dying state, nor an error."""
    owner, states = Notebook(), []

    async def write(note: str) -> None:
        states.append(await owner.write(NEWER, note, creates=True))

    async with anyio.create_task_group() as group:
        pause = await stuck(group, owner, LIFE, shielded=True)
        group.start_soon(write, "one")
        await settle()
        group.start_soon(write, "two")
        await settle()
        early = list(states)
        pause.released.set()  # Also where something came too early: the work does not listen to the end of the test.
    assert early == []
    assert sorted(owner.notes("r0") or []) == ["one", "two"]
    assert owner.freed == [LIFE]


async def test_a_life_superseded_while_it_waits_for_an_older_one_is_refused() -> None:
    """Of three lives only the newest ever gets a state."""
    owner, newest = Notebook(), Life("r0", 1, 0, 9)
    async with anyio.create_task_group() as group:
        pause = await stuck(group, owner, LIFE, shielded=True)
        group.start_soon(refused_later, owner, NEWER)
        await settle()
        group.start_soon(created_later, owner, newest)
        await settle()
        pause.released.set()
    assert owner.notes("r0") == ["newest"]
    assert list(owner.live()) == [newest]


async def refused_later(owner: Notebook, life: Life) -> None:
    with pytest.raises(ParticipantError) as caught:
        await owner.write(life, "superseded", creates=True)
    assert caught.value.code is Code.STALE_LIFE


async def created_later(owner: Notebook, life: Life) -> None:
    await owner.write(life, "newest", creates=True)


async def test_a_finished_life_is_freed_and_fenced() -> None:
    """Finishing twice frees once."""
    owner = Notebook()
    await owner.write(LIFE, "a", creates=True)
    owner.finish(LIFE)
    owner.finish(LIFE)
    await refused(owner, LIFE, creates=True)
    assert (owner.freed, list(owner.live())) == ([LIFE], [])


# The floor


async def test_the_floor_ends_what_is_below_it() -> None:
    """A life at the floor stays; one below is freed, refused, and not remembered."""
    owner, other = Notebook(), Life("r1", 1, 0, 1)
    await owner.write(LIFE, "a", creates=True)
    await owner.write(other, "b", creates=True)
    owner.raise_floor(Floor(1, 1))
    await refused(owner, LIFE, creates=True)
    assert (owner.freed, list(owner.live()), owner.fences.fenced) == ([LIFE], [other], [])


@pytest.mark.fault(49)
async def test_the_floor_ends_a_life_that_is_at_work() -> None:
    """Its work is cancelled, and it can do nothing more."""
    owner = Notebook()
    async with anyio.create_task_group() as group:
        await stuck(group, owner, LIFE)
        owner.raise_floor(Floor(2, 0))
        await refused(owner, LIFE)
    assert (owner.freed, list(owner.live()), owner.counts()["lives"]) == ([LIFE], [], 0)


# Retiring


async def test_retire_stops_frees_and_fences() -> None:
    """Work that is going on ends; a second retire, and one of an unknown life, change nothing."""
    owner = Notebook()
    async with anyio.create_task_group() as group:
        await stuck(group, owner, LIFE)
        assert await owner.retire([LIFE], 1) == []
    assert await owner.retire([LIFE, Life("r9", 1, 0, 3)], 1) == []
    await refused(owner, LIFE, creates=True)
    assert (owner.freed, owner.counts()["lives"]) == ([LIFE], 0)


@pytest.mark.fault(54)
async def test_concurrent_retires_free_once() -> None:
    """Both answer when the work has stopped."""
    owner, answers = Notebook(), []

    async def retire() -> None:
        answers.append(await owner.retire([LIFE], 100))

    async with anyio.create_task_group() as group:
        pause = await stuck(group, owner, LIFE, shielded=True)
        for _ in range(2):
            group.start_soon(retire)
        await settle()
        assert answers == []
        pause.released.set()
    assert (answers, owner.freed) == ([[], []], [LIFE])


async def test_a_retire_of_a_newer_life_than_the_one_here_ends_that_too() -> None:
    """The controller has dispatched again since: what it retires is the newest, so nothing older may act."""
    owner = Notebook()
    await owner.write(LIFE, "a", creates=True)
    assert await owner.retire([NEWER], 1) == []
    await refused(owner, LIFE)
    assert (owner.freed, list(owner.live())) == ([LIFE], [])


async def test_a_retire_of_an_older_life_leaves_the_newer_one() -> None:
    """It says nothing about it."""
    owner = Notebook()
    await owner.write(NEWER, "a", creates=True)
    assert await owner.retire([LIFE], 1) == []
    assert await owner.write(NEWER, "b") == ["a", "b"]


@pytest.mark.fault(36, 54)
async def test_work_that_does_not_stop_is_named_and_its_state_is_never_used_again() -> None:
    """The life is fenced, the next life starts at once with a state of its own, and the old one is freed at its end."""
    owner = notebook()
    async with anyio.create_task_group() as group:
        pause = await stuck(group, owner, LIFE, shielded=True)
        assert await retired(owner, LIFE) == [LIFE]
        await refused(owner, LIFE, creates=True)
        assert await retired(owner, LIFE) == [LIFE]
        with anyio.fail_after(1):
            assert await owner.write(NEWER, "new", creates=True) == ["new"]
        assert (owner.freed, list(owner.live())) == ([], [NEWER])
        pause.released.set()
    assert (owner.freed, owner.notes("r0")) == ([LIFE], ["new"])
    assert await retired(owner, LIFE) == []


async def retired(owner: Notebook, life: Life) -> list[Life]:
    """Retire with a limit of ten seconds, and let them pass."""
    answers: list[list[Life]] = []

    async def retire() -> None:
        answers.append(await owner.retire([life], 10))

    async with anyio.create_task_group() as group:
        group.start_soon(retire)
        await push(11)
    return answers[0]


# Restores


async def test_a_restored_rollout_waits_for_its_next_life_and_is_exported_unchanged() -> None:
    """Attempt N + 1 continues it; no other attempt does."""
    owner, record = Notebook(), raw(LIFE, payload("a"))
    await restored(owner, record)
    assert owner.counts()["restored"] == 1
    assert list((await owner.export({LIFE})).records) == [record]
    await refused(owner, LIFE, creates=True)
    await refused(owner, Life("r0", 2, 2, 0))
    assert await owner.write(NEXT, "b") == ["a", "b"]
    assert owner.counts()["restored"] == 0


async def test_a_rollout_that_starts_over_drops_what_was_restored() -> None:
    """An attempt that does not continue the record begins with nothing, and the record is gone."""
    owner = Notebook()
    await restored(owner, raw(LIFE, payload("a")))
    assert await owner.write(Life("r0", 2, 0, 0), "b", creates=True) == ["b"]
    assert owner.counts()["restored"] == 0


@pytest.mark.fault(48)
async def test_a_restore_ends_the_life_that_had_gone_on() -> None:
    """The replacement that ran on after the checkpoint is dead, and cannot take up the record again."""
    owner = Notebook()
    await restored(owner, raw(LIFE, payload("a")))
    await owner.write(NEXT, "b")
    await restored(owner, raw(LIFE, payload("a")))
    await refused(owner, NEXT)
    assert owner.freed == [NEXT]
    assert await owner.write(next_life(LIFE, 3), "c") == ["a", "c"]


async def test_a_restore_cancels_work_of_the_life_that_it_replaces() -> None:
    """What it was doing ends as stale."""
    owner = Notebook()
    async with anyio.create_task_group() as group:
        await stuck(group, owner, LIFE)
        await restored(owner, raw(LIFE, payload("a")))
    assert await owner.write(NEXT, "b") == ["a", "b"]


async def test_calls_of_a_rollout_wait_while_it_is_restored_and_others_go_on() -> None:
    """They begin once the restore has settled, or was discarded."""
    for end in ("settle", "discard"):
        owner, done = Notebook(), anyio.Event()
        await owner.stage({LIFE}, stream(raw(LIFE, payload("a"))), epoch=2)

        async def write(owner: Notebook = owner, done: anyio.Event = done) -> None:
            await owner.write(NEXT, "b", creates=True)
            done.set()

        async with anyio.create_task_group() as group:
            group.start_soon(write)
            await owner.write(Life("r1", 1, 0, 1), "other", creates=True)
            await settle()
            assert not done.is_set()
            if end == "settle":
                owner.activate()
                owner.settle()
            else:
                await owner.discard()
            await done.wait()
        assert owner.notes("r0") == (["a", "b"] if end == "settle" else ["b"])


@pytest.mark.fault(42, 47)
async def test_a_discard_leaves_nothing_of_a_restore() -> None:
    """Staged or installed; what an earlier restore brought for others stays."""
    owner, other = Notebook(), Life("r1", 1, 0, 1)
    await restored(owner, raw(other, payload("other")))
    for activated in (False, True):
        await owner.stage({LIFE}, stream(raw(LIFE, payload("a"))), epoch=2)
        if activated:
            owner.activate()
        await owner.discard()
        assert owner.counts()["restored"] == 1
        await refused(owner, NEXT)


@pytest.mark.fault(42)
async def test_a_discard_puts_back_what_the_restore_had_replaced() -> None:
    """The rollout is what the earlier restore has made of it: its next life takes that up, and it is exported again."""
    owner, later = Notebook(), next_life(LIFE, 2)
    await restored(owner, raw(LIFE, payload("a")))
    for record in (raw(LIFE, payload("other")), raw(later, payload("a", "b"))):
        await owner.stage({record.life}, stream(record), epoch=3)
        owner.activate()
        await owner.discard()
        assert owner.brought("r0") == payload("a")
    assert [r.life for r in (await owner.export({LIFE})).records] == [LIFE]
    assert await owner.write(next_life(LIFE, 4), "c") == ["a", "c"]


@pytest.mark.fault(54)
async def test_what_a_restore_has_brought_ends_with_its_epoch() -> None:
    """It is for a life of that epoch: rising within it the floor leaves it alone, past it nobody could take it up."""
    owner = Notebook()
    owner.raise_floor(Floor(2, 0))
    await restored(owner, raw(LIFE, payload("a")))
    owner.raise_floor(Floor(2, 7))
    assert owner.counts()["restored"] == 1
    owner.raise_floor(Floor(3, 0))
    assert owner.counts()["restored"] == 0
    await refused(owner, next_life(LIFE, 3))


async def test_a_record_that_is_not_in_the_scope_is_refused() -> None:
    """Another life of the rollout is not the one that was asked for."""
    owner = Notebook()
    with pytest.raises(ParticipantError) as caught:
        await owner.stage({NEWER}, stream(raw(LIFE, payload())), epoch=2)
    assert caught.value.code is Code.SCOPE_MISMATCH


@pytest.mark.parametrize("bad", [{"state": 3, "replies": [], "waited": []}, {"state": []}, payload(waited=[["x"]])])
async def test_a_record_that_fails_when_it_is_taken_up_is_named(bad: Any) -> None:
    """The rollout and the participant are in the message; its code is `corrupt_checkpoint`."""
    owner = Notebook()
    owner.hooks = {}
    owner.import_now = _nothing  # type: ignore[method-assign]
    await restored(owner, raw(LIFE, bad))
    with pytest.raises(ParticipantError) as caught:
        await owner.write(NEXT, "b")
    assert caught.value.code is Code.CORRUPT_CHECKPOINT
    assert "r0 at agent.main" in caught.value.message


async def _nothing(records: Sequence[RawRecord]) -> None:
    """Import lazily, as kinds that parse at first use do."""


async def test_a_retired_restore_is_gone() -> None:
    """A restored rollout that nobody dispatched is retired by the life that the checkpoint has."""
    owner = Notebook()
    await restored(owner, raw(LIFE, payload("a")))
    assert await owner.retire([LIFE], 1) == []
    await refused(owner, NEXT)
    assert owner.counts()["restored"] == 0


# Exports


async def test_an_export_has_the_scope_and_its_tallies() -> None:
    """Live lives and restored ones; counted for each peer and session."""
    owner, other = Notebook(), Life("r1", 1, 0, 1)
    await owner.write(other, "b", creates=True, peer="resources.main")
    waited = [["resources.main", "s", 2], ["model.main", "", 1]]
    await restored(owner, raw(LIFE, payload("a", waited=waited)))
    export = await owner.export({LIFE, other})
    assert [record.life for record in export.records] == [other, LIFE]
    assert [(tally.kind, tally.name, tally.count) for tally in export.tallies] == [
        ("model", "main", 1),
        ("resources", "main", 2),
    ]
    assert list((await owner.export(set())).records) == []


async def test_a_restart_only_holder_exports_no_records() -> None:
    """Its lives are restarts, all of them."""
    owner = Notebook()
    owner.modes = Modes(checkpoint_mode="restart")
    await owner.write(LIFE, "a", creates=True)
    assert owner.restarts() == [LIFE]
    assert list((await owner.export({LIFE})).records) == []


async def test_its_repr_says_what_it_holds() -> None:
    """Role, lives, restored ones and the gate."""
    owner = Notebook()
    await owner.write(LIFE, "a", creates=True)
    assert repr(owner) == "<Notebook agent.main, 1 lives, 0 restored, <Gate open, 0 waited for, 0 parked>>"
