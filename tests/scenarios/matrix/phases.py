"""The phases in which somebody is killed: each drives one operation of the controller to the point, and lets it go on.

What an operation raises is the cell's outcome; `strike` kills the victim, or everything ends with it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from orchestrator.rounds import Round
from tests.support.waiting import until_asked

from ..breaking import Act, until_phase
from ..controller import RESULT_S, Controller, bare_errors
from .plot import Plot, begin

Drive = Callable[[Plot, Controller, Act], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Phase:
    """One column."""

    name: str
    drive: Drive
    what: str
    """Where exactly, for the docs."""
    restores: bool = False
    """It is a part of a restore into fresh servers; the others are those of a checkpoint."""
    done: str = "went on"
    """The outcome where nothing was raised."""


async def idle(plot: Plot, controller: Controller, strike: Act) -> None:
    """No operation is open."""
    await begin(plot, controller)
    await strike()


async def preparing(plot: Plot, controller: Controller, strike: Act) -> None:
    """A tool call in flight is waited for."""
    await begin(plot, controller, tool=True)

    async def waits() -> None:
        await until_asked(controller.waits_for, RESULT_S)

    await _during(plot, _checkpoint(plot, controller), waits, strike)


async def prepared(plot: Plot, controller: Controller, strike: Act) -> None:
    """Everybody stands still."""
    await begin(plot, controller)
    await _checkpoint(plot, controller, strike)()


async def committing(plot: Plot, controller: Controller, strike: Act) -> None:
    """The counter is held in the middle of its commit."""
    await begin(plot, controller)
    plot.gates.shut("commit")

    async def reached() -> None:
        await plot.gates.reached("commit")

    await _during(plot, _checkpoint(plot, controller), reached, strike)


async def publishing(plot: Plot, controller: Controller, strike: Act) -> None:
    """All have committed and work on; the manifest stands, and its chain entry is about to be made."""
    await begin(plot, controller)
    plot.backends[-1].act = strike
    await _checkpoint(plot, controller)()


async def staging(plot: Plot, controller: Controller, strike: Act) -> None:
    """The counter is held in the middle of its import."""
    plot.gates.shut("stage")

    async def reached() -> None:
        await plot.gates.reached("stage")

    await _during(plot, controller.restore_head, reached, strike)


async def activating(plot: Plot, controller: Controller, strike: Act) -> None:
    """All have activated but the counter, which is held in it."""
    plot.gates.shut("activate", "block")

    async def reached() -> None:
        await plot.gates.reached("activate")
        await until_phase(controller, "restored", "resources")

    await _during(plot, controller.restore_head, reached, strike)


async def restored(plot: Plot, controller: Controller, strike: Act) -> None:
    """All have activated, and nobody was told to resume."""
    await controller.restore_head(standing=strike)


def _checkpoint(plot: Plot, controller: Controller, strike: Act | None = None) -> Act:
    async def standing(_: Round) -> None:
        if strike is not None:
            await strike()

    async def take() -> None:
        await controller.checkpoint(standing, limits=plot.limits)

    return take


async def _during(plot: Plot, operation: Act, reached: Act, strike: Act) -> None:
    """Run it; at the point strike, and let it go on. It never ends before that."""

    async def act() -> None:
        with anyio.CancelScope(shield=True):
            await reached()
            await strike()
            plot.let_go()

    async with bare_errors(), anyio.create_task_group() as group:
        group.start_soon(act)
        await operation()


PHASES = (
    Phase("idle", idle, "no operation is open", done="none was open"),
    Phase("preparing", preparing, "prepare waits for a tool call that is held"),
    Phase("prepared", prepared, "everybody stands still, and no commit was sent"),
    Phase("committing", committing, "the resources server is held in its commit"),
    Phase("publishing", publishing, "all work on; the controller is about to make the chain entry", done="published"),
    Phase("staging", staging, "fresh servers; the resources server is held in its import", restores=True),
    Phase("activating", activating, "all others have activated; the resources server is held in it", restores=True),
    Phase("restored", restored, "all have activated; none was told to resume", restores=True),
)
