"""Counts the awaits of an author's hooks, and does something at one of them.

A hook is a coroutine that gives way now and then. Here it is driven by hand, within its own task: each time that it
gives way, the number of that moment is handed to `at`, which may hold it there, or end the call that it is of.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any, ClassVar

from participants import ResourcesServer, ResourcesSession

At = Callable[[int], Awaitable[None]]


class Watched:
    """What a watched server tells of its hooks; one of them at a time is of interest."""

    def __init__(self) -> None:
        self.at: At | None = None
        """Called with the number of each await, from 1; None while nothing is watched."""
        self.awaits = 0

    async def drive(self, hook: Coroutine[Any, Any, Any]) -> Any:
        """Run a hook to its end."""
        if self.at is None:
            return await hook
        at, self.at = self.at, None
        self.awaits = 0
        return await _driven(hook, self, at)


@coroutine
def _driven(hook: Coroutine[Any, Any, Any], watched: Watched, at: At) -> Generator[Any, Any, Any]:
    send: Callable[[], Any] = lambda: hook.send(None)  # noqa: E731
    while True:
        try:
            waiting = send()
        except StopIteration as end:
            return end.value
        watched.awaits += 1
        try:
            yield waiting
            yield from at(watched.awaits).__await__()
        except BaseException as error:
            send = _thrower(hook, error)
        else:
            send = lambda: hook.send(None)  # noqa: E731


def _thrower(hook: Coroutine[Any, Any, Any], error: BaseException) -> Callable[[], Any]:
    return lambda: hook.throw(error)


def watched_class(found: type[ResourcesServer], watched: Watched) -> type[ResourcesServer]:
    """The same class, with its hooks watched."""

    class Driven(found):  # type: ignore[misc, valid-type]
        watching: ClassVar[Watched] = watched

        async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> Any:
            return await self.watching.drive(super().seed(session, row))

        async def call_tool(self, session: ResourcesSession, name: str, arguments: Any) -> Any:
            return await self.watching.drive(super().call_tool(session, name, arguments))

        async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> Any:
            return await self.watching.drive(super().verify(session, row))

    Driven.__name__, Driven.__qualname__, Driven.__module__ = found.__name__, found.__qualname__, found.__module__
    return Driven
