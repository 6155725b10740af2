"""Liveness of a controller: a lock of its host where there is one, and a counter that rises while it lives.

A controller of epoch E holds the lock `alive/E.lock` and raises the counter in `alive/E` every beat. Another one that
finds epoch E on the chain judges, in this order: a counter that says it was closed is dead; a held lock is alive; a
free lock, where the counter was written on this very host, is dead; otherwise the counter is read twice, two beats
apart, and has moved or not. Nobody compares clocks of two hosts. The judgement only guards against a mistake; what
protects the run is the epoch on the chain.
"""

import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Literal

import anyio
import orjson
from pydantic import Field, ValidationError

from .entries import Document, Natural, Positive
from .errors import ControllerAlive, NotFound, ObjectTooLarge, StoreError
from .layout import alive_key
from .root import Store
from .tasks import open_group

LONGEST_BEAT_S = 3600.0
"""Longest beat of any controller, whatever its limits say."""
_LOCK_PAUSE_S = 0.02


class Beat(Document):
    """The counter of one controller."""

    format: Literal["midflight.alive"] = "midflight.alive"
    epoch: Positive
    count: Natural
    beat_s: Annotated[float, Field(gt=0, le=LONGEST_BEAT_S)]
    """Bounded, so that a torn counter keeps nobody waiting for ever."""
    host: str
    """This host's name and boot, so that a lock of the host can be trusted."""
    process: str
    """Random, one a process life."""
    closed: bool = False


def host_identity() -> str:
    """Name and boot of this host."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = "unknown"
    return f"{socket.gethostname()}/{boot}"


def lock_key(epoch: int) -> str:
    """Key of the lock that the controller of `epoch` holds."""
    return f"{alive_key(epoch)}.lock"


async def refuse_if_alive(store: Store, epoch: int) -> None:
    """Raise ControllerAlive where the controller of `epoch` lives; takes up to two of its beats to be sure."""
    if epoch == 0:
        return
    first = await _read(store, epoch)
    if first is not None and first.closed:
        return
    if store.backend.traits.host_lock:
        async with store.backend.lock(lock_key(epoch)) as free:
            if not free:
                raise ControllerAlive(store.url, f"the lock of epoch {epoch} is held")
        if first is not None and first.host == await anyio.to_thread.run_sync(host_identity):
            return
    await anyio.sleep(2 * (first.beat_s if first else store.limits.liveness_beat_s))
    second = await _read(store, epoch)
    if second is not None and second != first and not second.closed:
        raise ControllerAlive(store.url, f"the counter of epoch {epoch} moved to {second.count}")


async def _read(store: Store, epoch: int) -> Beat | None:
    try:
        data = await store.backend.get(alive_key(epoch), max_bytes=store.limits.max_entry_bytes)
        return Beat.model_validate_json(data)
    except (NotFound, ObjectTooLarge, ValidationError):
        return None  # A torn counter says no more than a missing one.


@asynccontextmanager
async def keep_alive(store: Store, epoch: int) -> AsyncIterator[anyio.CancelScope]:
    """Hold the lock and raise the counter until the context ends; then mark it closed.

    Cancelling what it yields ends the counter alone, as where another epoch of the same process has one.
    """
    beat = Beat(
        epoch=epoch,
        count=0,
        beat_s=min(store.limits.liveness_beat_s, LONGEST_BEAT_S),
        host=await anyio.to_thread.run_sync(host_identity),
        process=f"{os.getpid()}-{secrets.token_hex(8)}",
    )
    beating = anyio.CancelScope()
    async with _own_lock(store, epoch):
        await _write(store, beat)
        async with open_group() as group:
            group.start_soon(_raise_counter, store, beat, beating)
            try:
                yield beating
            finally:
                group.cancel_scope.cancel()
                with anyio.move_on_after(store.limits.liveness_beat_s, shield=True):
                    await _write(store, beat.model_copy(update={"closed": True}))


@asynccontextmanager
async def _own_lock(store: Store, epoch: int) -> AsyncIterator[None]:
    """Hold the lock of one's own epoch. Only somebody who judges our liveness can hold it, and not for long."""
    give_up = anyio.current_time() + store.limits.liveness_beat_s
    while True:
        async with store.backend.lock(lock_key(epoch)) as free:
            if free or anyio.current_time() > give_up:
                yield
                return
        await anyio.sleep(_LOCK_PAUSE_S)


async def _raise_counter(store: Store, beat: Beat, beating: anyio.CancelScope) -> None:
    with beating:
        while True:
            await anyio.sleep(beat.beat_s)
            beat = beat.model_copy(update={"count": beat.count + 1})
            await _write(store, beat)


async def _write(store: Store, beat: Beat) -> None:
    try:
        with anyio.move_on_after(beat.beat_s):
            await store.backend.put(alive_key(beat.epoch), orjson.dumps(beat.model_dump(mode="json")))
    except StoreError:
        pass  # A missed beat costs at most a wrong judgement of liveness; the epoch protects the run.
