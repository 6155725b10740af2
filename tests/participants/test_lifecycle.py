"""The ends of lives everywhere: retired, superseded, below the floor; and what restarts, blocks or fails."""

from functools import partial
from typing import Any, ClassVar

import pytest

from participants import Agent, Code, Floor, ParticipantError, Request
from participants.data import CallId
from store import Life, open_checkpoint
from tests.support.checkpoints import memory_store
from tests.support.deaf import Deaf
from tests.support.journal import Journal
from tests.support.owners import Pause, settle
from tests.support.scripted import counter_row, scripted_row
from tests.support.world import JournalCounter, World, world

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

ROWS = {"r0": counter_row("r0", 2)}
SESSION = "resources-r0"
CALLS = {
    "environment": Request(route="/run", body=ROWS["r0"]),
    "model": Request(route="/v1/responses", body=ROWS["r0"]["responses_create_params"]),
    "agent": Request(route="/v1/agent_sessions", body={"agent_session_id": "s"}),
    "resources": Request(route="/seed_session", body={"initial_count": 1}),
}


async def assert_refused(one: World, life: Life) -> None:
    """Every kind of call of a life is `stale_life`, and nothing comes to be."""
    before = one.left()
    for holder in one.holders:
        call = CALLS[holder.kind]
        late = Request(route=call.route, body=call.body, life=life, call=CallId("late.caller", 9, 0))
        with pytest.raises(ParticipantError) as caught:
            await holder.handle(late)  # type: ignore[attr-defined]
        assert caught.value.code is Code.STALE_LIFE
    assert one.left() == before


@pytest.mark.parametrize("point", ["model r0 1", f"tool {SESSION} increment_counter 0", f"verify {SESSION}"])
async def test_a_rollout_retired_in_mid_flight_stops_everywhere(point: str) -> None:
    """Nothing of it is left anywhere, no further call is made, its `/run` is refused, and so is every late call."""
    async with world() as one:
        pause = one.hold(point)
        life = one.next_life("r0")
        refused: list[Code] = []

        async def run() -> None:
            with pytest.raises(ParticipantError) as caught:
                await one.environment.handle(Request(route="/run", body=ROWS["r0"], life=life))
            refused.append(caught.value.code)

        one.group.start_soon(run)
        await pause.reached.wait()
        assert await one.retire(life) == frozenset()
        await settle()
        calls = len(one.journal.order)
        pause.released.set()
        await settle()
        assert (refused, one.left(), len(one.journal.order)) == ([Code.STALE_LIFE], {}, calls)
        await assert_refused(one, life)
        assert await one.retire(life) == frozenset()


async def test_a_superseded_life_is_refused_and_its_successor_finishes() -> None:
    """The newer dispatch stops the older one first; late calls of the older touch nothing, also below the floor."""
    async with world() as one:
        pause = one.hold("model r0 1")
        [old] = await one.start(ROWS)
        await pause.reached.wait()
        one.upstream.holds.clear()
        one.journal.new_world()
        [new] = await one.start(ROWS)
        results = await one.results(1)
        assert results["r0"].life == new
        assert results["r0"].row is not None
        await assert_refused(one, old)
        one.raise_floor(Floor(new.epoch, new.n + 1))
        await assert_refused(one, old)
        assert [holder.fences.fenced for holder in one.holders] == [[]] * 4


@pytest.mark.parametrize("where", ["tool", "activation"])
@pytest.mark.parametrize("pause", [partial(Pause, shielded=True), Deaf])
async def test_work_that_does_not_listen_is_reported_and_its_life_stays_fenced(pause: Any, where: str) -> None:
    """In a tool, or in an agent's activation, and so in the environment's step too; its late result is dropped."""
    async with world() as one:
        pause = pause()
        assert isinstance(one.resources, JournalCounter)
        held: dict[str, Any] = one.resources.holds if where == "tool" else one.points
        held[f"tool {SESSION} increment_counter 0" if where == "tool" else "before /v1/responses 0"] = pause
        [life] = await one.start(ROWS)
        await pause.reached.wait()
        assert await one.retire(life, timeout_s=0.05) == {life}
        await assert_refused(one, life)
        pause.released.set()
        await settle()
        assert one.left() == {}


async def test_nothing_is_left_of_two_hundred_rollouts() -> None:
    """After release only fences are held, one a rollout; after the floor has passed, nothing at all."""
    rows = {f"r{n}": scripted_row(f"r{n}", ["done"]) for n in range(200)}
    async with world() as one:
        lives = await one.start(rows)
        await one.results(len(rows))
        assert one.left() == {}
        assert [len(holder.fences.fenced) for holder in one.holders] == [200] * 4
        one.raise_floor(Floor(lives[-1].epoch, lives[-1].n + 1))
        for holder in one.holders:
            assert (holder.fences.fenced, holder.fences.live, holder.held()) == ([], [], [])
        assert not one.environment._results


class RestartCounter(JournalCounter):
    """Declares nothing."""

    checkpoint_mode: ClassVar[Any] = "restart"


class Improvising(Agent):
    """Runs activations in its own way, and says nothing of their state."""

    async def run_activation(self, held: Any, body: Any) -> dict[str, Any]:
        reply = await self.model.call(Request(route="/v1/responses", body=body, life=held.life))
        response: dict[str, Any] = reply.body
        return response


@pytest.mark.parametrize(("options", "row"), [
    ({"counter": RestartCounter}, counter_row("r0", 2)),
    ({"make_agent": Improvising}, scripted_row("r0", ["done"])),
])  # fmt: skip
async def test_a_rollout_that_cannot_be_captured_is_reported_and_starts_over(options: Any, row: Any) -> None:
    """It is no blocker, is exported nowhere and is listed as a restart; after the crash it runs from its input."""
    store, journal = memory_store(), Journal()
    rows = {"r0": row}
    async with world(store, journal, **options) as one:
        pause = one.hold("model r0 0")
        [life] = await one.start(rows)
        await pause.reached.wait()
        taken = await one.checkpoint()
        assert list(taken.standstill.restarts) == [life]
        assert taken.published is not None
        manifest = (await open_checkpoint(store, taken.published)).manifest
        assert (manifest.scope, manifest.restarts, manifest.records) == ((), (life,), 0)
    journal._saved = frozenset()
    async with world(store, journal, **options) as two:
        assert two.restored == []
        await two.start(rows)
        assert (await two.results(1))["r0"].failure is None


@pytest.mark.parametrize("what", [f"tool {SESSION} increment_counter 0", f"verify {SESSION}"])
async def test_nobody_waits_for_a_step_of_what_starts_over(what: str) -> None:
    """A tool call and a verify at a restart-only server go on across a checkpoint, and the episode after them."""
    async with world(memory_store(), counter=RestartCounter) as one:
        assert isinstance(one.resources, JournalCounter)
        pause = one.resources.holds[what] = Pause()
        [life] = await one.start({"r0": counter_row("r0", 2)})
        await pause.reached.wait()
        taken = await one.checkpoint()
        assert taken.standstill.restarts == {life}
        pause.released.set()
        assert (await one.results(1))["r0"].failure is None


async def test_a_late_reply_of_a_restored_life_is_refused() -> None:
    """The life that was saved may not act in the world that restored it, before or after its successor came."""
    store = memory_store()
    async with world(store) as one:
        pause = one.hold("model r0 1")
        [old] = await one.start(ROWS)
        await pause.reached.wait()
        await one.checkpoint()
    async with world(store) as two:
        with pytest.raises(ParticipantError, match="stale_life"):
            await two.model.handle(Request(route="/v1/responses", body={}, life=old))
        await two.start(ROWS)
        await two.results(1)
        await assert_refused(two, old)


async def test_a_failure_never_gives_a_reward() -> None:
    """A defect of the verifier, a lost session and a dead backend are typed failures without a row."""
    rows = {"r0": counter_row("r0", 2)}
    cases: dict[str, tuple[str, str]] = {
        "verify": ("step_failed", "verification"),
        "seed": ("step_failed", "seed"),
        "tool": ("step_failed", "agent"),
        "model": ("model_failed", "agent"),
        "lost": ("session_lost", "agent"),
    }
    for what, (named, stage) in cases.items():
        async with world() as one:
            assert isinstance(one.resources, JournalCounter)
            error = RuntimeError("planted")
            where = {"verify": f"verify {SESSION}", "seed": f"seed {SESSION}"}
            pause = Pause(error=error)
            pause.released.set()
            if what == "model":
                one.upstream.failures["model r0 1"] = ParticipantError(Code.MODEL_FAILED, "it is down")
            elif what == "lost":
                pause = one.hold("model r0 1")
            else:
                one.resources.holds[where.get(what, f"tool {SESSION} increment_counter 0")] = pause
            [life] = await one.start(rows)
            if what == "lost":
                await pause.reached.wait()
                one.resources.finish(life)
                pause.released.set()
            [result] = (await one.results(1)).values()
            assert result.row is None
            assert result.failure is not None
            assert (result.failure["class"], result.failure["stage"]) == (named, stage)
            assert result.failure["terminal"] is False
            assert one.left() == {}


async def test_an_error_of_a_tool_goes_to_the_model_and_an_error_of_ours_does_not() -> None:
    """A wrong argument is the tool's answer, which the model sees; the episode goes on and is scored."""
    row = scripted_row("r0", [["increment_counter", {"count": "many"}], "done"])
    async with world() as one:
        await one.start({"r0": row})
        [result] = (await one.results(1)).values()
        assert result.row is not None
        [output] = [i for i in result.row["response"]["output"] if i["type"] == "function_call_output"]
        assert "count" in output["output"]
        assert result.row["reward"] == 1.0
