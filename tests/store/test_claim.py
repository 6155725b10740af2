"""Claims: which base and epoch they take, when they are refused, and what they do to the controller before."""

import dataclasses

import anyio
import pytest

from store import (
    CheckpointDeleted,
    CheckpointId,
    Claim,
    ControllerAlive,
    Deletion,
    Draft,
    Fenced,
    Import,
    MemoryBackend,
    NoCheckpoint,
    OutcomeUnknown,
    Publication,
    Ref,
    Segment,
    Store,
    claim,
)
from store.backends import Fault, MemorySpace
from store.publish import Base
from tests.support.checkpoints import AGENT, SMALL_PARTS, memory_store, publish, records, store_with

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

QUICK = dataclasses.replace(SMALL_PARTS, liveness_beat_s=0.01)
RUN = "a" * 32
OUTPUT = [Segment(name="output-1", length=7)]


def bare(checkpoint: CheckpointId, parent: CheckpointId | None = None) -> Draft:
    """A checkpoint without participants."""
    return Draft(checkpoint=checkpoint, parent=parent, participants=(), scope=())


async def imported(store: Store, name: str) -> Ref:
    """Say on the chain that a checkpoint of another run was copied in."""
    ref = Ref(checkpoint=CheckpointId.parse(name), digest="9" * 64, run_id="b" * 32)
    chain = await store.chain()
    await chain.append(None, lambda _: Import(ref=ref))
    return ref


async def claimed_behind(store: Store) -> None:
    """Another controller claims, and dies without a counter."""
    chain = await store.chain()
    await chain.append(None, lambda found: Claim(base=found.state.head))


async def test_the_first_claim_is_epoch_one_without_a_head() -> None:
    """An empty root needs nothing before its first claim."""
    async with claim(memory_store()) as controller:
        assert (controller.epoch, controller.head) == (1, None)
        assert repr(controller).startswith("<Controller of epoch 1, 0 rounds")
        assert [str(controller.next_round()) for _ in range(2)] == ["1.1", "1.2"]


@pytest.mark.parametrize(
    ("base", "head"),
    [("head", "1.2"), ("none", None), (CheckpointId(1, 1), "1.1"), (CheckpointId(1, 2), "1.2")],
)
async def test_a_claim_continues_from_its_base(base: Base, head: str | None) -> None:
    """Its base is the head from then on, and the epoch is the next one."""
    store = await store_with({AGENT: records(1)}, {AGENT: records(1)})
    async with claim(store, base) as controller:
        assert controller.epoch == 2
        assert (str(controller.head.checkpoint) if controller.head else None) == head
    assert (await store.chain()).state.base == controller.head


async def test_a_claim_without_a_base_keeps_later_ones_from_the_old_head() -> None:
    """The head is what follows the last claim, not the last publication there ever was."""
    store = await store_with({AGENT: records(1)})
    async with claim(store, "none"):
        pass
    async with claim(store) as controller:
        assert (controller.epoch, controller.head) == (3, None)


@pytest.mark.parametrize(("name", "epoch"), [("7.3", 8), ("1.9", 2)])
async def test_a_claim_of_an_import_takes_an_epoch_above_both(name: str, epoch: int) -> None:
    """The epoch rises above the root's and above that of the checkpoint that was copied in."""
    store = await store_with({AGENT: records(1)})
    ref = await imported(store, name)
    async with claim(store, ref.checkpoint) as controller:
        assert (controller.epoch, controller.head) == (epoch, ref)
        assert controller.next_round() == CheckpointId(epoch, 1)


async def test_a_base_that_is_not_there_is_refused_by_name() -> None:
    """Nothing is claimed."""
    store = await store_with({AGENT: records(1)})
    with pytest.raises(NoCheckpoint, match=r"1\.7"):
        async with claim(store, CheckpointId(1, 7)):
            raise AssertionError
    assert (await store.chain()).state.epoch == 1


async def test_a_base_in_a_plan_is_refused_by_name() -> None:
    """From the plan on the checkpoint does not exist."""
    store = await store_with({AGENT: records(1)}, {AGENT: records(1)})
    chain = await store.chain()
    await chain.append(None, lambda _: Deletion(checkpoints=(CheckpointId(1, 1),)))
    with pytest.raises(CheckpointDeleted, match=r"1\.1 .*entry 4"):
        async with claim(store, CheckpointId(1, 1)):
            raise AssertionError


async def test_a_live_controller_is_not_replaced_by_accident() -> None:
    """The second claim is refused, and the first goes on (FAULTS 43)."""
    store = memory_store()
    async with claim(store) as first:
        with pytest.raises(ControllerAlive, match="epoch 1"):
            async with claim(store):
                raise AssertionError
        await publish(store, first, {AGENT: records(1)})
    assert (await store.chain()).state.epoch == 1


async def test_a_claim_that_follows_ones_own_takes_its_place_without_a_gap() -> None:
    """The next epoch continues the head, nobody else can come between, and the earlier claim is fenced."""
    store = memory_store()
    async with claim(store) as first:
        await publish(store, first, {AGENT: records(1)})
        async with claim(store, following=first) as second:
            assert (second.epoch, str(second.head and second.head.checkpoint)) == (2, "1.1")
            with pytest.raises(ControllerAlive, match="epoch 2"):
                async with claim(store):
                    raise AssertionError
            with pytest.raises(Fenced):
                await first.refresh()


async def test_a_claim_that_follows_one_that_was_taken_over_is_refused() -> None:
    """A controller that does not know yet that it is fenced takes nothing back."""
    store = memory_store()
    async with claim(store) as first, claim(store, take_over=True):
        with pytest.raises(Fenced):
            async with claim(store, following=first):
                raise AssertionError
    assert (await store.chain()).state.epoch == 2


async def test_taking_over_fences_the_first() -> None:
    """The higher epoch wins everywhere: the first can neither publish nor seal, and learns why (FAULTS 43)."""
    store = memory_store()
    async with claim(store) as first:
        await publish(store, first, {AGENT: records(1)})
        async with claim(store, take_over=True) as second:
            assert second.epoch == 2
            length = len((await store.chain()).entries)
            for attempt in (
                lambda: first.publish(bare(first.next_round(), CheckpointId(1, 1)), timeout_s=5),
                lambda: first.seal(OUTPUT),
                first.refresh,
            ):
                with pytest.raises(Fenced, match="epoch 1 is fenced: epoch 2"):
                    await attempt()
            assert len((await store.chain()).entries) == length
            await second.seal(OUTPUT)
            await publish(store, second, {AGENT: records(1)})


async def test_a_fenced_controller_writes_no_manifest() -> None:
    """It looks at the chain before it writes anything."""
    store = memory_store()
    async with claim(store) as first, claim(store, take_over=True):
        with pytest.raises(Fenced):
            await first.publish(bare(first.next_round()), timeout_s=5)
    assert await store.backend.list("checkpoints/") == []


async def test_a_checkpoint_that_stood_before_the_takeover_is_still_a_success() -> None:
    """Publishing the same draft again tells the truth also to a fenced controller."""
    store = memory_store()
    async with claim(store) as first:
        draft = bare(first.next_round())
        ref = await first.publish(draft, timeout_s=5)
        async with claim(store, take_over=True):
            assert await first.publish(draft, timeout_s=5) == ref
            assert len((await store.chain()).entries) == 3


class Raced(MemoryBackend):
    """Lets a third controller claim right before our own claim arrives."""

    raced = False

    async def create(self, key: str, data: bytes) -> None:
        if not self.raced and key.startswith("chain/"):
            self.raced = True
            await claimed_behind(Store(MemoryBackend(space=self.space), RUN, QUICK))
        await super().create(key, data)


async def test_a_claim_raced_by_a_third_is_refused() -> None:
    """Whoever judged an older epoch dead has judged nothing about the new one."""
    space = MemorySpace()
    with pytest.raises(ControllerAlive, match="epoch 1 was claimed just now"):
        async with claim(Store(Raced(space=space), RUN, QUICK)):
            raise AssertionError
    assert (await Store(MemoryBackend(space=space), RUN, QUICK).chain()).state.epoch == 1


async def test_a_takeover_raced_by_a_third_takes_the_next_epoch() -> None:
    """Taking over is meant whoever is there; the epoch and the base are those of the moment."""
    store = Store(Raced(space=MemorySpace()), RUN, QUICK)
    async with claim(store, take_over=True) as controller:
        assert controller.epoch == 2


@pytest.mark.parametrize("applied", [False, True])
async def test_a_claim_with_an_unknown_outcome_can_be_followed_by_another(applied: bool) -> None:
    """Whether it took effect or not, the next claim stands above it."""
    backend = MemoryBackend(space=MemorySpace())
    store = memory_store(backend, limits=QUICK)
    backend.inject(
        Fault(verb="create", key_part="chain/", after=applied, error=lambda call: OutcomeUnknown(call.verb, call.key))
    )
    with pytest.raises(OutcomeUnknown):
        async with claim(store):
            raise AssertionError
    async with claim(store) as controller:
        assert controller.epoch == (2 if applied else 1)
        await publish(store, controller, {AGENT: records(1)})


async def test_a_seal_is_made_once() -> None:
    """Sealing the same lengths again, as after an unknown outcome, adds nothing."""
    backend = MemoryBackend(space=MemorySpace())
    store = memory_store(backend)
    async with claim(store) as controller:
        backend.inject(
            Fault(verb="create", after=True, error=lambda call: OutcomeUnknown(call.verb, call.key)),
        )
        with pytest.raises(OutcomeUnknown):
            await controller.seal(OUTPUT)
        await controller.seal(OUTPUT)
    assert [entry.action.kind for entry in (await store.chain()).entries] == ["claim", "seal"]


async def test_each_epoch_seals_for_itself() -> None:
    """A later claim makes a seal of its own, even of the same lengths."""
    store = memory_store()
    for _ in range(2):
        async with claim(store) as controller:
            await controller.seal(OUTPUT)
    assert [entry.action.kind for entry in (await store.chain()).entries] == ["claim", "seal"] * 2


async def test_two_claims_at_once_do_not_share_an_epoch() -> None:
    """At most one of two unasked claims comes through; the other is told that somebody lives."""
    store = memory_store(limits=QUICK)
    outcomes = list[str]()

    def note(outcome: str) -> None:
        outcomes.append(outcome)
        if len(outcomes) == 2:
            both.set()

    async def run() -> None:
        try:
            async with claim(store) as controller:
                note(f"epoch {controller.epoch}")
                await both.wait()
        except ControllerAlive:
            note("refused")

    both = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        group.start_soon(run)
    assert sorted(outcomes) == ["epoch 1", "refused"]


async def test_the_head_is_as_last_read() -> None:
    """A refresh shows a controller what others appended, and nothing moves its head but a publication."""
    store = memory_store()
    async with claim(store) as controller:
        ref = await publish(store, controller, {AGENT: records(1)})
        await imported(store, "7.1")
        await controller.refresh()
        assert controller.head == ref
        kinds = [type(entry.action) for entry in (await store.chain()).entries]
        assert kinds == [Claim, Publication, Import]
