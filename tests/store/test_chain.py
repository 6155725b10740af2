"""The chain's shell: what it reads is whole, what it appends stands exactly once, and nobody is told a lie about it."""

from collections.abc import Sequence

import orjson
import pytest

from store import (
    AccessDenied,
    Action,
    AlreadyExists,
    Chain,
    CheckpointId,
    Claim,
    Deletion,
    Entry,
    Fenced,
    Import,
    InvalidInput,
    MemoryBackend,
    ObjectInfo,
    OutcomeUnknown,
    Publication,
    Ref,
    Seal,
    Segment,
    StoreUnavailable,
    TransientError,
)
from store.backends import Fault, MemorySpace
from store.backends.retry import Retrying
from store.chain import Decide, find_ref
from store.layout import entry_key

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

RUN = "a" * 32


def ref(name: str) -> Ref:
    """A checkpoint of this run."""
    return Ref(checkpoint=CheckpointId.parse(name), digest="1" * 64, run_id=RUN)


def always(action: Action) -> Decide:
    """Decides on one action, whatever the state."""
    return lambda chain: action


def sealing(length: int) -> Action:
    """A seal that can be told from others."""
    return Seal(segments=(Segment(name="output", length=length),))


def client(backend: MemoryBackend) -> MemoryBackend:
    """Another client of the same objects."""
    return MemoryBackend(space=backend.space)


async def started(*actions: Action) -> MemoryBackend:
    """A chain of epoch 1 with these actions after the claim."""
    backend = MemoryBackend(space=MemorySpace())
    chain = Chain(backend, RUN)
    await chain.append(None, always(Claim(base=None)))
    for action in actions:
        await chain.append(1, always(action))
    return backend


async def read(backend: MemoryBackend) -> Chain:
    """The chain as another client finds it."""
    chain = Chain(client(backend), RUN)
    await chain.refresh()
    return chain


async def test_an_empty_store_has_an_empty_chain() -> None:
    """Nothing there is a state, not an error."""
    chain = await read(MemoryBackend(space=MemorySpace()))
    assert (chain.entries, chain.state.epoch, chain.state.head) == ([], 0, None)


async def test_what_is_appended_is_read_by_everyone() -> None:
    """Another client finds the same entries and the same state."""
    backend = await started(Publication(ref=ref("1.1")), sealing(7), Publication(ref=ref("1.2")))
    chain = await read(backend)
    assert [entry.action.kind for entry in chain.entries] == ["claim", "publication", "seal", "publication"]
    assert repr(chain) == "<Chain 4 entries, epoch 1, head 1.2>"
    assert find_ref(chain, ref("1.1")) == chain.entries[1]
    assert find_ref(chain, ref("1.3")) is None


async def test_other_objects_beside_the_chain_are_no_entries() -> None:
    """Names that are not of our making are no hint."""
    backend = await started(sealing(1))
    for name in ("chain/000000000009.json.tmp", "chain/9.json", "chain/x/000000000009.json", "chain/000000000000.json"):
        await backend.put(name, b"{}")
    assert len((await read(backend)).entries) == 2


async def test_a_stale_listing_never_hides_an_entry() -> None:
    """A reader whose listing is older than the chain, or empty, still reads to its end."""
    backend = await started(sealing(1))
    stale, empty = client(backend), MemoryBackend(space=MemorySpace())
    stale.freeze_listing()
    empty.freeze_listing()
    empty.space.objects = backend.space.objects
    writer = Chain(client(backend), RUN)
    for length in range(2, 6):
        await writer.append(1, always(sealing(length)))
    for reader in (stale, empty):
        chain = Chain(reader, RUN)
        await chain.refresh()
        assert len(chain.entries) == 6


async def test_no_permission_to_list_changes_nothing() -> None:
    """Reading forward finds the same entries, and appending works."""
    backend = await started(sealing(1), sealing(2))
    denied = client(backend)
    denied.inject(Fault(verb="list", times=99, error=lambda call: AccessDenied(call.verb, call.key)))
    chain = Chain(denied, RUN)
    await chain.append(1, always(sealing(3)))
    assert chain.entries == (await read(backend)).entries
    assert len(chain.entries) == 4


def lost(nth: int = 1, times: int = 1) -> Fault:
    """The reply to an entry's creation gets lost after it took effect."""
    return Fault(
        nth=nth,
        verb="create",
        after=True,
        times=times,
        error=lambda call: TransientError(call.verb, call.key, "reset", applied=None),
    )


async def test_a_lost_reply_is_success_once() -> None:
    """The repeated create meets its own entry and knows it by its token (FAULTS 24, 25)."""
    backend = await started()
    flaky = client(backend)
    flaky.inject(lost())
    entry = await Chain(Retrying(flaky), RUN).append(1, always(sealing(1)))
    assert (await read(backend)).entries[1:] == [entry]
    assert flaky.count("create") == 2
    assert flaky.count("delete") == 0


async def test_a_conflict_is_tried_again_and_is_no_entry_of_anothers() -> None:
    """409 means that the store was busy with the key, not that it is taken (FAULTS 26)."""
    backend = await started()
    busy = client(backend)
    busy.inject(Fault(verb="create", times=2, error=lambda call: TransientError(call.verb, call.key, "409")))
    entry = await Chain(Retrying(busy), RUN).append(1, always(sealing(1)))
    assert (await read(backend)).entries[1:] == [entry]
    assert busy.count("create") == 3


class Overtaken(MemoryBackend):
    """Lets another writer take the slot right before our own create arrives."""

    def __init__(self, other: MemoryBackend, overtake: Sequence[tuple[int | None, Action]]) -> None:
        super().__init__(space=other.space)
        self._other = Chain(other, RUN)
        self._overtake = list(overtake)

    async def create(self, key: str, data: bytes) -> None:
        if self._overtake:
            epoch, action = self._overtake.pop(0)
            await self._other.append(epoch, always(action))
        await super().create(key, data)


async def test_a_lost_slot_means_read_on_and_decide_again() -> None:
    """Each lost slot shows the decision one more entry (FAULTS 25)."""
    backend = await started()
    seen = list[int]()

    def decide(chain: Chain) -> Action:
        seen.append(len(chain.entries))
        return sealing(9)

    racing = Overtaken(client(backend), [(1, sealing(1)), (1, sealing(2))])
    entry = await Chain(racing, RUN).append(1, decide)
    assert seen == [1, 2, 3]
    assert entry.n == 4
    assert (await read(backend)).entries[-1] == entry


async def test_a_writer_that_loses_its_slot_to_a_higher_claim_is_fenced() -> None:
    """It writes nothing behind that claim."""
    backend = await started()
    with pytest.raises(Fenced, match="epoch 2"):
        await Chain(Overtaken(client(backend), [(None, Claim(base=None))]), RUN).append(1, always(sealing(9)))
    assert [entry.action.kind for entry in (await read(backend)).entries] == ["claim", "claim"]


async def test_a_claim_that_loses_its_slot_takes_a_higher_epoch() -> None:
    """Two claims at once become epochs 2 and 3."""
    backend = await started()
    entry = await Chain(Overtaken(client(backend), [(None, Claim(base=None))]), RUN).append(
        None, always(Claim(base=None))
    )
    assert [entry.epoch for entry in (await read(backend)).entries] == [1, 2, 3]
    assert entry.epoch == 3


async def test_a_taken_slot_that_cannot_be_read_leaves_the_outcome_unknown() -> None:
    """Nobody can say whose entry it is, so nobody says that nothing was changed."""
    backend = await started()
    flaky = client(backend)
    flaky.inject(Fault(verb="create", after=True, error=lambda call: AlreadyExists(call.verb, call.key)))
    flaky.inject(Fault(verb="get", nth=3, error=lambda call: StoreUnavailable(call.verb, call.key)))
    chain = Chain(flaky, RUN)
    with pytest.raises(OutcomeUnknown, match=entry_key(2)):
        await chain.append(1, always(sealing(1)))
    assert len((await read(backend)).entries) == 2


async def test_the_same_call_after_an_unknown_outcome_finds_its_entry() -> None:
    """With the same token an append is done once, whatever its decision would say now."""
    backend = await started()
    flaky = client(backend)
    flaky.inject(
        Fault(verb="create", nth=1, after=True, error=lambda call: OutcomeUnknown(call.verb, call.key)),
    )
    chain, token = Chain(flaky, RUN), "f" * 32
    with pytest.raises(OutcomeUnknown):
        await chain.append(1, always(sealing(1)), token)
    await Chain(client(backend), RUN).append(1, always(sealing(2)))
    entry = await chain.append(1, always(sealing(1)), token)
    assert entry.n == 2
    assert [entry.token for entry in (await read(backend)).entries].count(token) == 1


async def test_a_decision_may_find_that_it_stands_already() -> None:
    """Then nothing is added; it is only made sure of."""
    backend = await started(sealing(1))
    writer = client(backend)

    def decide(chain: Chain) -> Entry:
        return chain.entries[-1]

    before = dict(backend.space.objects)
    entry = await Chain(writer, RUN).append(1, decide)
    assert entry.n == 2
    assert backend.space.objects == before


async def test_what_the_rules_refuse_is_not_written() -> None:
    """An illegal action raises before any request to write."""
    backend = await started(Publication(ref=ref("1.1")))
    writer = client(backend)
    with pytest.raises(InvalidInput, match="head"):
        await Chain(writer, RUN).append(None, always(Deletion(checkpoints=(CheckpointId(1, 1),))))
    assert writer.count("create") == writer.count("put") == 0


class Busy(MemoryBackend):
    """Counts how many reads are under way at once."""

    open = 0
    most = 0

    async def get(self, key: str, *, max_bytes: int) -> bytes:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            return await super().get(key, max_bytes=max_bytes)
        finally:
            self.open -= 1


async def test_a_long_chain_is_read_with_many_requests_at_once() -> None:
    """2,000 entries, each read once; then one read tells that there is nothing new."""
    actions = [Import(ref=ref(f"1.{n}").model_copy(update={"run_id": "b" * 32})) for n in range(1, 2000)]
    backend = await started()
    writer = Chain(backend, RUN)
    for action in actions:
        await writer.append(None, always(action))
    reader = Busy(space=backend.space)
    chain = Chain(reader, RUN)
    await chain.refresh()
    assert chain.entries == writer.entries
    assert (len(chain.entries), reader.count("get"), reader.count("list")) == (2000, 2001, 1)
    assert 8 <= reader.most <= 16
    await chain.refresh()
    assert (reader.count("get"), reader.count("list")) == (2002, 1)


async def test_entries_are_readable_json() -> None:
    """An operator can look at one with ordinary tools."""
    backend = await started(Publication(ref=ref("1.1")))
    document = orjson.loads(await backend.get(entry_key(2), max_bytes=10_000))
    assert (document["n"], document["action"]["ref"]["checkpoint"]) == (2, "1.1")
    infos: list[ObjectInfo] = await backend.list("chain/")
    assert [info.key for info in infos] == [entry_key(1), entry_key(2)]
