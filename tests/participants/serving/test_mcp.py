"""Tools over MCP, called with the official client at real servers of one and of two workers."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from orchestrator import adopt, discover, http_client, prepare, resume
from orchestrator.links import HttpLink
from participants import Floor
from participants.data import LIFE_HEADER
from participants.mcp_http import CALL_META
from participants.routing import worker_of
from store import CheckpointId, claim, open_store
from tests.support.fleet import Server
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.anyio, pytest.mark.timeout(120)]

COUNTER = "participants.servers.counter:CounterServer"
TOKEN = "a-token"
ASK_S = 20.0


@pytest.fixture(params=[1, 2], ids=["one-worker", "two-workers"])
def counter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A counter that takes part in no run."""
    with ExitStack() as stack:
        server = Server("resources.counter", {"server": COUNTER, "workers": request.param}, tmp_path)
        stack.callback(server.kill)
        server.begin()
        server.await_ready()
        yield server


def seed(server: Server, life: str, start: int = 10) -> dict[str, Any]:
    """Open the session of a life, with the typed body; gives the reply."""
    rollout, _, rest = life.partition("/")
    body = {
        "resources_session_id": f"s-{rollout}",
        "episode_id": {"rollout_id": rollout, "attempt": int(rest.partition(".")[2].partition("#")[0])},
        "task_data": {"initial_count": start, "expected_count": 0},
    }
    answer = httpx.post(f"{server.url}/seed_session", json=body, headers={LIFE_HEADER: life}, timeout=ASK_S)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def call(url: str, name: str, arguments: dict[str, Any], call_id: str | None = None) -> Any:
    """One call of a tool, on a connection of its own."""
    meta: Any = {CALL_META: call_id} if call_id is not None else None
    try:
        async with Client(streamable_http_client(url)) as client:
            return await client.call_tool(name, arguments, meta=meta)
    except* MCPError as group:
        raised = group.split(MCPError)[0]
    found: BaseException | None = raised
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert found is not None
    raise found


async def count(url: str) -> int:
    """What the counter of a session says."""
    found = await call(url, "get_counter_value", {})
    return int(found.structured_content["count"])


async def test_a_client_finds_its_way_from_the_seed_to_the_tools(counter: Server) -> None:
    """The reply of a typed seed says where; the tools there are those a model is shown, and calls are carried out."""
    for rollout in ("r0", "r10"):  # Of both workers, where there are two: the client knows nothing of them.
        access = seed(counter, f"{rollout}/1.0#0")["resources_tools"]
        assert access["transport"] == "streamable_http"
        assert access["url_path"] == f"/rollouts/{rollout}/1.0.0/mcp"
        url = counter.url + access["url_path"]
        async with Client(streamable_http_client(url)) as client:
            tools = (await client.list_tools()).tools
            assert [tool.name for tool in tools] == ["get_counter_value", "increment_counter"]
            assert tools[1].input_schema["required"] == ["count"]
            added = await client.call_tool("increment_counter", {"count": 5})
        assert (added.is_error, added.structured_content) == (False, {"success": True})
        assert await count(url) == 15
    assert {worker_of(rollout, 2) for rollout in ("r0", "r10")} == {0, 1}


async def test_what_a_tool_says_no_with_is_a_result_that_a_model_is_to_see(counter: Server) -> None:
    """Wrong arguments are an error inside the result, and the session is as it was."""
    seed(counter, "r0/1.0#0")
    url = f"{counter.url}/rollouts/r0/1.0.0/mcp"
    refused = await call(url, "increment_counter", {"count": "many"})
    assert refused.is_error
    assert "increment_counter: count" in refused.content[0].text
    assert await count(url) == 10


REFUSED = {
    ("/rollouts/r0/1.0.0/mcp", "increment_counter"): "stale_life",
    ("/rollouts/unknown/1.0.0/mcp", "increment_counter"): "stale_life",
    ("/rollouts/r0/1.1.1/mcp", "verify"): "invalid_request",
    ("/rollouts/r0/1.1.1/mcp", "no_such_tool"): "invalid_request",
    ("/mcp", "increment_counter"): "invalid_request",
}


async def test_what_midflight_refuses_is_an_error_and_changes_nothing(counter: Server) -> None:
    """A call that is fenced off is no tool result, so that no model reads it; the life that goes on is untouched."""
    seed(counter, "r0/1.0#0")
    seed(counter, "r0/1.1#1", start=20)
    for (path, name), code in REFUSED.items():
        with pytest.raises(MCPError) as raised:
            await call(counter.url + path, name, {"count": 5})
        assert raised.value.error.data["code"] == code, (path, name)
    assert await count(f"{counter.url}/rollouts/r0/1.1.1/mcp") == 20


async def test_a_call_with_an_id_runs_once(counter: Server) -> None:
    """A repeat under the same id gets the kept reply; without one the tool runs each time."""
    seed(counter, "r0/1.0#0")
    url = f"{counter.url}/rollouts/r0/1.0.0/mcp"
    first, again = [await call(url, "increment_counter", {"count": 1}, "agent.main:1.0") for _ in range(2)]
    assert first == again
    assert await count(url) == 11
    for _ in range(2):
        await call(url, "increment_counter", {"count": 1})
    with pytest.raises(MCPError, match="is not a call id"):
        await call(url, "increment_counter", {"count": 1}, call_id="")
    assert await count(url) == 13


def test_nothing_but_a_post_is_served(counter: Server) -> None:
    """Clients ask for a stream of notifications, which would stay open as long as they do, and hold back the end."""
    seed(counter, "r0/1.0#0")
    for path in ("/mcp", "/rollouts/r0/1.0.0/mcp", "/rollouts/r10/1.0.0/mcp"):
        for method in ("GET", "DELETE", "PUT"):
            answer = httpx.request(method, counter.url + path, headers={"accept": "text/event-stream"}, timeout=ASK_S)
            assert (answer.status_code, answer.headers.get("allow")) == (405, "POST"), (method, path)


async def test_a_call_waits_while_a_checkpoint_stands(tmp_path: Path) -> None:
    """While prepared, a tool call is held and changes nothing; after resume it is carried out."""
    spec = {"server": COUNTER, "token_env": "TOKEN", "store": str(tmp_path / "store")}
    server = Server("resources.counter", spec, tmp_path, {"TOKEN": TOKEN})
    with ExitStack() as stack:
        stack.callback(server.kill)
        async with (
            open_store(spec["store"], "write") as store,
            claim(store) as controller,
            http_client(TOKEN) as client,
        ):
            server.begin()
            await anyio.to_thread.run_sync(server.await_ready)
            found = await discover([HttpLink(server.url, client)], store.run_id)
            fleet, _ = await adopt(found, controller.epoch, Floor(controller.epoch, 0))
            seed(server, f"r0/{controller.epoch}.0#0")
            url = f"{server.url}/rollouts/r0/{controller.epoch}.0.0/mcp"
            standing = CheckpointId(controller.epoch, 1)
            assert (await prepare(fleet, standing, timeout_s=5, lease_s=60)).prepared
            done: list[Any] = []

            async def add() -> None:
                done.append(await call(url, "increment_counter", {"count": 1}))

            async with anyio.create_task_group() as group:
                group.start_soon(add)
                await anyio.to_thread.run_sync(until, partial(_is_parked, server.url), ASK_S)
                assert not done
                await resume(fleet, standing)
            assert await count(url) == 11


def _is_parked(url: str) -> bool:
    headers = {"authorization": f"Bearer {TOKEN}"}
    status = httpx.get(f"{url}/checkpoint/v1/status", headers=headers, timeout=ASK_S).json()
    return bool(status["counts"]["parked"])
