"""One plane with a notebook, the calls of one controller to it, and calls that run beside a test."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from participants import Code, ControlPlane, Floor, ParticipantError
from participants.wire import (
    Abort,
    Activate,
    Adopt,
    Commit,
    Committed,
    Prepare,
    Renew,
    Resume,
    Retire,
    RoundCall,
    Stage,
)
from store import CheckpointId, Controller, Draft, Life, Ref, Store, claim

from .checkpoints import memory_store
from .owners import Notebook, controlled, lives, notebook

LIFE, OTHER = lives(2)


@dataclass
class Desk:
    """One plane, and the calls of one controller to it."""

    owner: Notebook
    plane: ControlPlane
    store: Store
    epoch: int = 1

    def call(self, kind: type[RoundCall], k: int = 1, **fields: Any) -> Any:
        """A call of round `<epoch>.<k>`."""
        return kind(**self._envelope(), round=CheckpointId(self.epoch, k), **fields)

    def _envelope(self) -> dict[str, Any]:
        return {"run": self.store.run_id, "epoch": self.epoch, "incarnation": self.plane.book.incarnation}

    def prepare(self, k: int = 1, *, timeout_s: float = 5, lease_s: float = 30) -> Awaitable[Any]:
        return self.plane.prepare(self.call(Prepare, k, timeout_s=timeout_s, lease_s=lease_s))

    def commit(self, k: int = 1, scope: tuple[Life, ...] = (LIFE,), parent: Ref | None = None) -> Awaitable[Committed]:
        return self.plane.commit(self.call(Commit, k, scope=scope, parent=parent))

    def renew(self, k: int = 1, lease_s: float = 30) -> Awaitable[Any]:
        return self.plane.renew(self.call(Renew, k, lease_s=lease_s))

    def resume(self, k: int = 1) -> Awaitable[Any]:
        return self.plane.resume(self.call(Resume, k))

    def abort(self, k: int = 1) -> Awaitable[Any]:
        return self.plane.abort(self.call(Abort, k))

    def stage(self, ref: Ref, k: int = 1, scope: tuple[Life, ...] = (LIFE,)) -> Awaitable[Any]:
        return self.plane.stage(self.call(Stage, k, checkpoint=ref, scope=scope))

    def activate(self, k: int = 1) -> Awaitable[Any]:
        return self.plane.activate(self.call(Activate, k))

    def retire(self, *lives: Life, timeout_s: float = 10) -> Awaitable[Any]:
        return self.plane.retire(Retire(**self._envelope(), lives=lives, timeout_s=timeout_s))

    async def adopt(self, epoch: int, floor: Floor | None = None) -> Any:
        answer = await self.plane.adopt(Adopt(run=self.store.run_id, epoch=epoch, floor=floor or Floor(epoch, 0)))
        self.epoch = epoch
        return answer

    @property
    def phase(self) -> str:
        return self.plane.status().phase


@asynccontextmanager
async def desk(store: Store | None = None, epoch: int = 1) -> AsyncIterator[Desk]:
    """An adopted plane with a fresh notebook."""
    owner, shared = notebook(), store or memory_store()
    async with controlled(owner, shared).run() as plane:
        made = Desk(owner, plane, shared)
        await made.adopt(epoch)
        yield made


async def published(store: Store, *notes: str, scope: tuple[Life, ...] = (LIFE,)) -> Ref:
    """A checkpoint that has these notes for each life of the scope."""
    async with claim(store, take_over=True) as controller, desk(store, controller.epoch) as at:
        for life in scope:
            for note in notes:
                await at.owner.write(life, note, creates=True)
        return await publish(at, controller, scope)


async def publish(at: Desk, controller: Controller, scope: tuple[Life, ...]) -> Ref:
    """One checkpoint of the one participant."""
    k = controller.next_round().k
    await at.prepare(k)
    committed = await at.commit(k, scope, controller.head)
    await at.renew(k)
    await at.resume(k)
    parent = controller.head.checkpoint if controller.head else None
    draft = Draft(
        checkpoint=CheckpointId(at.epoch, k), parent=parent, participants=[committed.manifest], scope=list(scope)
    )
    return await controller.publish(draft, timeout_s=10)


async def refused(asked: Awaitable[Any], code: Code) -> ParticipantError:
    with pytest.raises(ParticipantError) as caught:
        await asked
    assert caught.value.code is code, caught.value
    return caught.value


class Asked:
    """A call that runs beside the test."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.error: ParticipantError | None = None
        self.done = anyio.Event()

    async def run(self, asked: Awaitable[Any]) -> None:
        try:
            self.answer = await asked
        except ParticipantError as error:
            self.error = error
        self.done.set()

    @property
    def code(self) -> Code | None:
        return self.error.code if self.error else None


@asynccontextmanager
async def beside(*asked: Awaitable[Any]) -> AsyncIterator[list[Asked]]:
    """Calls that run while the block does; it ends when they have."""
    running = [Asked() for _ in asked]
    async with anyio.create_task_group() as group:
        for each, call in zip(running, asked, strict=True):
            group.start_soon(each.run, call)
        yield running
