"""The helper: buffers are frozen while generation goes on, acknowledged when durable, and the same cut has one key."""

import dataclasses

import anyio
import anyio.lowlevel
import pytest

from participants.data import CALL_HEADER, LIFE_HEADER
from participants.staging import (
    Identity,
    PromptRef,
    Reason,
    Refused,
    Staged,
    Stager,
    TokenStore,
    Wanted,
    digest_of_ids,
    identity_of,
)
from participants.staging.packs import Key
from store import IOFailed
from store.backends import Fault, MemoryBackend, MemorySpace
from tests.support.checkpoints import life

from .made import (
    CALL,
    CONTEXT,
    PROMPT,
    SMALL,
    all_staged,
    cut_of_entry,
    identity,
    keys_of,
    opened,
    some_ids,
    stager_of,
    wanted,
)

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


def faulty() -> tuple[MemoryBackend, Stager]:
    """A helper whose store can be made to fail."""
    backend = MemoryBackend(space=MemorySpace())
    return backend, stager_of(TokenStore(backend, SMALL))


async def test_a_cut_holds_what_was_there_when_it_was_asked_for() -> None:
    """Tokens that come while the cut is written are in the buffer and not in the cut; all items are of one moment."""
    backend, stager = faulty()
    buffers = opened(stager, 7)
    backend.inject(Fault(verb="create"))  # hangs
    outcomes: list[Staged | Refused] = []

    async def stage() -> None:
        with anyio.move_on_after(30):
            outcomes.extend(await stager.stage(wanted(buffers)))

    frozen = stager.freeze(wanted(buffers))
    for buffer in buffers:
        buffer.append([9, 9, 9])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage)
        await anyio.wait_all_tasks_blocked()
        for buffer in buffers:
            buffer.append([7])
        tasks.cancel_scope.cancel()
    assert outcomes == []  # nothing was acknowledged while one pack was not durable
    assert [buffer.count for buffer in buffers] == [12] * 7
    for n, each in enumerate(frozen):
        assert not isinstance(each, Refused)
        assert list(each.buffer.entry(each.count).ids) == some_ids(n)
    staged = all_staged(await stager.stage(wanted(buffers, 8)))
    assert [each.digest for each in staged] == [digest_of_ids(some_ids(n)) for n in range(7)]


async def test_what_is_staged_is_what_was_generated() -> None:
    """Every key leads to the ids, the prompt and the identity of its call; counts and digests agree."""
    stager = stager_of()
    buffers = opened(stager, 20)
    staged = all_staged(await stager.stage(wanted(buffers)))
    for n, each in enumerate(staged):
        entry = await stager.store.read(Key.parse(each.key))
        assert (entry.source, entry.prompt, list(entry.ids)) == (identity(n), PROMPT, some_ids(n))
        assert (each.count, each.digest, each.ended) == (8, digest_of_ids(some_ids(n)), False)
    assert stager.counts == {"staged": 20, "staged_tokens": 160}


async def test_the_same_cut_has_the_same_key_and_is_written_once() -> None:
    """A repeat, repeats beside each other and an item given twice cost no write; a longer cut has a key of its own."""
    backend, stager = faulty()
    [buffer] = opened(stager, 1)
    items = wanted([buffer, buffer])
    first = all_staged(await stager.stage(items))
    again: list[Staged | Refused] = []
    async with anyio.create_task_group() as tasks:
        for _ in range(5):

            async def repeat() -> None:
                again.extend(await stager.stage(items))

            tasks.start_soon(repeat)
    assert set(again) == set(first)
    assert len(set(first)) == 1
    assert backend.count("create") == 1
    buffer.append([5])
    [longer] = all_staged(await stager.stage(wanted([buffer])))
    assert longer.key != first[0].key
    assert all_staged(await stager.stage(wanted([buffer], 8))) == first[:1]
    assert (await stager.store.read(Key.parse(first[0].key))).count == 8


async def test_concurrent_requests_for_one_cut_write_it_once() -> None:
    """Before anything of it was durable: the second waits for the first and gets its key."""
    backend, stager = faulty()
    buffers = opened(stager, 4)
    found: list[list[Staged | Refused]] = []

    async def stage() -> None:
        found.append(await stager.stage(wanted(buffers)))

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(stage)
    assert all(each == found[0] for each in found)
    assert backend.count("create") == 2  # two packs


async def test_a_key_whose_tokens_were_swept_is_not_given_again() -> None:
    """After a sweep the same cut is written anew."""
    stager = stager_of()
    [buffer] = opened(stager, 1)
    [first] = all_staged(await stager.stage(wanted([buffer])))
    await stager.store.sweep(0)
    [second] = all_staged(await stager.stage(wanted([buffer])))
    assert second.key != first.key
    assert (await stager.store.read(Key.parse(second.key))).count == 8


async def test_each_item_that_cannot_be_staged_has_its_reason() -> None:
    """Among others that are staged in the same request."""
    stager = stager_of(TokenStore(MemoryBackend(space=MemorySpace()), dataclasses.replace(SMALL, max_prefix_tokens=20)))
    good, long = opened(stager, 2)
    long.append(range(100))
    empty = stager.open(identity(2), PROMPT)
    items = [
        *wanted([good, empty, long]),
        Wanted(good.identity, 9),
        Wanted(good.identity, 0),
        Wanted(identity(0, attempt=1)),
        Wanted(identity(0, call="agent.main:0.1")),
        Wanted(good.identity, 8, digest_of_ids(some_ids(0))),
        Wanted(good.identity, 8, digest_of_ids(some_ids(1))),
        *wanted([long], 20),
    ]
    outcomes = await stager.stage(items)
    reasons = [each.reason if isinstance(each, Refused) else None for each in outcomes]
    assert reasons == [
        None, Reason.EMPTY, Reason.TOO_LONG, Reason.TOO_FEW, Reason.EMPTY, Reason.NOT_ACTIVE, Reason.NOT_ACTIVE,
        None, Reason.WRONG_DIGEST, None,
    ]  # fmt: skip
    assert stager.counts[Reason.NOT_ACTIVE] == 2


async def test_a_pack_that_cannot_be_written_refuses_its_items_alone() -> None:
    """The others are acknowledged; the calls go on, and the next try stages them."""
    backend, stager = faulty()
    buffers = opened(stager, 9)
    for after in (False, True):
        backend.inject(Fault(verb="create", after=after, error=lambda call: IOFailed("create", call.key, "full")))
        outcomes = await stager.stage(wanted(buffers))
        refused = [each for each in outcomes if isinstance(each, Refused)]
        assert [each.reason for each in refused] == [Reason.STORE_FAILED] * 3
        assert all("full" in each.message for each in refused)
        assert len(all_staged(await stager.stage(wanted(buffers)))) == 9
        for buffer in buffers:
            buffer.append([3])


async def test_a_call_that_has_ended_can_still_be_staged_for_a_while() -> None:
    """Its caller may not have read to the end; the oldest go first, by number and by tokens."""
    limits = dataclasses.replace(SMALL, ended_kept=3, ended_tokens=30)
    stager = stager_of(TokenStore(MemoryBackend(space=MemorySpace()), limits))
    buffers = opened(stager, 5)
    for buffer in buffers:
        stager.close(buffer)
    assert (stager.active, stager.ended) == (0, 3)
    outcomes = await stager.stage(wanted(buffers))
    assert [isinstance(each, Staged) and each.ended for each in outcomes] == [False, False, True, True, True]
    [large] = opened(stager, 1, tokens=25)
    stager.close(large)
    assert stager.ended == 1


async def test_a_new_call_of_the_same_id_takes_the_place_of_the_old_one() -> None:
    """Also if the old one ends after it began; what the old one had staged stays."""
    stager = stager_of()
    [old] = opened(stager, 1)
    [staged] = all_staged(await stager.stage(wanted([old])))
    new = stager.open(old.identity, PROMPT)
    new.append([4])
    stager.close(old)
    assert stager.ended == 0
    [other] = all_staged(await stager.stage(wanted([new])))
    assert (other.count, other.ended) == (1, False)
    stager.close(new)
    again = stager.open(old.identity, PROMPT)
    assert (stager.active, stager.ended) == (1, 0)
    assert [each.reason for each in await stager.stage(wanted([again])) if isinstance(each, Refused)] == [Reason.EMPTY]
    assert (await stager.store.read(Key.parse(staged.key))).count == 8


async def test_a_continued_call_is_staged_from_its_first_token_on() -> None:
    """A second cut has the first prefix in it, under the new identity and the same prompt."""
    stager = stager_of()
    [buffer] = opened(stager, 1)
    [staged] = all_staged(await stager.stage(wanted([buffer])))
    entry = await stager.begin(cut_of_entry(buffer.entry(8), staged.key), max_tokens=5)
    later = stager.open(identity(0, attempt=1), entry.prompt, entry.ids)
    later.append([1, 2])
    [second] = all_staged(await stager.stage(wanted([later])))
    stored = await stager.store.read(Key.parse(second.key))
    assert list(stored.ids) == [*some_ids(0), 1, 2]
    assert (stored.source, stored.prompt) == (identity(0, attempt=1), PROMPT)
    assert stager.counts["begun"] == 1


async def test_only_a_few_cuts_of_a_buffer_are_remembered() -> None:
    """Memory of a long call's cuts is bounded; one that was forgotten is written again, under another key."""
    stager = stager_of()
    [buffer] = opened(stager, 1, tokens=0)
    keys = []
    for _ in range(SMALL.remembered_cuts + 3):
        buffer.append([1])
        keys += keys_of(await stager.stage(wanted([buffer])))
    assert len(buffer.known) == SMALL.remembered_cuts
    all_at_once = all_staged(await stager.stage([Wanted(buffer.identity, n + 1) for n in range(len(keys))]))
    assert [each.count for each in all_at_once] == list(range(1, len(keys) + 1))
    assert len(buffer.known) == SMALL.remembered_cuts


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({LIFE_HEADER: "r1/1.0#0", CALL_HEADER: CALL}, True),
        ({LIFE_HEADER: "r1/1.0#0"}, False),
        ({CALL_HEADER: CALL}, False),
        ({LIFE_HEADER: "r1", CALL_HEADER: CALL}, False),
        ({LIFE_HEADER: "r1/1.0#0", CALL_HEADER: "x" * 2_000}, False),
        ({}, False),
    ],
)
def test_a_call_has_an_identity_only_if_both_headers_give_it(headers: dict[str, str], found: bool) -> None:
    """Anything else is a call without a buffer, and is served as ever."""
    assert identity_of(headers) == (Identity(life("r1"), CALL) if found else None)


def test_a_prompt_is_named_by_its_ids() -> None:
    """Length and digest."""
    assert PromptRef.of([1, 2, 3]) == PromptRef(3, digest_of_ids([1, 2, 3]))
    assert Stager(stager_of().store, context_length=CONTEXT).active == 0
