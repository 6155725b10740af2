"""The collection run against the deterministic backend: what checkpoints cost, and what they save.

    python -m bench.collect --json

Rate: the same episodes with checkpoints off, on (every `--interval` seconds) and every second, interleaved. The backend
answers at once, so that the machine and not the model is the limit: with a model that takes its time the overhead is
smaller. The overhead is that in processor time of the collecting process, which other processes of the machine disturb
least; the rates are by the wall clock. `hold_ms` is for how long a checkpoint kept episodes waiting, from all
checkpoints taken every second.

Redone: tokens and calls that were generated again after kills at random times, with a checkpoint every second, and with
the same kills where only finished rows are kept (`bench.kills`).
"""

import argparse
import gc
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from orchestrator.collect import Config, Options, collect
from participants.inference import DEFAULT_MODEL
from participants.serving.settings import GC_THRESHOLD

from . import command_line, kills
from .command_line import above_zero, count
from .endpoint import Endpoint, endpoint, write_rows

MODES = ("off", "on", "every_second")


@dataclass(slots=True)
class Rates:
    """Episodes per second, run by run, of each mode; and the seconds that checkpoints held work."""

    cpu_ms: dict[str, list[float]] = field(default_factory=lambda: {mode: [] for mode in MODES})
    """Processor time of the collecting process for one episode."""
    runs: dict[str, list[float]] = field(default_factory=lambda: {mode: [] for mode in MODES})
    held_s: list[float] = field(default_factory=list)
    checkpoints: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MODES, 0))

    def median(self, mode: str) -> float:
        """Of one mode."""
        return statistics.median(self.runs[mode])

    def overhead_percent(self, mode: str) -> float:
        """How much more processor time an episode takes, median over the pairs of neighbouring runs."""
        pairs = zip(self.cpu_ms["off"], self.cpu_ms[mode], strict=True)
        return statistics.median(100.0 * (on / off - 1.0) for off, on in pairs)

    def hold_ms(self) -> dict[str, float]:
        """p50 and p99."""
        held = sorted(self.held_s) or [0.0]
        picked = {"p50": held[len(held) // 2], "p99": held[len(held) * 99 // 100]}
        return {name: round(value * 1e3, 2) for name, value in picked.items()}


def _config(folder: Path, served: Endpoint, parsed: argparse.Namespace, mode: str) -> Config:
    interval_s = {"off": 0.0, "on": parsed.interval, "every_second": 1.0}[mode]
    return Config.model_validate(
        {
            "run": {
                "input": str(folder / "rows.jsonl"),
                "output": str(folder / mode / "out.jsonl"),
                "concurrency": parsed.concurrency,
            },
            "model": {"base_url": served.base_url, "model": DEFAULT_MODEL},
            "resources": {"counter": {"server": "participants.servers.counter:CounterServer"}},
            "checkpoint": {"enabled": mode != "off", "url": str(folder / mode / "store"), "interval_s": interval_s},
        }
    )


def _run(config: Config, mode: str, rollouts: int, rates: Rates) -> None:
    began = cpu = 0.0
    gc.set_threshold(*GC_THRESHOLD)  # As `midflight collect` does.

    def emit(name: str, facts: dict[str, Any]) -> None:
        nonlocal began, cpu
        if name == "started":
            began, cpu = time.perf_counter(), time.process_time()
        elif name == "checkpoint":
            rates.checkpoints[mode] += 1
            if mode == "every_second":
                rates.held_s.append(facts["held_s"])

    summary = anyio.run(collect, config, Options(), emit)
    if (summary.exit_code, summary.rows) != (0, rollouts):
        raise RuntimeError(f"the run came to {summary}")
    rates.runs[mode].append(rollouts / (time.perf_counter() - began))
    rates.cpu_ms[mode].append((time.process_time() - cpu) / rollouts * 1e3)


def measure_rates(folder: Path, parsed: argparse.Namespace) -> Rates:
    """Every mode, `--repeat` times, interleaved."""
    rates = Rates()
    write_rows(folder / "rows.jsonl", parsed.rollouts, parsed.turns)
    with endpoint(folder) as served:
        for number in range(parsed.repeat):
            for mode in MODES if number % 2 == 0 else reversed(MODES):
                (folder / mode).mkdir()
                _run(_config(folder, served, parsed, mode), mode, parsed.rollouts, rates)
                shutil.rmtree(folder / mode)
    return rates


def print_tables(rates: Rates, load: kills.Load, redone: kills.Redone, rows_only: kills.Redone) -> None:
    """For people."""
    print(f"{'mode':<14}{'episodes/s':>11}{'min':>8}{'max':>8}{'cpu ms':>8}{'overhead':>10}{'checkpoints':>13}")
    for mode, runs in rates.runs.items():
        overhead = f"{rates.overhead_percent(mode):.1f} %" if mode != "off" else "-"
        cpu = statistics.median(rates.cpu_ms[mode])
        numbers = f"{rates.median(mode):>11.1f}{min(runs):>8.1f}{max(runs):>8.1f}{cpu:>8.2f}{overhead:>10}"
        print(f"{mode:<14}{numbers}{rates.checkpoints[mode]:>13}")
    print(f"hold: {rates.hold_ms()} ms over {len(rates.held_s)} checkpoints")
    of = f"{load.rollouts} rollouts of {load.turns + 1} calls, a checkpoint every {load.interval_s:g} s"
    print(f"redone after {load.kills} kills, {of}:")
    print(f"  with checkpoints   {redone.tokens:>8} tokens {redone.calls:>6} calls")
    print(f"  finished rows only {rows_only.tokens:>8} tokens {rows_only.calls:>6} calls")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = command_line.Command("bench.collect", __doc__)
    parser.add_argument("--rollouts", type=count, default=1_000, help="episodes of each run that is timed")
    parser.add_argument("--concurrency", type=count, default=64, help="episodes in flight at once")
    parser.add_argument("--turns", type=count, default=3, help="tool calls of an episode")
    parser.add_argument(
        "--interval", type=above_zero, default=5.0, help="seconds between checkpoints where they are on"
    )
    parser.add_argument("--repeat", type=count, default=3, help="runs of each mode")
    parser.add_argument("--kills", type=count, default=4, help="of the run that is killed")
    parser.add_argument("--kill-rollouts", type=count, default=192, help="episodes of the run that is killed")
    parser.add_argument("--seed", type=int, default=1, help="of the times of the kills")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parsed = parser.parse_args(arguments)
    load = kills.Load(kills=parsed.kills, seed=parsed.seed, rollouts=parsed.kill_rollouts)
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as name:
        folder = Path(name)
        rates = measure_rates(folder, parsed)
        redone = kills.measure(folder / "kills", load, checkpoints=True)
        rows_only = kills.measure(folder / "rows", load, checkpoints=False)
    print_tables(rates, load, redone, rows_only)
    if parsed.json:
        modes = {mode: {"episodes_per_s": round(rates.median(mode), 1)} for mode in MODES}
        work = {"redone": redone.summary(), "rows_only": rows_only.summary()}
        overhead = {"overhead_percent": round(rates.overhead_percent("on"), 1), "hold_ms": rates.hold_ms()}
        print(json.dumps({**modes, **overhead, **work}))


if __name__ == "__main__":
    main()
