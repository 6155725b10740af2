"""A process that commits for ever is really killed, again and again, and nothing that it reported is ever lost.

`MIDFLIGHT_KILLS` sets how many kills there are, `MIDFLIGHT_SEED` where they begin; a failure names the command that
repeats it.
"""

import os
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from store import CheckpointId, NotAStore, Retention, RootMissing, claim, open_store, prune
from store.litter import temporary_files
from tests.support.children import Nursery, nursery
from tests.support.rounds import Round, View, view
from tests.support.seaweed import S3Server

from .child import HURRIED
from .conftest import Tally

CHILD = "tests.crash.child"
SEED = int(os.environ.get("MIDFLIGHT_SEED", "1"))
LONGEST_LIFE_S = 0.4


def kills(default: int) -> int:
    """How many workers die."""
    return int(os.environ.get("MIDFLIGHT_KILLS", default))


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


async def kill_again_and_again(count: int, witness: Witness) -> list[str]:
    """Let workers live for seeded random times; what is left after a last clean-up."""
    chance = random.Random(SEED)
    async with in_thread(lambda: nursery(CHILD, witness.url, witness.options)) as workers:
        for number in range(count):
            until = chance.choice(["pid", "claimed", "claimed", "published", "pruned"])
            delay_s = chance.uniform(0.0, LONGEST_LIFE_S)
            said = await anyio.to_thread.run_sync(workers.life, until, delay_s)
            try:
                witness.hear(said)
                await look(witness)
            except AssertionError as error:
                again = f"MIDFLIGHT_SEED={SEED} MIDFLIGHT_KILLS={number + 1} pytest tests/crash/test_sigkill.py"
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


def own_files(left: list[str], prefix: str) -> list[str]:
    """Those that are left below one prefix."""
    return [key for key in left if key.startswith(prefix)]


async def survive_on_disk(count: int, folder: Path, tally: Tally) -> None:
    """The whole of it on a local folder."""
    witness = Witness(str(folder / "store"), {})
    left = await kill_again_and_again(count, witness)
    tally("SIGKILL on local disk", f"{count} kills, by the last word {witness.killed}, {witness.cursor} checkpoints")
    assert len({key.split("/")[1] for key in own_files(left, "checkpoints/")}) == 1
    assert not [key for key in left if key.endswith(".tmp")]
    assert len(own_files(left, "alive/")) <= 4


@pytest.mark.process
@pytest.mark.anyio
async def test_a_killed_controller_loses_nothing_that_it_reported(tmp_path: Path, tally: Tally) -> None:
    """On a local disk: the head is never older than the last report, all verifies, epochs rise, litter is swept."""
    await survive_on_disk(kills(12), tmp_path, tally)


@pytest.mark.scale
@pytest.mark.timeout(900)
@pytest.mark.anyio
async def test_a_controller_killed_hundreds_of_times_loses_nothing(tmp_path: Path, tally: Tally) -> None:
    """The same for longer."""
    await survive_on_disk(kills(150), tmp_path, tally)


@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.anyio
async def test_a_killed_controller_loses_nothing_on_s3(seaweed: S3Server, tally: Tally) -> None:
    """The same on S3, where nobody holds a lock and a dead controller is known by its counter that stands still."""
    witness = Witness(seaweed.url, seaweed.options())
    left = await kill_again_and_again(kills(15), witness)
    tally("SIGKILL on S3", f"{kills(15)} kills, by the last word {witness.killed}, {witness.cursor} checkpoints")
    assert len({key.split("/")[1] for key in own_files(left, "checkpoints/")}) == 1
    assert len(own_files(left, "alive/")) <= 4


FIRST = CheckpointId(1, 1)
STORIES = {
    "a reported checkpoint is gone": (["claimed 1", "published 1.1 1"], View(epoch=1)),
    "a reported checkpoint is replaced by an older one": (
        ["claimed 1", "published 1.1 1", "published 1.2 2"],
        View(head=FIRST, epoch=1, cursors=((FIRST, 1),)),
    ),
    "a checkpoint does not verify": (["claimed 1"], View(head=FIRST, epoch=1, cursors=((FIRST, "damaged"),))),
    "the head has the content of a later round": (["claimed 1"], View(head=FIRST, epoch=1, cursors=((FIRST, 2),))),
    "the chain forgot an epoch": (["claimed 2"], View(epoch=1)),
    "an epoch was claimed twice": (["claimed 1", "claimed 1"], View(epoch=1)),
    "a round was skipped": (["claimed 1", "published 1.1 2"], View(head=FIRST, epoch=1, cursors=((FIRST, 2),))),
    "the chain cannot be read": (["claimed 1"], View("CorruptChain")),
    "a worker failed": (["claimed 1", 'failed "why"'], View(epoch=1)),
}


@pytest.mark.unit
@pytest.mark.parametrize("name", STORIES)
def test_the_witness_notices_a_planted_loss(name: str) -> None:
    """Each way in which a store could betray its writer is found."""
    said, found = STORIES[name]
    witness = Witness("", {})
    with pytest.raises(AssertionError):
        _hear_and_check(witness, ["pid 1", *said, "gone"], found)


def _hear_and_check(witness: Witness, said: list[str], found: View) -> None:
    witness.hear(said)
    witness.check(found)
