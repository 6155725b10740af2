"""A checkpoint with one bit wrong: a restore refuses all of it, by name, before anything is active anywhere."""

import hashlib

import pytest

from orchestrator.coordination import restore, resume
from orchestrator.errors import RestoreFailed
from participants import Floor
from store import Ref, Store, claim
from tests.support.checkpoints import memory_store
from tests.support.damage import backend_of, flipped, read, write
from tests.support.owners import KINDS, Party, party, round_id
from tests.support.parties import LIVES, publish, working_party

pytestmark = [pytest.mark.unit, pytest.mark.anyio, pytest.mark.fault(3, 4)]


async def published_apart(store: Store) -> Ref:
    """A checkpoint in which each rollout of a participant has a frame of its own."""
    async with working_party(store, workers=1) as at, claim(store, take_over=True) as controller:
        await at.adopt(controller.epoch, Floor(1, 0))
        for life in LIVES:
            await at.write(life, hashlib.shake_256(str(life).encode()).hexdigest(600))
        return await publish(at, controller, LIVES)


def objects_of(store: Store, kind: str) -> list[str]:
    """What one participant has written for the checkpoint."""
    return sorted(key for key in backend_of(store).space.objects if f"/{kind}.main/" in key)


async def assert_refused(at: Party, k: int, store: Store, ref: Ref, scope: int, kind: str) -> None:
    """It names the participant; nobody has anything of the checkpoint, and all work on."""
    with pytest.raises(RestoreFailed, match=rf"{kind}\.main/"):
        await restore(at.fleet, round_id(k, 2), ref, LIVES[:scope], timeout_s=10)
    assert at.brought() == [0] * len(KINDS)
    assert at.phases() == {"idle"}
    await at.assert_open()


@pytest.mark.enumerated(4)
@pytest.mark.parametrize("scope", [1, len(LIVES)])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_bit_anywhere_in_a_share_fails_the_whole_restore_by_name(kind: str, scope: int) -> None:
    """In each object of a participant, also where nothing that is asked for comes from; once mended, it works."""
    store = memory_store()
    ref = await published_apart(store)
    async with party(store, epoch=2) as at:
        k = 0
        for key in objects_of(store, kind):
            whole = read(store, key)
            for place in range(0, len(whole), max(1, len(whole) // 3)):
                k += 1
                write(store, key, flipped(whole, place * 8))
                await assert_refused(at, k, store, ref, scope, kind)
            write(store, key, whole)
        assert k > 10
        await restore(at.fleet, round_id(k + 1, 2), ref, LIVES[:scope], timeout_s=10)
        await resume(at.fleet, round_id(k + 1, 2))
        assert at.brought() == [scope] * len(KINDS)


@pytest.mark.fault(5, 33)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_object_that_is_gone_fails_the_whole_restore_by_name(kind: str) -> None:
    """Whichever of a participant's it is, and whether or not a rollout that is asked for is in it."""
    store = memory_store()
    ref = await published_apart(store)
    async with party(store, epoch=2) as at:
        for k, key in enumerate(objects_of(store, kind), 1):
            gone = backend_of(store).space.objects.pop(key)
            await assert_refused(at, k, store, ref, 1, kind)
            backend_of(store).space.objects[key] = gone
