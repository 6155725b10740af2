"""What the app of a worker serves, and what it says of everything else."""

import httpx
import pytest

from participants import ModelServer
from participants.data_http import Served
from participants.servers import CounterServer
from participants.serving.app import worker_app
from participants.serving.board import Board
from tests.support.journal import Journal
from tests.support.scripted import ScriptedUpstream

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


@pytest.mark.parametrize("models", [True, False])
async def test_what_a_server_without_a_token_does_not_serve_is_not_found(models: bool) -> None:
    """Control routes say why; the health, the models of a model server and data calls are as ever."""
    holder: Served = ModelServer(ScriptedUpstream(Journal())) if models else CounterServer("counter")
    app = worker_app(holder, about={}, urls=("http://h:1",), board=Board(1), number=0, control=None)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://here") as http:
        asked = [
            await http.get("/checkpoint/v1/capabilities"),
            await http.post("/checkpoint/v1/adopt", json={}),
            await http.get("/ledger/v1/r0/rows"),
        ]
        assert {reply.status_code for reply in asked} == {404}
        problem = "this server has no control plane: it was started without --token-env"
        assert {reply.json()["error"]["message"] for reply in asked} == {problem}
        unknown = await http.get("/nope")
        assert (unknown.status_code, unknown.headers["x-midflight-error"]) == (404, "invalid_request")
        assert f"{holder.role} serves nothing there for GET" in unknown.text
        assert (await http.get("/healthz")).status_code == 200
        for path in ("/v1/models", "/rollouts/r0/1.0.0/v1/models"):
            assert (await http.get(path)).status_code == (200 if models else 404)
        assert (await http.post("/nope", json={})).status_code != 404
