"""Kills processes that commit for ever, and holds the store to all that they had reported."""

import math
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import anyio.to_thread

from store import CheckpointId, NotAStore, Retention, RootMissing, claim, open_store, prune
from store.litter import temporary_files
from tests.support.children import Nursery, nursery
from tests.support.rounds import Round, View, view

from .child import HURRIED

CHILD = "tests.crash.child"
LONGEST_LIFE_S = 0.4


@dataclass(slots=True)
class Witness:
    """Believes what workers say, and holds the store to it."""

    url: str
    options: Mapping[str, Any]
    epoch: int = 0
    checkpoint: CheckpointId | None = None
    cursor: int = 0
    killed: dict[str, int] = field(default_factory=dict)
    """How many died after which word."""

    def hear(self, said: list[str]) -> None:
        """Take in what one worker said."""
        for line in said:
            word, *rest = line.split(" ", 1)
            if word == "failed":
                raise AssertionError(f"a worker failed: {rest[0]}")
            if word == "claimed":
                assert int(rest[0]) > self.epoch
                self.epoch = int(rest[0])
            if word == "published":
                name, cursor = rest[0].split()
                assert int(cursor) == self.cursor + 1
                self.checkpoint, self.cursor = CheckpointId.parse(name), int(cursor)
        last = said[-2].split(" ", 1)[0]
        self.killed[last] = self.killed.get(last, 0) + 1

    def check(self, found: View) -> None:
        """Everything published verifies; the head is the last reported checkpoint, or one that was made right after."""
        assert not found.refusal
        assert not found.damage
        assert found.epoch >= self.epoch
        head = found.cursor(found.head)
        assert head in (self.cursor or None, self.cursor + 1), f"{self} found {found}"
        if head == self.cursor:
            assert found.head == self.checkpoint
        elif isinstance(head, int):  # published, and killed before it could say so
            self.cursor, self.checkpoint = head, found.head


async def look(witness: Witness) -> None:
    """Check what a fresh reader finds; before the first word of a worker there may be no store yet."""
    with suppress(NotAStore, RootMissing):
        async with open_store(witness.url, limits=HURRIED, storage_options=dict(witness.options)) as store:
            witness.check(await view(store))
            return
    assert witness.epoch == 0


async def clean_up(witness: Witness) -> list[str]:
    """Go on once more, prune everything that is dead, and list what is left."""
    limits = replace(HURRIED, sweep_after_s=0.0)
    async with open_store(witness.url, "write", limits=limits, storage_options=dict(witness.options)) as store:
        async with claim(store) as controller:
            assert controller.epoch > witness.epoch
            ref = await Round(store, controller, witness.cursor + 1).run()
            report = await prune(store, Retention(keep_last=1))
            assert not report.failures
        found = await view(store)
        assert found.cursors == ((ref.checkpoint, witness.cursor + 1),)
        return [info.key for info in [*await store.backend.list(""), *await temporary_files(store)]]


async def kill_again_and_again(count: int, witness: Witness, seed: int, until: float = math.inf) -> list[str]:
    """Let workers live for seeded random times; what is left after a last clean-up.

    `until` is a time of the monotonic clock after which nobody is killed any more.
    """
    chance = random.Random(seed)
    async with in_thread(lambda: nursery(CHILD, witness.url, witness.options)) as workers:
        for number in range(count):
            if time.monotonic() > until:
                break
            word = chance.choice(["pid", "claimed", "claimed", "published", "pruned"])
            delay_s = chance.uniform(0.0, LONGEST_LIFE_S)
            said = await anyio.to_thread.run_sync(workers.life, word, delay_s)
            try:
                witness.hear(said)
                await look(witness)
            except AssertionError as error:
                again = f"MIDFLIGHT_SEED={seed} MIDFLIGHT_KILLS={number + 1} pytest tests/crash/test_sigkill.py"
                raise AssertionError(f"kill {number + 1}: {error}; after {said}. Again with: {again}") from error
    return await clean_up(witness)


@asynccontextmanager
async def in_thread(make: Callable[[], AbstractContextManager[Nursery]]) -> AsyncIterator[Nursery]:
    """Enter and leave in a worker thread, because both wait for a process."""
    manager = make()
    workers = await anyio.to_thread.run_sync(manager.__enter__)
    try:
        yield workers
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(manager.__exit__, None, None, None)
