"""Publications: what a controller may make exist, exactly once, and what it is told when nobody can say."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import pytest

from store import (
    AccessDenied,
    BackendError,
    CheckpointConflict,
    CheckpointDeleted,
    CheckpointId,
    Controller,
    CorruptCheckpoint,
    Draft,
    DuplicateRollout,
    External,
    InvalidInput,
    Life,
    MemoryBackend,
    OutcomeUnknown,
    ParticipantCommit,
    ParticipantRef,
    ProcessName,
    Publication,
    Record,
    Ref,
    Retention,
    Store,
    StoreError,
    StoreUnavailable,
    claim,
    open_checkpoint,
    prune,
)
from store.backends import Fault, MemorySpace
from store.layout import aggregate_key, entry_key
from tests.support.checkpoints import AGENT, TOOLS, life, memory_store, records
from tests.support.damage import keys
from tests.support.prunable import World, publish_cursors

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

FIRST = CheckpointId(1, 1)
TWIN = ProcessName(AGENT.kind, AGENT.name, "p1")
SOON_S = 0.25


async def commit(
    store: Store, checkpoint: CheckpointId, process: ProcessName, share: Sequence[Record], parent: Ref | None = None
) -> ParticipantRef:
    """One participant's half."""
    continued = (await open_checkpoint(store, parent)).as_parent() if parent else None
    return (await ParticipantCommit(store, checkpoint, process, parent=continued).run(share)).ref


async def drafted(store: Store, controller: Controller, count: int = 2) -> Draft:
    """The next round of a controller, committed by two participants."""
    checkpoint, share = controller.next_round(), records(count)
    refs = [await commit(store, checkpoint, process, share, controller.head) for process in (AGENT, TOOLS)]
    parent = controller.head.checkpoint if controller.head else None
    return Draft(checkpoint=checkpoint, parent=parent, participants=refs, scope=[record.life for record in share])


async def publications(store: Store) -> list[str]:
    """What the chain says was published, in order."""
    entries = (await store.chain()).entries
    return [str(entry.action.ref.checkpoint) for entry in entries if isinstance(entry.action, Publication)]


async def exists(store: Store, key: str) -> bool:
    """Whether there is an object with this key."""
    return key in [info.key for info in await store.backend.list("checkpoints/")]


async def test_a_publication_makes_the_checkpoint_exist() -> None:
    """Everybody finds it as the head, with its digest."""
    store = memory_store()
    async with claim(store) as controller:
        ref = await controller.publish(await drafted(store, controller), timeout_s=5)
        assert controller.head == ref
    assert (await store.chain()).state.head == ref
    assert (await open_checkpoint(store)).ref == ref


async def test_the_manifest_is_there_before_the_entry() -> None:
    """The chain never names what is not whole."""
    backend = MemoryBackend(space=MemorySpace())
    store = memory_store(backend)
    async with claim(store) as controller:
        draft = await drafted(store, controller)
        backend.calls.clear()
        await controller.publish(draft, timeout_s=5)
    writes = [call.key for call in backend.calls if call.verb == "create"]
    assert writes == [aggregate_key(FIRST), "chain/000000000002.json"]


async def test_one_draft_is_published_once_however_often_it_is_asked() -> None:
    """Again, and by two tasks at once: one entry, one answer."""
    store = memory_store()
    async with claim(store) as controller:
        draft = await drafted(store, controller)
        found = list[Ref]()

        async def run() -> None:
            found.append(await controller.publish(draft, timeout_s=5))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(run)
        await run()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert await publications(store) == ["1.1"]


async def test_an_older_publication_is_still_a_success_when_repeated() -> None:
    """The head may have moved on since."""
    store = memory_store()
    async with claim(store) as controller:
        first = await drafted(store, controller)
        ref = await controller.publish(first, timeout_s=5)
        await controller.publish(await drafted(store, controller), timeout_s=5)
        assert await controller.publish(first, timeout_s=5) == ref
    assert await publications(store) == ["1.1", "1.2"]


async def test_one_id_stands_for_one_content() -> None:
    """Another draft under the same id is refused, before and after the first is published."""
    store = memory_store()
    async with claim(store) as controller:
        draft = await drafted(store, controller)
        await controller.publish(draft, timeout_s=5)
        with pytest.raises(CheckpointConflict, match=aggregate_key(FIRST)):
            await controller.publish(dataclasses.replace(draft, tags=("other",)), timeout_s=5)
    assert await publications(store) == ["1.1"]


def other_attempt(draft: Draft) -> list[Life]:
    """The scope with one life of another attempt."""
    return [dataclasses.replace(draft.scope[0], attempt=1), *draft.scope[1:]]


Edit = Callable[[Draft], Draft]
WRONG_SETS: dict[str, tuple[Edit, type[StoreError], str]] = {
    "a life too few in scope": (lambda d: dataclasses.replace(d, scope=d.scope[1:]), InvalidInput, "not in the scope"),
    "another attempt in scope": (lambda d: dataclasses.replace(d, scope=other_attempt(d)), DuplicateRollout, "r0"),
    "a rollout twice in scope": (
        lambda d: dataclasses.replace(d, scope=[*d.scope, life("r0", attempt=1)]),
        DuplicateRollout,
        "r0",
    ),
    "in scope and restarts": (lambda d: dataclasses.replace(d, restarts=d.scope[:1]), DuplicateRollout, "r0"),
    "in scope and dropped": (lambda d: dataclasses.replace(d, dropped={d.scope[0]: "x"}), DuplicateRollout, "r0"),
    "exported and a restart": (
        lambda d: dataclasses.replace(d, scope=d.scope[1:], restarts=d.scope[:1]),
        InvalidInput,
        "not in the scope",
    ),
    "a process twice": (
        lambda d: dataclasses.replace(d, participants=[*d.participants, d.participants[0]]),
        InvalidInput,
        "twice",
    ),
    "another parent": (lambda d: dataclasses.replace(d, parent=CheckpointId(1, 9)), InvalidInput, "continued None"),
    "another manifest": (
        lambda d: dataclasses.replace(
            d, participants=[d.participants[0].model_copy(update={"digest": "0" * 64}), d.participants[1]]
        ),
        CorruptCheckpoint,
        "not the one that is named",
    ),
    "other counts": (
        lambda d: dataclasses.replace(
            d, participants=[d.participants[0].model_copy(update={"records": 7}), d.participants[1]]
        ),
        CorruptCheckpoint,
        "counts",
    ),
    "a round in which nobody committed": (
        lambda d: dataclasses.replace(d, checkpoint=CheckpointId(1, 8)),
        CorruptCheckpoint,
        "missing",
    ),
    "another epoch's round": (
        lambda d: dataclasses.replace(d, checkpoint=CheckpointId(2, 1)),
        InvalidInput,
        "epoch 1 cannot publish",
    ),
}


@pytest.mark.parametrize("name", WRONG_SETS)
async def test_a_draft_that_does_not_match_its_receipts_is_refused(name: str) -> None:
    """The message says what is wrong; no manifest and no entry is written (FAULTS 8, 9)."""
    edit, error, says = WRONG_SETS[name]
    store = memory_store()
    async with claim(store) as controller:
        draft = edit(await drafted(store, controller))
        with pytest.raises(error, match=says):
            await controller.publish(draft, timeout_s=5)
    assert not await exists(store, aggregate_key(draft.checkpoint))
    assert await publications(store) == []


async def test_one_rollout_in_two_processes_of_a_participant_is_refused() -> None:
    """A session belongs to one worker (FAULTS 8)."""
    store = memory_store()
    async with claim(store) as controller:
        draft = await drafted(store, controller)
        twin = await commit(store, draft.checkpoint, TWIN, records(1))
        with pytest.raises(DuplicateRollout, match=r"in two processes of agent\.solver"):
            await controller.publish(dataclasses.replace(draft, participants=[*draft.participants, twin]), timeout_s=5)
    assert await publications(store) == []


async def test_two_participants_with_different_lives_of_a_rollout_are_refused() -> None:
    """The scope has one life of each rollout, and everybody exports that (FAULTS 9)."""
    store = memory_store()
    async with claim(store) as controller:
        checkpoint = controller.next_round()
        first = await commit(store, checkpoint, AGENT, [Record(life("r0"), {})])
        second = await commit(store, checkpoint, TOOLS, [Record(life("r0", attempt=1), {})])
        draft = Draft(checkpoint=checkpoint, parent=None, participants=[first, second], scope=[life("r0")])
        with pytest.raises(DuplicateRollout, match=r"resources\.tools/p0 exported r0/1\.1#0"):
            await controller.publish(draft, timeout_s=5)


@pytest.mark.parametrize("part", ["agent.solver/p0/manifest.json", "resources.tools/p0/index-"])
@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
async def test_what_a_receipt_pins_is_read_back(part: str, damage: str) -> None:
    """A manifest or index that is not as it was written is never published."""
    store = memory_store()
    async with claim(store) as controller:
        draft = await drafted(store, controller)
        [key] = keys(store, part)
        data = await store.backend.get(key, max_bytes=10_000)
        if damage == "missing":
            await store.backend.delete([key])
        else:
            flipped = bytes([data[0] ^ 1]) + data[1:]
            await store.backend.put(key, data[:-1] if damage == "cut" else flipped)
        with pytest.raises(CorruptCheckpoint, match=key):
            await controller.publish(draft, timeout_s=5)
    assert not await exists(store, aggregate_key(FIRST))


@pytest.mark.parametrize("content", [None, b"weighty", b"weight"])
async def test_a_file_outside_the_store_that_is_not_as_it_is_said_is_never_published(
    content: bytes | None, tmp_path: Path
) -> None:
    """Missing, other or shorter than the draft says: nothing is written; once it is right, the draft is published."""
    path = anyio.Path(tmp_path / "weights")
    if content is not None:
        await path.write_bytes(content)
    external = External(url=str(path), size=7, sha256=hashlib.sha256(b"weights").hexdigest())
    store = memory_store()
    async with claim(store) as controller:
        draft = dataclasses.replace(await drafted(store, controller), externals=[external])
        with pytest.raises(CorruptCheckpoint, match=str(path)):
            await controller.publish(draft, timeout_s=5)
        assert not await exists(store, aggregate_key(FIRST))
        await path.write_bytes(b"weights")
        await controller.publish(draft, timeout_s=5)
    assert await publications(store) == ["1.1"]


async def test_a_draft_that_continues_another_than_the_head_is_refused() -> None:
    """Blobs that only its parent names would not be kept."""
    store = memory_store()
    async with claim(store) as controller:
        late = await drafted(store, controller)
        await controller.publish(await drafted(store, controller), timeout_s=5)
        with pytest.raises(InvalidInput, match=r"1\.1 continues None, and the head is 1\.2"):
            await controller.publish(late, timeout_s=5)
        late = await drafted(store, controller)
        await controller.publish(await drafted(store, controller), timeout_s=5)
        with pytest.raises(InvalidInput, match=r"1\.3 continues 1\.2, and the head is 1\.4"):
            await controller.publish(late, timeout_s=5)


async def test_ids_rise_within_an_epoch() -> None:
    """A round below the head can never be published, whatever parent it names."""
    store = memory_store()
    async with claim(store) as controller:
        controller.next_round()
        head = await controller.publish(await drafted(store, controller), timeout_s=5)
        low = Draft(checkpoint=FIRST, parent=head.checkpoint, participants=(), scope=())
        with pytest.raises(InvalidInput, match=r"1\.1 cannot follow 1\.2"):
            await controller.publish(low, timeout_s=5)


async def test_a_deleted_checkpoint_is_never_published_again() -> None:
    """Not even by a controller that published it before, and nothing of it is written again."""
    store = memory_store()
    async with claim(store) as controller:
        draft = await drafted(store, controller)
        await controller.publish(draft, timeout_s=5)
        await controller.publish(await drafted(store, controller), timeout_s=5)
        await prune(store, Retention(keep_last=1))
        with pytest.raises(CheckpointDeleted, match=r"1\.1 .*entry 4"):
            await controller.publish(draft, timeout_s=5)
    assert not await exists(store, aggregate_key(FIRST))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("key_part", ["chain/", "checkpoints/"])
async def test_an_unknown_outcome_at_the_deadline_is_settled_by_the_same_draft(after: bool, key_part: str) -> None:
    """Whether the manifest or the entry took effect or not, the second call ends with one publication."""
    backend = MemoryBackend(space=MemorySpace())
    store = memory_store(backend)
    async with claim(store) as controller:
        draft = await drafted(store, controller)
        backend.inject(Fault(verb="create", key_part=key_part, after=after))
        with pytest.raises(OutcomeUnknown, match=aggregate_key(FIRST)):
            await controller.publish(draft, timeout_s=SOON_S)
        ref = await controller.publish(draft, timeout_s=5)
        assert controller.head == ref
    assert await publications(store) == ["1.1"]


def unknown_entry(after: bool) -> Fault:
    """The reply to the entry's creation is lost for good."""
    return Fault(verb="create", key_part="chain/", after=after, error=lambda call: OutcomeUnknown(call.verb, call.key))


@pytest.mark.parametrize("after", [False, True])
async def test_an_unknown_outcome_before_the_deadline_is_settled_at_once(after: bool) -> None:
    """The caller never hears of it."""
    backend = MemoryBackend(space=MemorySpace())
    store = memory_store(backend)
    async with claim(store) as controller:
        draft = await drafted(store, controller)
        backend.inject(unknown_entry(after))
        await controller.publish(draft, timeout_s=5)
    assert await publications(store) == ["1.1"]


@pytest.mark.parametrize("error", [AccessDenied, StoreUnavailable])
async def test_an_unknown_outcome_that_cannot_be_looked_into_stays_unknown(error: type[BackendError]) -> None:
    """A later error of another kind does not say that nothing was changed."""
    backend = MemoryBackend(space=MemorySpace())
    store = memory_store(backend)
    async with claim(store) as controller:
        draft = await drafted(store, controller)
        backend.inject(unknown_entry(after=True))
        # The reads of the chain before it are: one to look early, one to find the slot.
        reads = Fault(verb="get", key_part="chain/", nth=3, times=10**9, error=lambda call: error(call.verb, call.key))
        backend.inject(reads)
        with pytest.raises(OutcomeUnknown):
            await controller.publish(draft, timeout_s=SOON_S)
    assert await publications(memory_store(MemoryBackend(space=backend.space), store.run_id)) == ["1.1"]


async def test_an_unknown_outcome_outlasts_a_store_that_is_away_for_a_moment() -> None:
    """That nothing was changed by one more try says nothing of the one before: it is looked into again."""
    backend = MemoryBackend(space=MemorySpace())
    store = memory_store(backend)
    async with claim(store) as controller:
        draft = await drafted(store, controller)
        backend.inject(unknown_entry(after=True))
        away = Fault(verb="get", key_part="chain/", nth=3, error=lambda call: StoreUnavailable(call.verb, call.key))
        backend.inject(away)
        await controller.publish(draft, timeout_s=30)
    assert await publications(store) == ["1.1"]


async def test_a_definite_failure_leaves_nothing_on_the_chain() -> None:
    """What fails before it takes effect is told as it is, and the same draft may be published later."""
    backend = MemoryBackend(space=MemorySpace())
    store = memory_store(backend)
    async with claim(store) as controller:
        draft = await drafted(store, controller)
        backend.inject(
            Fault(verb="create", key_part="chain/", error=lambda call: StoreUnavailable(call.verb, call.key))
        )
        with pytest.raises(StoreUnavailable):
            await controller.publish(draft, timeout_s=5)
        assert await publications(store) == []
        await controller.publish(draft, timeout_s=5)
    assert await publications(store) == ["1.1"]


async def test_a_claim_that_follows_another_reads_nothing_of_the_chain_again() -> None:
    """Nor does one that is given a chain that was read before, so that a start reads it once."""
    world = World()
    async with claim(world.store) as first:
        await publish_cursors(world.store, first, range(5))
        asked = len(world.backend.calls)
        known = {entry_key(n) for n in range(1, len(first.chain().entries) + 1)}
        async with claim(world.store, following=first) as second:
            assert (second.epoch, second.head) == (first.epoch + 1, first.head)
            chain = second.chain()
        async with claim(world.store, chain=chain) as third:
            assert third.epoch == second.epoch + 1
        assert not known & {call.key for call in world.backend.calls[asked:] if call.verb == "get"}
