"""Work that is done again after SIGKILL at the same random times, as the backend counted it.

Every peer runs the same rows before a backend of its own that generates at a steady pace, is killed after the same
seeded times, counted from when it had imported what it needs, and then runs to its end. The backend's log says how
many turns were begun and ended, and how many tokens were generated; what is more than one run needs was done again.
What midflight asks a backend at each start, to see what it can do, counts as tokens generated again, but as no turn.
"""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..endpoint import endpoint, write_rows
from .child import Order
from .postgres import Server
from .standing import ChildFailed, started, told
from .worlds import CALL_HEADER

POLL_S = 0.1
LONGEST_S = 1_800.0
"""That the last start of a run may take."""


@dataclass(frozen=True, slots=True)
class Load:
    """What runs, and when it is killed."""

    episodes: int = 96
    at_once: int = 32
    turns: int = 8
    filler: int = 60
    """Words of each reply, beside a tool call."""
    tokens_per_s: float = 150.0
    interval_s: float = 1.0
    """Between two checkpoints of midflight."""
    kills: int = 4
    life_s: tuple[float, float] = (2.0, 7.0)
    seed: int = 1

    def lives(self) -> list[float]:
        """For how long each start lives, in seconds; the same for every peer."""
        chance = random.Random(self.seed)
        return [chance.uniform(*self.life_s) for _ in range(self.kills)]


LOADS = {"short": Load(), "long": Load(episodes=48, turns=2, filler=600)}
"""Many short turns, as of tools, and a few long ones, as of reasoning."""


@dataclass(frozen=True, slots=True)
class Redone:
    """What was done more than once, and what had to be done at least."""

    turns: int
    """Different ones."""
    tokens: int
    turns_again: int
    """Begun again, whether or not they had ended; a continued one too."""
    turns_lost: int
    """Had ended, and were generated again."""
    tokens_again: int
    kills: int
    """Fewer than ordered where a run ended before."""
    whole_s: float
    """By the clock, all starts together."""


@dataclass(frozen=True, slots=True)
class Needed:
    """What a run has to generate at least."""

    turns: int
    tokens: int

    def times(self, count: int) -> "Needed":
        """Of so many such runs."""
        return Needed(self.turns * count, self.tokens * count)


def counted(lines: Iterable[str], needed: Needed, kills: int, whole_s: float) -> Redone:
    """From the log of a backend."""
    begun = ended = generated = 0
    for line in lines:
        record: Mapping[str, Any] = json.loads(line)
        of_a_turn = CALL_HEADER in record["headers"]
        if record["event"] == "begin":
            begun += of_a_turn
        else:
            generated += record["generated"]
            ended += of_a_turn and record["state"] == "finished" and not record["disconnected"]
    return Redone(
        turns=needed.turns,
        tokens=needed.tokens,
        turns_again=begun - needed.turns,
        turns_lost=max(0, ended - needed.turns),
        tokens_again=generated - needed.tokens,
        kills=kills,
        whole_s=round(whole_s, 1),
    )


def need(load: Load, folder: Path) -> Needed:
    """Of all episodes; they have one script, so that one of them says it for all."""
    folder.mkdir()
    write_rows(folder / "rows.jsonl", 1, load.turns, load.filler)
    with endpoint(folder) as served:
        start(Order("finished_rows", str(folder), base_url=served.base_url, at_once=1), None)
        return Needed(*served.generated()).times(load.episodes)


def measure(peer: str, load: Load, needed: Needed, folder: Path, server: Server | None) -> Redone:
    """Kill one run as often as ordered, finish it, and count."""
    folder.mkdir()
    write_rows(folder / "rows.jsonl", load.episodes, load.turns, load.filler)
    if server is not None:
        server.create(folder.name)
    url = server.url(folder.name) if server else ""
    with endpoint(folder, tokens_per_s=load.tokens_per_s) as served:
        order = Order(
            peer, str(folder), url, base_url=served.base_url, at_once=load.at_once, interval_s=load.interval_s
        )
        began, kills = time.perf_counter(), 0
        for life_s in load.lives():
            kills += start(order, life_s)
        start(order, None)
        whole_s = time.perf_counter() - began
        while left(served.log):
            time.sleep(POLL_S)  # Until the backend has noticed that nobody listens.
        found = counted(served.log.read_text().splitlines(), needed, kills, whole_s)
    if (rows := rows_of(folder)) != load.episodes:
        raise ChildFailed(f"{rows} episodes of {load.episodes} have ended")
    return found


def rows_of(folder: Path) -> int:
    """Finished episodes, wherever the peer writes them."""
    path = next(
        path for path in (folder / "out.jsonl", folder / "finished.jsonl") if path.exists() and path.stat().st_size
    )
    return len(path.read_bytes().splitlines())


def left(log: Path) -> list[dict[str, Any]]:
    """The records of calls that have begun and not ended."""
    calls: dict[str, dict[str, Any]] = {}
    for line in log.read_text().splitlines():
        record = json.loads(line)
        if record["event"] == "begin":
            calls[record["id"]] = record
        else:
            calls.pop(record["id"], None)
    return list(calls.values())


def start(order: Order, life_s: float | None) -> bool:
    """One start, killed after its life; whether it was. None is for one that may finish."""
    with started(order) as process:
        told(process, "ready")
        try:
            process.wait(LONGEST_S if life_s is None else life_s)
        except subprocess.TimeoutExpired:
            if life_s is None:
                raise ChildFailed(f"it has not ended after {LONGEST_S:.0f} s") from None
            os.killpg(process.pid, signal.SIGKILL)
            return True
        told(process, "ended")
    return False
