"""Scenario 13: a cohort verifier, whose members wait for each other while checkpoints are taken and everything dies.

A member's answer ends in a digit. With the verdicts of the judge (`logged_genrm.verdict`), by hand: answers 2, 0 and
4 make the comparisons (3, 1), (1, 5) and (5, 3), so member 0 gets (3 + 3) / 2, 1 (1 + 1) / 2, and 2 (5 + 5) / 2.
"""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from store import Life
from tests.support.logged_genrm import ASKED

from .controller import Controller
from .looking import exported
from .stage import Stage
from .tasks import Task
from .test_continuation import rewards
from .variants import counts, one_and_two

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

DIGITS = (2, 0, 4)
REWARDS = (3.0, 1.0, 5.0)
GENERATED, COMPARED = 1, 2
"""The model calls of a member: its own, and the judge's on it and the next one."""
GIVES_UP_S = 4.0


@dataclass(frozen=True, slots=True)
class Member(Task):
    """One rollout of the cohort; its number is its index."""

    attempt: int = 0

    @property
    def row(self) -> dict[str, Any]:
        """Its own script makes its answer another one than those of its siblings."""
        script = json.dumps([{"text": f"The answer of member {self.number} is {DIGITS[self.number]}"}])
        asked = {"input": [{"role": "user", "content": f"{self.prompt_of(1)}<script>{script}</script>"}]}
        named = {"_ng_group_id": "g", "_ng_group_attempt": self.attempt, "_ng_rollout_index": self.number}
        return {"responses_create_params": asked, **named}


MEMBERS = [Member(number) for number in range(3)]
ALL = dict(zip(("r0", "r1", "r2"), REWARDS, strict=True))


@pytest.fixture
def stage(stage: Stage) -> Stage:
    """With a cohort verifier in place of the counter."""
    stage.resources = "tests.support.logged_genrm:LoggedGenRM"
    stage.counter = {"num_rollouts_per_prompt": len(MEMBERS)}
    return stage


async def waiting(stage: Stage, controller: Controller, count: int) -> None:
    """Until so many have begun to verify, in one cohort that is undecided."""
    await stage.logged(count, "verify")
    await controller.until_count("resources", "cohorts", 1)


@one_and_two
@pytest.mark.parametrize("crashes", [True, False])
async def test_13_a_member_that_waits_for_one_who_still_generates_holds_no_checkpoint_back(
    stage: Stage, crashes: bool
) -> None:
    """Nobody is waited for; after a crash those who waited verify again, and each pair is compared once."""
    stage.backend.control.hold(substring=MEMBERS[2].prompt_of(1), times=1)
    async with stage.epoch() as before:
        first = await before.submit(MEMBERS)
        await waiting(stage, before, 2)
        await stage.held(1)
        taken = await before.checkpoint()
        assert taken.standstill.blocker_count == 0
        steps = {
            rollout_id: each["step"] for rollout_id, each in (await exported(before, taken))["environment"].items()
        }
        assert steps == {"r0": "verify", "r1": "verify", "r2": "activate"}
        if not crashes:
            stage.release()
            await before.deliver()
            assert rewards(before) == ALL
            assert await before.left() == {}
    if not crashes:
        seen = stage.seen()
        assert seen.verified.count(first[0]) == seen.verified.count(first[1]) == seen.verified.count(first[2]) == 1
        assert [seen.calls[life].count(COMPARED) for life in first] == [1, 1, 1]
        return
    stage.release()
    async with stage.epoch() as after:
        second = await after.go_on(MEMBERS)
        await after.deliver()
        assert rewards(after) == ALL
        assert await after.left() == {}
    calls = {life: [GENERATED] for life in first} | {life: [COMPARED] for life in second}
    calls[second[2]] = [GENERATED, COMPARED]
    stage.seen().exactly(calls=calls, tools={}, verified=[*first[:2], *second])


@one_and_two
async def test_13_after_a_crash_before_it_is_decided_members_verify_again_and_rebuild_the_cohort(stage: Stage) -> None:
    """While the judge compares them; nothing of the cohort is in the checkpoint."""
    stage.backend.control.hold(substring=ASKED)
    async with stage.epoch() as before:
        first = await before.submit(MEMBERS)
        await stage.held(3)
        taken = await before.checkpoint()
        assert taken.standstill.blocker_count == 0
    stage.release()
    async with stage.epoch() as after:
        second = await after.go_on(MEMBERS)
        await after.deliver()
        assert rewards(after) == ALL
        assert await after.left() == {}
    calls = {life: [GENERATED, COMPARED] for life in first} | {life: [COMPARED] for life in second}
    stage.seen().exactly(calls=calls, tools={}, verified=[*first, *second])


async def decided(stage: Stage, controller: Controller) -> list[Life]:
    """All lives: the cohort is decided and member 0 has its reward for good, the others have not heard of theirs."""
    stage.hold_tools("told 1", "told 2")
    lives = await controller.submit(MEMBERS)
    await stage.logged(3, "told")
    await controller.deliver(lives[0])
    taken = await controller.checkpoint()
    assert taken.standstill.blocker_count == 0
    assert {each["step"] for each in (await exported(controller, taken))["environment"].values()} == {"verify"}
    return lives


@counts
async def test_13_after_a_crash_once_it_is_decided_the_rest_get_the_decided_rewards_at_once(stage: Stage) -> None:
    """They wait for nobody who never comes, and the judge is not asked again."""
    async with stage.epoch() as before:
        first = await decided(stage, before)
    stage.let_tools_go()
    async with stage.epoch() as after:
        second = await after.go_on(MEMBERS)
        assert len(second) == 2
        await after.deliver()
        assert rewards(after) == ALL
        assert await after.left() == {}
    calls = {life: [GENERATED, COMPARED] for life in first}
    stage.seen().exactly(calls=calls, tools={}, verified=[*first, *second])


@one_and_two
async def test_13_without_that_record_the_rest_fail_in_time_and_the_cohort_is_retried_whole(stage: Stage) -> None:
    """A planted server that exports nothing of its own: the failure is typed, and the next attempt succeeds."""
    stage.resources = "tests.support.logged_genrm:ForgetfulGenRM"
    async with stage.epoch() as before:
        await decided(stage, before)
    stage.let_tools_go()
    stage.counter["cohort_collection_timeout_s"] = GIVES_UP_S
    async with stage.epoch() as after:
        second = await after.go_on(MEMBERS)
        results = await after.deliver()
        failures = [result.failure for result in results.values()]
        assert [failure and failure["class"] for failure in failures] == ["cohort_failed"] * 2, failures
        assert stage.seen().calls.keys().isdisjoint(second)
        retried = [Member(number, alias=f"again{number}", attempt=1) for number in range(3)]
        await after.submit(retried)
        results = await after.deliver()
        rows = [results[each.rollout_id].row for each in retried]
        assert [row and row["reward"] for row in rows] == list(REWARDS)
        assert await after.left() == {}


@one_and_two
async def test_13_servers_that_outlive_their_controller_still_know_what_was_decided(stage: Stage) -> None:
    """Also for members whose environment has died: they are restored beside the others and get the decided rewards."""
    async with stage.epoch() as before:
        stage.hold_tools("verify")
        first = await before.submit(MEMBERS)
        await stage.logged(3, "verify")
        await before.checkpoint()
        stage.hold_tools("told 1", "told 2")
        await stage.logged(3, "told")
        await before.deliver(first[0])
        await stage.restart("environment.main")
        stage.let_tools_go()
        async with stage.controller(adopts=True) as after:
            second = await after.go_on(MEMBERS)
            await after.deliver()
            assert rewards(after) == ALL
    calls = {life: [GENERATED, COMPARED] for life in first}
    stage.seen().exactly(calls=calls, tools={}, verified=[*first, *second])
