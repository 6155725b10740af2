"""A controller in a process of its own, killed by SIGKILL at the point that it is told: run by `breaking.doom`."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import orjson

from orchestrator.coordination import renew
from orchestrator.rounds import Round
from participants import Activate
from store import Backend, Store
from store.layout import parse_entry_key
from tests.support.backend import Control
from tests.support.fleet import Server
from tests.support.interposed import InterposedBackend

from .breaking import acting
from .controller import Controller
from .stage import Stage
from .tasks import Task

LEASE_S = 1.5
"""What is left of each lease when the controller dies."""


async def die() -> None:
    """By SIGKILL, at once."""
    os.kill(os.getpid(), signal.SIGKILL)
    await anyio.sleep_forever()


class DyingBackend(InterposedBackend):
    """Dies once an entry of the chain stands, where that is armed."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner, 0, die)
        self.armed = False

    async def create(self, key: str, data: bytes) -> None:
        await self.inner.create(key, data)
        if self.armed and parse_entry_key(key) is not None:
            await die()


@dataclass(slots=True)
class DoomedStage(Stage):
    """The parent's stage, as far as a controller needs it."""

    backends: list[DyingBackend] = field(default_factory=list)

    def open_store(self) -> Any:
        """The store, over a backend that can die."""
        return self._dying()

    @asynccontextmanager
    async def _dying(self) -> AsyncIterator[Store]:
        async with Stage.open_store(self) as store:
            self.backends.append(DyingBackend(store.backend))
            yield replace(store, backend=self.backends[0])


async def _begun(controller: Controller, order: Mapping[str, Any]) -> None:
    """A rollout with its second call held, which the parent has seen to."""
    await controller.submit([Task(0)])
    await anyio.to_thread.run_sync(lambda: Control(order["backend"]).wait(held=1))


async def prepared(stage: DoomedStage, controller: Controller, order: Mapping[str, Any]) -> None:
    """Everything stands still, for as long as the leases last."""
    await _begun(controller, order)

    async def standing(opened: Round) -> None:
        await renew(controller.fleet, opened.id, lease_s=LEASE_S)
        await die()

    await controller.checkpoint(standing)


async def entry(stage: DoomedStage, controller: Controller, order: Mapping[str, Any]) -> None:
    """The chain entry stands, and nobody has heard of it."""
    await _begun(controller, order)

    async def standing(_: Round) -> None:
        stage.backends[0].armed = True

    await controller.checkpoint(standing)


async def staged(stage: DoomedStage, controller: Controller, order: Mapping[str, Any]) -> None:
    """All have staged, and none was told to activate."""
    acting(controller, Activate, before={member.name: die for member in controller.fleet.members})
    await controller.restore_head()


async def activating(stage: DoomedStage, controller: Controller, order: Mapping[str, Any]) -> None:
    """One has activated, and the others were not told to."""
    first, *others = [member.name for member in controller.fleet.members]
    acting(controller, Activate, before=dict.fromkeys(others, anyio.sleep_forever), after={first: die})
    await controller.restore_head()


POINTS: dict[str, Callable[[DoomedStage, Controller, Mapping[str, Any]], Awaitable[None]]] = {
    run.__name__: run for run in (prepared, entry, staged, activating)
}


async def main(order: Mapping[str, Any]) -> None:
    """Take over, and die."""
    folder = Path(order["folder"])
    servers = {role: Server(role, {}, folder, port=port) for role, port in order["ports"].items()}
    stage = DoomedStage(folder, None, servers=servers, token=order["token"])  # type: ignore[arg-type]
    async with stage.controller(restore=False) as controller:
        await POINTS[order["point"]](stage, controller, order)


if __name__ == "__main__":
    anyio.run(main, orjson.loads(sys.argv[1]))
