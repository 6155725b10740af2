"""Sixty-four thousand dispatched lives: a commit that asks for each one's place holds nobody up for long."""

import time
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from participants import Code, EnvironmentServer, Held, LocalPeer, ParticipantError
from participants.environment import _State
from participants.holder import Brought
from participants.scopes import MAX_NAMED_LIVES
from participants.servers.counter import CounterServer
from participants.wire import Commit
from store import Life, RawRecord
from tests.support.checkpoints import memory_store
from tests.support.desk import Desk, refused
from tests.support.owners import controlled, lives

pytestmark = [pytest.mark.scale, pytest.mark.anyio]
MANY = 64_000
LONGEST_TURN_S = 0.1
ALL = lives(MANY)


def environment(dispatched: Sequence[Life], restored: Sequence[Life]) -> Any:
    """One that has these lives; what is restored and named is never parsed."""
    made: Any = EnvironmentServer(LocalPeer(CounterServer()), {})
    made._held = {life.rollout_id: Held(life, _State()) for life in dispatched}
    made._brought = {life.rollout_id: Brought(RawRecord(life, b""), 1) for life in restored}
    return made


async def longest_turn(work: Any) -> float:
    """For how long the work keeps others from their turn, in time of the processor, since others use it too."""
    longest, began = 0.0, time.thread_time()

    async def others() -> None:
        nonlocal longest, began
        while True:
            began = time.thread_time()
            await anyio.lowlevel.checkpoint()
            longest = max(longest, time.thread_time() - began)

    async with anyio.create_task_group() as group:
        group.start_soon(others)
        await anyio.lowlevel.checkpoint()
        await work
        await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    return longest


@pytest.mark.parametrize("left_out", [0, MANY // 2])
async def test_a_commit_that_forgets_half_is_refused_without_a_long_turn(left_out: int) -> None:
    """The scope, or what is left out, has the other half; the error counts all that are missing, and names a few."""
    made, store = environment(ALL, []), memory_store()
    async with controlled(made, store).run() as plane:
        at = Desk(made, plane, store)
        await at.adopt(1)
        await at.prepare()
        scope, rest = ALL[left_out : MANY // 2], ALL[:left_out]
        call = at.call(Commit, parent=None, scope=scope, left_out=rest)
        error: list[ParticipantError] = []

        async def commit() -> None:
            error.append(await refused(plane.commit(call), Code.SCOPE_MISMATCH))

        assert await longest_turn(commit()) < LONGEST_TURN_S
        assert f"{MANY // 2} lives" in error[0].message
        assert len(error[0].details["lives"]) == MAX_NAMED_LIVES


@pytest.mark.parametrize("restored", [False, True])
async def test_nothing_is_found_missing_without_a_long_turn(restored: bool) -> None:
    """All are named: live ones, or restored ones by the life that continues each."""
    following = [Life(life.rollout_id, 2, life.attempt + 1, life.n) for life in ALL]
    made = environment([] if restored else ALL, ALL if restored else [])
    found: list[Life] = []

    async def look() -> None:
        found.extend(await made.unnamed(frozenset(following if restored else ALL)))

    assert await longest_turn(look()) < LONGEST_TURN_S
    assert found == []
