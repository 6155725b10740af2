"""What each cell of the matrix begins with: four rollouts at different stages, and a stage that can hold a publication.

`CUT` is in the middle of a generation, `LATER` waits for its third model call, `MOVING` for its second one, which is
let go after the older checkpoint, so that it is further than that; `DONE` has a result that nobody has taken.
The first and the third belong to worker 1 of two, the others to worker 0.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.rounds import RoundLimits
from store import Backend, Store
from store.layout import parse_entry_key
from tests.support.backend import Call
from tests.support.gated_counter import Gates
from tests.support.interposed import InterposedBackend

from ..breaking import Act, nothing
from ..controller import LIMITS, Controller
from ..seen import Seen, seen_by
from ..stage import Stage
from ..tasks import Task

CUT, LATER, MOVING, DONE = Task(0, filler=40), Task(4), Task(1), Task(5)
TASKS = (CUT, LATER, MOVING, DONE)
CUT_AT = 6
PATIENT = replace(LIMITS, prepare_timeout_s=45, publish_timeout_s=45)
TOOLS_BEFORE = 1 + 2 + 1 + 3
"""Tool calls until everybody is at its place."""


class HoldingBackend(InterposedBackend):
    """Lets something happen right before the chain entry of a publication is made, once that is armed."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner, 0, nothing)
        self.act: Act | None = None

    async def create(self, key: str, data: bytes) -> None:
        if self.act is not None and parse_entry_key(key) is not None:
            act, self.act = self.act, None
            await act()
        await self.inner.create(key, data)


@dataclass(slots=True)
class Plot(Stage):
    """The stage of one cell."""

    backends: list[HoldingBackend] = field(default_factory=list)
    """Of the store, as each controller has opened it."""
    limits: RoundLimits = PATIENT
    """Of the checkpoint that a phase is a part of."""
    earlier: list[Call] = field(default_factory=list)
    """What inference backends saw that were killed since."""

    @property
    def gates(self) -> Gates:
        """They hold the counter in the middle of a round."""
        return Gates(self.folder / "gates")

    def set_up(self) -> None:
        """Let the counter be held by the gates."""
        self.resources = "tests.support.gated_counter:GatedCounter"
        self.counter = {"gates": str(self.gates.folder)}

    def open_store(self) -> Any:
        """The store, over a backend that can hold a publication."""
        return self._held()

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[Store]:
        async with Stage.open_store(self) as store:
            self.backends.append(HoldingBackend(store.backend))
            yield replace(store, backend=self.backends[-1])

    def let_go(self) -> None:
        """Hold the counter nowhere."""
        for path in (self._tool_hold, *(self.gates.folder / point for point in ("commit", "stage", "activate"))):
            path.unlink(missing_ok=True)

    def seen(self) -> Seen:
        """What happened so far, before all backends."""
        return seen_by([*self.earlier, *self.backend.control.calls()], self.counter_log)


async def begin(plot: Plot, controller: Controller, *, tool: bool = False) -> None:
    """Bring the rollouts to their places, and take the older checkpoint. With `tool`, MOVING ends in a tool call."""
    plot.hold(CUT, call=2, after_tokens=CUT_AT)
    plot.hold(LATER, call=3)
    moving = plot.hold(MOVING, call=2)
    lives = await controller.submit(TASKS)
    await plot.held(3)
    await controller.wait(lives[-1])
    await controller.checkpoint()
    if tool:
        plot.hold_tools(f"tool {MOVING.amount(2)}")
    plot.hold(MOVING, call=3)
    plot.release(moving)
    await plot.logged(TOOLS_BEFORE + 1)
    await plot.held(2 if tool else 3)
