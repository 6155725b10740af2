"""Any OpenAI-compatible endpoint: retries, what cannot be had, refusals, and streams that are closed or break off."""

import pytest

from participants import Code, OpenAIEndpoint, ParticipantError
from participants.inference import Backend, Settings, serving
from participants.inference.control import FailOrder
from store import Life

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

BODY = {"prompt": "x", "max_tokens": 3, "ignore_eos": True}


async def test_a_failure_that_passes_is_tried_again() -> None:
    """Two failures and a generation; each call says for which life it is."""
    backend = Backend(Settings(control=True))
    async with serving(backend) as url, OpenAIEndpoint(f"{url}/v1") as endpoint:
        backend.board.fail(FailOrder(status=503, times=2))
        reply = await endpoint.complete("/v1/completions", BODY, Life("r0", 1, 0, 0))
        assert (reply.status, backend.calls.counts()["total"]) == (200, 3)
        assert {call.headers["x-midflight-life"] for call in backend.calls.since(0)} == {"r0/1.0#0"}
    backend.close()


async def test_what_cannot_be_had_is_model_failed() -> None:
    """A failure that stays, and nobody at the address, streamed or not, end with the same code and say where."""
    backend = Backend(Settings(control=True))
    async with serving(backend) as url, OpenAIEndpoint(f"{url}/v1", retry_for_s=0.0) as endpoint:
        backend.board.fail(FailOrder(status=500))
        with pytest.raises(ParticipantError, match="status 500") as caught:
            await endpoint.complete("/v1/completions", BODY)
        assert caught.value.code is Code.MODEL_FAILED
    backend.close()
    async with OpenAIEndpoint(url, retry_for_s=0.0) as nobody:
        for attempt in (nobody.complete("/v1/completions", BODY), nobody.models()):
            with pytest.raises(ParticipantError, match="did not answer") as caught:
                await attempt
            assert caught.value.code is Code.MODEL_FAILED
        with pytest.raises(ParticipantError, match="did not answer"):
            async with nobody.stream("/v1/completions", BODY):
                pass


async def test_a_refusal_is_a_reply() -> None:
    """A 4xx is not tried again and keeps its status and body; models are listed."""
    backend = Backend(Settings())
    async with serving(backend) as url, OpenAIEndpoint(url) as endpoint:
        reply = await endpoint.complete("/v1/completions", {**BODY, "model": "other"})
        assert (reply.status, "does not exist" in reply.body["error"]["message"]) == (404, True)
        assert (await endpoint.models()).body["data"][0]["id"] == backend.settings.model
    backend.close()


async def test_closing_a_stream_ends_the_generation() -> None:
    """The backend sees that its client is gone before it has generated everything."""
    backend = Backend(Settings(control=True))
    async with serving(backend) as url, OpenAIEndpoint(url) as endpoint:
        backend.board.set_pace(backend.board.pace.model_copy(update={"tokens_per_s": 200.0}))
        body = {**BODY, "max_tokens": 100_000, "stream": True}
        async with endpoint.stream("/v1/completions", body) as chunks:
            assert (await anext(chunks)).startswith(b"data: ")
            chunks.close()
            await backend.calls.wait(lambda: backend.calls.counts()["aborted"] == 1)
    backend.close()


async def test_an_endpoint_is_used_inside_its_context() -> None:
    """Outside of it there is no connection to be had, and it says so."""
    with pytest.raises(RuntimeError, match="outside its context"):
        await OpenAIEndpoint("http://localhost:1").complete("/v1/completions", BODY)
