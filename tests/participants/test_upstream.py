"""Any OpenAI-compatible endpoint: retries, what cannot be had, refusals, and streams that are closed or break off."""

import anyio
import pytest

from participants import Code, OpenAIEndpoint, ParticipantError, Reply
from participants.backends.breaks import Unreachable
from participants.inference import Backend, Settings, serving
from participants.inference.control import FailOrder, HoldOrder
from store import Life
from tests.support.processes import free_port

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


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
async def test_each_status_that_may_pass_is_tried_again(status: int) -> None:
    """What a gateway, a proxy or a full backend says costs no rollout: the next try is answered."""
    backend = Backend(Settings(control=True))
    async with serving(backend) as url, OpenAIEndpoint(url) as endpoint:
        backend.board.fail(FailOrder(status=status))
        reply = await endpoint.complete("/v1/completions", BODY)
        assert (reply.status, backend.calls.counts()["total"]) == (200, 2)
    backend.close()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_each_status_that_stays_is_a_reply_at_once(status: int) -> None:
    """Asking again cannot mend what is wrong with the request or the key."""
    backend = Backend(Settings(control=True))
    async with serving(backend) as url, OpenAIEndpoint(url) as endpoint:
        backend.board.fail(FailOrder(status=status))
        reply = await endpoint.complete("/v1/completions", BODY)
        assert (reply.status, backend.calls.counts()["total"]) == (status, 1)
    backend.close()


async def test_a_connection_that_breaks_off_is_tried_again() -> None:
    """The backend goes away in the middle of its reply; the second try is answered."""
    backend = Backend(Settings(control=True))
    async with serving(backend) as url, OpenAIEndpoint(url) as endpoint:
        backend.board.fail(FailOrder(after_tokens=1))
        reply = await endpoint.complete("/v1/completions", BODY)
        assert (reply.status, backend.calls.counts()["total"]) == (200, 2)
    backend.close()


async def test_a_reply_that_does_not_come_is_asked_for_again() -> None:
    """A call that hangs is given up after its time, ends at the backend, and the second try is answered."""
    backend = Backend(Settings(control=True))
    async with serving(backend) as url, OpenAIEndpoint(url, timeout_s=0.2) as endpoint:
        backend.board.hold(HoldOrder(times=1))
        reply = await endpoint.complete("/v1/completions", BODY)
        assert (reply.status, backend.calls.counts()["total"]) == (200, 2)
        await backend.calls.wait(lambda: backend.calls.counts()["aborted"] == 1)
    backend.close()


class Watched(OpenAIEndpoint):
    """Says when a first try is over."""

    def __init__(self, base_url: str) -> None:
        super().__init__(base_url)
        self.first_try = anyio.Event()

    def tried(self, failure: Unreachable | None) -> None:
        self.first_try.set()


async def test_nobody_at_the_address_is_tried_again_until_somebody_is() -> None:
    """A backend that is started after the first try was refused answers a later one."""
    port, answered, replies = free_port(), anyio.Event(), list[Reply]()
    backend = Backend(Settings())
    async with Watched(f"http://127.0.0.1:{port}") as endpoint, anyio.create_task_group() as group:

        async def ask() -> None:
            replies.append(await endpoint.complete("/v1/completions", BODY))
            answered.set()

        group.start_soon(ask)
        await endpoint.first_try.wait()
        async with serving(backend, port=port):
            await answered.wait()
    backend.close()
    assert [reply.status for reply in replies] == [200]


async def test_what_a_continuation_asks_for_is_waited_for_as_long_as_a_generation() -> None:
    """The text of the beginning of a broken call is asked for while its backend is being started again."""
    port, told = free_port(), list[str]()
    backend = Backend(Settings())
    async with Watched(f"http://127.0.0.1:{port}") as endpoint, anyio.create_task_group() as group:

        async def ask() -> None:
            told.append(await endpoint.detokenize([104, 105]))
            group.cancel_scope.cancel()

        group.start_soon(ask)
        await endpoint.first_try.wait()
        async with serving(backend, port=port):
            await anyio.sleep_forever()
    backend.close()
    assert told == ["hi"]


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
