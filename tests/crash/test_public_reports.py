"""Faults that users reported of other projects, where they are about commits that are interrupted or overtaken."""

from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from store import (
    CheckpointConflict,
    Controller,
    IOFailed,
    MemoryBackend,
    OutcomeUnknown,
    ParticipantCommit,
    Publication,
    Receipt,
    Record,
    Ref,
    Retention,
    Store,
    TransientError,
    claim,
    prune,
)
from store.backends import Call, Fault, MemorySpace, Retrying
from tests.support.checkpoints import AGENT, life
from tests.support.interrupting import Interrupted
from tests.support.rounds import Round, on_backend, read_cursor

from .scenes import FIRST

pytestmark = [pytest.mark.unit, pytest.mark.anyio]
RUN_ID = "0" * 32


def _reply_lost(call: Call) -> TransientError:
    return TransientError(call.verb, call.key, "reply lost", applied=None)


@pytest.mark.parametrize("key", ["checkpoints/1.1/manifest.json", "chain/"])
@pytest.mark.parametrize("retried", [True, False])
async def test_a_commit_that_errs_although_it_was_applied_deletes_nothing(key: str, retried: bool) -> None:
    """The reply to a write is lost: publishing succeeds or says that it does not know, and never cleans up."""
    backend = MemoryBackend(space=MemorySpace())
    store = on_backend(Retrying(backend) if retried else backend, RUN_ID)
    async with claim(store) as controller:
        first = Round(store, controller, 1)
        await first.commit()
        backend.inject(Fault(verb="create", key_part=key, after=True, error=_reply_lost))
        try:
            await first.publish()
        except (TransientError, OutcomeUnknown):
            assert not retried
        assert backend.count("delete") == 0
        ref = await first.publish()
    assert await read_cursor(store, ref) == 1
    assert (await store.chain()).state.head == ref


async def test_until_a_commit_is_complete_the_previous_checkpoint_is_the_head_and_is_kept() -> None:
    """Before each write of a commit a reader finds the previous checkpoint, pruning keeps it, and so does a crash."""
    nth, struck = 0, True
    while struck:
        nth += 1
        backend = Interrupted(MemoryBackend(space=MemorySpace()))
        store, other = on_backend(backend, RUN_ID), on_backend(backend.inner, RUN_ID)
        async with claim(store) as controller:
            first = await Round(store, controller, 1).run()
            second = Round(store, controller, 2)
            backend.arm(nth, partial(_look_and_crash, other, first))
            try:
                await second.run()
            except IOFailed:
                await _look(other, first)
            struck = bool(backend.struck)
            backend.disarm()
    assert nth > 20


async def _look(other: Store, first: Ref) -> None:
    await prune(other, Retention(keep_last=1))
    assert (await other.chain()).state.head == first
    assert await read_cursor(other, first) == 1


async def _look_and_crash(other: Store, first: Ref) -> None:
    await _look(other, first)
    raise IOFailed("call", "it", "the process is gone")


async def test_of_two_processes_that_commit_the_same_share_exactly_one_wins() -> None:
    """At each interleaving of two commits of one process name and round, one manifest stands and the other is told."""
    for nth in range(1, 12):
        backend = Interrupted(MemoryBackend(space=MemorySpace()))
        store, other = on_backend(backend, RUN_ID), on_backend(backend.inner, RUN_ID)
        late: list[Receipt] = []

        async def commit_the_other(to: Store = other, receipts: list[Receipt] = late) -> None:
            receipts.append(await ParticipantCommit(to, FIRST, AGENT).run(_records("theirs")))

        backend.arm(nth, commit_the_other)
        try:
            receipt = await ParticipantCommit(store, FIRST, AGENT).run(_records("ours"))
        except CheckpointConflict:
            receipt = late[0]
        if not backend.struck:
            break
        standing = await other.backend.get(f"checkpoints/{FIRST}/{AGENT}/manifest.json", max_bytes=10**6)
        assert receipt.ref.digest.encode() in standing
        assert receipt is late[0]
    assert nth > 4


def _records(whose: str) -> list[Record]:
    return [Record(life("r0"), {"whose": whose})]


async def test_of_two_controllers_that_publish_the_same_id_exactly_one_wins() -> None:
    """Before any call of one publication another one of the same epoch and id is made: one of them is on the chain."""
    nth, struck = 0, True
    while struck:
        nth += 1
        backend = Interrupted(MemoryBackend(space=MemorySpace()))
        store, other = on_backend(backend, RUN_ID), on_backend(backend.inner, RUN_ID)
        async with claim(store) as controller:
            rival = Controller(other, await other.chain(), controller.epoch)
            ours, theirs = Round(store, controller, 1), Round(other, rival, 1)
            await ours.commit()
            theirs.draft = replace(ours.draft, tags=("rival",)) if ours.draft else None
            backend.arm(nth, partial(_ignoring_conflict, theirs))
            await _ignoring_conflict(ours)
            struck = bool(backend.struck)
            backend.disarm()
        published = [entry for entry in (await other.chain()).entries if isinstance(entry.action, Publication)]
        winners = [each.ref for each in (ours, theirs) if each.ref is not None]
        assert [entry.action.ref for entry in published if isinstance(entry.action, Publication)] == winners
        assert len(winners) == 1
    assert nth > 4


async def _ignoring_conflict(each: Round) -> None:
    with suppress(CheckpointConflict):
        await each.publish()


async def test_a_publication_is_durable_before_it_is_reported() -> None:
    """Another client, which shares nothing but the store, reads all of a checkpoint once publish has returned."""
    backend = MemoryBackend(space=MemorySpace())
    async with claim(on_backend(backend, RUN_ID)) as controller:
        ref = await Round(on_backend(backend, RUN_ID), controller, 1).run()
        assert await read_cursor(on_backend(MemoryBackend(space=backend.space), RUN_ID), ref) == 1
