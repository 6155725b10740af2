"""Rows and bodies of NeMo Gym as they are: through `/run` of the environment and of the agent, all of it over HTTP."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from openai.types.responses import Response

from participants import (
    EnvironmentServer,
    HttpPeer,
    ModelServer,
    OpenAIEndpoint,
    ResourcesServer,
    SimpleAgent,
    data_app,
)
from participants.inference import DEFAULT_MODEL, Backend, Settings, serving
from participants.run_bodies import asked_of
from participants.servers import CounterServer, WeatherServer
from store import Life

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

COUNTER_ROW: dict[str, Any] = {
    "responses_create_params": {
        "input": [{"role": "user", "content": "add 1 then add 2 then get the count"}],
        "tools": [
            {"type": "function", "name": "increment_counter", "description": "", "strict": True, "parameters": {
                "type": "object", "properties": {"count": {"type": "integer", "description": ""}},
                "required": ["count"], "additionalProperties": False}},
            {"type": "function", "name": "get_counter_value", "description": "", "strict": True, "parameters": {
                "type": "object", "properties": {}, "required": [], "additionalProperties": False}},
        ],
    },
    "initial_count": 3,
    "expected_count": 6,
    "agent_ref": {"type": "responses_api_agents", "name": "example_session_state_mgmt_simple_agent"},
    "_ng_task_index": 0,
    "_ng_rollout_index": 2,
}  # fmt: skip
WEATHER_ROW: dict[str, Any] = {
    "responses_create_params": {
        "input": [
            {"role": "developer", "content": "You are a helpful assistant. Always call get_weather."},
            {"role": "user", "content": "what's it like in San Francisco?"},
        ],
        "tools": [
            {"type": "function", "name": "get_weather", "description": "", "strict": True, "parameters": {
                "type": "object", "properties": {"city": {"type": "string", "description": ""}},
                "required": ["city"], "additionalProperties": False}},
        ],
        "parallel_tool_calls": False,
    },
    "_ng_task_index": 1,
    "_ng_rollout_id": "task-1-rollout-0",
}  # fmt: skip
CASES = [(CounterServer, COUNTER_ROW), (WeatherServer, WEATHER_ROW)]


def typed(row: dict[str, Any]) -> dict[str, Any]:
    """A row as the body of the typed protocol."""
    data = {key: value for key, value in row.items() if key != "responses_create_params"}
    task_input = {"responses_create_params": row["responses_create_params"], "task_data": data}
    return {
        "episode_id": {"rollout_id": "r7", "attempt": 0},
        "task": {"task_id": {"taskset": "main", "task_id": "7"}, "task_input": task_input},
    }


@asynccontextmanager
async def gym(kind: type[ResourcesServer], dialect: Any) -> AsyncIterator[httpx.AsyncClient]:
    """All four participants, each behind HTTP, before the deterministic backend; a client of all of them."""
    backend = Backend(Settings(model=DEFAULT_MODEL))
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(backend))
        endpoint = await stack.enter_async_context(OpenAIEndpoint(f"{url}/v1"))
        mounts: dict[str, Any] = {}
        http = await stack.enter_async_context(httpx.AsyncClient(mounts=mounts))

        def peer(holder: Any) -> HttpPeer:
            address = f"http://{holder.kind}"
            transport = httpx.ASGITransport(app=data_app(holder))
            http._mounts[httpx._utils.URLPattern(f"all://{holder.kind}")] = transport
            return HttpPeer(address, holder.role, http)

        resources, model = kind(), ModelServer(endpoint)
        served = {resources.role: peer(resources)}
        agent = SimpleAgent(peer(model), served, dialect=dialect)
        environment = EnvironmentServer(peer(agent), served)
        await stack.enter_async_context(environment.run())
        peer(environment)
        yield http
        assert resources.counts()["sessions_without_life"] == resources.counts()["sessions"] == 0
        http.cookies.clear()
    backend.close()


@pytest.mark.enumerated(4)
@pytest.mark.parametrize("life", ["", "r7/1.0#0"])
@pytest.mark.parametrize("dialect", ["responses", "chat"])
@pytest.mark.parametrize("server", ["environment", "agent"])
@pytest.mark.parametrize(("kind", "row"), CASES)
async def test_a_dataset_row_runs_unmodified(kind: Any, row: Any, server: str, dialect: str, life: str) -> None:
    """Of the counter and of the weather server, through both `/run`, with and without a life, flat and typed."""
    headers = {"x-midflight-life": life} if life else {}
    async with gym(kind, dialect) as http:
        reply = await http.post(f"http://{server}/run", json=row, headers=headers)
        assert reply.status_code == 200, reply.text
        body = reply.json()
        assert body.items() >= {**row, "reward": 1.0, "mask_sample": False, "failure_kind": None}.items()
        said = [item for item in body["response"]["output"] if item["type"] != "function_call_output"]
        parsed = Response.model_validate({**body["response"], "output": said, "usage": None})
        assert (parsed.status, parsed.output_text != "") == ("completed", True)
        if life:
            headers = {"x-midflight-life": "r7/1.0#1"}
        told = (await http.post(f"http://{server}/run", json=typed(row), headers=headers)).json()
        assert set(told) == {"episode_id", "task_id", "result"}
        assert (told["episode_id"], told["result"]["reward"]) == ({"rollout_id": "r7", "attempt": 0}, 1.0)
        for number in (0, 1) if life else ():
            await http.post(f"http://{server}/acknowledge", headers={"x-midflight-life": f"r7/1.0#{number}"})


async def test_a_materialized_row_is_taken_as_typed() -> None:
    """`task_id` and `task_input` without an episode, as a collector has them on disk."""
    body = typed(COUNTER_ROW)["task"]
    asked = asked_of(Life("r0", 1, 0, 0), {**body, "_ng_rollout_index": 1})
    assert (asked.task_id, asked.row["initial_count"]) == ({"taskset": "main", "task_id": "7"}, 3)


async def test_the_agent_answers_a_plain_activation_with_the_cookies_of_a_seed() -> None:
    """As NeMo Gym's own flow does it: seed by hand, activate with the cookies, verify with the cookies."""
    async with gym(CounterServer, "responses") as http:
        seeded = await http.post("http://resources/seed_session", json=COUNTER_ROW)
        cookie = {"cookie": seeded.headers["set-cookie"].partition(";")[0]}
        http.cookies.clear()
        answer = await http.post(
            "http://agent/v1/responses", json=COUNTER_ROW["responses_create_params"], headers=cookie
        )
        assert answer.status_code == 200, answer.text
        row = {**COUNTER_ROW, "response": answer.json()}
        verified = await http.post("http://resources/verify", json=row, headers=cookie)
        assert verified.json()["reward"] == 1.0
        await http.post("http://resources/close_session", json={}, headers=cookie)
