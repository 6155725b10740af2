"""What telemetry costs a collection run, in instructions: the count hardly knows what else the machine does.

    python -m bench.telemetry_instructions --json

The work is that of `bench.telemetry`, under valgrind, whose cachegrind counts what the collecting process executes, its
threads and its compiled libraries included. The start is taken out: each mode runs with few and with more rollouts, and
only the difference counts. Under valgrind the same work takes several times as long by the clock, so all that comes
with time (sends, pages, checkpoints) is made as much rarer; else it would be counted as many times as often. How many
times is measured first, with one run of each kind.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from participants.telemetry import otel, starting

from . import command_line
from .command_line import above_zero, count
from .endpoint import endpoint, write_rows
from .telemetry import PERCENT, collected, config_of, free_address, sink

COUNTED = re.compile(r"I\s+refs:\s+([\d,]+)")
VALGRIND = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
MODES = ("off", "on")


def child(order: dict[str, Any]) -> None:
    """One run, in the process that is counted; prints how long it took by the clock."""
    spans_every_s, metrics_every_s = (each * order["slower"] for each in (otel.SPANS_EVERY_S, otel.METRICS_EVERY_S))
    rarer = partial(otel.OtelExporter, spans_every_s=spans_every_s, metrics_every_s=metrics_every_s)
    vars(starting)["OtelExporter"] = rarer
    took_s, _, _ = collected(Path(order["folder"]), config_of(**order["config"]), order["rollouts"])
    print(took_s)


def run(order: dict[str, Any], prefix: Sequence[str] = ()) -> tuple[float, str]:
    """Seconds that a run takes in a process of its own, and what it says on stderr. Raises RuntimeError."""
    command = [*prefix, sys.executable, "-m", "bench.telemetry_instructions", "--child", json.dumps(order)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"the run ended with {done.returncode}: {done.stderr[-2000:]}")
    return float(done.stdout.split()[-1]), done.stderr


def counted(order: dict[str, Any]) -> int:
    """Instructions of one run, from the interpreter's start to its end. Raises RuntimeError."""
    return count_in(run(order, VALGRIND)[1])


def count_in(told: str) -> int:
    """The instructions that valgrind tells of. Raises RuntimeError."""
    found = COUNTED.search(told)
    if found is None:
        raise RuntimeError(f"valgrind has counted nothing: {told[-2000:]}")
    return int(found[1].replace(",", ""))


@dataclass(frozen=True, slots=True)
class Bench:
    """Where the runs go, and what they are."""

    folder: Path
    base_url: str
    told: dict[str, str]
    """The table of telemetry of a run that is on."""
    parsed: argparse.Namespace

    def order(self, mode: str, rollouts: int, slower: float) -> dict[str, Any]:
        """What one child is told; its rows are written."""
        write_rows(self.folder / "rows.jsonl", rollouts, self.parsed.turns)
        config = {
            "folder": str(self.folder),
            "base_url": self.base_url,
            "concurrency": self.parsed.concurrency,
            "interval_s": self.parsed.interval * slower,
            "told": self.told if mode == "on" else None,
        }
        return {"folder": str(self.folder), "rollouts": rollouts, "slower": slower, "config": config}

    def slower(self) -> float:
        """How many times as long a run takes under valgrind."""
        plain, _ = run(self.order("off", self.parsed.more, 1.0))
        valgrind, _ = run(self.order("off", self.parsed.more, 1.0), VALGRIND)
        return valgrind / plain

    def a_rollout(self, mode: str, slower: float) -> float:
        """Instructions that one more rollout takes."""
        sizes: tuple[int, int] = self.parsed.few, self.parsed.more
        few, more = (counted(self.order(mode, rollouts, slower)) for rollouts in sizes)
        return (more - few) / (sizes[1] - sizes[0])


def measure(folder: Path, parsed: argparse.Namespace) -> dict[str, Any]:
    """Instructions a rollout of each mode, and by how much they differ."""
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    page = free_address()
    with endpoint(folder) as served, ExitStack() as stack:
        slower = Bench(folder, served.base_url, {}, parsed).slower()
        url = stack.enter_context(sink(f"http://{page}/metrics", parsed.scrape * slower))
        bench = Bench(folder, served.base_url, {"otlp": url, "prometheus": page}, parsed)
        for number in range(parsed.pairs):
            for mode in MODES if number % 2 == 0 else MODES[::-1]:
                found[mode].append(bench.a_rollout(mode, slower))
    overheads = [PERCENT * (on / off - 1.0) for off, on in zip(*found.values(), strict=True)]
    return {
        "overhead_percent": round(statistics.median(overheads), 2),
        "overheads": [round(each, 2) for each in overheads],
        "million_a_rollout": {mode: [round(each / 1e6, 2) for each in counts] for mode, counts in found.items()},
        "slower": round(slower, 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = command_line.Command("bench.telemetry_instructions", __doc__)
    parser.add_argument("--few", type=count, default=64, help="rollouts of the shorter run")
    parser.add_argument("--more", type=count, default=256, help="rollouts of the longer run")
    parser.add_argument("--concurrency", type=count, default=64, help="episodes in flight at once")
    parser.add_argument("--turns", type=count, default=3, help="tool calls of an episode")
    parser.add_argument(
        "--interval", type=above_zero, default=5.0, help="seconds between checkpoints, without valgrind"
    )
    parser.add_argument(
        "--scrape", type=above_zero, default=5.0, help="seconds between two looks at the page, likewise"
    )
    parser.add_argument("--pairs", type=count, default=3, help="of runs without and with telemetry")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    if parsed.child:
        child(json.loads(parsed.child))
        return
    if shutil.which(VALGRIND[0]) is None:
        parser.error("valgrind is not installed; Debian's package has that name")
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as name:
        found = measure(Path(name), parsed)
    for key, value in found.items():
        print(f"{key:<18}{value}")
    if parsed.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
