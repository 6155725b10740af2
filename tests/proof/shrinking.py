"""A failing scenario, made smaller: faults and rollouts go one by one while the same invariant still fails."""

import time
from collections.abc import Iterator

from .checker import check
from .controllers import rollouts_of
from .findings import Violation
from .scenario import Scenario
from .simulation import simulate

MOST_TRIES = 60
LONGEST_S = 60.0
"""A run that does not come to its end takes many times what others do: the seed is to be told of all the same."""


def shrink(scenario: Scenario, invariant: int) -> tuple[Scenario, list[Violation]]:
    """The smallest scenario that is found in a minute and still breaks this invariant, and how."""
    began = time.monotonic()
    found = _breaks(scenario, invariant)
    tries = 0
    while found:
        for smaller in _smaller(scenario):
            if tries >= MOST_TRIES or time.monotonic() - began > LONGEST_S:
                return scenario, found
            tries += 1
            if again := _breaks(smaller, invariant):
                scenario, found = smaller, again
                break
        else:
            break
    return scenario, found


def _breaks(scenario: Scenario, invariant: int) -> list[Violation]:
    found = check(simulate(scenario), rollouts_of(scenario))
    return [violation for violation in found if violation.invariant == invariant]


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    for place in range(len(scenario.faults)):
        yield scenario.smaller(faults=(*scenario.faults[:place], *scenario.faults[place + 1 :]))
    for place in range(len(scenario.amounts) if len(scenario.amounts) > 1 else 0):
        yield scenario.smaller(amounts=(*scenario.amounts[:place], *scenario.amounts[place + 1 :]))
    for role, count in scenario.workers.items():
        if count > 1 and not any(fault.target.startswith(role) for fault in scenario.faults):
            yield scenario.smaller(workers={**scenario.workers, role: 1})
    if scenario.loose:
        yield scenario.smaller(loose=False)
    if scenario.skewed:
        yield scenario.smaller(skewed=False)
