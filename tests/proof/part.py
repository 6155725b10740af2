"""What `python -m tests.proof` is made of: parts, each of which tries something within its share of the time.

A part gives tasks, one after the other, each of which is done in some process and comes to a `Report`: counts for the
sentence, what it reached, and what it found wrong. Those in `parts.PARTS` are run, in their order.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

SEEDED = "simulation"
"""The part whose tasks are seeds."""


@dataclass
class Report:
    """What was tried, and found."""

    counts: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    """Each a paragraph that says how it is replayed."""

    def add(self, other: "Report") -> None:
        """What another task of the same part came to."""
        self.counts.update(other.counts)
        self.reached.update(other.reached)
        self.violations += other.violations


Task = Callable[[float], Report]
"""Can be pickled; told when to stop, as a time of the monotonic clock, which all processes have in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the proof."""

    name: str
    share: float
    """Of the time, at most; the last part has all that is left."""
    tasks: Callable[[int, int], Iterable[Task]]
    """From a first seed on, and so many of them (0 for any number); asked for only while there is time."""
    counted: str
    """The count that is 0 where nothing was tried."""
    sentence: Callable[[Report], str]
    """What was tried, in words, with the counts."""
    expected: Sequence[str]
    """What a long run reaches; anything is that has this in its name."""

    def tried(self, report: Report) -> bool:
        """Whether it has tried anything."""
        return report.counts[self.counted] > 0

    def not_reached(self, report: Report) -> list[str]:
        """What it did not."""
        return [name for name in self.expected if not any(name in reached for reached in report.reached)]
