"""The simulation finds what it is for: each planted bug shows in a few seeds, by an invariant that it breaks."""

import pytest

from .checker import check
from .controllers import rollouts_of
from .planted import PLANTED
from .simulation import simulate

pytestmark = pytest.mark.process

SEEDS = 8


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught(name: str) -> None:
    """In one of the first seeds, from the one on that its scenario has."""
    planted = PLANTED[name]
    first = planted.scenario.seed
    for seed in range(first, first + SEEDS):
        scenario = planted.scenario.smaller(seed=seed)
        found = check(simulate(scenario, planted()), rollouts_of(scenario))
        if any(violation.invariant in planted.breaks for violation in found):
            return
    pytest.fail(f"{name} is found in none of {SEEDS} seeds")
