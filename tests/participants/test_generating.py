"""How one generation is asked for."""

import pytest

from participants import ModelServer, OpenAIEndpoint, Request
from participants.backends import LazyCapabilities
from participants.data import CallId
from store import Life
from tests.support.wires import Vllm, served

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LIFE = Life("r0", 1, 0, 0)
CALL = CallId("agent.main", 1, 0)


@pytest.mark.parametrize("scored", [False, True])
async def test_log_probabilities_without_ids_are_asked_for_as_a_whole(scored: bool) -> None:
    """There is no prefix to lose, and some servers' streams leave some of them out."""
    async with served(Vllm) as (url, wire, backend), OpenAIEndpoint(url) as endpoint:
        server = ModelServer(endpoint, cuts=LazyCapabilities(endpoint))
        await server.generator.capabilities()
        body = {"model": backend.settings.model, "input": "hello", "max_output_tokens": 8}
        more = {"include": ["message.output_text.logprobs"]} if scored else {}
        await server.handle(Request(route="/v1/responses", body={**body, **more}, life=LIFE, call=CALL))
        path, asked = wire.requests[-1]
        assert (path, bool(asked.get("stream"))) == ("/v1/responses", not scored)
