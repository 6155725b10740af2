"""What the workers of a server ask each other, over real sockets: by the key's owner, and given up with the asker."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from participants import Code, ParticipantError
from participants.channels import Channels
from participants.data import CallId, Reply, Request
from participants.routing import worker_of
from participants.sessions import SESSION_HEADER
from participants.verifiers.genrm_compare import GenRMCompareServer
from store import Life
from tests.participants.verifiers.cohort_workers import Judge, response, row_of
from tests.support.channels import served
from tests.support.waiting import until_asked

pytestmark = [pytest.mark.real, pytest.mark.anyio]

KEY = "group_id::g::group_attempt::0"
OWNER = worker_of(KEY, 2)


def life_at(worker: int, index: int) -> Life:
    """One whose rollout belongs to a worker of two."""
    names = (f"r{index}.{n}" for n in range(100))
    return Life(next(name for name in names if worker_of(name, 2) == worker), 1, 0, index)


def two(judge: Judge) -> list[GenRMCompareServer]:
    """Workers of one server, with cohorts of two."""
    return [GenRMCompareServer("genrm", peers={"model.main": judge}, num_rollouts_per_prompt=2) for _ in range(2)]


async def verified(channels: Channels, url: str, life: Life, index: int) -> Reply:
    """Seed and verify, as an environment does."""
    peer = channels.peer(url, "resources.genrm")

    async def call(route: str, body: Any, boundary: int) -> Reply:
        made = CallId("environment.main", boundary, 0)
        headers = {SESSION_HEADER: "s"}
        return await peer.call(Request(route=route, body=body, life=life, call=made, headers=headers))

    await call("/seed_session", row_of(index), 1)
    return await call("/verify", {**row_of(index), "response": response(f"answer {index}")}, 2)


async def until(so: Callable[[], object]) -> None:
    """Until it is so: what another task does over a socket."""

    async def asked() -> object:
        return so()

    await until_asked(asked, 10)


async def test_members_at_different_workers_meet_at_the_worker_of_their_cohort() -> None:
    """Each session stays at the worker of its rollout, and nothing of another one is there."""
    judge = Judge()
    workers = two(judge)
    lives = [life_at(0, 0), life_at(1, 1)]
    rewards: dict[int, float] = {}
    async with served(*workers) as (channels, urls), anyio.create_task_group() as group:

        async def one(index: int) -> None:
            rewards[index] = (await verified(channels, urls[0], lives[index], index)).body["reward"]

        for index in range(2):
            group.start_soon(one, index)
    assert rewards == {0: 3.0, 1: 3.0}  # Each pair is a tie: 3 + 2.5 as the first, 3 - 2.5 as the second.
    assert [[held.life for held in worker.held()] for worker in workers] == [[lives[0]], [lives[1]]]
    assert [len(worker.cohorts) for worker in workers] == [int(n == OWNER) for n in range(2)]


@pytest.mark.parametrize("ends", ["retired", "client"])
async def test_a_wait_at_another_worker_ends_with_the_life_or_the_client_that_asked(ends: str) -> None:
    """Nothing of it is left there; who gave up stays a member, and who was retired does not."""
    workers = two(Judge())
    asking, owner = workers[1 - OWNER], workers[OWNER]
    life = life_at(1 - OWNER, 0)
    failed: list[ParticipantError] = []
    async with served(*workers) as (channels, urls), anyio.create_task_group() as group:

        async def one() -> None:
            try:
                await verified(channels, urls[0], life, 0)
            except ParticipantError as error:
                failed.append(error)

        group.start_soon(one)
        await until(lambda: owner._rooms)
        if ends == "retired":
            for worker in workers:
                await worker.retire([life], 5.0)
            await until(lambda: failed)
            assert failed[0].code is Code.STALE_LIFE
        else:
            group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await until(lambda: not owner._rooms)
            assert (owner.cohorts.undecided, len(asking.cohorts)) == (int(ends == "client"), 0)


async def test_a_join_that_comes_in_anywhere_is_handed_to_the_owner_of_its_cohort() -> None:
    """Whatever life makes it; a refusal is that of the owner."""
    workers = two(Judge())
    body = workers[0].joining({**row_of(0), "response": response("x")}).model_dump()
    async with served(*workers) as (channels, urls):
        worker = channels.worker(urls[1 - OWNER], "resources.genrm")
        own = CallId("resources.genrm", 2, 0)
        stranger = Request(route="/cohorts/join", body={**body, "index": 7}, life=life_at(1 - OWNER, 0), call=own)
        with pytest.raises(ParticipantError, match="none of a cohort of 2"):
            await worker.call(stranger)
