"""Simulated processes: each a lane of the loop, a clock of its own and a root task; what they share is the `Site`.

A crash cancels nothing: the lane dies with all its tasks as they stand, connections to it break, locks of the host go.
A restart is another `Process` object under the same name, with objects and an incarnation of its own.
"""

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any

from .history import History
from .loop import LANE, Lane, SimLoop

CALL: ContextVar[Any] = ContextVar("call", default=None)
"""The data request that is being served, for what is done on behalf of it."""
Main = Callable[["Process"], Awaitable[str]]


@dataclass
class Site:
    """Where the processes are: one loop, one history, one source of chance."""

    loop: SimLoop
    chance: random.Random
    history: History
    listening: dict[str, "Process"] = field(default_factory=dict)
    """By address, who answers there."""
    on_end: list[Callable[["Process"], None]] = field(default_factory=list)
    """Told of every crash and end: the network, the locks."""
    incarnations: int = 0
    broken: list[str] = field(default_factory=list)
    """Errors that no process may end with."""
    over: bool = False
    """What is taken apart after the end is no history."""
    awaited: dict[tuple[str, int], list[Callable[[], None]]] = field(default_factory=dict)
    """What is done at the n-th of some moments."""
    moments: Counter[str] = field(default_factory=Counter)

    def note(self, what: str, **facts: Any) -> None:
        if self.over:
            return
        self.history.add(round(self.loop.time(), 6), what, **facts)
        if moment := moment_of(what, facts):
            self.moments[moment] += 1
            for act in self.awaited.pop((moment, self.moments[moment]), ()):
                self.later(0.0, act)

    def later(self, seconds: float, act: Callable[..., Any], *args: Any) -> None:
        """Do something as nobody: the network, a disk, whoever breaks things."""
        context = copy_context()
        context.run(LANE.set, None)
        self.loop.call_later(seconds, act, *args, context=context)


def moment_of(what: str, facts: Mapping[str, Any]) -> str:
    """The name of what has just happened, as a fault may wait for it."""
    match what:
        case "control":
            return str(facts["operation"])
        case "did":
            effect = str(facts["effect"])
            return effect if effect in ("seed", "verify", "generate") else "tool"
        case "object" if facts["space"] == "output":
            return "rows"
        case "object":
            key = str(facts["key"])
            return "chain" if key.startswith("chain/") else "manifest" if key.endswith("manifest.json") else "part"
    return what


class Process:
    """One life of a simulated process."""

    def __init__(self, site: Site, name: str, address: str = "", *, skew: float = 0.0, rate: float = 1.0) -> None:
        """Its clock is off by `skew` seconds, and runs at `rate`."""
        site.incarnations += 1
        self.site = site
        self.name = name
        self.address = address
        self.number = site.incarnations
        self.lane = Lane(name)
        self.ended = False
        self.inbox: Any = None
        """Where the network puts connections, once it listens."""
        self.holder: Any = None
        """Of a participant, once it serves; and its control plane."""
        self.plane: Any = None
        self.how = ""
        """How it ended by itself."""
        self._skew, self._rate = skew, rate
        self._task: Any = None

    def __repr__(self) -> str:
        return f"<Process {self.name} {self.number}{' ended' if self.ended else ''}>"

    @property
    def lives(self) -> bool:
        return not self.ended

    def clock(self) -> float:
        """Its own monotonic time."""
        return self.site.loop.time() * self._rate + self._skew

    def note(self, what: str, **facts: Any) -> None:
        self.site.note(what, process=self.name, incarnation=self.number, **facts)

    def start(self, main: Main) -> None:
        """Begin its root task; what that returns is how it ended."""
        context = copy_context()
        context.run(LANE.set, self.lane)
        self.note("started")
        self._task = self.site.loop.own(self._run(main), context=context)

    async def _run(self, main: Main) -> None:
        how = "?"
        try:
            how = await main(self)
        except BaseException as error:
            how = f"{type(error).__name__}: {error}"
            self.site.broken.append(f"{self.name}: {_told(error)}")
        self.how = how
        self._over()
        self.note("ended", how=how)

    def crash(self) -> None:
        """At once, whatever it does."""
        if self.ended:
            return
        self.site.loop.kill(self.lane)
        self.note("crashed")
        self._over()

    def _over(self) -> None:
        self.ended = True
        if self.site.listening.get(self.address) is self:
            del self.site.listening[self.address]
        for tell in self.site.on_end:
            tell(self)


def _told(error: BaseException) -> str:
    """The innermost errors of groups."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_told(each) for each in error.exceptions)
    return f"{type(error).__name__}: {error}"
