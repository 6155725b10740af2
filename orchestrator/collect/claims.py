"""One claim after the other in one process, each of which ends as soon as the next one stands.

Between two of them nobody else can claim the run: the next one is made while the one before stands. What a claim holds,
its lock and its counter, ends in the task that began it; so each has a task of its own, and they may end in this order.
Held to the end of the run instead, every loss would leave a lock and a whole chain in memory.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskStatus

from store import Controller, Store, claim

Next = Callable[[Store, Controller], Awaitable[Controller]]


@asynccontextmanager
async def later_claims() -> AsyncIterator[Next]:
    """Gives what makes the next claim of a run, after one that stands. The last one ends with the block.

    What the block raises comes out in a group. Making one raises as `store.claim` does.
    """
    over = anyio.Event()
    async with anyio.create_task_group() as group:

        async def make(store: Store, following: Controller) -> Controller:
            nonlocal over
            next_over = anyio.Event()
            made: Controller = await group.start(_hold, store, following, next_over)
            over.set()
            over = next_over
            return made

        yield make
        over.set()


async def _hold(store: Store, following: Controller, over: anyio.Event, *, task_status: TaskStatus[Controller]) -> None:
    async with claim(store, following=following) as controller:
        task_status.started(controller)
        await over.wait()
