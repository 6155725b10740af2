"""Every schedule of two or three actors, with every lost, late and failed request: the chain keeps its promises.

What holds in each state is in `oracle`, what a schedule is in `tests.support.scheduler`.
"""

import pytest

from .scenarios import LARGE, SCENES, SMALL
from .worlds import Explored, explore


@pytest.mark.enumerated(4)
@pytest.mark.unit
@pytest.mark.parametrize("scene", SMALL)
def test_no_schedule_breaks_a_promise(scene: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Few faults, in every place; after each step the chain, what it names and what each actor was told agree."""
    expect_no_violation(scene, SMALL[scene], capsys)


@pytest.mark.scale
@pytest.mark.timeout(300)
@pytest.mark.parametrize("scene", LARGE)
def test_no_schedule_with_more_faults_breaks_a_promise(scene: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same with more faults at once, and with three actors that write."""
    expect_no_violation(scene, LARGE[scene], capsys)


def expect_no_violation(scene: str, faults: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Explore, say how much there was, and make sure that each kind of fault was among it."""
    chosen = SCENES[scene]()
    explored = explore(chosen.world, chosen.plays, faults=faults)
    with capsys.disabled():
        print(f"\n{scene}, up to {faults} faults: {explored}")  # noqa: T201
    assert_thorough(explored, faults)


def assert_thorough(explored: Explored, faults: int) -> None:
    """An exploration in which nothing went wrong, or nobody was ever overtaken, would prove nothing."""
    tally = explored.tally
    assert tally.schedules > tally.ends > 1
    assert explored.outcomes > 1
    kinds = {"answered"}
    if faults:
        kinds |= {"lost", "arrived late", "given up after sending", "given up unsent"}
    assert {kind for kind, count in tally.kinds.items() if count} == kinds
