"""After a power loss at any moment a reader finds the state before or after, and the next round works."""

from pathlib import Path

import pytest

from tests.support.crash_states import THOROUGH
from tests.support.oplog import SerialRecordingOps
from tests.support.tiers import with_slow

from .conftest import Tally
from .scenes import SCENES, explore_opening, explore_scene
from .stage import wide_backend

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("name", with_slow(SCENES, {"prune"}))
async def test_every_crash_state_is_the_one_before_or_the_one_after(name: str, tmp_path: Path, tally: Tally) -> None:
    """Whatever the disk lost, all that is published verifies, and what had returned is there."""
    tried = await explore_scene(name, tmp_path)
    tally(f"crash states of {name}", tried)
    assert not tried.problems, "\n".join(tried.problems)


@pytest.mark.unit
async def test_every_crash_state_of_a_first_opening_can_be_opened(tmp_path: Path, tally: Tally) -> None:
    """A root that was half made is no store yet and is made again; one that was opened stays."""
    tried = await explore_opening(tmp_path)
    tally("crash states of opening", tried)
    assert not tried.problems, "\n".join(tried.problems)


@pytest.mark.scale
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("in_flight", [1, 16])
@pytest.mark.parametrize("name", SCENES)
async def test_many_more_crash_states_are_as_good(name: str, in_flight: int, tmp_path: Path, tally: Tally) -> None:
    """Larger sets of lost changes in full and more of a sample, of calls made one by one and many at a time."""
    ops = SerialRecordingOps()
    tried = await explore_scene(name, tmp_path, ops, wide_backend, THOROUGH, in_flight=in_flight)
    tally(f"crash states of {name}, {in_flight} calls at a time", tried)
    assert not tried.problems, "\n".join(tried.problems)
