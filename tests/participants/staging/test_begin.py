"""A cut is checked before anything is generated: the truth passes, and each thing that differs has its own reason."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from participants.staging import (
    Cut,
    Identity,
    PromptRef,
    Reason,
    Room,
    StagingRefused,
    TokenStore,
    begin_call,
    check_cut,
)
from participants.staging import digest_of_ids as digest
from store import IOFailed
from store.backends import Fault, MemoryBackend, MemorySpace
from tests.support.checkpoints import life

from .made import CALL, SMALL, cut_of_entry, entry, identity, memory_tokens, some_ids

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

ROOM = Room(context_length=3 + 8 + 5, max_tokens=5)
"""Exactly enough for the prompt, the prefix and what is asked for."""


def test_a_true_cut_passes() -> None:
    """By its source, by a later life of the rollout, by nobody in particular, and with or without a limit."""
    made = entry()
    cut = cut_of_entry(made)
    later = [
        replace(cut, by=Identity(each, CALL)) for each in (life("r0", attempt=1), life("r0", epoch=2), life("r0", n=1))
    ]
    for each in [cut, replace(cut, by=None), replace(cut, source=None), *later]:
        check_cut(each, made, ROOM)
        check_cut(each, made, Room(context_length=12))


Wrong = Callable[[Cut], Cut]
WRONG: dict[str, tuple[Reason, Wrong]] = {
    "count too high": (Reason.WRONG_COUNT, lambda cut: replace(cut, count=9)),
    "count too low": (Reason.WRONG_COUNT, lambda cut: replace(cut, count=7, digest=digest(some_ids(0, 7)))),
    "equal length, other ids": (Reason.WRONG_DIGEST, lambda cut: replace(cut, digest=digest(some_ids(1)))),
    "the same ids in another order": (Reason.WRONG_DIGEST, lambda cut: replace(cut, digest=digest(some_ids(0)[::-1]))),
    "no digest": (Reason.WRONG_DIGEST, lambda cut: replace(cut, digest="")),
    "another call": (Reason.WRONG_IDENTITY, lambda cut: replace(cut, source=identity(0, call="agent.main:0.1"))),
    "another life": (Reason.WRONG_IDENTITY, lambda cut: replace(cut, source=identity(0, attempt=1))),
    "another rollout's": (Reason.WRONG_IDENTITY, lambda cut: replace(cut, by=identity(1))),
    "an older life": (Reason.OUT_OF_ORDER, lambda cut: replace(cut, by=Identity(life("r0", epoch=0, attempt=7), CALL))),
    "another prompt": (Reason.WRONG_PROMPT, lambda cut: replace(cut, prompt=PromptRef.of([1, 2, 4]))),
    "a shorter prompt": (Reason.WRONG_PROMPT, lambda cut: replace(cut, prompt=PromptRef.of([1, 2]))),
    "the prefix twice": (Reason.OUT_OF_ORDER, lambda cut: replace(cut, prompt=PromptRef.of([1, 2, 3, *some_ids(0)]))),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_differs_is_refused_with_its_reason(name: str) -> None:
    """Each fact that is wrong alone is found alone."""
    reason, wrong = WRONG[name]
    made = entry()
    with pytest.raises(StagingRefused) as refused:
        check_cut(wrong(cut_of_entry(made)), made, ROOM)
    assert (refused.value.reason, refused.value.details, refused.value.status) == (reason, {"reason": reason}, 422)


@pytest.mark.parametrize("room", [Room(context_length=15, max_tokens=5), Room(context_length=11)])
def test_a_cut_without_room_is_too_long(room: Room) -> None:
    """One token more than fits, and nothing left at all."""
    made = entry()
    with pytest.raises(StagingRefused) as refused:
        check_cut(cut_of_entry(made), made, room)
    assert refused.value.reason is Reason.TOO_LONG


async def test_begin_gives_the_ids_of_what_stands_under_the_key() -> None:
    """The entry as it was staged, found by its key."""
    store = memory_tokens()
    made = entry()
    [key] = await store.write([made.count], lambda _: made)
    assert await begin_call(store, cut_of_entry(made, str(key)), ROOM) == made


async def test_begin_refuses_a_key_without_tokens() -> None:
    """A key that is none, that has nothing under it, that points into the middle, or that is longer than any prefix."""
    store = memory_tokens()
    made = entry()
    [key] = await store.write([made.count], lambda _: made)
    pack = str(key).partition(".")[0]
    wrong = {
        "nonsense": Reason.UNKNOWN_KEY,
        "0" * 32 + ".0.100": Reason.UNKNOWN_KEY,
        f"{pack}.1.{100}": Reason.DAMAGED,
        f"{pack}.0.{'9' * 9}": Reason.TOO_LONG,
        f"{pack}.999999.10": Reason.DAMAGED,
    }
    for text, reason in wrong.items():
        with pytest.raises(StagingRefused) as refused:
            await begin_call(store, cut_of_entry(made, text), ROOM)
        assert refused.value.reason is reason, text


async def test_tokens_that_changed_on_the_disk_are_never_continued() -> None:
    """Two ids that changed places are `damaged`, whatever the caller says of them."""
    space = MemorySpace()
    store = memory_tokens(space)
    made = entry()
    [key] = await store.write([made.count], lambda _: made)
    backend = MemoryBackend(space=space)
    [name] = [info.key for info in await backend.list("packs/")]
    data = await backend.get(name, max_bytes=10**6)
    await backend.put(name, data[:-8] + data[-4:] + data[-8:-4])
    with pytest.raises(StagingRefused) as refused:
        await begin_call(store, cut_of_entry(made, str(key)), ROOM)
    assert refused.value.reason is Reason.DAMAGED


async def test_a_store_that_fails_is_no_statement_about_a_key() -> None:
    """An error of the store is raised as it is, and is not `unknown_key`."""
    backend = MemoryBackend(space=MemorySpace())
    store = TokenStore(backend, SMALL)
    made = entry()
    [key] = await store.write([made.count], lambda _: made)
    backend.inject(Fault(verb="get_range", error=lambda call: IOFailed("get_range", call.key, "broken")))
    with pytest.raises(IOFailed):
        await begin_call(store, cut_of_entry(made, str(key)), ROOM)
