"""Who is killed and when: a function of the seed."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

BACKEND = "backend"
BACKEND_SHARE = 0.05
"""Of the kills."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One kill."""

    after_s: float
    """From the kill before."""
    fleet: str
    """Empty for the backend."""
    victim: str
    draw: float
    """In [0, 1): which one of several."""


def strikes(seed: int, mean_s: float, victims: Mapping[str, Mapping[str, float]]) -> Iterator[Strike]:
    """Without end. `victims` has for each fleet what is killed there, and its share of that fleet's kills."""
    chance = random.Random(f"soak {seed}")
    fleets = sorted(victims)
    while True:
        after_s = chance.uniform(0.4, 1.6) * mean_s
        hits_backend, fleet, draw = chance.random() < BACKEND_SHARE, chance.choice(fleets), chance.random()
        shares = victims[fleet]
        [victim] = chance.choices(list(shares), list(shares.values()))
        yield Strike(after_s, "", BACKEND, draw) if hits_backend else Strike(after_s, fleet, victim, draw)
