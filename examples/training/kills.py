"""Kill a training run at seeded times, let it go on, and compare it with one that was left alone.

    python -m examples.training.kills [FOLDER] --times 10 --seed 0

Each kill is a SIGKILL: of everything, of the trainer, of all servers, of one of them, or of the worker. Exit code 1
where the two runs have trained on anything else, or their last weights differ in a bit.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Self

import orjson

from .worker import running_worker

VICTIMS = ("everything", "trainer", "servers", "worker", "one server")
ENDS_TRAINER = ("everything", "trainer")
LONGEST_DELAY_S = 4.0
PATIENCE_S = 180.0
"""How long nothing may happen."""
POLL_S = 0.05
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill: so long after the log has come to a step."""

    step: int
    delay_s: float
    victim: str
    chance: int
    """Which one, where the victim is one server."""


def planned(times: int, steps: int, seed: int) -> list[Kill]:
    """Kills in the order of their steps; every victim comes up."""
    chance = random.Random(seed)
    victims = chance.sample(VICTIMS, len(VICTIMS))
    at = sorted(chance.choices(range(steps - 1), k=times))
    return [
        Kill(step, round(chance.uniform(0, LONGEST_DELAY_S), 2), victim, chance.randrange(1000))
        for step, victim in zip(at, islice(cycle(victims), times), strict=True)
    ]


class Run:
    """A training run as a process, started again whenever it was killed. Leaving its block leaves nothing behind."""

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        self.folder = folder
        self._command = [sys.executable, "-m", "examples.training", str(folder), *arguments]
        self._process = self._begin()
        self._read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._kill_groups("everything", 0)

    def finish(self, kills: Sequence[Kill] = ()) -> None:
        """To its end, through all kills."""
        for kill in kills:
            self._wait_for(kill.step)
            time.sleep(kill.delay_s)
            if self._process.poll() is not None:
                break  # It has ended already.
            self._read = len(self._events())
            self._kill(kill)
        if code := self._process.wait():
            raise RuntimeError(f"the run has ended with {code}")

    def _begin(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, cwd=ROOT)

    def _events(self) -> list[dict[str, Any]]:
        return list(events_of(self.folder))

    def _wait_for(self, step: int) -> None:
        """Until something since the last kill has happened at this step or behind it."""
        before = time.monotonic()
        while not any(event["step"] >= step for event in self._events()[self._read :]):
            if self._process.poll() is not None or time.monotonic() - before > PATIENCE_S:
                raise RuntimeError(f"step {step} was not reached")
            time.sleep(POLL_S)

    def _kill(self, kill: Kill) -> None:
        self._kill_groups(kill.victim, kill.chance)
        with (self.folder / "log.jsonl").open("ab") as log:
            log.write(orjson.dumps({"event": "killed", "at": time.time(), "victim": kill.victim, "step": -1}) + b"\n")
        if kill.victim in ENDS_TRAINER:
            self._process.kill()
            self._process.wait()
            self._process = self._begin()

    def _kill_groups(self, victim: str, chance: int) -> None:
        for pid in self._pids(victim, chance):
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def _pids(self, victim: str, chance: int) -> Iterator[int]:
        """Each leads a process group of its own."""
        servers = _document(self.folder / "fleet" / "fleet.json").get("servers", [])
        if victim in {"everything", "servers"}:
            yield from (server["pid"] for server in servers)
        if victim == "one server" and servers:
            yield servers[chance % len(servers)]["pid"]
        if victim in {"everything", "worker"} and (pid := running_worker(self.folder)[0]):
            yield pid


def events_of(folder: Path) -> Iterator[dict[str, Any]]:
    """What the log has so far."""
    with suppress(FileNotFoundError):
        for line in (folder / "log.jsonl").read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield orjson.loads(line)


def _document(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found


def differences(whole: Path, killed: Path) -> list[str]:
    """What is not the same in two runs that have come to their end."""
    one, other = (_document(folder / "history.json") for folder in (whole, killed))
    found = []
    if len(one["history"]) != len(other["history"]):
        found.append(f"one has {len(one['history'])} steps, the other {len(other['history'])} steps")
    for step, (left, right) in enumerate(zip(one["history"], other["history"], strict=False)):
        found += [f"step {step + 1}: {key}" for key in left if left[key] != right[key]]
    if one["weights"] != other["weights"]:
        found.append("the last weights")
    ids = [rollout for step in other["history"] for rollout in step["rollouts"]]
    if len(set(ids)) != len(ids):
        found.append("a rollout was trained on twice")
    again = {event["step"]: event["tokens"] for event in events_of(whole) if event["event"] == "trained"}
    for event in events_of(killed):  # Also steps that a crash has undone.
        if event["event"] == "trained" and event["tokens"] != again[event["step"]]:
            found.append(f"step {event['step']}, when it was made the first time")
    return found


def figures(folder: Path) -> dict[str, Any]:
    """What the kills have cost."""
    events = list(events_of(folder))
    trained = [event for event in events if event["event"] == "trained"]
    saved = [event for event in events if event["event"] == "saved"]
    return {
        "kills": sum(event["event"] == "killed" for event in events),
        "starts": sum(event["event"] == "began" for event in events),
        "steps": max(event["step"] for event in trained),
        "steps made again": len(trained) - len({event["step"] for event in trained}),
        "rollouts": sum(len(event["rollouts"]) for event in trained),
        "model calls that were not made again": sum(event["carried"] for event in trained),
        "checkpoints": len(saved),
        "with rollouts in flight": sum(event["undelivered"] > 0 for event in saved),
        "longest hold of a checkpoint in s": round(max(event["held_s"] for event in saved), 2),
        "seconds": round(events[-1]["at"] - events[0]["at"]),
    }


def main() -> None:
    """Both runs, and what became of them."""
    parser = argparse.ArgumentParser(prog="python -m examples.training.kills")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/training-kills"))
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--groups", type=int, default=6)
    asked = parser.parse_args()
    arguments = ["--steps", str(asked.steps), "--groups", str(asked.groups)]
    whole, killed = asked.folder / "whole", asked.folder / "killed"
    kills = planned(asked.times, asked.steps, asked.seed)
    if not (whole / "history.json").exists():
        with Run(whole, arguments) as run:
            run.finish()
    with Run(killed, arguments) as run:
        run.finish(kills)
    for kill in kills:
        print(asdict(kill))
    for folder in (whole, killed):
        print(f"{folder.name}: {figures(folder)}")
    if found := differences(whole, killed):
        raise SystemExit(f"not the same: {found}")
    print("the same groups in the same order, the same tokens, and the same weights, bit for bit")


if __name__ == "__main__":
    main()
