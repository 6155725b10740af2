"""The environment server: `/run` in both forms, results until acknowledged, limits, and tools that call the model."""

from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.coordination import prepare, resume
from orchestrator.errors import CommitFailed
from orchestrator.rounds import Blocked, RoundLimits, checkpoint
from participants import Code, LocalPeer, ParticipantError, Reply, Request, ResourcesSession
from participants.data import CallId
from store import Life
from tests.support.checkpoints import memory_store
from tests.support.journal import Journal
from tests.support.owners import settle
from tests.support.scripted import counter_row, scripted_row
from tests.support.world import JournalCounter, WaitingCounter, World, world

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

ROW = counter_row("r0", 2)


def typed(row: Mapping[str, Any], life: Life) -> dict[str, Any]:
    """The same row as a typed body."""
    data = {key: value for key, value in row.items() if key != "responses_create_params"}
    task_input = {"responses_create_params": row["responses_create_params"], "task_data": data}
    task = {"task_id": {"taskset": "counter", "task_id": "t7"}, "task_input": task_input}
    return {"episode_id": {"rollout_id": life.rollout_id, "attempt": life.attempt}, "task": task}


async def run(one: World, life: Life | None, body: Any) -> Any:
    """One call of `/run`."""
    return (await one.environment.handle(Request(route="/run", body=body, life=life))).body


async def test_a_flat_row_gives_the_verified_row() -> None:
    """With its own fields, the response and the reward; a duplicate gets the same, and another row is refused."""
    async with world() as one:
        life = one.next_life("r0")
        body = await run(one, life, {**ROW, "_ng_task_index": 3})
        assert body.items() >= {"reward": 1.0, "_ng_task_index": 3, "expected_count": 3, "mask_sample": False}.items()
        assert await run(one, life, {**ROW, "_ng_task_index": 4}) == body
        with pytest.raises(ParticipantError, match="another row"):
            await run(one, life, counter_row("other", 2))
        one.release(life)
        assert (one.left(), one.environment._results) == ({}, {})
        with pytest.raises(ParticipantError, match="stale_life"):
            await run(one, life, ROW)


async def test_a_typed_body_gives_its_ids_and_exactly_a_result() -> None:
    """The verify fields and the agent's observations are in `result`; the session was seeded by its typed body."""
    async with world() as one:
        life = one.next_life("r0")
        body = await run(one, life, typed(ROW, life))
        assert set(body) == {"episode_id", "task_id", "result"}
        assert body["episode_id"] == {"rollout_id": "r0", "attempt": 0}
        assert body["task_id"] == {"taskset": "counter", "task_id": "t7"}
        assert body["result"].items() >= {"reward": 1.0, "ng_agent_observations": [], "initial_count": 1}.items()


async def test_a_typed_failure_has_the_fields_of_its_kind() -> None:
    """Reason, terminal, kind, stage and the partial response; there is no `result`, and nowhere a reward."""
    async with world() as one:
        life = one.next_life("r0")
        body = await run(one, life, typed(ROW | {"expected_count": "x"}, life))
        assert set(body) == {"episode_id", "task_id", "failure"}
        failure = body["failure"]
        assert (failure["stage"], failure["terminal"], failure["failure_kind"]) == (
            "verification", True, "invalid_request"
        )  # fmt: skip
        assert "expected_count" in failure["failure_reason"]
        assert failure["partial_response"]["status"] == "completed"


async def test_a_flat_row_that_fails_is_an_error_and_no_row() -> None:
    """The status is 502, so that nobody counts it as a reward of 0; the details say what failed."""
    async with world() as one:
        with pytest.raises(ParticipantError) as caught:
            await run(one, one.next_life("r0"), ROW | {"initial_count": "x"})
        assert (caught.value.code, caught.value.status) == (Code.STEP_FAILED, 502)
        assert caught.value.details.items() >= {"stage": "seed", "class": "invalid_request", "terminal": True}.items()


@pytest.mark.parametrize("spoil", [
    lambda body: body["episode_id"].update(attempt=5),
    lambda body: body["task"].update(extra=1),
    lambda body: body["task"]["task_input"].update(responses_create_params=[]),
])  # fmt: skip
async def test_a_typed_body_that_is_wrong_is_refused_and_nothing_begins(spoil: Any) -> None:
    """Another attempt than the life's, an unknown field, or parameters that are no object."""
    async with world() as one:
        life = one.next_life("r0")
        body = typed(ROW, life)
        spoil(body)
        with pytest.raises(ParticipantError) as caught:
            await run(one, life, body)
        assert (caught.value.code, one.left()) == (Code.INVALID_REQUEST, {})


@pytest.mark.parametrize("form", ["flat", "typed"])
async def test_a_client_without_a_life_is_served_and_nothing_is_kept(form: str) -> None:
    """Through all four participants; afterwards none of them holds anything."""
    async with world() as one:
        asked = Life("r9", 0, 0, 0)
        body = await run(one, None, ROW if form == "flat" else typed(ROW, asked))
        reward = body["reward"] if form == "flat" else body["result"]["reward"]
        assert (reward, one.upstream.lives) == (1.0, [None] * 3)
        if form == "typed":
            assert body["episode_id"]["rollout_id"] == "r9"
        assert one.left() == {}
        assert not one.agent._uncaptured


async def test_a_result_is_kept_until_acknowledged_and_delivered_once_after_a_restore() -> None:
    """It is in the checkpoint; the continued life delivers the same row, and nothing runs again."""
    store, journal = memory_store(), Journal()
    async with world(store, journal) as one:
        life = one.next_life("r0")
        first = await run(one, life, ROW)
        await one.checkpoint()
    whole = list(journal.order)
    async with world(store, journal) as two:
        life = two.next_life("r0")
        assert await run(two, life, ROW) == first
        assert (await two.results(1))["r0"].row == first
        assert two.left() == {}
    assert journal.order == whole


@pytest.mark.parametrize("counter", [JournalCounter, WaitingCounter])
async def test_a_checkpoint_waits_for_a_verify_only_where_it_is_declared(counter: type[JournalCounter]) -> None:
    """`wait` is named as the blocker until it finishes; `replay` is not waited for."""
    async with world(counter=counter) as one:
        pause = one.hold("verify resources-r0")
        [life] = await one.start({"r0": ROW})
        await pause.reached.wait()
        round_ = one.controller.next_round()
        found = await prepare(one.fleet, round_, timeout_s=0.1, lease_s=60)
        assert found.prepared is (counter is JournalCounter)
        if not found.prepared:
            blocker = found.blockers[0]
            assert (blocker.life, blocker.step, blocker.participant) == (life, "verify", "environment.main")
            pause.released.set()
            assert (await prepare(one.fleet, round_, timeout_s=5, lease_s=60)).prepared
        await resume(one.fleet, round_)
        pause.released.set()
        assert (await one.results(1))["r0"].failure is None


class Asking(JournalCounter):
    """A counter one of whose tools asks the model."""

    model: Any = None

    async def call_tool(self, session: ResourcesSession, name: str, arguments: Any) -> Any:
        if name == "get_counter_value":
            await self.call(self.model, "/v1/responses", scripted_row("inner", ["fine"])["responses_create_params"])
        return await super().call_tool(session, name, arguments)


async def test_a_tool_that_calls_the_model_is_waited_for_and_never_run_twice() -> None:
    """Its own call is admitted while everything else is closed; the record has the tool's result."""
    rows = {"r0": counter_row("r0", 2)}
    store, journal = memory_store(), Journal()
    async with world(store, journal, counter=Asking) as one:
        assert isinstance(one.resources, Asking)
        one.resources.model = LocalPeer(one.model)
        pause = one.hold("before /get_counter_value 0")
        inner = one.hold("model inner 0")
        await one.start(rows)
        await pause.reached.wait()
        pause.released.set()
        await one.checkpoint_at(inner)
        lost = journal.unsaved()
    async with world(store, journal, counter=Asking) as two:
        await two.start(rows)
        results = await two.results(1)
    assert results["r0"].row is not None
    assert results["r0"].row["reward"] == 1.0
    assert journal.begun["model inner 0"] == 1
    assert journal.repeated() == dict.fromkeys(lost, 2)


async def test_a_commit_is_refused_while_a_model_call_inside_a_step_is_in_flight() -> None:
    """Where no agent waits for the tool, the model still says that its caller is at no boundary."""
    async with world() as one:
        pause = one.hold("model r0 0")
        life = one.next_life("r0")
        inside = CallId("resources.main", 0, 0, "agent.main:1.0")
        call = Request(route="/v1/responses", body=ROW["responses_create_params"], life=life, call=inside)
        one.group.start_soon(one.model.handle, call)
        await pause.reached.wait()
        with pytest.raises(CommitFailed, match="inside steps"):
            await one.checkpoint()
        pause.released.set()
        await settle()
        assert (await one.checkpoint()).published is not None


async def test_a_blocked_checkpoint_names_the_tool_and_work_goes_on() -> None:
    """The agent's tool call is in the way; after the round is resumed the episode finishes."""
    limits = RoundLimits(prepare_timeout_s=0.1, more_time_s=0)
    async with world() as one:
        pause = one.hold("tool resources-r0 increment_counter 0")
        await one.start({"r0": ROW})
        await pause.reached.wait()
        with pytest.raises(Blocked, match="tool:increment_counter"):
            async with checkpoint(one.fleet, one.controller, limits):
                pass
        pause.released.set()
        assert (await one.results(1))["r0"].failure is None


async def test_the_time_limit_of_an_episode_is_a_terminal_failure() -> None:
    """A step that hangs past the limit of active time is cut off, sessions are closed, and the class is timeout."""
    async with world(max_wall_s=0.05) as one:
        one.hold("model r0 0")
        await one.start({"r0": ROW})
        [result] = (await one.results(1)).values()
        assert result.failure is not None
        assert (result.failure["class"], result.failure["terminal"]) == ("timeout", True)
        assert one.left() == {}


async def test_the_active_time_of_the_step_in_flight_is_exported() -> None:
    """An hour in one activation is not given back by a crash in the middle of it."""
    async with world() as one:
        pause = one.hold("model r0 0")
        await one.start({"r0": ROW})
        await pause.reached.wait()
        [held] = one.environment.held()
        assert held.state.episode is not None
        assert one.environment.export_state(held)["active_s"] > held.state.episode.active_s > 0.0


@pytest.mark.parametrize("server", ["environment", "agent"])
async def test_no_result_of_a_run_leaves_while_prepared(server: str) -> None:
    """An episode that ends while admission is closed is answered after the resume, by either `/run`, and once."""
    async with world() as one:
        holder: Any = getattr(one, server)
        pause = one.hold("before /close_session 0")
        replies: list[Reply] = []
        life = one.next_life("r0")

        async def run() -> None:
            replies.append(await holder.handle(Request(route="/run", body=ROW, life=life)))

        one.group.start_soon(run)
        await pause.reached.wait()
        for each in one.holders:
            each.gate.close()
        one.resources.gate.reopen()  # The call that is on its way comes through, as one that was sent before would.
        pause.released.set()
        await settle(300)
        [held] = holder.held()
        assert held.state.episode.step == "done"
        assert replies == []
        for each in one.holders:
            each.gate.reopen()
        await settle(300)
        assert [reply.body["reward"] for reply in replies] == [1.0]
