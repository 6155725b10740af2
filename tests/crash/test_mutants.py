"""The enumeration of crash states finds the faults that it is there for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from store import claim
from tests.support.file_ops import RecordingOps
from tests.support.rounds import Round

from .conftest import Tally
from .explore import Verdicts, explore
from .mutants import (
    NoFileSync,
    NoFolderSync,
    NoParentSync,
    SyncBeforeWrite,
    Unsynced,
    delete_then_plan,
    in_place,
    name_first,
)
from .scenes import PRUNED, TWO, explore_opening, explore_scene
from .stage import MakeBackend, on_stage, plain_backend

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

MakeOps = Callable[[], RecordingOps]
PLANTED: list[tuple[str, MakeOps, MakeBackend]] = [
    *((scene, NoFileSync, plain_backend) for scene in ("commit", "claim", "seal", "prune", "opening")),
    *((scene, NoFolderSync, plain_backend) for scene in ("commit", "claim", "seal", "prune", "opening")),
    *((scene, SyncBeforeWrite, plain_backend) for scene in ("commit", "claim")),
    ("commit", NoParentSync, plain_backend),
    ("commit", lambda: Unsynced("blobs"), plain_backend),
    ("commit", lambda: Unsynced("checkpoints"), plain_backend),
    ("commit", lambda: Unsynced("chain"), plain_backend),
    ("prune", lambda: Unsynced("chain"), plain_backend),
    *((scene, RecordingOps, name_first) for scene in ("commit", "claim")),
    *((scene, RecordingOps, in_place) for scene in ("commit", "claim")),
]


@pytest.mark.enumerated(4)
@pytest.mark.parametrize(("scene", "ops", "make"), PLANTED)
async def test_a_planted_fault_leaves_a_state_that_is_refused(
    scene: str, ops: MakeOps, make: MakeBackend, tmp_path: Path
) -> None:
    """A backend that skips a sync, or names before it writes, has a crash state that is neither before nor after."""
    last = 0 if make is plain_backend else 30  # a missing sync shows at the end, a wrong order only on the way
    if scene == "opening":
        tried = await explore_opening(tmp_path, ops(), make)
    else:
        tried = await explore_scene(scene, tmp_path, ops(), make, last=last)
    assert tried.problems
    assert not any(problem.startswith("never seen") for problem in tried.problems)


async def test_a_deletion_before_its_plan_is_found(tmp_path: Path, tally: Tally) -> None:
    """A prune that deletes first leaves a published checkpoint that does not verify."""
    async with on_stage(tmp_path / "stage") as stage:
        async with claim(stage.store) as controller:
            await Round(stage.store, controller, 1).run()
            await Round(stage.store, controller, 2).run()
        await stage.begin()
        await delete_then_plan(stage.store)
        await stage.end()
        tried = await explore(stage, Verdicts([TWO, PRUNED], {}), tmp_path, go_on=_nothing)
    assert any("missing" in problem for problem in tried.problems)
    tally("planted crash-state faults found", f"{len(PLANTED) + 1} of {len(PLANTED) + 1}")


async def _nothing(root: Path, found: object) -> None:
    """Look only."""
