"""Whole rollouts over real participants, killed at every point: what is done again, and what never is."""

from typing import Any

import pytest

from participants import Result
from tests.support.checkpoints import memory_store
from tests.support.journal import Journal
from tests.support.owners import settle
from tests.support.scripted import counter_row
from tests.support.world import WaitingCounter, world

pytestmark = pytest.mark.anyio

ROWS = {"r0": counter_row("r0", 2, 3)}
SESSION = "resources-r0"
MODEL = [f"model r0 {turn}" for turn in range(4)]
TOOLS = [
    f"tool {SESSION} increment_counter 0",
    f"tool {SESSION} increment_counter 1",
    f"tool {SESSION} get_counter_value 2",
]
WHOLE = [
    f"seed {SESSION}",
    MODEL[0],
    TOOLS[0],
    MODEL[1],
    TOOLS[1],
    MODEL[2],
    TOOLS[2],
    MODEL[3],
    f"verify {SESSION}",
]
"""All that an uninterrupted run of the row makes happen, in order."""


async def uninterrupted(rows: dict[str, dict[str, Any]], **options: Any) -> dict[str, Result]:
    """The results of a run that nobody disturbs."""
    async with world(**options) as one:
        await one.start(rows)
        return await one.results(len(rows))


def rows_of(results: dict[str, Result]) -> dict[str, Any]:
    """What was delivered."""
    return {name: result.row for name, result in results.items()}


@pytest.mark.unit
async def test_an_uninterrupted_run_does_everything_once() -> None:
    """The journal has every call in order, the reward is 1.0, and nothing is left after release."""
    journal = Journal()
    async with world(journal=journal) as one:
        await one.start(ROWS)
        results = await one.results(1)
        assert one.left() == {}
    assert journal.order == WHOLE
    row = results["r0"].row
    assert row is not None
    assert (row["reward"], row["response"]["usage"]["output_tokens"]) == (1.0, 12)


POINTS = [
    "before /seed_session 0",
    f"seed {SESSION}",
    "after /seed_session 0",
    "before /v1/agent_sessions 0",
    "after /v1/agent_sessions 0",
    "before /v1/responses 0",
    "before /v1/responses 1",
    MODEL[0],
    "after /v1/responses 0",
    "before /increment_counter 0",
    TOOLS[0],
    "after /increment_counter 0",
    MODEL[1],
    "before /increment_counter 1",
    TOOLS[1],
    "after /increment_counter 1",
    "before /v1/responses 3",
    MODEL[2],
    TOOLS[2],
    "after /get_counter_value 0",
    MODEL[3],
    "after /v1/responses 3",
    "after /v1/responses 4",
    "before /verify 0",
    f"verify {SESSION}",
    "after /verify 0",
    "before /v1/agent_sessions/close 0",
    "after /v1/agent_sessions/close 0",
    "before /close_session 0",
    "after /close_session 0",
]
"""Every call, before, in the middle and after."""
CLOSING = POINTS[-4:]
"""One step: a checkpoint that is asked for in it is taken after it."""


async def saved_then_killed(save_at: str, kill_at: str, **options: Any) -> None:
    """Checkpoint at one point, kill at another, and continue: exactly what began after the checkpoint is done again."""
    store, journal = memory_store(), Journal()
    async with world(store, journal, **options) as one:
        save, kill = one.hold(save_at), one.hold(kill_at)
        await one.start(ROWS)
        if save_at == kill_at:
            await one.checkpoint_at(kill, go_on=False)
        else:
            await one.checkpoint_at(save)
            await kill.reached.wait()
        lost = journal.unsaved()
    async with world(store, journal, **options) as two:
        await two.start(ROWS)
        await two.checkpoint()  # What each has counted of the other is the same again.
        results = await two.results(1)
        assert two.left() == {}
    assert rows_of(results) == rows_of(await uninterrupted(ROWS, **options))
    assert journal.repeated() == dict.fromkeys(lost, 2)
    assert set(journal.begun) == set(WHOLE)


@pytest.mark.enumerated(4)
@pytest.mark.unit
@pytest.mark.parametrize("save_at", POINTS)
async def test_a_checkpoint_at_any_point_is_continued_after_a_late_kill(save_at: str) -> None:
    """Whatever was in flight then: what ended before the checkpoint is never done again, the rest exactly once more."""
    await saved_then_killed(save_at, save_at if save_at in CLOSING else CLOSING[-1])


@pytest.mark.enumerated(4)
@pytest.mark.unit
@pytest.mark.parametrize("kill_at", POINTS[7:])
async def test_a_kill_at_any_point_repeats_only_what_came_after_the_checkpoint(kill_at: str) -> None:
    """The checkpoint is taken while the first model call is in flight."""
    await saved_then_killed(MODEL[0], kill_at)


@pytest.mark.enumerated(4)
@pytest.mark.unit
@pytest.mark.parametrize("point", POINTS)
async def test_a_kill_right_after_a_checkpoint_repeats_only_what_was_in_flight(point: str) -> None:
    """With a verify that a checkpoint waits for, over Chat: at most the one model call in flight is made again."""
    point = in_chat(point)
    await saved_then_killed(point, point, counter=WaitingCounter, dialect="chat")


@pytest.mark.scale
@pytest.mark.parametrize("save_at", POINTS)
async def test_every_pair_of_a_checkpoint_and_a_later_kill(save_at: str) -> None:
    """All kill points after all checkpoint points."""
    for kill_at in POINTS[POINTS.index(save_at) :]:
        if save_at == kill_at or step_of(save_at) != step_of(kill_at):
            await saved_then_killed(save_at, kill_at)


def in_chat(point: str) -> str:
    """The same point where the model is called over Chat: its route is another one."""
    when, _, rest = point.partition(" /v1/responses ")
    if not rest or point == "before /v1/responses 0":
        return point
    if point == "after /v1/responses 4":
        return "after /v1/responses 0"
    return f"{when} /v1/chat/completions {int(rest) - (when == 'before')}"


def step_of(point: str) -> str:
    """The step of mode `wait` that a point lies in; a point of another mode is a step of its own."""
    places = [n for n, each in enumerate(POINTS) if each == point]
    for first, last in ((0, 2), (3, 4), (9, 11), (13, 15), (18, 19), (26, 29)):
        if first <= places[0] <= last:
            return POINTS[first]
    return point


@pytest.mark.unit
async def test_a_checkpoint_restores_again_after_its_replacement_died() -> None:
    """Two worlds go on from one checkpoint, in two epochs: each does the rest once, and nothing before it."""
    store, journal = memory_store(), Journal()
    async with world(store, journal) as one:
        await one.start(ROWS)
        await one.checkpoint_at(one.hold(MODEL[1]), go_on=False)
    for point in (MODEL[3], TOOLS[2]):
        async with world(store, journal) as next_one:
            pause = next_one.hold(point)
            [life] = await next_one.start(ROWS)
            assert life.attempt == 1
            await pause.reached.wait()
    async with world(store, journal) as last:
        await last.start(ROWS)
        results = await last.results(1)
    assert rows_of(results) == rows_of(await uninterrupted(ROWS))
    assert [journal.begun[event] for event in (*WHOLE[:3], MODEL[1], TOOLS[1], TOOLS[2], MODEL[3])] == [
        1, 1, 1, 4, 3, 3, 2
    ]  # fmt: skip


@pytest.mark.unit
@pytest.mark.parametrize("dialect", ["responses", "chat"])
async def test_three_rounds_of_restore_two_turns_checkpoint_and_crash(dialect: str) -> None:
    """What a restored life adds is in the next checkpoint: only the call in flight at each crash is made again."""
    rows = {"r0": counter_row("r0", 1, 2, 3, 4, 5)}
    store, journal = memory_store(), Journal()
    for turn in (1, 3, 5):
        async with world(store, journal, dialect=dialect) as one:
            pause = one.hold(f"model r0 {turn}")
            [life] = await one.start(rows)
            assert life.attempt == (turn - 1) // 2
            await one.checkpoint_at(pause, go_on=False)
    async with world(store, journal, dialect=dialect) as last:
        await last.start(rows)
        results = await last.results(1)
    assert rows_of(results) == rows_of(await uninterrupted(rows, dialect=dialect))
    assert journal.repeated() == {"model r0 1": 2, "model r0 3": 2, "model r0 5": 2}


@pytest.mark.unit
async def test_sixteen_rollouts_at_different_turns_all_continue() -> None:
    """Each is somewhere else when the checkpoint is taken; the total of calls is exact, and results are the same."""
    rows = {f"r{n}": counter_row(f"r{n}", *range(1, 4), start=n) for n in range(16)}
    store, journal = memory_store(), Journal()
    async with world(store, journal) as one:
        pauses = [one.hold(f"model r{n} {n % 5}") for n in range(16)]
        await one.start(rows)
        for pause in pauses:
            await pause.reached.wait()
        await one.checkpoint()
    async with world(store, journal) as two:
        await two.start(rows)
        results = await two.results(16)
        assert two.left() == {}
    assert rows_of(results) == rows_of(await uninterrupted(rows))
    assert journal.repeated() == {f"model r{n} {n % 5}": 2 for n in range(16)}


@pytest.mark.unit
async def test_an_episode_that_finishes_during_prepare_is_delivered_once() -> None:
    """With and without a crash: its result is neither lost nor made again, and does not leave while prepared."""
    store, journal = memory_store(), Journal()
    delivered: list[Result] = []
    async with world(store, journal) as one:

        async def read() -> None:
            async for result in one.environment.results():
                assert not one.environment.gate.closed
                delivered.append(result)

        pause = one.hold("before /close_session 0")
        one.group.start_soon(read)
        await one.start(ROWS)
        await one.checkpoint_at(pause)
        await settle()
        assert [result.life.rollout_id for result in delivered] == ["r0"]
    async with world(store, journal) as two:
        await two.start(ROWS)
        results = await two.results(1)
    assert results["r0"].row == delivered[0].row
    assert journal.order == WHOLE


@pytest.mark.unit
async def test_a_verify_in_flight_that_ends_without_a_crash_is_used_and_not_run_again() -> None:
    """Prepare does not wait for it; it ends while everything is closed, and nothing is delivered until resume."""
    async with world() as one:
        pause = one.hold(f"verify {SESSION}")
        await one.start(ROWS)
        await one.checkpoint_at(pause)
        results = await one.results(1)
    assert results["r0"].failure is None
    assert one.journal.order == WHOLE


@pytest.mark.unit
async def test_a_restored_rollout_that_is_not_taken_up_is_exported_again() -> None:
    """Two rollouts wait after a restore while a third goes on: the next checkpoint has them unchanged."""
    rows = {f"r{n}": counter_row(f"r{n}", 2) for n in range(3)}
    store, journal = memory_store(), Journal()
    async with world(store, journal) as one:
        pauses = [one.hold(f"model r{n} 1") for n in range(3)]
        await one.start(rows)
        for pause in pauses:
            await pause.reached.wait()
        await one.checkpoint()
    async with world(store, journal) as two:
        await two.start({"r0": rows["r0"]})
        await two.checkpoint_at(two.hold("model r0 2"), go_on=False)
    async with world(store, journal) as three:
        assert sorted((life.rollout_id, life.attempt) for life in three.restored) == [("r0", 1), ("r1", 0), ("r2", 0)]
        await three.start(rows)
        results = await three.results(3)
    assert rows_of(results) == rows_of(await uninterrupted(rows))
    assert journal.repeated() == {f"model r{n} 1": 2 for n in range(3)} | {"model r0 2": 2}


@pytest.mark.unit
async def test_what_a_restored_life_has_not_come_for_yet_is_in_the_next_checkpoint() -> None:
    """A held response that was restored, and not asked for before the next crash, is still not generated again."""
    store, journal = memory_store(), Journal()
    async with world(store, journal) as one:
        pause, _ = one.hold(MODEL[1]), one.hold("before /increment_counter 1")
        await one.start(ROWS)
        await pause.reached.wait()
        one.model.gate.close()
        pause.released.set()
        await settle()
        await one.checkpoint()
    for _ in range(2):
        async with world(store, journal) as again:
            await again.start(ROWS)
            await again.checkpoint_at(again.hold("before /v1/responses 1"), go_on=False)
            assert again.model.brought("r0") is not None
    async with world(store, journal) as last:
        await last.start(ROWS)
        results = await last.results(1)
    assert rows_of(results) == rows_of(await uninterrupted(ROWS))
    assert journal.repeated() == {}
