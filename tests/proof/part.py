"""What `python -m tests.proof` is made of: parts, each of which tries something within its share of the time.

A part is a name and a function from a budget to a `Report`: counts for the sentence, what it never reached, and what it
found wrong. Add one to `PARTS` in `__main__`.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be tried."""

    seconds: float
    seeds: int
    """At most; 0 for as many as there is time for."""
    first: int = 0
    """The first seed."""


@dataclass
class Report:
    """What a part has tried, and found."""

    counts: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    not_reached: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    """Each a paragraph that says how it is replayed."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the proof."""

    name: str
    run: Callable[[Budget], Report]
    share: float
    """Of the time."""
    sentence: Callable[[Report], str]
    """What it tried, in words, with the counts."""
