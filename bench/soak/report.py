"""What the journal of a soak shows: as text with a small plot for each series, as JSON, and as a picture."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .journal import read
from .series import AGES_S, Series, by_age, series_of
from .verdict import Point, Verdict

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 40
MOST_TOLD = 12
"""Violations in the text; all are in the journal."""
_SCALES = {"B": ((1e6, "MB"), (1e3, "kB")), "s": ((1.0, "s"), (1e-3, "ms")), "": ((1.0, ""),)}


@dataclass(frozen=True, slots=True)
class Shown:
    """One series with what is said of it."""

    series: Series
    verdict: Verdict | None

    @property
    def words(self) -> str:
        """The verdict in words."""
        if self.series.tolerance is None:
            return "not judged"
        if self.verdict is None:
            return "too short to be judged"
        found, unit = self.verdict, self.series.unit
        slope = f"{amount(found.per_hour, unit, sign=True)} ± {amount(found.error, unit)} an hour"
        allowed = amount(found.allowed, unit)
        return (
            f"GROWS by {slope}" if found.grows else f"flat: {slope}, {allowed} are tolerated over {found.hours:.2g} h"
        )


class Report:
    """Of one folder."""

    def __init__(self, folder: Path) -> None:
        """Raises FileNotFoundError where it has no journal."""
        self.lines = list(read(folder))
        self.plan: dict[str, Any] = next((line for line in self.lines if line["kind"] == "plan"), {})
        kinds = {line["kind"]: line["at"] for line in self.lines if line["kind"] in ("drain", "end")}
        self.has_ended = "end" in kinds
        self.until_s: float = kinds.get("drain", self.lines[-1]["at"] if self.lines else 0.0)
        self.shown = [Shown(series, series.verdict(self.until_s)) for series in series_of(self.lines)]
        self.violations = [line for line in self.lines if line["kind"] == "violation"]

    @property
    def growing(self) -> list[str]:
        """Names of the series that grow."""
        return [shown.series.name for shown in self.shown if shown.verdict is not None and shown.verdict.grows]

    @property
    def too_short(self) -> list[str]:
        """Names of the series that would be judged and have too few points, or too little time, for it."""
        return [one.series.name for one in self.shown if one.series.tolerance is not None and one.verdict is None]

    @property
    def judged(self) -> int:
        """Series of which it can be said whether they grow."""
        return sum(shown.verdict is not None for shown in self.shown)

    @property
    def exit_code(self) -> int:
        """0 where nothing was wrong, nothing that could be judged grows, and every row was compared."""
        return int(bool(self.violations or self.growing or not self.has_ended))

    def kills(self) -> Counter[str]:
        """How often who was killed."""
        hit = [line for line in self.lines if line["kind"] == "strike" and line["hit"]]
        return Counter(f"{line['fleet']}: {line['victim']}" if line["fleet"] else line["victim"] for line in hit)

    def told(self) -> Counter[str]:
        """What runs have said that is no violation, such as a checkpoint that failed as a server was killed."""
        return Counter(f"{line['fleet']}: {line['event']}" for line in self.lines if line["kind"] == "told")

    def compared(self) -> dict[str, int]:
        """Rows of each fleet that were compared with those of an undisturbed run."""
        return {line["fleet"]: line["rows"] for line in self.lines if line["kind"] == "compared"}

    def summary(self) -> dict[str, Any]:
        """One JSON object."""
        about = {key: self.plan.get(key) for key in ("seed", "fleets", "kill_every_s", "interval_s", "rollouts")}
        series = {shown.series.name: _figures(shown) for shown in self.shown}
        return {
            "minutes": round(self.until_s / 60, 2),
            **about,
            "kills": dict(self.kills()),
            "told": dict(self.told()),
            "compared": self.compared(),
            "violations": [f"{line['fleet']}: {line['what']}" for line in self.violations],
            "growing": self.growing,
            "judged": self.judged,
            "too_short_to_be_judged": self.too_short,
            "ended": self.has_ended,
            "series": series,
        }

    def text(self) -> str:
        """For people."""
        kills, minutes, seed = self.kills(), self.until_s / 60, self.plan.get("seed")
        parts = [
            f"{minutes:.1f} minutes with kills, seed {seed}: {kills.total()} kills, {self._done()} rows done meanwhile",
            "\n".join(f"  {count:>5} {name}" for name, count in sorted(kills.items())),
            "\n".join(self._series()),
            "\n".join(self._ages()),
            "\n".join(self._end()),
        ]
        return "\n\n".join(part for part in parts if part)

    def _done(self) -> int:
        """Rows of all fleets that were done when the kills ended, or when somebody looked last."""
        at_the_end = next((line["rows"] for line in self.lines if line["kind"] == "drain" and "rows" in line), None)
        last = {line["fleet"]: line["rows"] for line in self.lines if line["kind"] == "fleet"}
        return sum((last if at_the_end is None else at_the_end).values())

    def _series(self) -> list[str]:
        longest = max((len(shown.series.name) for shown in self.shown), default=0)
        lines = ["while there were kills: each series from its least to its greatest, its median, and the verdict:"]
        return lines + [
            f"{shown.series.name:<{longest}} {sparkline(shown.series.points, self.until_s)}"
            f" {amount(_level(shown.series), shown.series.unit):>9}  {shown.words}"
            for shown in self.shown
        ]

    def _ages(self) -> list[str]:
        """Median memory, descriptors and threads of processes by age."""
        found = by_age(self.lines)
        longest = max(map(len, found), default=0)
        lines = ["memory (MB), descriptors and threads of a process by its age, medians:"]
        lines.append(f"{'':<{longest}}" + "".join(f"{name:>17}" for name in AGES_S))
        for who, ages in sorted(found.items()):
            cells = []
            for seen in ages.values():
                middle = [
                    statistics.median(values)
                    for values in zip(*((s.rss / 1e6, s.descriptors, s.threads) for s in seen), strict=True)
                ]
                cells.append(f"{middle[0]:>8.1f} {middle[1]:>4.0f} {middle[2]:>3.0f}" if seen else f"{'-':>17}")
            lines.append(f"{who:<{longest}}" + "".join(cells))
        return lines

    def _end(self) -> list[str]:
        lines = [f"{count} times {what}" for what, count in sorted(self.told().items())]
        lines += [
            f"{fleet}: {rows} rows compared with an undisturbed run, those done after the kills among them"
            for fleet, rows in self.compared().items()
        ]
        told = self.violations[:MOST_TOLD]
        lines += [f"VIOLATION at {line['at']:.0f} s, {line['fleet']}: {line['what']}" for line in told]
        lines += [f"and {len(self.violations) - MOST_TOLD} more"] if len(self.violations) > MOST_TOLD else []
        if not self.has_ended:
            lines.append("the soak has not come to its end: its rows are not compared")
        return [*lines, f"{len(self.violations)} violations; growing: {self._growing()}"]

    def _growing(self) -> str:
        if not self.judged:
            return "nothing is long enough to be judged"
        left = f"; {len(self.too_short)} more are too short to be judged" if self.too_short else ""
        return f"{', '.join(self.growing) or 'nothing'} of {self.judged} series{left}"


def _level(series: Series) -> float:
    return statistics.median(point.value for point in series.points)


def _figures(shown: Shown) -> dict[str, Any]:
    points, verdict = shown.series.points, shown.verdict
    told: dict[str, Any] = {"unit": shown.series.unit, "points": len(points), "median": _level(shown.series)}
    if verdict is not None:
        told |= {key: float(f"{value:.4g}") for key, value in asdict(verdict).items()}
        told["verdict"] = "grows" if verdict.grows else "flat"
    elif shown.series.tolerance is not None:
        told["verdict"] = "too short"
    return told


def amount(value: float, unit: str, *, sign: bool = False) -> str:
    """A figure with its unit, in three digits where it is not below one."""
    scale, name = next(((s, n) for s, n in _SCALES[unit] if abs(value) >= s), _SCALES[unit][-1])
    scaled = value / scale
    digits = max(0, 2 - len(str(int(abs(scaled)))) + 1) if scaled else 0
    return f"{scaled:{'+' if sign else ''}.{digits}f}{' ' if name else ''}{name}"


def sparkline(points: Sequence[Point], until_s: float, width: int = WIDTH) -> str:
    """Medians over equal stretches of time, from the least to the greatest; a gap where there is no point."""
    stretches: list[list[float]] = [[] for _ in range(width)]
    for point in points:
        stretches[min(width - 1, int(point.at_s / max(until_s, 1e-9) * width))].append(point.value)
    medians = [statistics.median(values) if values else None for values in stretches]
    known = [value for value in medians if value is not None]
    low, span = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    return "".join(
        " " if value is None else BARS[0 if span == 0 else int((value - low) / span * (len(BARS) - 1))]
        for value in medians
    )


PANELS: Mapping[str, tuple[str, ...]] = {
    "store without its chain, objects": (": store, objects",),
    "memory of what lives on, MB": ("lives on: memory",),
    "descriptors of what lives on": ("lives on: descriptors",),
    "threads of what lives on": ("lives on: threads",),
    "a checkpoint, s": (": commit",),
    "a restore, s": (": restore",),
}
STRETCHES = 60


def draw(report: Report, path: Path) -> None:
    """The picture. Needs matplotlib, of the extra dev."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "soak", "font.size": 8})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(11, 5.2), sharex=True)
    for axis, (title, ends) in zip(axes.flat, PANELS.items(), strict=True):
        for shown in report.shown:
            if shown.series.name.endswith(ends):
                scale = 1e6 if shown.series.unit == "B" else 1.0
                points = smoothed(shown.series.points, report.until_s)
                name = shown.series.name.removesuffix(next(end for end in ends if shown.series.name.endswith(end)))
                at = [point.at_s / 60 for point in points]
                axis.plot(at, [point.value / scale for point in points], linewidth=1, label=name.rstrip(", "))
        axis.set_title(title, fontsize=9)
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.lines:
            axis.legend(fontsize=6, frameon=False)
    for axis in axes[-1]:
        axis.set_xlabel("minutes, with a kill every few seconds")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def smoothed(points: Sequence[Point], until_s: float) -> list[Point]:
    """The medians of equal stretches of time."""
    stretches: dict[int, list[Point]] = {}
    for point in points:
        stretches.setdefault(int(point.at_s / max(until_s, 1e-9) * STRETCHES), []).append(point)
    return [
        Point(statistics.fmean(p.at_s for p in found), statistics.median(p.value for p in found))
        for _, found in sorted(stretches.items())
    ]
