"""Claims of one process that follow each other: each ends when the next one stands."""

import os
from pathlib import Path

import anyio
import pytest

from orchestrator.collect.claims import later_claims
from store import ControllerAlive, Fenced, claim, open_store
from tests.support.waiting import until_asked

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

CLAIMS = 6


def open_locks(below: Path) -> int:
    """Lock files of this test's controllers that the process holds open; another test may have left some."""
    files = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    held = [os.readlink(file) for file in files if os.path.islink(file)]
    return sum(name.startswith(f"{below}/") and name.endswith(".lock") for name in held)


async def test_a_claim_that_another_one_follows_leaves_no_lock_and_says_that_it_is_closed(tmp_path: Path) -> None:
    """However many there were, the first and the last hold one; nobody else gets the run meanwhile or after."""
    async with open_store(str(tmp_path / "store"), "write") as store, claim(store) as first:
        async with later_claims() as next_claim:
            controller = first
            for _ in range(CLAIMS):
                controller = await next_claim(store, controller)
                with pytest.raises(ControllerAlive):
                    async with claim(store):
                        pass
            assert controller.epoch == first.epoch + CLAIMS

            async def is_left() -> bool:
                return await anyio.to_thread.run_sync(open_locks, tmp_path) == 2

            await until_asked(is_left)
        for epoch in range(first.epoch + 1, controller.epoch + 1):
            assert b'"closed":true' in await store.backend.get(f"alive/{epoch}", max_bytes=10_000)


async def test_a_claim_that_cannot_follow_is_refused_and_the_one_before_stands(tmp_path: Path) -> None:
    """A third controller was faster: its epoch is above, and what is told is that, as from the claim itself."""
    async with (
        open_store(str(tmp_path / "store"), "write") as store,
        claim(store) as first,
        later_claims() as following,
    ):
        second = await following(store, first)
        async with claim(store, take_over=True):
            with pytest.raises(Fenced):
                await following(store, second)
