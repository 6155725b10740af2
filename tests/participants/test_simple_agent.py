"""Simple Agent over both dialects: the tool loop, its budgets, what a model gets wrong, and its own `/run`."""

from typing import Any

import pytest

from participants import (
    Code,
    Gate,
    LocalPeer,
    ModelServer,
    OpenAIEndpoint,
    ParticipantError,
    Reply,
    Request,
    SimpleAgent,
)
from participants.inference import Backend, Settings, serving
from participants.servers import CounterServer
from tests.support.checkpoints import memory_store
from tests.support.journal import Journal
from tests.support.owners import settle
from tests.support.scripted import TOOLS, counter_row, scripted_row
from tests.support.world import world

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

DIALECTS = ["responses", "chat"]


async def response_of(turns: list[Any], *, expected: int = 1, **options: Any) -> dict[str, Any]:
    """The response of an episode over a list of turns; its reward says whether the counter stands as expected."""
    async with world(**options) as one:
        await one.start({"r0": scripted_row("r0", turns, expected=expected)})
        [result] = (await one.results(1)).values()
    assert result.row is not None, result.failure
    assert result.row["reward"] == 1.0
    response: dict[str, Any] = result.row["response"]
    return response


def outputs(response: dict[str, Any]) -> list[str]:
    """What the tools said, in order."""
    return [item["output"] for item in response["output"] if item["type"] == "function_call_output"]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_loop_solves_a_task_against_the_deterministic_backend(dialect: Any) -> None:
    """Over a real socket, without lives: the counter row runs through the agent's own `/run` and is rewarded."""
    backend, counter = Backend(Settings()), CounterServer()
    async with serving(backend) as url, OpenAIEndpoint(f"{url}/v1") as endpoint:
        agent = SimpleAgent(
            LocalPeer(ModelServer(endpoint)), {counter.role: LocalPeer(counter)}, dialect=dialect, max_steps=9
        )
        content = "add 1 then add 2 then get the count"
        parameters = {"model": backend.settings.model, "input": [{"role": "user", "content": content}], "tools": TOOLS}
        row = {"responses_create_params": parameters, "initial_count": 3, "expected_count": 6, "_ng_task_index": 4}
        reply = await agent.handle(Request(route="/run", body=row))
        assert (reply.body["reward"], reply.body["_ng_task_index"]) == (1.0, 4)
        response = reply.body["response"]
        assert response["output"][-1]["content"][0]["text"] == "The counter is at 6."
        assert response["usage"]["output_tokens"] == sum(call.generated for call in backend.calls.since(0))
    backend.close()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_parallel_tool_calls_run_in_order_with_a_boundary_after_each(dialect: str) -> None:
    """A crash after a checkpoint inside the second one repeats neither of them, and the third runs once."""
    turns = [[["add", 1], ["add", 10], ["get"]], "done"]
    rows = {"r0": scripted_row("r0", turns, expected=12)}
    store, journal = memory_store(), Journal()
    async with world(store, journal, dialect=dialect) as one:
        await one.start(rows)
        await one.checkpoint_at(one.hold("tool resources-r0 increment_counter 1"), go_on=False)
        lost = journal.unsaved()
    async with world(store, journal, dialect=dialect) as two:
        await two.start(rows)
        [result] = (await two.results(1)).values()
    assert result.row is not None
    assert outputs(result.row["response"]) == ['{"success":true}', '{"success":true}', '{"count":12}']
    assert journal.repeated() == dict.fromkeys(lost, 2)
    assert not any("increment_counter" in event for event in lost)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_step_budget_ends_the_loop_and_says_so_also_after_a_restore(dialect: str) -> None:
    """The tools of the last allowed turn run; no further action is made, neither at once nor by the continuation."""
    rows = {"r0": scripted_row("r0", [["add", 1], ["add", 1], ["add", 1], "never"], expected=3)}
    store, journal = memory_store(), Journal()
    async with world(store, journal, dialect=dialect, max_steps=2) as one:
        await one.start(rows)
        await one.checkpoint_at(one.hold("tool resources-r0 increment_counter 1"), go_on=False)
        lost = journal.unsaved()
    async with world(store, journal, dialect=dialect, max_steps=2) as two:
        await two.start(rows)
        [result] = (await two.results(1)).values()
    assert result.row is not None
    response = result.row["response"]
    assert (response["status"], response["metadata"]["ng_termination_reason"]) == ("incomplete", "max_steps")
    assert (result.row["reward"], len(outputs(response))) == (1.0, 2)
    assert journal.repeated() == dict.fromkeys(lost, 2)
    assert sum(event.startswith("model") for event in journal.order) == 2


async def test_the_wall_time_budget_ends_a_model_call_that_hangs() -> None:
    """It counts active time, cuts off the call, and the episode is scored as it stands."""
    async with world(max_wall_s=0.0, make_agent=SimpleAgent) as one:
        one.agent.max_wall_s = 0.05
        one.hold("model r0 1")
        await one.start({"r0": scripted_row("r0", [["add", 1], "never"], expected=2)})
        [result] = (await one.results(1)).values()
    assert result.row is not None
    assert result.row["response"]["metadata"]["ng_termination_reason"] == "wall_time"
    assert (result.row["response"]["status"], result.row["reward"]) == ("incomplete", 1.0)


async def test_time_parked_and_downtime_do_not_count_against_the_wall_time() -> None:
    """A clock that jumps while the gate is closed leaves the whole budget; the spent part is in the record."""
    now = [0.0]
    gate = Gate(clock=lambda: now[0])
    gate.close()
    now[0] += 1000.0
    gate.reopen()
    store = memory_store()
    async with world(store, gate=gate) as one:
        one.agent.max_wall_s = 10.0
        pause, after = one.hold("tool resources-r0 increment_counter 0"), one.hold("model r0 1")
        await one.start({"r0": counter_row("r0", 1)})
        await pause.reached.wait()
        now[0] += 7.0
        await one.checkpoint_at(pause, go_on=False)
        await after.reached.wait()
        held = one.agent.held()[0].state.activation
        assert held is not None
        assert held.active_s == 7.0
    async with world(store) as two:
        two.agent.max_wall_s = 10.0
        pause = two.hold("model r0 1")
        await two.start({"r0": counter_row("r0", 1)})
        await pause.reached.wait()
        held = two.agent.held()[0].state.activation
        assert held is not None
        assert held.active_s == 7.0


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (["raw", "increment_counter", "{bad"], "not valid JSON"),
        (["raw", "increment_counter", "[1]"], "not a JSON object"),
        (["raw", "no_such_tool", "{}"], "no tool named"),
        (["raw", "verify", "{}"], "no tool named"),
        (["raw", "increment_counter", '{"count": "x"}'], "count"),
    ],
)
async def test_what_a_model_gets_wrong_is_told_to_it(call: list[str], says: str, dialect: str) -> None:
    """Nothing is called or changed, the model sees why, and the loop goes on."""
    response = await response_of([call, "sorry"], dialect=dialect)
    assert says in outputs(response)[0]
    assert response["status"] == "completed"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        ([], "empty_output"),
        ("", "empty_output"),
        ([{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}],
         "incomplete_reasoning"),
    ],
)  # fmt: skip
async def test_a_reply_that_says_nothing_ends_incomplete(turn: Any, reason: str, dialect: str) -> None:
    """Empty, or reasoning alone: the metadata say which."""
    response = await response_of([turn], dialect=dialect)
    assert (response["status"], response["metadata"]["ng_termination_reason"]) == ("incomplete", reason)


async def test_a_refusal_is_an_answer() -> None:
    """The loop ends, completed, with the refusal as its last message."""
    refusal = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    response = await response_of([[refusal]])
    assert (response["status"], response["output"][-1]["content"][0]["refusal"]) == ("completed", "no")


async def test_a_refusal_of_the_backend_is_a_terminal_failure() -> None:
    """A request that the backend calls wrong is `model_failed` with its status, and is not tried again."""
    async with world() as one:
        one.upstream.failures["model r0 0"] = Reply(400, {"error": {"message": "too long"}})
        await one.start({"r0": counter_row("r0", 1)})
        [result] = (await one.results(1)).values()
    assert result.failure is not None
    assert (result.failure["class"], result.failure["terminal"]) == ("model_failed", True)


@pytest.mark.parametrize("kill_at", ["model r0 1", "tool resources-agent increment_counter 0", "verify resources-r0"])
@pytest.mark.parametrize("save_at", ["seed resources-r0", "model r0 0", "tool resources-r0 increment_counter 0"])
async def test_its_own_run_continues_after_a_crash_as_natively(save_at: str, kill_at: str) -> None:
    """A flat row over the agent's `/run`: nothing at or before the boundary again, and a duplicate joins it."""
    kill_at = kill_at.replace("resources-agent", "resources-r0")
    if save_at == kill_at:
        return
    rows = {"r0": counter_row("r0", 2)}
    store, journal = memory_store(), Journal()
    replies: list[Any] = []

    async def run(one: Any, life: Any) -> None:
        replies.append((await one.agent.handle(Request(route="/run", body=rows["r0"], life=life))).body)

    async with world(store, journal) as one:
        save, kill = one.hold(save_at), one.hold(kill_at)
        life = one.next_life("r0")
        one.group.start_soon(run, one, life)
        await one.checkpoint_at(save)
        await kill.reached.wait()
        lost = journal.unsaved()
    async with world(store, journal) as two:
        life = two.next_life("r0")
        two.group.start_soon(run, two, life)
        await run(two, life)
        await run(two, life)
        with pytest.raises(ParticipantError) as caught:
            await two.agent.handle(Request(route="/run", body=counter_row("other", 1), life=life))
        assert caught.value.code is Code.INVALID_REQUEST
        two.release(life)
        assert two.left() == {}
    assert len(replies) == 3
    assert all(reply == replies[0] for reply in replies)
    assert replies[0]["reward"] == 1.0
    assert journal.repeated() == dict.fromkeys(lost, 2)


async def test_a_row_cannot_make_a_tool_of_a_route_that_is_none() -> None:
    """A row that lists `verify` as a tool does not let the model call it."""
    tools = [*TOOLS, {"type": "function", "name": "verify", "parameters": {}}]
    async with world() as one:
        await one.start({"r0": scripted_row("r0", [["raw", "verify", "{}"], "sorry"], tools=tools)})
        [result] = (await one.results(1)).values()
        assert result.row is not None
        assert "no tool named" in outputs(result.row["response"])[0]
        assert one.journal.begun["verify resources-r0"] == 1


async def test_no_result_of_its_own_run_leaves_while_prepared() -> None:
    """An episode that ends while admission is closed replies after resume, and not before."""
    replies: list[Any] = []
    async with world() as one:
        pause = one.hold("before /close_session 0")
        life = one.next_life("r0")

        async def run() -> None:
            replies.append(await one.agent.handle(Request(route="/run", body=counter_row("r0", 1), life=life)))

        one.group.start_soon(run)
        await pause.reached.wait()
        one.agent.gate.close()
        pause.released.set()
        await settle()
        episode = one.agent.held()[0].state.episode
        assert (replies, episode and episode.step) == ([], "done")
        one.agent.gate.reopen()
        await settle()
        assert len(replies) == 1
