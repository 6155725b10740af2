"""How prepare, commit and restore grow with the number of rollouts in flight: runs at several sizes, and a fit.

    python -m bench.scaling --json [--embedded 1000,4000,16000,64000] [--servers 1000,4000,16000]

Each run is `python -m bench.inflight` (all in one process) or `python -m bench.scale` (servers in processes of their
own) in a process of its own. Through the points of each stage go a power, `a * N ** b`, whose exponent b says how it
grows, with its standard error, and a line, `c + d * N`; the better one is named. Both are fitted to the seconds by the
clock and to the processor time, which other work on the machine changes least.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import command_line
from .command_line import count, count_or_none, counts
from .scaling_fit import Fit, Point, fit

STAGES = ("prepare", "commit", "restore")
MEASURES = ("seconds", "cpu")
RUN_TIMEOUT_S = 3600
LEAST_S = 0.0005
"""What was measured as less counts as this: a time of nothing has no logarithm."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one size."""

    way: str
    """`embedded` or `servers`."""
    rollouts: int
    seconds: dict[str, float]
    cpu: dict[str, float]
    """Of all processes, in seconds."""
    bytes: int
    peak_mb: float
    """Of the largest process."""
    load: float
    """Load average of the last minute, right before it."""

    def to_json(self) -> dict[str, Any]:
        """As it is written and printed."""
        return {name: getattr(self, name) for name in self.__slots__}


def embedded(rollouts: int) -> Run:
    """One run in one process."""
    load = os.getloadavg()[0]
    found = _last_line("bench.inflight", "--rollouts", str(rollouts))
    seconds = {stage: found[f"{stage}_s"] for stage in STAGES}
    cpu = {stage: found[f"{stage}_cpu_s"] for stage in STAGES}
    return Run("embedded", rollouts, seconds, cpu, found["bytes"], found["peak_rss_mb"], load)


def servers(rollouts: int, workers: int) -> Run:
    """One run with servers in processes of their own. Raises ValueError where a rollout came to no good end."""
    load = os.getloadavg()[0]
    found = _last_line("bench.scale", "--rollouts", str(rollouts), "--workers", str(workers))
    if failures := found["replacement_failures"]:
        raise ValueError(f"{failures} of {rollouts} rollouts failed: {found['failures']}")
    seconds = {stage: found[f"{stage}_s"] for stage in STAGES}
    cpu = {stage: round(sum(found["cpu_s"][stage].values()), 3) for stage in STAGES}
    return Run("servers", rollouts, seconds, cpu, found["bytes"], max(found["peak_rss_mb"].values()), load)


def _last_line(module: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", module, *arguments, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=RUN_TIMEOUT_S, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def points(runs: Sequence[Run], way: str, measure: str, stage: str) -> list[Point]:
    """What was measured of one stage, run by run."""
    return [(run.rollouts, max(LEAST_S, getattr(run, measure)[stage])) for run in runs if run.way == way]


def fits(runs: Sequence[Run]) -> dict[str, dict[str, dict[str, Fit]]]:
    """By way, measure and stage; nothing of a way with one size alone."""
    found: dict[str, dict[str, dict[str, Fit]]] = {}
    for way in dict.fromkeys(run.way for run in runs):
        if len({run.rollouts for run in runs if run.way == way}) > 1:
            found[way] = {m: {stage: fit(points(runs, way, m, stage)) for stage in STAGES} for m in MEASURES}
    return found


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """The last line."""
    return {
        "runs": [run.to_json() for run in runs],
        "fits": {
            way: {m: {stage: _told(found) for stage, found in by.items()} for m, by in of_way.items()}
            for way, of_way in fits(runs).items()
        },
    }


def _told(found: Fit) -> dict[str, Any]:
    power, line = found.power, found.line
    return {
        "a": float(f"{power.a:.4g}"),
        "b": round(power.b, 3),
        "b_error": round(power.b_error, 3) if math.isfinite(power.b_error) else None,
        "power_off": round(power.off, 3),
        "fixed": float(f"{line.fixed:.4g}"),
        "each": float(f"{line.each:.4g}"),
        "line_off": round(line.off, 3),
        "better": found.better,
    }


def print_tables(runs: Sequence[Run]) -> None:
    """For people."""
    print(f"{'way':<10}{'rollouts':>9}{'load':>6} " + "".join(f"{stage + ' s':>12}{'cpu':>8}" for stage in STAGES))
    for run in runs:
        times = "".join(f"{run.seconds[stage]:>12.3f}{run.cpu[stage]:>8.3f}" for stage in STAGES)
        size = f"{run.bytes / 1e6:.1f} MB, peak {run.peak_mb} MB"
        print(f"{run.way:<10}{run.rollouts:>9}{run.load:>6.1f} {times}  {size}")
    for way, of_way in fits(runs).items():
        _print_fits(way, of_way)


def _print_fits(way: str, of_way: Mapping[str, Mapping[str, Fit]]) -> None:
    heads = f"{'a * N ** b: b':>16}{'off':>7}{'c + d * N: c ms':>18}{'d us':>8}{'off':>7}  better"
    print(f"\n{way + ', N rollouts':<26}{heads}")
    for measure, by_stage in of_way.items():
        for stage, found in by_stage.items():
            power, line = found.power, found.line
            grows = f"{power.b:.2f} +- {power.b_error:.2f}"
            straight = f"{line.fixed * 1e3:>18.1f}{line.each * 1e6:>8.1f}{line.off:>7.1%}"
            print(f"{stage + ', ' + measure:<26}{grows:>16}{power.off:>7.1%}{straight}  {found.better}")


def kept(path: Path | None) -> list[Run]:
    """The runs that a file has, one a line; none where it is not there."""
    if path is None or not path.exists():
        return []
    return [Run(**json.loads(line)) for line in path.read_text().splitlines()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = command_line.Command("bench.scaling", __doc__)
    parser.add_list("--embedded", counts, [1000, 4000, 16000, 64000], "numbers of rollouts in one process")
    parser.add_list("--servers", counts, [1000, 4000, 16000], "numbers of rollouts at server processes")
    parser.add_argument("--workers", type=count, default=2, help="of the policy model server")
    parser.add_argument("--repeat", type=count_or_none, default=3, help="runs of each embedded size; 0 leaves them out")
    parser.add_argument(
        "--server-repeat",
        type=count_or_none,
        default=1,
        help="runs of each size at server processes; 0 leaves them out",
    )
    parser.add_argument(
        "--runs", type=command_line.to_write, help="a file that keeps each run; those that it has are not made again"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parsed = parser.parse_args(arguments)
    try:
        runs = kept(parsed.runs)
    except (ValueError, TypeError) as error:
        parser.error(f"{parsed.runs} is no file of runs: {error}")
    if not parsed.repeat and not parsed.server_repeat and not runs:
        parser.error("--repeat and --server-repeat are both 0: that measures nothing")
    asked = [("embedded", n) for n in parsed.embedded * parsed.repeat]
    asked += [("servers", n) for n in parsed.servers * parsed.server_repeat]
    for run in runs:
        if (run.way, run.rollouts) in asked:
            asked.remove((run.way, run.rollouts))
    for way, rollouts in asked:
        runs.append(embedded(rollouts) if way == "embedded" else servers(rollouts, parsed.workers))
        if parsed.runs is not None:
            with parsed.runs.open("a") as file:
                file.write(json.dumps(runs[-1].to_json()) + "\n")
    print_tables(runs)
    if parsed.json:
        print(json.dumps(summary(runs)))


if __name__ == "__main__":
    main()
