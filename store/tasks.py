"""Task groups for the store: bounded, and a lone failure comes out as itself and not inside an exception group."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

Item = TypeVar("Item")
Result = TypeVar("Result")
Stage = Callable[[str], AbstractContextManager[object]]
"""Called with the name of a stage of some work: its context is open while that goes on, for whoever measures it."""


def no_stage(what: str) -> AbstractContextManager[object]:
    """Where nobody measures."""
    return nullcontext()


@asynccontextmanager
async def open_group() -> AsyncIterator[TaskGroup]:
    """A task group that raises the first failure bare; the other tasks were cancelled because of it.

    A group of errors that the body itself raises comes out as it is.
    """
    try:
        async with anyio.create_task_group() as group:
            yield group
    except BaseExceptionGroup as error:
        raise error.exceptions[0] from error.exceptions[0].__cause__


async def map_bounded(job: Callable[[Item], Awaitable[Result]], items: Iterable[Item], limit: int) -> list[Result]:
    """`job` over all items, at most `limit` at a time; results in their order; the first failure stops all."""
    todo = list(items)
    results: dict[int, Result] = {}
    limiter = anyio.Semaphore(limit)

    async def run(position: int, item: Item) -> None:
        async with limiter:
            results[position] = await job(item)

    async with open_group() as group:
        for position, item in enumerate(todo):
            group.start_soon(run, position, item)
    return [results[position] for position in range(len(todo))]
