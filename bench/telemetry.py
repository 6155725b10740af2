"""What telemetry costs a collection run: OTLP to an endpoint of this machine, and a page that is asked for, or nothing.

    python -m bench.telemetry --json

The work is that of `bench.collect`, with a checkpoint every `--interval` seconds, off and on in pairs of neighbouring
runs. `overhead` is how much more processor time of the collecting process an episode takes, of each pair; other work on
the machine moves it by more than telemetry does. So `own` is what can be told apart: the processor time of telemetry's
threads, of the calls that the event loop makes, and of pages, as part of all. Most of it comes with time and not with
work: `own_ms_per_s` is the same for each second that a run took.

Off, each call of the hook returns at once: `off_ns` is what one costs.
"""

import argparse
import gc
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from orchestrator.collect import Config, Options, collect
from participants import telemetry
from participants.inference import DEFAULT_MODEL
from participants.serving.settings import GC_THRESHOLD
from participants.telemetry import Readings, Span, names, prometheus

from . import command_line
from .command_line import above_zero, count
from .endpoint import endpoint, write_rows

TELEMETRY_THREADS = ("midflight-telemetry", "midflight-otlp")
PERCENT = 100.0


class Counted:
    """A recorder that only counts what it is given."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.calls: Counter[str] = Counter()

    def span(self, span: Span) -> None:
        """One more."""
        self.calls["span"] += 1

    def add(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """One more."""
        self.calls["add"] += 1

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """One more."""
        self.calls["observe"] += 1

    def gauge(self, name: str, read: Callable[[], Readings]) -> None:
        """No call of the event loop's."""


@dataclass(slots=True)
class Costs:
    """What was measured, run by run."""

    rollouts: int
    cpu_ms: dict[str, list[float]] = field(default_factory=lambda: {"off": [], "on": []})
    """Processor time of the collecting process for one episode."""
    wall_s: dict[str, list[float]] = field(default_factory=lambda: {"off": [], "on": []})
    threads_ms: list[float] = field(default_factory=list)
    """Processor time of telemetry's threads in a run that is on."""
    pages_ms: list[float] = field(default_factory=list)
    """Processor time of making pages in such a run."""
    calls: Counter[str] = field(default_factory=Counter)
    """Of the hook, in one run."""
    off_ns: dict[str, float] = field(default_factory=dict)
    on_ns: dict[str, float] = field(default_factory=dict)
    """What one call costs whoever makes it."""

    def overheads(self) -> list[float]:
        """In percent of processor time, of each pair."""
        pairs = zip(self.cpu_ms["off"], self.cpu_ms["on"], strict=True)
        return [PERCENT * (on / off - 1.0) for off, on in pairs]

    def loop_ms(self) -> float:
        """What the calls of one run cost the event loop."""
        return sum(count * self.on_ns[kind] for kind, count in self.calls.items()) / 1e6

    def own_ms(self) -> float:
        """What telemetry is known to have used in one run."""
        return statistics.median(self.threads_ms) + statistics.median(self.pages_ms) + self.loop_ms()

    def own_percent(self) -> float:
        """The same as part of a run that is off."""
        return PERCENT * self.own_ms() / (statistics.median(self.cpu_ms["off"]) * self.rollouts)

    def summary(self) -> dict[str, Any]:
        """The last line."""
        return {
            "overhead_percent": round(statistics.median(self.overheads()), 2),
            "overheads": [round(percent, 1) for percent in self.overheads()],
            "own_percent": round(self.own_percent(), 2),
            "own_ms_per_s": round(self.own_ms() / statistics.median(self.wall_s["on"]), 2),
            "threads_ms": round(statistics.median(self.threads_ms), 1),
            "pages_ms": round(statistics.median(self.pages_ms), 1),
            "loop_ms": round(self.loop_ms(), 2),
            "calls": dict(self.calls),
            "off_ns": {kind: round(ns) for kind, ns in self.off_ns.items()},
            "on_ns": {kind: round(ns) for kind, ns in self.on_ns.items()},
            "episode_cpu_ms": {mode: round(statistics.median(found), 2) for mode, found in self.cpu_ms.items()},
            "wall_s": {mode: round(statistics.median(found), 2) for mode, found in self.wall_s.items()},
        }


def _one_span() -> None:
    with telemetry.span(names.RENEW, round="1.1"):
        pass


CALLS: Mapping[str, Callable[[], object]] = {
    "span": _one_span,
    "add": lambda: telemetry.add(names.ROLLOUTS, end="delivered"),
    "observe": lambda: telemetry.observe(names.CHECKPOINT_HOLD, 0.1),
}


def call_costs(times: int) -> dict[str, float]:
    """Nanoseconds of this thread's processor time, of one call of each kind; without those of the loop around it."""

    def each(call: Callable[[], object]) -> float:
        began = time.thread_time_ns()
        for _ in range(times):
            call()
        return (time.thread_time_ns() - began) / times

    empty = min(each(lambda: None) for _ in range(3))
    return {kind: min(each(call) for _ in range(3)) - empty for kind, call in CALLS.items()}


def threads_ms() -> float:
    """Processor time so far of telemetry's threads that run."""
    found = [thread for thread in threading.enumerate() if thread.name.startswith(TELEMETRY_THREADS)]
    clocks = [time.pthread_getcpuclockid(thread.ident) for thread in found if thread.ident is not None]
    return sum(map(time.clock_gettime, clocks)) * 1e3


@contextmanager
def pages_timed() -> Iterator[Callable[[], float]]:
    """Gives what tells, in milliseconds of processor time, what making pages has taken since it was asked last."""
    made, spent = prometheus.render, [0.0]

    def timed(page: prometheus.Page) -> bytes:
        began = time.thread_time()
        try:
            return made(page)
        finally:
            spent[0] += (time.thread_time() - began) * 1e3

    def since() -> float:
        found, spent[0] = spent[0], 0.0
        return found

    prometheus.render = timed
    try:
        yield since
    finally:
        prometheus.render = made


@contextmanager
def sink(page: str, every_s: float) -> Iterator[str]:
    """An endpoint in a process of its own, which asks for the page meanwhile; its URL."""
    command = [sys.executable, "-m", "bench.otlp_sink", page, str(every_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


def free_address() -> str:
    """Where nobody listens yet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def config_of(
    folder: str, base_url: str, concurrency: int, interval_s: float, told: Mapping[str, str] | None
) -> Config:
    """The run's configuration; `told` is its table of telemetry, where it is on."""
    document: dict[str, Any] = {
        "run": {"input": f"{folder}/rows.jsonl", "output": f"{folder}/run/out.jsonl", "concurrency": concurrency},
        "model": {"base_url": base_url, "model": DEFAULT_MODEL},
        "resources": {"counter": {"server": "participants.servers.counter:CounterServer"}},
        "checkpoint": {"enabled": True, "url": f"{folder}/run/store", "interval_s": interval_s},
    }
    return Config.model_validate(document | ({"telemetry": told} if told else {}))


def collected(folder: Path, config: Config, rollouts: int) -> tuple[float, float, float]:
    """One run, from its start to its end; seconds, milliseconds of processor time of an episode, and of threads."""
    began = cpu = threads = 0.0
    (folder / "run").mkdir()
    gc.set_threshold(*GC_THRESHOLD)  # As `midflight collect` does: else each collection looks at all that was imported.

    def emit(name: str, _: dict[str, Any]) -> None:
        nonlocal began, cpu, threads
        if name == "started":
            began, cpu = time.perf_counter(), time.process_time()
        elif name == "summary":
            threads = threads_ms()

    summary = anyio.run(collect, config, Options(), emit)
    if (summary.exit_code, summary.rows) != (0, rollouts):
        raise RuntimeError(f"the run came to {summary}")
    shutil.rmtree(folder / "run")
    return time.perf_counter() - began, (time.process_time() - cpu) * 1e3 / rollouts, threads


def measure(folder: Path, parsed: argparse.Namespace) -> Costs:
    """A run that counts the calls, and then the pairs."""
    costs, page = Costs(parsed.rollouts), free_address()
    write_rows(folder / "rows.jsonl", parsed.rollouts, parsed.turns)
    costs.off_ns = call_costs(parsed.calls)
    with endpoint(folder) as served, sink(f"http://{page}/metrics", parsed.scrape) as url, pages_timed() as pages_ms:
        config = partial(config_of, str(folder), served.base_url, parsed.concurrency, parsed.interval)
        counted = Counted()
        telemetry.install(counted)
        costs.on_ns = call_costs(min(parsed.calls, 5_000))
        telemetry.drain()
        counted.calls.clear()
        collected(folder, config(None), parsed.rollouts)
        telemetry.uninstall(counted)
        costs.calls = counted.calls
        for number in range(parsed.pairs):
            for mode in ("off", "on") if number % 2 == 0 else ("on", "off"):
                told = {"otlp": url, "prometheus": page} if mode == "on" else None
                took_s, cpu_ms, threads = collected(folder, config(told), parsed.rollouts)
                costs.wall_s[mode].append(took_s)
                costs.cpu_ms[mode].append(cpu_ms)
                costs.threads_ms += [threads] if mode == "on" else []
                costs.pages_ms += [pages_ms()] if mode == "on" else []
    return costs


def print_table(costs: Costs) -> None:
    """For people."""
    for key, value in costs.summary().items():
        print(f"{key:<18}{value}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = command_line.Command("bench.telemetry", __doc__)
    parser.add_argument("--rollouts", type=count, default=1_000, help="episodes of each run")
    parser.add_argument("--concurrency", type=count, default=64, help="episodes in flight at once")
    parser.add_argument("--turns", type=count, default=3, help="tool calls of an episode")
    parser.add_argument("--interval", type=above_zero, default=5.0, help="seconds between checkpoints")
    parser.add_argument("--scrape", type=above_zero, default=5.0, help="seconds between two looks at the page")
    parser.add_argument("--pairs", type=count, default=5, help="of a run without and one with telemetry")
    parser.add_argument("--calls", type=count, default=100_000, help="of the hook, to measure one")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parsed = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as name:
        costs = measure(Path(name), parsed)
    print_table(costs)
    if parsed.json:
        print(json.dumps(costs.summary()))


if __name__ == "__main__":
    main()
