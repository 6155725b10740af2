"""A process that was started anew: calls of older lives wait until a controller has decided which of them go on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from participants import Code, ControlPlane, Floor, ParticipantError
from participants.wire import Adopt, Prepare, Resume, Retire
from store import Life
from tests.support.checkpoints import memory_store
from tests.support.owners import ON_PUSHED_LOOP, Notebook, controlled, lives, notebook, round_id, settle

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LOST, FIRST = lives(2)
"""One has had a call here before the process was started anew, the other makes its first."""
NEW = Life("r9", 2, 0, 0)


@pytest.fixture
def anyio_backend() -> Any:
    """A clock to push."""
    return ON_PUSHED_LOOP


@dataclass
class Anew:
    """A process of a server that has just come up, and what became of the calls that it was sent."""

    owner: Notebook
    plane: ControlPlane
    group: TaskGroup
    run: str
    outcomes: dict[Life, str] = field(default_factory=dict)

    def envelope(self, epoch: int, **fields: Any) -> dict[str, Any]:
        """Of a control call."""
        return {"run": self.run, "epoch": epoch, "incarnation": self.plane.book.incarnation, **fields}

    async def adopt(self, epoch: int, floor: Floor | None = None) -> None:
        """By a controller that lets everything go on, unless it says otherwise."""
        await self.plane.adopt(Adopt(run=self.run, epoch=epoch, floor=floor or Floor()))

    async def retire(self, epoch: int, *ended: Life) -> None:
        """The decision."""
        await self.plane.retire(Retire(**self.envelope(epoch), lives=ended, timeout_s=1))
        await settle()

    async def call(self, *callers: Life) -> None:
        """From each of these lives, at once."""
        for life in callers:
            self.group.start_soon(self._call, life)
        await settle()

    async def _call(self, life: Life) -> None:
        try:
            await self.owner.write(life, "a", creates=True)
            self.outcomes[life] = "done"
        except ParticipantError as error:
            self.outcomes[life] = error.code.value


@asynccontextmanager
async def anew() -> AsyncIterator[Anew]:
    """Nobody has adopted it yet."""
    owner, store = notebook(), memory_store()
    owner.needs_adoption = True
    async with controlled(owner, store).run() as plane, anyio.create_task_group() as group:
        yield Anew(owner, plane, group, store.run_id)
        group.cancel_scope.cancel()


async def test_what_a_controller_had_no_time_to_end_is_ended_by_the_next_one() -> None:
    """The first one dies after its adopt: nothing is carried out a second time, and what is whole goes on."""
    async with anew() as process:
        await process.adopt(2)
        await process.call(LOST, FIRST)
        await process.adopt(3)
        await settle()
        assert (process.outcomes, process.owner.counts()["lives"]) == ({}, 0)
        await process.retire(3, LOST)
        assert process.outcomes == {LOST: Code.STALE_LIFE.value, FIRST: "done"}
        await process.call(Life("r8", 1, 0, 8))
        assert process.outcomes.popitem()[1] == "done"


async def test_a_decision_to_end_nothing_lets_everybody_go_on() -> None:
    """It is a retire, too."""
    async with anew() as process:
        await process.adopt(2)
        await process.call(LOST, FIRST)
        await process.retire(2)
        assert process.outcomes == {LOST: "done", FIRST: "done"}


async def test_a_prepare_lets_everybody_go_on() -> None:
    """Whoever takes a checkpoint has decided; until the resume admission is closed, as always."""
    async with anew() as process:
        await process.adopt(2)
        await process.call(FIRST)
        of_round = process.envelope(2, round=round_id(epoch=2))
        await process.plane.prepare(Prepare(**of_round, timeout_s=1, lease_s=9))
        await process.plane.resume(Resume(**of_round))
        await settle()
        assert process.outcomes == {FIRST: "done"}


async def test_a_floor_ends_those_that_wait() -> None:
    """A controller that lets nothing go on says so with its adopt."""
    async with anew() as process:
        await process.adopt(2)
        await process.call(LOST)
        await process.adopt(3, Floor(3, 0))
        await settle()
        assert process.outcomes == {LOST: Code.STALE_LIFE.value}


async def test_lives_of_the_epoch_itself_never_wait() -> None:
    """They began after the process did."""
    async with anew() as process:
        await process.adopt(2)
        await process.call(NEW)
        assert process.outcomes == {NEW: "done"}


async def test_what_began_after_the_process_waits_for_no_controller() -> None:
    """Its first controller may have said nothing but its adopt: nothing of its own epoch can be lost."""
    async with anew() as process:
        await process.adopt(2)
        await process.adopt(3)
        await process.call(NEW)
        assert process.outcomes == {NEW: "done"}


async def test_a_process_that_was_there_all_the_time_has_lost_nothing() -> None:
    """Its calls go on while controllers come and go."""
    async with anew() as process:
        await process.adopt(1)
        await process.retire(1)
        await process.adopt(2)
        await process.call(FIRST)
        assert process.outcomes == {FIRST: "done"}
