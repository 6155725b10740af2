"""Simulates until something shows, inside the copy: as tests/proof does, but without making a failing seed smaller."""

from typing import Any

from tests.proof.checker import check
from tests.proof.controllers import rollouts_of
from tests.proof.planted import PLANTED
from tests.proof.scenario import Scenario, draw
from tests.proof.simulation import simulate

from .mutant import Seeds


def look(seeds: Seeds) -> dict[str, Any]:
    """The first seed that shows something, and which invariant; how many were tried."""
    for tried, seed in enumerate(range(seeds.first, seeds.first + seeds.count), 1):
        scenario = _scenario(seeds.scenario, seed)
        if found := check(simulate(scenario), rollouts_of(scenario)):
            return {"seed": seed, "seeds": tried, "invariant": found[0].invariant}
    return {"seeds": seeds.count}


def _scenario(name: str, seed: int) -> Scenario:
    return PLANTED[name].scenario.smaller(seed=seed) if name else draw(seed)
