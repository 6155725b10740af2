"""What one seed means: sizes, modes, times and the faults that will happen, drawn before anything begins.

A scenario is a plain value, so that a failing one can be made smaller: rollouts and faults are taken away one by one.
"""

import dataclasses
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from store.limits import DEFAULT_LIMITS, Limits

LIMITS: Limits = dataclasses.replace(
    DEFAULT_LIMITS, frame_bytes=1500, part_bytes=4000, read_bytes=2000, inline_payload_bytes=64, inline_state_bytes=200,
    retry_for_s=8.0, liveness_beat_s=1.0,
)  # fmt: skip
"""Small, so that a few records make several frames, parts and blobs; and short, so that errors come to an end."""
WORKERS = {"environment.main": 2, "agent.main": 2, "model.main": 2, "resources.counter": 3}
"""At most, of each role."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is done to the system."""

    kind: str
    at: float
    """Seconds after the beginning."""
    target: str = ""
    """A process, by name; for a partition those that are cut off from all others; of a rival,
    BESIDE where it does not take over."""
    for_s: float = 0.0
    """How long it lasts, or until what was killed is started again."""
    rate: float = 0.0
    """How often it strikes while it lasts."""
    moment: str = ""
    """Where it waits for something to happen instead: the name of a moment, and the how manieth is meant."""
    nth: int = 0

    def __str__(self) -> str:
        when = f"at {self.moment} no. {self.nth}" if self.moment else f"{self.at:7.2f} s"
        lasts = f" for {self.for_s:.2f} s" if self.for_s else ""
        often = f", rate {self.rate:.2f}" if self.rate else ""
        return f"{when}: {self.kind} {self.target}{lasts}{often}"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One simulation."""

    seed: int
    amounts: tuple[tuple[int, ...], ...]
    """What each rollout adds; one more rollout a tuple."""
    concurrency: int
    workers: Mapping[str, int]
    verify: str
    """`replay`, `wait`, or `restart` for sessions that say nothing."""
    interval_s: float
    lease_s: float
    prepare_timeout_s: float
    more_time_s: float
    keep_last: int
    max_attempts: int = 3
    host_lock: bool = False
    skewed: bool = False
    loose: bool = False
    slow: float = 1.0
    """Factor of all work."""
    network_s: float = 0.005
    store_s: float = 0.005
    model_failures: float = 0.0
    max_parked: int = 1_000_000
    """Calls that a closed gate holds; it refuses others."""
    max_wall_s: float = 0.0
    """Active time of an episode; 0 for no limit."""
    faults: tuple[Fault, ...] = field(default=())
    horizon_s: float = 600.0
    """Virtual time after which a run that is not done never will be."""

    def work_s(self, chance: random.Random, what: str) -> float:
        """How long a piece of work takes."""
        longest = {"generate": 1.5, "tool": 0.5, "seed": 0.2, "verify": 0.8}[what]
        return chance.random() * longest * self.slow

    def smaller(self, **changes: Any) -> "Scenario":
        return dataclasses.replace(self, **changes)


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    chance = random.Random(f"scenario {seed}")
    rollouts = chance.choice((1, 2, 2, 3, 3, 4))
    workers = {role: chance.randint(1, most) if chance.random() < 0.3 else 1 for role, most in WORKERS.items()}
    slow = chance.choice((0.1, 0.3, 0.3, 1.0))
    prepare_s = chance.choice((0.3, 0.5, 1.0, 2.0))
    lease_s = prepare_s + chance.choice((0.2, 0.5, 2.0, 10.0))
    scenario = Scenario(
        seed=seed,
        amounts=tuple(tuple(chance.randint(1, 9) for _ in range(chance.randint(0, 2))) for _ in range(rollouts)),
        concurrency=chance.choice((1, 2, 4, 8)),
        workers=workers,
        verify=chance.choice(("replay", "replay", "wait", "wait", "restart")),
        interval_s=slow * chance.choice((0.5, 1.0, 2.0)),
        lease_s=lease_s,
        prepare_timeout_s=prepare_s,
        more_time_s=min(chance.choice((0.0, prepare_s)), lease_s - 0.1),
        keep_last=chance.choice((1, 1, 2, 3)),
        max_attempts=chance.choice((2, 3, 6)),
        host_lock=chance.random() < 0.5,
        skewed=chance.random() < 0.5,
        loose=chance.random() < 0.5,
        slow=slow,
        network_s=chance.choice((0.001, 0.01, 0.05)),
        store_s=chance.choice((0.001, 0.01, 0.05)),
        model_failures=chance.choice((0.0, 0.0, 0.0, 0.03)),
    )
    limits = {"max_parked": chance.choice((1_000_000, 1_000_000, 1)), "max_wall_s": chance.choice((0.0, 0.0, 0.0, 1.0))}
    scenario = scenario.smaller(**limits)
    return scenario.smaller(faults=draw_faults(chance, scenario))


BESIDE = "beside"
STORE_FAULTS = ("unsent", "reply_lost", "full", "denied", "broken", "cut", "slow", "stale", "torn")
NETWORK_FAULTS = ("lost", "broken", "twice", "late")


def draw_faults(chance: random.Random, scenario: Scenario) -> tuple[Fault, ...]:
    """None up to eight of them, in the time in which the work is done."""
    names = [f"{role}-{k}" for role, count in scenario.workers.items() for k in range(count)]
    span_s = 0.2 + 4.0 * scenario.slow
    faults = [_timed(chance, names, chance.random() * span_s) for _ in range(chance.choice((0, 1, 2, 3, 4, 6)))]
    if chance.random() < 0.35:
        faults += _together(chance, names)
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _together(chance: random.Random, names: list[str]) -> list[Fault]:
    """Two faults of which the second one means nothing without the first, or one that outlasts somebody's patience."""
    nth = chance.choice((2, 3, 4, 6))
    match chance.choice(("restore", "restore", "restore", "torn", "outage", "gone")):
        case "restore":
            return [Fault("kill_all", 0.0, "", 0.3, moment="chain", nth=nth), _in_restore(chance, names)]
        case "torn":
            return [
                Fault("store_torn", 0.0, "", 60.0, 1.0),
                Fault("kill_all", 0.0, "", 0.3, moment="part", nth=chance.randint(1, 24)),
            ]
        case "outage":
            kind = chance.choice(("store_unsent", "store_reply_lost"))
            return [Fault(kind, 0.0, "", 20.0, 1.0, moment=chance.choice(("chain", "rows")), nth=nth - 1)]
    return [Fault("kill", 0.0, chance.choice(names), 100.0, moment="chain", nth=nth)]


def _in_restore(chance: random.Random, names: list[str]) -> Fault:
    kind = chance.choice(("kill", "kill_controller", "network_lost", "network_broken", "store_cut", "store_unsent"))
    if kind.startswith("kill"):
        target, nth = (chance.choice(names) if kind == "kill" else ""), chance.choice((1, 2, 3, 4))
        return Fault(kind, 0.0, target, 0.3, moment=chance.choice(("stage", "activate")), nth=nth)
    if kind.startswith("network"):
        return Fault(kind, 0.0, "", 1.0, 0.3, moment=chance.choice(("stage", "activate")), nth=1)
    return Fault(kind, 0.0, "", 12.0, 1.0, moment="stage", nth=1)


KINDS = (
    *(("kill",) * 4), *(("kill_controller",) * 2), *(("kill_all",) * 2), "rival", "hang", "hang_controller",
    "partition",
    *(("network",) * 2), *(("store",) * 3),
)  # fmt: skip
MOMENTS = ("prepare", "commit", "renew", "resume", "abort", "adopt", "stage", "activate", "submit", "release", "retire",
           "chain", "manifest", "part", "rows", "tool", "seed", "verify", "generate", "answered", "settled",
           "claimed")  # fmt: skip
"""After which a fault may strike at once: a control call was answered, an object is written, something was done."""


def _timed(chance: random.Random, names: list[str], at: float) -> Fault:
    """At some time, or at the n-th of some moments: a round is short, and all its steps are to be met."""
    fault = _draw_fault(chance, names, at)
    if chance.random() < 0.4:
        return fault
    return dataclasses.replace(fault, moment=chance.choice(MOMENTS), nth=chance.choice((1, 1, 2, 3, 5, 8)))


def _draw_fault(chance: random.Random, names: list[str], at: float) -> Fault:
    kind = chance.choice(KINDS)
    away_s = chance.choice((0.05, 0.3, 1.0, 5.0))
    match kind:
        case "kill" | "hang":
            return Fault(kind, at, chance.choice(names), away_s)
        case "kill_controller" | "hang_controller" | "kill_all":
            return Fault(kind, at, "", away_s)
        case "rival":
            return Fault(kind, at, chance.choice(("", BESIDE)))
        case "partition":
            cut = [name for name in [*names, "controller"] if chance.random() < 0.4] or names[:1]
            return Fault(kind, at, " ".join(cut), away_s)
        case "network":
            rate = chance.choice((0.02, 0.1, 0.3))
            return Fault(f"network_{chance.choice(NETWORK_FAULTS)}", at, "", away_s, rate)
    rate = chance.choice((0.05, 0.3, 1.0))
    return Fault(f"store_{chance.choice(STORE_FAULTS)}", at, "", away_s, rate)
