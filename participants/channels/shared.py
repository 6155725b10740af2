"""Something that is made when it is first needed, once for all who wait for it, and again when it is of no use."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from .line import Broken

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Try(Generic[T]):
    done: anyio.Event = field(default_factory=anyio.Event)
    made: list[T] = field(default_factory=list)
    """One, where it succeeded."""
    error: Exception | None = None


class Shared(Generic[T]):
    """The thing and the tries to make it: one at a time, whose outcome is that of everybody who waited for it."""

    def __init__(self, group: TaskGroup, make: Callable[[], Awaitable[T]], usable: Callable[[T], bool]) -> None:
        """`make` runs in the group, so that nobody who gives up takes it from the others; it may raise Broken."""
        self._group = group
        self._make = make
        self._usable = usable
        self._try: _Try[T] | None = None

    def __repr__(self) -> str:
        return f"<Shared {self.now()!r}>"

    def now(self) -> T | None:
        """It, where it is there and of use."""
        made = self._try.made if self._try else None
        return made[0] if made and self._usable(made[0]) else None

    def forget(self, thing: T) -> None:
        """Make it anew when it is needed next, unless that has been done already."""
        if self._try is not None and self._try.made and self._try.made[0] is thing:
            self._try = None

    async def get(self) -> T:
        """It, made now if need be. Raises Broken, or whatever else `make` raises."""
        if (thing := self.now()) is not None:
            return thing
        going = self._try
        if going is None or going.done.is_set():
            going = self._try = _Try()
            self._group.start_soon(self._run, going)
        await going.done.wait()
        if going.made:
            return going.made[0]
        # One of their own for each: a traceback shared by thousands would grow with each of them.
        raise Broken(str(going.error or "it was closed by this side"))

    async def _run(self, going: _Try[T]) -> None:
        try:
            going.made.append(await self._make())
        except Broken as error:
            going.error = error
        finally:
            going.done.set()
