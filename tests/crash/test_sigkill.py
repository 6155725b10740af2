"""A process that commits for ever is really killed, again and again, and nothing that it reported is ever lost.

`MIDFLIGHT_KILLS` sets how many kills there are, `MIDFLIGHT_SEED` where they begin; a failure names the command that
repeats it.
"""

import os
from pathlib import Path

import pytest

from store import CheckpointId
from tests.support.rounds import View
from tests.support.seaweed import S3Server

from .conftest import Tally
from .killing import Witness, kill_again_and_again

SEED = int(os.environ.get("MIDFLIGHT_SEED", "1"))


def kills(default: int) -> int:
    """How many workers die."""
    return int(os.environ.get("MIDFLIGHT_KILLS", default))


def own_files(left: list[str], prefix: str) -> list[str]:
    """Those that are left below one prefix."""
    return [key for key in left if key.startswith(prefix)]


async def survive_on_disk(count: int, folder: Path, tally: Tally) -> None:
    """The whole of it on a local folder."""
    witness = Witness(str(folder / "store"), {})
    left = await kill_again_and_again(count, witness, SEED)
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
    left = await kill_again_and_again(kills(15), witness, SEED)
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
