"""Parties with work in them, whole checkpoints of them, and calls that fail or hang, for tests of coordination."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from orchestrator.coordination import Standstill, commit, prepare, renew, resume
from orchestrator.errors import CoordinationError
from participants import Floor
from store import Controller, Draft, Life, Ref, Store, claim

from .owners import Party, lives, party, push, round_id, settle

LIVES = lives(3)
FAULTS = ["hangs", "fails", "dies", "dies_after", "loses_reply"]


@asynccontextmanager
async def working_party(store: Store | None = None, workers: int = 2) -> AsyncIterator[Party]:
    """Two processes of each kind, of which the first of each holds three lives."""
    async with party(store, workers=workers) as at:
        for server in at.servers[::workers]:
            for life in LIVES:
                await server.owner.write(life, "a", creates=True)
        yield at


async def failing_with(kind: type[CoordinationError], asked: Awaitable[Any], hanging: Party | None = None) -> Any:
    """The error that a call raises; where one of `hanging` hangs, once all others have answered its deadline comes."""
    caught: list[CoordinationError] = []

    async def ask() -> None:
        try:
            await asked
        except CoordinationError as error:
            caught.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        if hanging is not None:
            await settle()
            links = [server.link for server in hanging.servers]
            while any(link.sent[-1:] != link.answered[-1:] for link in links if "hangs" not in link.faults.values()):
                await settle(5)
            await push(20)
    assert [type(error) for error in caught] == [kind]
    return caught[0]


def party_if(at: Party, fault: str) -> Party | None:
    """The party, where the fault is one that takes a deadline to end."""
    return at if fault == "hangs" else None


async def ready(at: Party, k: int = 1) -> Standstill:
    """Prepare a round with five seconds and a long lease."""
    return await prepare(at.fleet, round_id(k, at.fleet.epoch), timeout_s=5, lease_s=500)


async def publish(at: Party, controller: Controller, scope: list[Life]) -> Ref:
    """A whole checkpoint."""
    round_, parent = controller.next_round(), controller.head
    await prepare(at.fleet, round_, timeout_s=5, lease_s=500)
    answers = await commit(at.fleet, round_, scope, parent, timeout_s=50)
    await renew(at.fleet, round_, lease_s=500)
    await resume(at.fleet, round_)
    manifests = [answer.manifest for answer in answers]
    draft = Draft(checkpoint=round_, parent=parent.checkpoint if parent else None, participants=manifests, scope=scope)
    return await controller.publish(draft, timeout_s=10)


async def published(store: Store) -> Ref:
    """A checkpoint of three lives at every kind."""
    async with working_party(store) as at, claim(store, take_over=True) as controller:
        await at.adopt(controller.epoch, Floor(1, 0))
        return await publish(at, controller, LIVES)
