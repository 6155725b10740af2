"""Commits and publications that are refused, because nobody could read them back or they contradict themselves."""

from typing import Any

import pytest

from store import (
    DuplicateRollout,
    InvalidInput,
    Life,
    Limits,
    ParticipantCommit,
    Receipt,
    Record,
    Store,
    claim,
)
from tests.support.checkpoints import AGENT, TOOLS, life, memory_store, publish, records
from tests.support.damage import FIRST, keys

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


async def commit(store: Store, share: Any) -> Receipt:
    return await ParticipantCommit(store, FIRST, AGENT).run(share)


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (Limits(max_manifest_bytes=500), "midflight.participant would have .* the limit is 500"),
        (Limits(max_index_bytes=500), "index of agent.solver/p0 would have .* the limit is 500"),
    ],
)
async def test_what_no_reader_would_take_in_is_not_written(limits: Limits, says: str) -> None:
    """The limits of reading hold for writing: a commit that nobody could open is refused, and nothing is left."""
    store = memory_store(limits=limits)
    with pytest.raises(InvalidInput, match=says):
        await commit(store, records(40))
    assert keys(store) == []


@pytest.mark.parametrize(
    ("draft", "says"),
    [
        ({"tags": ["Not A Name"]}, "tags"),
        ({"fingerprint": {"k": 5}}, "fingerprint"),
        ({"fingerprint": {"k": "\ud800"}}, "cannot"),
        ({"created_at": "\ud800"}, "cannot"),
        ({"state": {"k": float("nan")}}, "the controller"),
    ],
)
async def test_a_draft_that_could_not_be_read_back_is_refused(draft: dict[str, Any], says: str) -> None:
    """A caller's mistake in any field is an InvalidInput that names it, and no manifest is written."""
    store = memory_store()
    async with claim(store) as controller:
        with pytest.raises(InvalidInput, match=says):
            await publish(store, controller, {AGENT: records(1)}, **draft)
        assert keys(store, "1.1/manifest.json") == []


@pytest.mark.fault(5, 8, 9)
async def test_a_scope_that_the_participants_contradict_is_not_published() -> None:
    """A life that nobody exported, one that is not in the scope, and another life of a rollout are each refused."""
    share = records(3)
    own = [record.life for record in share]
    other = Life("r0", 1, 1, 9)
    for scope, error in (
        ([*own, life("lost")], InvalidInput),
        (own[:2], InvalidInput),
        ([other, *own[1:]], DuplicateRollout),
        ([*own, other], DuplicateRollout),
    ):
        store = memory_store()
        async with claim(store) as controller:
            with pytest.raises(error, match=r"lost|r2|r0"):
                await publish(store, controller, {AGENT: share}, scope=scope)
            assert keys(store, "1.1/manifest.json") == []


@pytest.mark.fault(8, 9)
async def test_two_participants_that_disagree_about_a_life_are_not_published() -> None:
    """The same rollout under two attempts is refused, whichever of them the scope names."""
    store = memory_store()
    shares = {AGENT: [Record(life("r"), 1)], TOOLS: [Record(Life("r", 1, 1, 5), 1)]}
    async with claim(store) as controller:
        with pytest.raises(DuplicateRollout, match="r"):
            await publish(store, controller, shares)
        with pytest.raises(DuplicateRollout, match="r"):
            await publish(store, controller, shares, scope=[life("r")])
