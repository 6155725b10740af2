"""Finds the shortest sequence of calls that still breaks a rule.

First no call at all, then each one alone, then each pair of a short case: what breaks with so few has nothing shorter.
Otherwise calls are left out, halves first and at last one at a time, for as long as the rule stays broken.
"""

import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from .reports import Violation
from .subject import Group

MAX_TRIES = 120
MAX_S = 60.0
"""After so long what was found has to do."""
PAIRS_UP_TO = 8
"""Calls, of which all pairs are tried."""

Place = tuple[int, int]
"""A call: the case, and its number there."""
Try = Callable[[Group], Awaitable[Violation | None]]


@dataclass(slots=True)
class _Search:
    group: Group
    attempt: Try
    ends: float
    left: int = MAX_TRIES

    async def breaks(self, places: Sequence[Place]) -> Violation | None:
        """What is found with these calls alone; nothing once too much was tried."""
        if self.left <= 0 or time.monotonic() > self.ends:
            return None
        self.left -= 1
        return await self.attempt(with_calls(self.group, places))


async def shrink(group: Group, found: Violation, attempt: Try) -> Violation:
    """The violation with the fewest calls that was found; `attempt` says what a group breaks."""
    places = [(who, number) for who, case in enumerate(group) for number in range(len(case.calls))]
    search = _Search(group, attempt, time.monotonic() + MAX_S)
    for few in _few(places):
        if len(few) < len(places) and (shorter := await search.breaks(few)) is not None:
            return shorter
    return await _reduced(search, places, found)


def _few(places: Sequence[Place]) -> Iterator[Sequence[Place]]:
    yield ()
    yield from itertools.combinations(places, 1)
    if len(places) <= PAIRS_UP_TO:
        yield from itertools.combinations(places, 2)


async def _reduced(search: _Search, places: Sequence[Place], found: Violation) -> Violation:
    size = max(1, len(places) // 2)
    while True:
        start, shortened = 0, False
        while start < len(places):
            fewer = [*places[:start], *places[start + size :]]
            if (shorter := await search.breaks(fewer)) is not None:
                places, found, shortened = fewer, shorter, True
            else:
                start += size
        if size == 1 and not shortened:
            return found
        size = max(1, size // 2)


def with_calls(group: Group, places: Sequence[Place]) -> Group:
    """The group with these calls alone."""
    kept = set(places)
    return tuple(
        replace(case, calls=[call for number, call in enumerate(case.calls) if (who, number) in kept])
        for who, case in enumerate(group)
    )
