"""One cell: drive to the phase, kill the victim there, do what the contract says, run to the end, and check.

What the contract says of a controller that has lost a server, or is a new one: claim, adopt what is whole, end the
rest and restore it from the head, or start it over. One that has lost a backend or a store goes on; a restore that
failed it does again.
"""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from participants.wire import Finished
from store import verify_store
from store.reader import published
from tests.support.backend import RunningBackend
from tests.support.seaweed import KillableSeaweed

from ..breaking import going_on, phases
from ..controller import Controller
from .checks import Again, again, problems, told
from .doomed import drive_and_die
from .phases import Phase
from .plot import PATIENT, TASKS, Plot, begin
from .victims import Scene, Victim


@dataclass(frozen=True, slots=True)
class Result:
    """What a cell has shown."""

    victim: str
    phase: str
    outcome: str
    """Of the operation in which the victim died."""
    adopted: int
    restored: int
    started_over: int
    again: Again
    lost: int
    seconds: float
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        counts = {"lived on": self.adopted, "restored": self.restored, "started over": self.started_over}
        went = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "nothing to do"
        wrong = "".join(f"; WRONG: {problem}" for problem in self.problems)
        return f"{self.outcome}; {went}; again {self.again}; lost: {self.lost}{wrong}"

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


@dataclass(slots=True)
class Ending:
    """How the rollouts went on and ended."""

    results: list[Finished]
    adopted: int
    restored: int
    started_over: int


async def run_cell(
    victim: Victim, phase: Phase, folder: Path, backend: RunningBackend, seaweed: KillableSeaweed | None
) -> tuple[Result, RunningBackend]:
    """Run one in an empty folder; with the backend that is there now. Raises AssertionError where it gets stuck."""
    began = time.monotonic()
    backend.control.reset()
    s3 = replace(seaweed.server, prefix=folder.name) if seaweed and victim.s3 else None
    plot = Plot(folder, backend, (victim.workers,), s3)
    plot.set_up()
    try:
        outcome, ending = await _killed(victim, phase, Scene(plot, seaweed))
        seen = plot.seen()
        wrong = problems(TASKS, ending.results, seen)
        wrong += await _older_restores(plot)
    finally:
        plot.end()
    counts = (ending.adopted, ending.restored, ending.started_over)
    lost = sum(problem.endswith("was lost") for problem in wrong)
    seconds = round(time.monotonic() - began, 1)
    found = Result(victim.name, phase.name, outcome, *counts, again(seen), lost, seconds, tuple(wrong))
    return found, plot.backend


async def _killed(victim: Victim, phase: Phase, scene: Scene) -> tuple[str, Ending]:
    plot = scene.plot
    await plot.start()
    if phase.restores:
        await crash_after_a_checkpoint(plot)
    if victim.is_controller:
        failed = await drive_and_die(plot, phase)
        assert not failed, failed
        outcome = "died with it"
    else:
        async with plot.controller(restore=False) as controller:
            outcome = await _outcome(victim, phase, scene, controller)
            plot.let_go()
            await victim.mend(victim, scene)
            if victim.stays:
                return outcome, await _go_on(plot, controller, phase)
    plot.let_go()
    async with plot.controller(adopts=True) as controller:
        return outcome, await end(plot, controller)


async def crash_after_a_checkpoint(plot: Plot) -> None:
    async with plot.controller(restore=False) as controller:
        await begin(plot, controller)
        await controller.checkpoint(limits=PATIENT)
    await plot.crash()
    await plot.start()


async def _outcome(victim: Victim, phase: Phase, scene: Scene, controller: Controller) -> str:
    """Drive it; what became of the operation. Raises AssertionError for what is no outcome."""
    struck = False

    async def strike() -> None:
        nonlocal struck
        struck = True
        await victim.kill(victim, scene)

    failure: Exception | None = None
    try:
        await phase.drive(scene.plot, controller, strike)
    except AssertionError:
        raise
    except Exception as error:  # Whatever it raises is what the cell tells.
        failure = error
    assert struck, f"{phase.name} was never reached: {failure!r}"
    return phase.done if failure is None else told(failure)


async def _go_on(plot: Plot, controller: Controller, phase: Phase) -> Ending:
    if phase.restores and not controller.restored:
        await controller.restore_head()
    return await end(plot, controller)


async def end(plot: Plot, controller: Controller) -> Ending:
    """Dispatch what is left, take a checkpoint of all, let all go, and deliver it. Raises AssertionError."""
    counts = len(controller.open), len(controller.restored), len(controller.restarts)
    left = [task for task in TASKS if task.rollout_id not in controller.open]
    await controller.submit(left)
    await controller.checkpoint(limits=PATIENT)
    plot.release()
    waited = list(controller.open.values())
    await controller.deliver()
    left_over = await going_on(controller)
    assert not left_over, f"servers are not idle: {left_over}"
    assert await phases(controller) == {"idle"}
    return Ending([controller.results[life] for life in waited], *counts)


async def _older_restores(plot: Plot) -> list[str]:
    """The first checkpoint, after the last one: it runs to its end again. All that was published verifies."""
    plot.output = {}
    async with plot.controller(restore=False) as controller:
        [older, *_] = published(await controller.store.chain())
        await controller.restore_head(older)
        lives = await controller.go_on(TASKS)
        await controller.deliver()
        wrong = [f"{life} was delivered again" for life in controller.results if life not in lives]
        wrong += [f"{r.life} of the older checkpoint: {r.failure}" for r in plot.output.values() if r.row is None]
        wrong += [f"{r.life}: reward {r.row['reward']}" for r in plot.output.values() if r.row and r.row["reward"] != 1]
        report = await verify_store(controller.store, deep=True)
        wrong += [str(finding) for finding in report.findings if not report.sound]
    return wrong
