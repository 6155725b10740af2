"""Whether a series grows: a pure function of its points, with the tolerance that it is held to.

Judged is the second half of the time: a process that is new is still filling its caches. That half is cut into equal
stretches, and a straight line is laid through the medians of their points, so that one odd point moves nothing and
neighbouring points, which are alike, do not count as so many proofs. What the line rises by at least over the half,
with 95 % certainty, is held against what is tolerated: a long run finds a slow growth, a short one only a fast one.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

STRETCHES = 16
FEWEST = 6
"""Stretches with a point, below which nothing can be said."""
SHORTEST_S = 100.0
"""Of what is judged."""
HOUR_S = 3600.0
# The 97.5 % quantile of Student's t for 4 to 14 degrees of freedom.
_T = (2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a series."""

    at_s: float
    value: float


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What a series may rise by and still count as flat: the greater of the two."""

    share_per_hour: float
    """Of its level."""
    least: float
    """Over all that is judged, however short; in the unit of the series."""

    def allowed(self, level: float, hours: float) -> float:
        """Over so many hours."""
        return max(self.least, self.share_per_hour * abs(level) * hours)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the second half of a series shows."""

    level: float
    """Median."""
    hours: float
    """That were judged."""
    per_hour: float
    """Slope of the line."""
    error: float
    """Half of the interval of 95 % around the slope, per hour."""
    allowed: float
    """What it may rise by over `hours`."""

    @property
    def grows(self) -> bool:
        """Whether it rises by more than is tolerated, with 95 % certainty."""
        return (self.per_hour - self.error) * self.hours > self.allowed


def judge(points: Sequence[Point], until_s: float, tolerance: Tolerance) -> Verdict | None:
    """Of the half that ends at `until_s`; None where that is too short or has too few points."""
    half = [point for point in points if until_s / 2 <= point.at_s <= until_s]
    if until_s / 2 < SHORTEST_S or not half:
        return None
    lines = _medians(half, until_s / 2, until_s)
    if len(lines) < FEWEST:
        return None
    slope, error = _line(lines)
    level = statistics.median(point.value for point in half)
    hours = (lines[-1].at_s - lines[0].at_s) / HOUR_S
    return Verdict(level, hours, slope * HOUR_S, error * HOUR_S, tolerance.allowed(level, hours))


def _medians(points: Sequence[Point], begin_s: float, end_s: float) -> list[Point]:
    stretches: list[list[Point]] = [[] for _ in range(STRETCHES)]
    for point in points:
        n = int((point.at_s - begin_s) / (end_s - begin_s) * STRETCHES)
        stretches[min(n, STRETCHES - 1)].append(point)
    return [
        Point(statistics.fmean(point.at_s for point in found), statistics.median(point.value for point in found))
        for found in stretches
        if found
    ]


def _line(points: Sequence[Point]) -> tuple[float, float]:
    """The slope of the line of least squares, and half of its interval of 95 %; both per second."""
    at, value = statistics.fmean(p.at_s for p in points), statistics.fmean(p.value for p in points)
    spread = sum((p.at_s - at) ** 2 for p in points)
    slope = sum((p.at_s - at) * (p.value - value) for p in points) / spread
    free = len(points) - 2
    rest = sum((p.value - value - slope * (p.at_s - at)) ** 2 for p in points)
    return slope, _T[free - 4] * math.sqrt(rest / free / spread)
