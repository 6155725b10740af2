"""One test in two tiers: a few of its cases in the quick one, which leaves nothing untried in the slow one."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def sampled(step: int) -> pytest.MarkDecorator:
    """Give a test the argument `step`: this many in the tier `unit`, and 1, which leaves out nothing, in `scale`."""
    few = pytest.param(step, marks=pytest.mark.unit, id="some")
    every = pytest.param(1, marks=[pytest.mark.scale, pytest.mark.timeout(600)], id="each")
    return pytest.mark.parametrize("step", [few, every])


def with_slow(cases: Iterable[Any], slow: Collection[Any]) -> list[Any]:
    """Cases of a parametrisation, each in the tier `unit` but for the slow ones, which are in `scale`."""
    scale = [pytest.mark.scale, pytest.mark.timeout(600)]
    return [pytest.param(case, marks=scale if case in slow else pytest.mark.unit) for case in cases]
