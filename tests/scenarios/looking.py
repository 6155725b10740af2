"""What the scenarios look at: who a checkpoint waits for, and what stands in it."""

from collections.abc import Callable
from typing import Any

import anyio

from orchestrator.rounds import Round
from store import Life, open_checkpoint
from tests.support.waiting import until_asked

from .controller import Controller, Standing
from .tasks import Task


async def _nothing(_: Round) -> None:
    """The default of what happens while everything stands still."""


async def blocked_checkpoint(
    controller: Controller, let_go: Callable[[], None], standing: Standing = _nothing
) -> tuple[set[tuple[str, Life, str]], Round]:
    """Take a checkpoint that must wait; whom it waits for (participant, life, step), and what it came to in the end.

    `let_go` is called once it waits, `standing` is awaited while everything stands still.
    """
    taken: list[Round] = []

    async def take() -> None:
        taken.append(await controller.checkpoint(standing))

    async with anyio.create_task_group() as group:
        group.start_soon(take)
        await until_asked(controller.waits_for)
        blockers = await controller.waits_for()
        let_go()
    return {(blocker.participant, blocker.life, blocker.step) for blocker in blockers}, taken[0]


async def exported(controller: Controller, taken: Round) -> dict[str, dict[str, Any]]:
    """The state of each record of a checkpoint, by kind and rollout."""
    assert taken.published is not None
    opened = await open_checkpoint(controller.store, taken.published)
    found: dict[str, dict[str, Any]] = {}
    for process in opened.processes:
        async with opened.records([process]) as records:
            async for record in records:
                found.setdefault(process.name.kind, {})[record.life.rollout_id] = record.payload["state"]
    return found


async def state_of(controller: Controller, taken: Round, kind: str) -> Any:
    """The state of the one record of a kind."""
    [state] = (await exported(controller, taken))[kind].values()
    return state


def said(controller: Controller, task: Task) -> list[Any]:
    """The output of a rollout without the names that its items have, which come from the rollout's own."""
    row = controller.output[task.rollout_id].row
    assert row is not None
    named = {"id", "call_id"}
    return [{key: value for key, value in item.items() if key not in named} for item in row["response"]["output"]]
