"""Pruning: what goes, what stays although it looks like garbage, and what a failure leaves for the next one."""

import dataclasses

import pytest

from store import (
    AccessDenied,
    BackendError,
    BlobRef,
    CheckpointDeleted,
    CheckpointId,
    CorruptCheckpoint,
    Deletion,
    Import,
    OutcomeUnknown,
    Ref,
    Retention,
    StoreUnavailable,
    claim,
    open_checkpoint,
    prune,
    survey,
)
from store.backends import Call, Fault
from store.layout import aggregate_key, checkpoint_prefix, entry_key
from tests.support.prunable import DAY_S, LAST, World, publish_cursors, unfinished, world_with
from tests.support.rounds import read_cursor

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


async def test_pruning_keeps_what_the_policy_keeps_whole() -> None:
    """What is kept still verifies and reads as it was written; the rest is gone to the last object."""
    world, refs = await world_with(4)
    report = await prune(world.store, Retention(keep_last=2))
    assert [str(c) for c in report.survey.checkpoints] == ["1.1", "1.2"]
    assert report.failures == []
    assert [await read_cursor(world.store, ref) for ref in refs[2:]] == [2, 3]
    for ref in refs[:2]:
        assert world.keys(checkpoint_prefix(ref.checkpoint)) == set()
        with pytest.raises(CheckpointDeleted):
            await open_checkpoint(world.store, ref.checkpoint)


async def test_the_plan_comes_before_the_first_deletion_and_its_end_after_the_last() -> None:
    """The order that makes every crash of a prune harmless; the aggregate manifest goes first."""
    world, refs = await world_with(2)
    backend, store = world.client()
    await prune(store, LAST)
    writes = [
        call
        for call in backend.calls
        if call.verb in {"create", "delete"} and call.key and not call.key.startswith("alive/")
    ]
    assert [call.verb for call in writes] == ["create", "delete", "create"]
    assert writes[1].key.split()[0] == aggregate_key(refs[0].checkpoint)
    kinds = [entry.action.kind for entry in (await store.chain()).entries]
    assert kinds[-2:] == ["deletion", "deletion_end"]


async def test_a_survey_changes_nothing_and_tells_what_prune_then_does() -> None:
    """A dry run names the same checkpoints, objects and bytes."""
    world, _ = await world_with(3)
    before = dict(world.space.objects)
    found = await survey(world.store, LAST)
    assert world.space.objects == before
    assert found.size == sum(len(before[info.key].data) for info in found.doomed)
    report = await prune(world.store, LAST)
    assert report.survey.doomed == found.doomed
    assert report.deleted == len(found.doomed)
    assert set(before) - set(world.space.objects) == {info.key for info in found.doomed}


async def test_a_second_prune_finds_nothing_to_do() -> None:
    """It neither plans nor deletes."""
    world, _ = await world_with(3)
    await prune(world.store, LAST)
    before = dict(world.space.objects)
    report = await prune(world.store, LAST)
    assert (report.survey.checkpoints, report.deleted, report.resumed) == ((), 0, [])
    assert world.space.objects == before


async def test_blobs_that_a_kept_checkpoint_names_survive_their_writer() -> None:
    """They go with the last checkpoint that names them, once they are old."""
    world, refs = await world_with(3)
    await prune(world.store, LAST)
    assert world.blob_owners() == {"1.1", "1.3"}
    assert await read_cursor(world.store, refs[2]) == 2
    async with claim(world.store, "none") as controller:
        await publish_cursors(world.store, controller, [9])
    await prune(world.store, LAST)
    assert world.blob_owners() == {"1.1", "2.1"}
    await world.wait()
    report = await prune(world.store, LAST)
    assert [str(c) for c in report.survey.leftovers] == ["1.1"]
    assert world.blob_owners() == {"2.1"}


async def test_the_commit_of_a_live_controller_survives_with_its_blobs() -> None:
    """However old, an id that may still be published is no garbage, nor is what it shares with the head."""
    world = World()
    async with claim(world.store) as controller:
        await publish_cursors(world.store, controller, [0, 1])
        draft = await unfinished(world.store, controller, 2)
        await world.wait()
        await prune(world.client()[1], LAST)
        ref = await controller.publish(draft, timeout_s=5)
    assert await read_cursor(world.store, ref) == 2


@pytest.mark.parametrize(("age_s", "swept"), [(0.0, False), (DAY_S - 1, False), (DAY_S, True), (-DAY_S, False)])
async def test_leftovers_of_dead_ids_are_swept_when_old_by_the_stores_clock(age_s: float, swept: bool) -> None:
    """Young ones may be a copy in progress; ones from the future are not old (FAULTS 6, 22, 39)."""
    world = World()
    async with claim(world.store) as controller:
        await publish_cursors(world.store, controller, [0])
        dead = (await unfinished(world.store, controller, 1)).checkpoint
        await publish_cursors(world.store, controller, [2])
    await world.wait(age_s)
    report = await prune(world.store, Retention(keep_last=9))
    assert list(report.survey.leftovers) == ([dead] if swept else [])
    assert bool(world.keys(checkpoint_prefix(dead))) is not swept
    assert (str(dead) in world.blob_owners()) is not swept


async def test_one_young_object_keeps_the_leftovers_of_its_id() -> None:
    """A copy that takes long has written something lately."""
    world, _ = await world_with(1)
    async with claim(world.store) as controller:
        await publish_cursors(world.store, controller, [1])
        left = CheckpointId(1, 7)
        for key in ("a", "b"):
            await world.backend.put(checkpoint_prefix(left) + key, b"x")
            await world.wait()
        await world.backend.put(checkpoint_prefix(left) + "c", b"x")
        assert (await prune(world.store, LAST)).survey.leftovers == ()
        await world.wait()
        assert (await prune(world.store, LAST)).survey.leftovers == (left,)


async def test_what_is_not_of_our_making_is_never_deleted() -> None:
    """Files of somebody else stay where they are, however old (FAULTS 6)."""
    world, _ = await world_with(2)
    strange = {"checkpoints/README", "checkpoints/x.y/manifest.json", "blobs/ab/note", "notes/a", "chain/note"}
    for key in strange:
        await world.backend.put(key, b"mine")
    await world.wait()
    await prune(world.store, LAST)
    assert strange <= world.keys()


async def test_the_plan_of_a_crashed_prune_is_completed_by_the_next() -> None:
    """Whatever the next one's own policy says (FAULTS 39)."""
    world, refs = await world_with(3)
    chain = await world.store.chain()
    await chain.append(None, lambda _: Deletion(checkpoints=(refs[0].checkpoint,)))
    report = await prune(world.store, Retention(keep_last=9))
    assert report.resumed == [5]
    assert world.keys(checkpoint_prefix(refs[0].checkpoint)) == set()
    assert (await world.store.chain()).state.plans == ()
    assert [await read_cursor(world.store, ref) for ref in refs[1:]] == [1, 2]


def denied(call: Call) -> BackendError:
    """No permission."""
    return AccessDenied(call.verb, call.key)


@pytest.mark.parametrize("error", [AccessDenied, StoreUnavailable, OutcomeUnknown])
async def test_a_failure_to_delete_is_reported_and_tried_again_by_the_next(error: type[BackendError]) -> None:
    """It is never raised; the plan stays open, and what is planned no longer exists for anybody."""
    world, refs = await world_with(2)
    backend, store = world.client()
    backend.inject(Fault(verb="delete", key_part="checkpoints/", error=lambda call: error(call.verb, call.key)))
    report = await prune(store, LAST)
    assert (report.deleted, len(report.failures)) == (0, 1)
    assert [plan.checkpoints for plan in (await store.chain()).state.plans] == [(refs[0].checkpoint,)]
    with pytest.raises(CheckpointDeleted):
        await open_checkpoint(store, refs[0].checkpoint)
    again = await prune(store, LAST)
    assert (again.resumed, again.failures) == ([5 - 1], [])
    assert world.keys(checkpoint_prefix(refs[0].checkpoint)) == set()


async def test_without_permission_to_delete_the_chain_does_not_grow_with_every_prune() -> None:
    """What an open plan names is not planned again, and each report says what could not be deleted (FAULTS 31)."""
    world, _ = await world_with(2)
    backend, store = world.client()
    backend.inject(Fault(verb="delete", times=10**9, error=denied))
    for _ in range(4):
        await world.wait()
        report = await prune(store, LAST)
        assert "denied" in report.failures[0]
    assert [entry.action.kind for entry in (await store.chain()).entries].count("deletion") == 1


async def test_without_permission_to_delete_ages_are_still_judged_by_the_stores_clock() -> None:
    """A survey finds the same leftovers with and without it."""
    world = World()
    async with claim(world.store) as controller:
        await publish_cursors(world.store, controller, [0])
        dead = (await unfinished(world.store, controller, 1)).checkpoint
        await publish_cursors(world.store, controller, [2])
    await world.wait()
    backend, store = world.client()
    backend.inject(Fault(verb="delete", times=10**9, error=denied))
    assert (await survey(store, LAST)).leftovers == (dead,)


async def test_without_permission_to_write_nothing_young_looks_old() -> None:
    """The newest object is then the only clock there is, and a survey needs no more."""
    world, _ = await world_with(2)
    await world.backend.put(checkpoint_prefix(CheckpointId(1, 1)) + "x", b"x")
    async with claim(world.store):
        await world.backend.put(checkpoint_prefix(CheckpointId(1, 9)) + "x", b"x")
        await world.wait()
        backend, store = world.client()
        backend.inject(Fault(verb="put", times=10**9, error=denied))
        assert (await survey(store, Retention(keep_last=9))).leftovers == ()


async def test_a_kept_checkpoint_that_cannot_be_read_stops_the_prune() -> None:
    """Nobody knows which blobs it names, so nothing is deleted; named in drop, it goes."""
    world, refs = await world_with(3)
    await world.backend.put(aggregate_key(refs[1].checkpoint), b"damaged")
    before = world.keys()
    with pytest.raises(CorruptCheckpoint, match=aggregate_key(refs[1].checkpoint)):
        await prune(world.store, Retention(keep_last=2))
    assert world.keys() == before
    await prune(world.store, dataclasses.replace(LAST, drop=frozenset({refs[1].checkpoint})))
    assert world.keys(checkpoint_prefix(refs[1].checkpoint)) == set()
    assert await read_cursor(world.store, refs[2]) == 2


async def test_an_import_of_a_higher_epoch_goes_when_it_is_named() -> None:
    """It stays whatever the policy says, and can still be got rid of."""
    world, _ = await world_with(1)
    ref = Ref(checkpoint=CheckpointId(7, 1), digest="9" * 64, run_id="b" * 32)
    await world.backend.put(aggregate_key(ref.checkpoint), b"anything")
    chain = await world.store.chain()
    await chain.append(None, lambda _: Import(ref=ref))
    report = await prune(world.store, Retention(drop=frozenset({ref.checkpoint})))
    assert report.survey.checkpoints == (ref.checkpoint,)
    assert world.keys(checkpoint_prefix(ref.checkpoint)) == set()


async def test_an_unknown_outcome_of_the_plan_deletes_nothing() -> None:
    """The next prune finds the plan or makes one."""
    for after in (False, True):
        world, refs = await world_with(2)
        backend, store = world.client()
        backend.inject(
            Fault(verb="create", after=after, error=lambda call: OutcomeUnknown(call.verb, call.key)),
        )
        before = world.keys("checkpoints/")
        with pytest.raises(OutcomeUnknown):
            await prune(store, LAST)
        assert world.keys("checkpoints/") == before
        report = await prune(store, LAST)
        assert report.resumed == ([4] if after else [])
        assert world.keys(checkpoint_prefix(refs[0].checkpoint)) == set()


async def test_progress_counts_every_object() -> None:
    """The numbers told on the way add up to the report's."""
    world, _ = await world_with(3)
    told = list[int]()
    report = await prune(world.store, LAST, told.append)
    assert sum(told) == report.deleted > 0


async def test_every_blob_that_is_left_is_named_by_something_kept() -> None:
    """After prunes with rounds in between nothing accumulates but young leftovers."""
    world = World()
    async with claim(world.store) as controller:
        for cursor in range(6):
            await publish_cursors(world.store, controller, [cursor])
            await prune(world.store, LAST)
            await world.wait()
    named: set[BlobRef] = set((await open_checkpoint(world.store)).blobs)
    assert world.keys("blobs/") == {ref.key for ref in named}


async def test_a_controller_prunes_on_with_the_chain_that_it_has_read() -> None:
    """Of a chain that only grows nothing is read twice: a long run's prunes cost no more than its first."""
    world = World()
    async with claim(world.store) as controller:
        refs = await publish_cursors(world.store, controller, range(6))
        known = {entry_key(n + 1) for n in range(len((await world.store.chain()).entries))}
        asked = len(world.backend.calls)
        report = await controller.prune(LAST)
        assert {str(c) for c in report.survey.checkpoints} == {str(ref.checkpoint) for ref in refs[:-1]}
        assert not known & {call.key for call in world.backend.calls[asked:] if call.verb == "get"}


async def test_a_controller_prunes_on_after_another_prune() -> None:
    """What an operator has put on the chain meanwhile is read on, and planned no second time."""
    world = World()
    async with claim(world.store) as controller:
        await publish_cursors(world.store, controller, range(4))
        await prune(world.client()[1], Retention(keep_last=2))
        report = await controller.prune(LAST)
        assert [str(c) for c in report.survey.checkpoints] == ["1.3"]
        await publish_cursors(world.store, controller, [9])


async def test_a_controller_may_sweep_sooner_than_the_limits_say() -> None:
    """What a dead epoch has left goes at once where nobody else can be at work."""
    world = World()
    async with claim(world.store) as controller:
        await publish_cursors(world.store, controller, [0])
        draft = await unfinished(world.store, controller, 1)
    async with claim(world.store) as controller:
        prefix = checkpoint_prefix(draft.checkpoint)
        await controller.prune(LAST)
        assert world.keys(prefix)
        await controller.prune(LAST, sweep_after_s=0.0)
        assert not world.keys(prefix)
