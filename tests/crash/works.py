"""The pieces of work in which every call is made to fail, and what must hold after each failure."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Literal

import anyio

from store import CheckpointId, OutcomeUnknown, Retention, Store, StoreError, claim, prune
from tests.support.rounds import Round, View, view

from .scenes import FIRST, ONE, SECOND, TWO

THIRD = CheckpointId(2, 1)
CLAIMED = replace(ONE.later(1), epoch=2)
PUBLISHED = replace(CLAIMED.later(1), head=THIRD, cursors=((FIRST, 1), (THIRD, 2)))

Do = Callable[[], Awaitable[None]]
Arm = Callable[[anyio.CancelScope], None]
"""Sets the fault, with the scope that the work runs in."""
Stopped = Literal["cancelled"]


@dataclass(frozen=True, slots=True)
class Work:
    """One piece of work on a store with published checkpoints."""

    cursors: tuple[int, ...]
    """Of the checkpoints that are published before."""
    ready: Callable[[Store], AbstractAsyncContextManager[Do]]
    """Arranges, and gives the work, which may be done again after it failed."""
    harmless: Callable[[View], bool]
    """Whether this may be found after a failure."""
    undone: Callable[[View], bool]
    """Whether nothing of the work can be seen."""
    done: Callable[[View], bool]
    """Whether all of it can be seen."""


@asynccontextmanager
async def _publishing(store: Store) -> AsyncIterator[Do]:
    async with claim(store, take_over=True) as controller:
        second = Round(store, controller, 2)

        async def do() -> None:
            if second.draft is None:
                await second.commit()
            await second.publish()

        yield do


@asynccontextmanager
async def _claiming(store: Store) -> AsyncIterator[Do]:
    async def do() -> None:
        async with claim(store, take_over=True) as controller:
            assert controller.head is not None
            assert controller.head.checkpoint == FIRST

    yield do


@asynccontextmanager
async def _pruning(store: Store) -> AsyncIterator[Do]:
    async def do() -> None:
        report = await prune(store, Retention(keep_last=1))
        if not report.failures:
            assert not await store.backend.list(f"checkpoints/{FIRST}/")
            assert len((await store.chain()).state.plans) == 0

    yield do


def _pruned(seen: View) -> bool:
    return (seen.head, seen.cursors) == (SECOND, ((SECOND, 2),))


def _still_claimable(seen: View) -> bool:
    return (seen.head, seen.cursors) == (FIRST, ONE.cursors)


WORKS = {
    "commit and publish": Work(
        (1,),
        _publishing,
        harmless=lambda seen: seen in (CLAIMED, PUBLISHED),
        undone=lambda seen: seen == CLAIMED,
        done=lambda seen: seen == PUBLISHED,
    ),
    "claim": Work(
        (1,),
        _claiming,
        harmless=_still_claimable,
        undone=_still_claimable,
        done=lambda seen: _still_claimable(seen) and seen.epoch > 1,
    ),
    "prune": Work(
        (1, 2),
        _pruning,
        harmless=lambda seen: _pruned(seen) or seen == TWO,
        undone=lambda seen: _pruned(seen) or seen == TWO,  # a deletion may fail half way, and nobody is hurt
        done=_pruned,
    ),
}


async def publish_cursors(store: Store, cursors: tuple[int, ...]) -> None:
    """Claim once and publish these."""
    async with claim(store) as controller:
        for cursor in cursors:
            await Round(store, controller, cursor).run()


async def survives(
    work: Work, faulty: Store, healthy: Store, arm: Arm, calm: Callable[[], None], within_s: float = 30.0
) -> StoreError | Stopped | None:
    """Do the work while a fault lies in wait, look through the healthy store, do it again; how the first try ended."""
    tasks = len(asyncio.all_tasks())
    async with work.ready(faulty) as do:
        ended = await _ending(do, arm, within_s)
        calm()
        seen = await view(healthy)
        assert work.harmless(seen), f"{ended!r} left {seen}"
        assert ended is not None or work.done(seen), f"success left {seen}"
        if isinstance(ended, StoreError) and not isinstance(ended, OutcomeUnknown):
            assert work.undone(seen), f"{ended!r} left {seen}"
        await do()
        again = await view(healthy)
        assert work.done(again), f"{ended!r}, done again, left {again}"
    assert len(asyncio.all_tasks()) == tasks
    return ended


async def _ending(do: Do, arm: Arm, within_s: float) -> StoreError | Stopped | None:
    with anyio.move_on_after(within_s) as scope:
        arm(scope)
        try:
            await do()
        except StoreError as error:
            return error
        return None
    return "cancelled"
