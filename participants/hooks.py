"""Authors' hooks that take long: a limit on one holds whether or not it listens to being cancelled.

A hook is run by a task of the group that `open` owns, and who asked only waits. One that does not come back is left
behind and holds nobody; it ends with the process. While nothing is open, as in a server without a control plane, a hook
runs in the task of who asked, and only one that listens can be ended.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from .containment import contained, own_task

AT_ONCE = 64
"""Hooks of one kind that run at the same time."""

Item = TypeVar("Item")
T = TypeVar("T")


class Hooks:
    """Runs the hooks of one participant."""

    def __init__(self) -> None:
        """Nothing is open."""
        self._group: TaskGroup | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Own the hooks' tasks while the context is open."""
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                yield
            finally:
                self._group = None
                group.cancel_scope.cancel()

    async def run(self, what: str, hook: Callable[[], Awaitable[T]], *, shield: bool = False) -> T:
        """What a hook gives. Whoever waits here may be cancelled at any time, and the hook is told.

        With `shield` the end of `open` waits for it.
        """
        if self._group is None:
            with contained(what):
                return await hook()
        job = _Job(what, hook, shield)
        self._group.start_soon(job.run)
        try:
            await job.done.wait()
        finally:
            job.scope.cancel()
        return job.result()


class _Job(Generic[T]):
    def __init__(self, what: str, hook: Callable[[], Awaitable[T]], shield: bool) -> None:
        self.done = anyio.Event()
        self.scope = anyio.CancelScope(shield=shield)
        self._what = what
        self._hook = hook
        self._values: list[T] = []
        self._error: Exception | None = None

    async def run(self) -> None:
        with self.scope:
            try:
                self._values.append(await own_task(self._what, self._contained))
            except Exception as error:  # It is of who asked.
                self._error = error
            finally:
                self.done.set()

    async def _contained(self) -> T:
        with contained(self._what):
            return await self._hook()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        if not self._values:
            raise RuntimeError(f"{self._what} was ended with the participant")
        return self._values[0]


async def each(items: Collection[Item], work: Callable[[Item], Awaitable[Any]], *, at_once: int = AT_ONCE) -> None:
    """Do the work of every item, so many at a time. The first error ends the others and is raised."""
    queue = iter(items)

    async def worker() -> None:
        for item in queue:
            await own_task("one of many", partial(work, item))

    try:
        async with anyio.create_task_group() as group:
            for _ in range(min(at_once, len(items))):
                group.start_soon(worker)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
