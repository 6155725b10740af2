"""Scenarios 15 to 19: what becomes of model calls in flight, and of the token lineage, at a checkpoint and a crash."""

import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.rounds import Round
from participants.data import CALL_HEADER, LIFE_HEADER
from tests.support.backend import start_backend

from .looking import said
from .stage import Stage
from .tasks import Task
from .test_continuation import rewards
from .variants import counts, one

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

FILLER, CUT = 20, 6
"""Words in each turn, and tokens of a call that stand when it is held."""


@counts
async def test_15_a_checkpoint_without_a_crash_parks_holds_what_arrives_and_lets_both_go(stage: Stage) -> None:
    """A response that comes while all stand still is not delivered then, and once after; nothing is repeated."""
    task = Task(0)
    stage.hold(task, call=2)
    async with stage.epoch() as controller:
        [life] = await controller.submit([task])
        await stage.held(1)

        async def standing(_: Round) -> None:
            stage.release()
            await controller.until_count("model", "held", 1)
            assert stage.seen().calls == {life: [1, 2]}
            assert len(stage.seen().tools[life]) == 1

        await controller.checkpoint(standing)
        await controller.deliver()
        assert rewards(controller) == {"r0": 1.0}
        assert await controller.left() == {}
    stage.seen().exactly(calls={life: task.calls}, tools={life: task.tools}, verified=[life])


@counts
async def test_16_a_generation_that_was_cut_goes_on_after_its_prefix(stage: Stage) -> None:
    """Only the tokens after the prefix are new ones, and the row is that of a rollout that was never cut."""
    task, whole = Task(0, filler=FILLER), Task(0, filler=FILLER, alias="whole")
    async with stage.epoch() as before:
        [uncut] = await before.submit([whole])
        await before.deliver(uncut)
        stage.hold(task, call=2, after_tokens=CUT)
        [first] = await before.submit([task])
        await stage.held(1)
        await before.checkpoint()
    stage.release()
    async with stage.epoch() as after:
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"whole": 1.0, "r0": 1.0}
        assert said(after, task) == said(after, whole)
    seen = stage.seen()
    seen.exact_calls({uncut: [1, 2, 3, 4], first: [1, 2], second: [2, 3, 4]})
    assert seen.continued(second) == [CUT, 0, 0]
    assert seen.generated(first)[1] == CUT
    assert CUT + seen.generated(second)[0] == seen.generated(uncut)[1]


@counts
async def test_17_the_token_lineage_of_a_cut_call_continues_across_the_crash(stage: Stage) -> None:
    """The first restored call follows its parent once; the cut call of the dead life is not in the chain."""
    stage.capture = True
    task = Task(0, filler=FILLER)
    stage.hold(task, call=3, after_tokens=CUT)
    async with stage.epoch() as before:
        [first] = await before.submit([task])
        await stage.held(1)
        await before.checkpoint()
    stage.release()
    async with stage.epoch() as after:
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
    assert await stage.lineage(second) == [first, first, second, second]
    assert stage.seen().continued(second) == [CUT, 0]


@counts
async def test_17_calls_that_a_life_made_after_its_checkpoint_are_not_in_the_chain(stage: Stage) -> None:
    """They were finished and delivered, and their rows were durable; the checkpoint does not have them."""
    stage.capture = True
    task = Task(0)
    hold = stage.hold(task, call=2)
    async with stage.epoch() as before:
        [first] = await before.submit([task])
        await stage.held(1)
        await before.checkpoint()
        stage.hold(task, call=4)
        begun = len(stage.backend.control.calls())  # Call 2 is the last of them.
        stage.release(hold)
        await stage.wait(held=1, finished=begun + 1)
    stage.release()
    async with stage.epoch() as after:
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
    assert await stage.lineage(second) == [first, second, second, second]
    stage.seen().exact_calls({first: [1, 2, 3, 4], second: [2, 3, 4]})


@one
async def test_18_a_held_response_is_served_to_the_replacement_without_generating(stage: Stage) -> None:
    """It arrived while all stood still, so the checkpoint has it."""
    task = Task(0)
    hold = stage.hold(task, call=2)
    async with stage.epoch() as before:
        [first] = await before.submit([task])
        await stage.held(1)

        async def standing(_: Round) -> None:
            stage.release(hold)
            await before.until_count("model", "held", 1)

        stage.hold(task, call=3)
        await before.checkpoint(standing)
        await stage.held(1)
    stage.release()
    async with stage.epoch() as after:
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
    stage.seen().exactly(
        calls={first: [1, 2, 3], second: [3, 4]},
        tools={first: task.tools[:2], second: task.tools[1:]},
        verified=[second],
    )


@one
async def test_18_a_reply_whose_connection_broke_after_it_was_sent_is_served_again_from_what_was_kept(
    stage: Stage,
) -> None:
    """The same call id again, over another connection: one generation, the same reply."""
    task = Task(0)
    async with stage.epoch() as controller:
        life = controller.next_life(task.rollout_id)
        headers = {LIFE_HEADER: str(life), CALL_HEADER: "agent.main:0.0"}
        body = {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": 8}
        url = f"{stage.servers['model.main'].url}/v1/chat/completions"
        async with httpx.AsyncClient() as first, first.stream("POST", url, json=body, headers=headers) as reply:
            assert reply.status_code == 200  # The body is on its way, and is never read.
        async with httpx.AsyncClient() as second:
            again = await second.post(url, json=body, headers=headers)
        assert again.status_code == 200
        assert again.json()["choices"][0]["message"]["content"]
    stage.seen().exact_calls({life: [1]})


@one
@pytest.mark.parametrize("settings", [{"cuts": False}, {"backend": "openai"}], ids=["off", "unsupported"])
async def test_19_without_cuts_a_checkpoint_is_taken_and_the_call_is_generated_anew(
    stage: Stage, settings: dict[str, Any]
) -> None:
    """Turned off, or a backend that is not known to support them: all of the call's tokens are new."""
    stage.model = settings
    task = Task(0, filler=FILLER)
    stage.hold(task, call=2, after_tokens=CUT)
    async with stage.epoch() as before:
        [first] = await before.submit([task])
        await stage.held(1)
        await before.checkpoint()
    stage.release()
    async with stage.epoch() as after:
        [second] = await after.go_on([task])
        await after.deliver()
        assert rewards(after) == {"r0": 1.0}
    seen = stage.seen()
    seen.exact_calls({first: [1, 2], second: [2, 3, 4]})
    assert seen.continued(second) == [0, 0, 0]


@one
async def test_19_a_cut_that_fails_with_its_backend_does_not_block_the_checkpoint(stage: Stage, tmp_path: Path) -> None:
    """The backend dies with the call half done, before the checkpoint; restarted, it generates the call again."""
    folder = tmp_path / "own"
    folder.mkdir()
    tokens = ("--token-store", str(folder / "tokens"))
    task = Task(0, filler=FILLER)
    with start_backend(folder, *tokens) as own:
        stage.backend = own
        stage.hold(task, call=2, after_tokens=CUT)
        async with stage.epoch() as before:
            [first] = await before.submit([task])
            await stage.held(1)
            stage.seen().exact_calls({first: [1, 2]})
            own.kill()
            await before.checkpoint()
    with start_backend(folder, *tokens, port=own.port) as again:
        stage.backend = again
        async with stage.epoch() as after:
            [second] = await after.go_on([task])
            await after.deliver()
            assert rewards(after) == {"r0": 1.0}
        assert {life: len(calls) for life, calls in stage.seen().calls.items()} == {second: 3}


@one
async def test_19_a_cut_whose_tokens_the_worker_has_lost_is_generated_anew(stage: Stage, tmp_path: Path) -> None:
    """The checkpoint has the key alone, and the token store went with the backend's disk."""
    folder = tmp_path / "own"
    folder.mkdir()
    tokens = ("--token-store", str(folder / "tokens"))
    task = Task(0, filler=FILLER)
    with start_backend(folder, *tokens) as own:
        stage.backend = own
        stage.hold(task, call=2, after_tokens=CUT)
        async with stage.epoch() as before:
            await before.submit([task])
            await stage.held(1)
            await before.checkpoint()
    shutil.rmtree(folder / "tokens")
    with start_backend(folder, *tokens, port=own.port) as again:
        stage.backend = again
        async with stage.epoch() as after:
            [second] = await after.go_on([task])
            await after.deliver()
            assert rewards(after) == {"r0": 1.0}
            assert await after.count("model", "regenerated_staged_lost") == 1
        assert stage.seen().continued(second) == [0, 0, 0]
