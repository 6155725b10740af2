"""Stores with checkpoints in them, built through the public names of `store` only."""

import dataclasses
import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from store import (
    DEFAULT_LIMITS,
    Backend,
    Controller,
    Draft,
    Life,
    Limits,
    MemoryBackend,
    ParticipantCommit,
    ProcessName,
    RawRecord,
    Record,
    Ref,
    Store,
    claim,
    open_checkpoint,
)
from store.backends import MemorySpace

AGENT = ProcessName("agent", "solver", "p0")
TOOLS = ProcessName("resources", "tools", "p0")

SMALL_PARTS = dataclasses.replace(
    DEFAULT_LIMITS, frame_bytes=512, part_bytes=1024, read_bytes=512, inline_payload_bytes=64
)
"""A few records are enough for several frames and parts, and bytes of a line or two go to a blob."""

Shares = Mapping[ProcessName, Iterable[Record | RawRecord]]
"""What each process exports."""


def memory_store(backend: Backend | None = None, run_id: str = "", limits: Limits = SMALL_PARTS) -> Store:
    """A store in memory, of its own unless a backend is given; calls fail as injected, for nothing retries them."""
    return Store(backend or MemoryBackend(space=MemorySpace()), run_id or secrets.token_hex(16), limits)


def life(rollout_id: str, epoch: int = 1, attempt: int = 0, n: int = 0) -> Life:
    """A life, the first one unless told otherwise."""
    return Life(rollout_id, epoch, attempt, n)


def records(count: int, *, start: int = 0, turns: int = 3) -> list[Record]:
    """Records `r<start>` and on, each with a few turns of text that hardly compresses; the same every time."""
    return [Record(life(f"r{n}", n=n), _payload(n, turns)) for n in range(start, start + count)]


def _payload(n: int, turns: int) -> dict[str, Any]:
    return {"step": turns, "turns": [{"text": hashlib.sha256(b"%d %d" % (n, t)).hexdigest()} for t in range(turns)]}


async def publish(store: Store, controller: Controller, shares: Shares, **draft: Any) -> Ref:
    """Commit these shares as the controller's next round and publish it; further fields go to the draft."""
    checkpoint = controller.next_round()
    parent = (await open_checkpoint(store, controller.head)).as_parent() if controller.head else None
    receipts = []
    scope: dict[Life, None] = {}
    for process, share in shares.items():
        exported = list(share)
        scope.update(dict.fromkeys(record.life for record in exported))
        receipts.append(await ParticipantCommit(store, checkpoint, process, parent=parent).run(exported))
    fields: dict[str, Any] = {
        "checkpoint": checkpoint,
        "parent": parent.checkpoint if parent else None,
        "participants": [receipt.ref for receipt in receipts],
        "scope": list(scope),
        **draft,
    }
    return await controller.publish(Draft(**fields), timeout_s=30)


async def publish_rounds(store: Store, rounds: Sequence[Shares], **draft: Any) -> list[Ref]:
    """Claim the run once and publish each of these rounds in turn."""
    async with claim(store) as controller:
        return [await publish(store, controller, shares, **draft) for shares in rounds]


async def store_with(*rounds: Shares, limits: Limits = SMALL_PARTS, **draft: Any) -> Store:
    """A store in memory that holds these rounds as checkpoints 1.1, 1.2 and on."""
    store = memory_store(limits=limits)
    await publish_rounds(store, rounds, **draft)
    return store
