"""How a time grows with the number of rollouts: a power and a line through what was measured, and which says it better.

Both have two numbers to choose, and both are judged by the same thing: how far off they are on average, as a share of
what was measured. So ten percent count the same at 1,000 and at 64,000.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Point = tuple[float, float]
"""A number of rollouts, and the seconds that they took."""


@dataclass(frozen=True, slots=True)
class Power:
    """Seconds = a * rollouts ** b."""

    a: float
    b: float
    b_error: float
    """Standard error of b; infinite where two points leave nothing to judge it by."""
    off: float
    """Root of the mean square of the distances on the logarithmic scale: 0.1 is about ten percent."""

    def at(self, rollouts: float) -> float:
        """Seconds."""
        return float(self.a * rollouts**self.b)


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds = fixed + each * rollouts, neither of them below nothing."""

    fixed: float
    each: float
    off: float
    """As of a power."""

    def at(self, rollouts: float) -> float:
        """Seconds."""
        return self.fixed + self.each * rollouts


@dataclass(frozen=True, slots=True)
class Fit:
    """Both, through the same points."""

    power: Power
    line: Line

    @property
    def better(self) -> Literal["power", "line"]:
        """The one that is less off."""
        return "power" if self.power.off < self.line.off else "line"


def fit(points: Sequence[Point]) -> Fit:
    """A power and a line. Raises ValueError for fewer than two different numbers of rollouts, and for times of 0."""
    if len({rollouts for rollouts, _ in points}) < 2:
        raise ValueError("a fit needs at least two different numbers of rollouts: give more sizes")
    if any(rollouts <= 0 or seconds <= 0 for rollouts, seconds in points):
        raise ValueError("a fit needs numbers of rollouts and times above 0: what took no time cannot be fitted")
    return Fit(_power(points), _line(points))


def _power(points: Sequence[Point]) -> Power:
    """Least squares on the logarithms, where the power is a straight line."""
    xs, ys = [math.log(n) for n, _ in points], [math.log(s) for _, s in points]
    count, x_mean, y_mean = len(points), math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    spread = math.fsum((x - x_mean) ** 2 for x in xs)
    b = math.fsum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / spread
    log_a = y_mean - b * x_mean
    rest = math.fsum((y - log_a - b * x) ** 2 for x, y in zip(xs, ys, strict=True))
    error = math.sqrt(rest / (count - 2) / spread) if count > 2 else math.inf
    return Power(math.exp(log_a), b, error, math.sqrt(rest / count))


def _line(points: Sequence[Point]) -> Line:
    """Least squares of the distances as shares of what was measured."""
    weights = [1 / seconds**2 for _, seconds in points]
    total = math.fsum(weights)
    x_mean = math.fsum(w * n for w, (n, _) in zip(weights, points, strict=True)) / total
    y_mean = math.fsum(w * s for w, (_, s) in zip(weights, points, strict=True)) / total
    spread = math.fsum(w * (n - x_mean) ** 2 for w, (n, _) in zip(weights, points, strict=True))
    both = math.fsum(w * (n - x_mean) * (s - y_mean) for w, (n, s) in zip(weights, points, strict=True))
    fixed, each = y_mean - both / spread * x_mean, both / spread
    if each < 0:
        fixed, each = y_mean, 0.0
    if fixed < 0:  # The best one through the origin.
        square = math.fsum(w * n * n for w, (n, _) in zip(weights, points, strict=True))
        fixed, each = 0.0, math.fsum(w * n * s for w, (n, s) in zip(weights, points, strict=True)) / square
    return Line(fixed, each, _off(points, lambda rollouts: fixed + each * rollouts))


def _off(points: Sequence[Point], at: Callable[[float], float]) -> float:
    return math.sqrt(math.fsum(math.log(seconds / at(n)) ** 2 for n, seconds in points) / len(points))
