"""After a power loss at any moment a reader finds the state before or after, and the next round works."""

from pathlib import Path

import pytest

from .conftest import Tally
from .scenes import SCENES, explore_opening, explore_scene

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


@pytest.mark.parametrize("name", SCENES)
async def test_every_crash_state_is_the_one_before_or_the_one_after(name: str, tmp_path: Path, tally: Tally) -> None:
    """Whatever the disk lost, all that is published verifies, and what had returned is there."""
    tried = await explore_scene(name, tmp_path)
    tally(f"crash states of {name}", tried)
    assert not tried.problems, "\n".join(tried.problems)


async def test_every_crash_state_of_a_first_opening_can_be_opened(tmp_path: Path, tally: Tally) -> None:
    """A root that was half made is no store yet and is made again; one that was opened stays."""
    tried = await explore_opening(tmp_path)
    tally("crash states of opening", tried)
    assert not tried.problems, "\n".join(tried.problems)
