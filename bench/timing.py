"""Runs of a case and of its limit, interleaved so that a noisy machine troubles both, and what they amount to."""

import gc
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

MB = 1e6


@dataclass(slots=True)
class Clock:
    """Collects the seconds of one thing, run by run."""

    runs: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Seconds of processor time of all threads, which other processes disturb least."""

    @contextmanager
    def run(self) -> Iterator[None]:
        """Measure one run."""
        gc.collect()
        began, cpu = time.perf_counter(), time.process_time()
        yield
        self.cpu.append(time.process_time() - cpu)
        self.runs.append(time.perf_counter() - began)

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.runs)

    def __str__(self) -> str:
        return f"{min(self.runs):7.3f} {self.median:7.3f} {max(self.runs):7.3f} {statistics.median(self.cpu):7.3f}"


@dataclass(frozen=True, slots=True)
class Versus:
    """A case against its limit: the i-th run of one came right before the i-th run of the other."""

    limit: Clock = field(default_factory=Clock)
    ours: Clock = field(default_factory=Clock)

    @property
    def ratio(self) -> float:
        """Median over the pairs of runs."""
        return statistics.median(self.ratios)

    @property
    def ratios(self) -> list[float]:
        """Pair by pair."""
        return [ours / limit for ours, limit in zip(self.ours.runs, self.limit.runs, strict=True)]

    def summary(self, raw_bytes: int) -> dict[str, float]:
        """As JSON shows it."""
        return {
            "seconds": round(self.ours.median, 4),
            "mb_per_s": round(raw_bytes / MB / self.ours.median, 1),
            "ratio_to_limit": round(self.ratio, 3),
        }
