"""Work that is done again after kills at random times: with checkpoints, and with only finished rows kept.

Both runs are children of their own, killed with SIGKILL after the same seeded times, and then run to their end. What is
redone is what the backend has generated beyond what the finished rows needed.
"""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from participants.inference import DEFAULT_MODEL

from .endpoint import endpoint, write_rows

CONFIG = """
[run]
input = "rows.jsonl"
output = "out.jsonl"
concurrency = {concurrency}
[model]
base_url = "{base_url}"
model = "{model}"
[resources.counter]
server = "participants.servers.counter:CounterServer"
[checkpoint]
enabled = {enabled}
url = "checkpoints"
interval_s = {interval_s}
liveness_beat_s = 0.5
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What runs, and when it is killed."""

    rollouts: int = 192
    concurrency: int = 64
    turns: int = 8
    filler: int = 60
    tokens_per_s: float = 150.0
    interval_s: float = 1.0
    kills: int = 4
    life_s: tuple[float, float] = (2.0, 7.0)
    """How long a start lives at least and at most."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Redone:
    """Work that was done again."""

    tokens: int
    calls: int

    def summary(self) -> dict[str, int]:
        """As JSON shows it."""
        return {"tokens": self.tokens, "calls": self.calls}


def measure(folder: Path, load: Load, *, checkpoints: bool) -> Redone:
    """Kill one run, finish it, and count."""
    folder.mkdir()
    write_rows(folder / "rows.jsonl", load.rollouts, load.turns, load.filler)
    randomness = random.Random(load.seed)
    with endpoint(folder, tokens_per_s=load.tokens_per_s) as served:
        settings = {"base_url": served.base_url, "model": DEFAULT_MODEL, "enabled": str(checkpoints).lower()}
        config = CONFIG.format(concurrency=load.concurrency, interval_s=load.interval_s, **settings)
        (folder / "run.toml").write_text(config)
        for _ in range(load.kills):
            _start(folder, randomness.uniform(*load.life_s))
        _start(folder, None)
        calls, tokens = served.generated()
    needed_calls, needed_tokens = _needed(folder / "out.jsonl", load.rollouts)
    return Redone(tokens - needed_tokens, calls - needed_calls)


def _start(folder: Path, life_s: float | None) -> None:
    """One start, killed after its life; None for one that may finish."""
    command: Sequence[str] = [sys.executable, "-m", "midflight", "collect", str(folder / "run.toml")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        code = process.wait(life_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return
    if code != 0:
        raise RuntimeError(f"the run ended with {code}")


def _needed(output: Path, rollouts: int) -> tuple[int, int]:
    rows = [orjson.loads(line) for line in output.read_bytes().splitlines()]
    if len(rows) != rollouts or not all(row["reward"] == 1.0 for row in rows):
        raise ValueError(f"{len(rows)} rows of {rollouts}, or a wrong reward")
    calls = sum(int(row["response"]["metadata"]["midflight_steps"]) for row in rows)
    return calls, sum(row["response"]["usage"]["output_tokens"] for row in rows)
