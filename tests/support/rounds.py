"""Checkpoints that can be checked in full: everything in one follows from its cursor, a number that counts up."""

import dataclasses
import hashlib
import os
from dataclasses import dataclass, field, replace
from typing import Any

from store import (
    Backend,
    Checkpoint,
    CheckpointId,
    Controller,
    CorruptCheckpoint,
    Draft,
    ParticipantCommit,
    ParticipantRef,
    ProcessName,
    Record,
    Ref,
    Store,
    StoreError,
    open_checkpoint,
    open_store,
)
from store.reader import published
from store.tasks import map_bounded

from .checkpoints import AGENT, SMALL_PARTS, TOOLS, Shares, life

PATIENT = dataclasses.replace(SMALL_PARTS, liveness_beat_s=3600.0, requests_in_flight=1, frames_in_flight=1)
"""One request at a time and no heartbeat, so that the same work makes the same calls in the same order."""


def _text(cursor: int, name: str, size: int = 100) -> bytes:
    return hashlib.shake_256(f"{cursor} {name}".encode()).digest(size)


def shares_of(cursor: int) -> Shares:
    """What the participants export at a cursor: a blob that every checkpoint shares, and some of its own."""
    turn = [{"text": _text(cursor, f"turn {n}").hex()} for n in range(4)]
    agent = [
        Record(life("r0"), {"cursor": cursor, "shared": _text(0, "shared")}),
        Record(life("r1", n=1), {"cursor": cursor, "own": _text(cursor, "own"), "turns": turn}),
    ]
    return {AGENT: agent, TOOLS: [Record(life("r1", n=1), {"cursor": cursor, "turns": turn[::-1]})]}


def state_of(cursor: int) -> Any:
    """The controller's own state at a cursor."""
    return {"cursor": cursor, "buffer": _text(cursor, "state")}


@dataclass(slots=True)
class Round:
    """One checkpoint on its way; each half may be repeated after it failed, as a caller would."""

    store: Store
    controller: Controller
    cursor: int
    draft: Draft | None = None
    ref: Ref | None = None
    checkpoint: CheckpointId = field(init=False)
    parent: Ref | None = field(init=False)

    def __post_init__(self) -> None:
        self.checkpoint = self.controller.next_round()
        self.parent = self.controller.head

    async def commit(self) -> None:
        """Every participant's half, as many at a time as the store has requests in flight."""
        parent = (await open_checkpoint(self.store, self.parent)).as_parent() if self.parent else None
        shares = {process: list(share) for process, share in shares_of(self.cursor).items()}

        async def commit_one(process: ProcessName) -> ParticipantRef:
            state = {"process": str(process), "cursor": self.cursor}
            commit = ParticipantCommit(self.store, self.checkpoint, process, parent=parent)
            return (await commit.run(shares[process], state=state)).ref

        refs = await map_bounded(commit_one, shares, self.store.limits.requests_in_flight)
        self.draft = Draft(
            checkpoint=self.checkpoint,
            parent=parent.checkpoint if parent else None,
            participants=refs,
            scope=list(dict.fromkeys(record.life for share in shares.values() for record in share)),
            state=state_of(self.cursor),
        )

    async def publish(self, timeout_s: float = 30.0) -> Ref:
        """The controller's half."""
        assert self.draft is not None
        self.ref = await self.controller.publish(self.draft, timeout_s=timeout_s)
        return self.ref

    async def run(self) -> Ref:
        """Both halves."""
        await self.commit()
        return await self.publish()


async def read_cursor(store: Store, ref: Ref) -> int:
    """The cursor of a checkpoint, once all of it is verified and equals what belongs to it. Raises StoreError."""
    checkpoint = await open_checkpoint(store, ref)
    await checkpoint.verify()
    state = await checkpoint.state()
    cursor: int = state["cursor"]
    found = {
        "state": state,
        "records": {process.name: await _records(checkpoint, process.name) for process in checkpoint.processes},
        "states": [await checkpoint.process_state(process) for process in checkpoint.processes],
    }
    wanted = {
        "state": state_of(cursor),
        "records": {process: list(share) for process, share in shares_of(cursor).items()},
        "states": [{"process": str(process), "cursor": cursor} for process in shares_of(cursor)],
    }
    if found != wanted:
        raise CorruptCheckpoint(f"checkpoint {ref.checkpoint}", f"it verifies and is not what cursor {cursor} makes")
    return cursor


async def _records(checkpoint: Checkpoint, name: ProcessName) -> list[Record]:
    async with checkpoint.records([p for p in checkpoint.processes if p.name == name]) as records:
        return [record async for record in records]


@dataclass(frozen=True, slots=True)
class View:
    """What a fresh reader finds in a store, or why it refuses to look."""

    refusal: str = ""
    """The class of the error, if opening or the chain is refused."""
    head: CheckpointId | None = None
    epoch: int = 0
    entries: int = 0
    cursors: tuple[tuple[CheckpointId, int | str], ...] = ()
    """Each published checkpoint and its cursor, or the error that reading it gives."""

    @property
    def damage(self) -> list[str]:
        """Everything that is not whole."""
        return [f"{name}: {cursor}" for name, cursor in self.cursors if isinstance(cursor, str)]

    def later(self, entries: int) -> "View":
        """The same after so many more entries."""
        return replace(self, entries=self.entries + entries)

    def cursor(self, checkpoint: CheckpointId | None) -> int | str | None:
        """The cursor of one checkpoint; None where it is not published."""
        return next((cursor for name, cursor in self.cursors if name == checkpoint), None)


async def view(store: Store) -> View:
    """Read everything that is published."""
    chain = await store.chain()
    cursors: list[tuple[CheckpointId, int | str]] = []
    for ref in published(chain):
        try:
            cursors.append((ref.checkpoint, await read_cursor(store, ref)))
        except StoreError as error:
            cursors.append((ref.checkpoint, repr(error)))
    head = chain.state.head
    return View("", head.checkpoint if head else None, chain.state.epoch, len(chain.entries), tuple(cursors))


async def view_root(url: str | os.PathLike[str]) -> View:
    """Open a root for reading and look."""
    try:
        async with open_store(url, limits=PATIENT) as store:
            return await view(store)
    except StoreError as error:
        return View(type(error).__name__)


def on_backend(backend: Backend, run_id: str, **limits: Any) -> Store:
    """The store that `backend` holds, with limits under which work is repeatable."""
    return Store(backend, run_id, dataclasses.replace(PATIENT, **limits))
