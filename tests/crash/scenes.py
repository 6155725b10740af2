"""The pieces of work that are crashed at every operation, and what a reader may find after each."""

import math
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from store import CheckpointId, Retention, Segment, claim, prune
from store.backends import Retrying, probe
from store.root import load_format
from tests.support.crash_states import QUICK, Effort
from tests.support.file_ops import RecordingOps
from tests.support.rounds import PATIENT, Round, View, on_backend

from .explore import GoOn, Tried, Verdicts, explore, next_round_works, opening_works
from .stage import MakeBackend, Stage, on_stage, plain_backend

FIRST, SECOND = CheckpointId(1, 1), CheckpointId(1, 2)
ONE = View(head=FIRST, epoch=1, entries=2, cursors=((FIRST, 1),))
TWO = View(head=SECOND, epoch=1, entries=3, cursors=((FIRST, 1), (SECOND, 2)))
PRUNED = View(head=SECOND, epoch=1, entries=4, cursors=((SECOND, 2),))


@dataclass(frozen=True, slots=True)
class Scene:
    """One piece of work."""

    play: Callable[[Stage], Awaitable[None]]
    """Arranges, begins the recording, works, ends the recording."""
    verdicts: Verdicts
    go_on: GoOn = next_round_works


async def _commit(stage: Stage) -> None:
    async with claim(stage.store) as controller:
        await Round(stage.store, controller, 1).run()
        await stage.begin()
        second = Round(stage.store, controller, 2)
        await second.commit()
        await second.publish()
        stage.mark("published")
        await stage.end()


async def _claim(stage: Stage) -> None:
    async with claim(stage.store) as controller:
        await Round(stage.store, controller, 1).run()
    await stage.begin()
    async with claim(stage.store):
        stage.mark("claimed")
        await stage.end()


async def _seal(stage: Stage) -> None:
    async with claim(stage.store) as controller:
        await Round(stage.store, controller, 1).run()
        await stage.begin()
        await controller.seal([Segment(name="rows-1", length=10)])
        stage.mark("sealed")
        await stage.end()


async def _prune(stage: Stage) -> None:
    async with claim(stage.store) as controller:
        await Round(stage.store, controller, 1).run()
        await Round(stage.store, controller, 2).run()
    await stage.begin()
    report = await prune(stage.store, Retention(keep_last=1))
    stage.mark("pruned")
    assert report.deleted > 5
    assert not report.failures
    await stage.end()


SCENES = {
    "commit": Scene(_commit, Verdicts([ONE, TWO], {"published": 1})),
    "claim": Scene(_claim, Verdicts([ONE, replace(ONE.later(1), epoch=2)], {"claimed": 1})),
    "seal": Scene(_seal, Verdicts([ONE, ONE.later(1)], {"sealed": 1})),
    "prune": Scene(_prune, Verdicts([TWO, PRUNED, PRUNED.later(1)], {"pruned": 2})),
}
"""By name; opening is beside them, because it needs a stage without a store."""


async def explore_scene(
    name: str,
    folder: Path,
    ops: RecordingOps | None = None,
    make: MakeBackend = plain_backend,
    effort: Effort = QUICK,
    last: int = sys.maxsize,
    in_flight: int = 1,
    until: float = math.inf,
) -> Tried:
    """Play a scene in `folder` and try its crash states, those after the last so many operations; `until` as there."""
    scene = SCENES[name]
    async with on_stage(folder / "stage", ops, make, in_flight) as stage:
        await scene.play(stage)
        first = len(stage.log) - last
        return await explore(stage, scene.verdicts, folder, scene.go_on, effort, start=first, until=until)


async def explore_opening(
    folder: Path,
    ops: RecordingOps | None = None,
    make: MakeBackend = plain_backend,
    effort: Effort = QUICK,
    until: float = math.inf,
) -> Tried:
    """Open a fresh root in `folder` and try all its crash states; `until` as in `explore`."""
    root = folder / "stage"
    recorder = ops or RecordingOps()
    backend = make(root, recorder)
    await backend.make_root()
    retrying = Retrying(backend)
    stage = Stage(root, recorder, on_backend(retrying, run_id=""))
    await probe(retrying)
    await load_format(retrying, PATIENT, create=True)
    stage.mark("opened")
    await stage.end()
    views = [View("RootMissing"), View("NotAStore"), View()]
    return await explore(stage, Verdicts(views, {"opened": 2}), folder, opening_works, effort, until=until)
