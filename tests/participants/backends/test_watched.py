"""Streams and replies of backends that misbehave: each ends typed and in time, and says how far it came."""

import json
from typing import Any

import anyio
import pytest

from participants import Code, OpenAIEndpoint, ParticipantError
from participants.backends.breaks import EVENTS_A_TOKEN, SPARE_EVENTS, Unreachable
from participants.inference import Backend, Settings, serving
from tests.support.rude import Behaviour, answer, endless, garbage, hang, reset, rude_server, stop, stream
from tests.support.wires import Vllm, served

pytestmark = [pytest.mark.unit, pytest.mark.anyio]
ROUTE = "/v1/completions"
BODY = {"model": "tiny", "prompt": "x", "stream": True}
EVENT = b'data: {"choices": [{"text": " the"}]}\n\n'
GOOD = stream([EVENT, b"data: [DONE]\n\n"])
SOON = 0.05


async def read(endpoint: OpenAIEndpoint, body: dict[str, Any] = BODY) -> tuple[int, bytes, ParticipantError | None]:
    """Status, what came, and how it ended."""
    came, status = b"", 0
    try:
        with anyio.fail_after(20):
            async with endpoint.stream(ROUTE, body) as chunks:
                status = chunks.status
                async for chunk in chunks:
                    came += chunk
    except ParticipantError as error:
        return status, came, error
    return status, came, None


async def run(*behaviours: Behaviour, body: dict[str, Any] = BODY, **limits: Any) -> tuple[int, bytes, Any, int]:
    """As `read`, and how often the server was asked."""
    async with rude_server(*behaviours) as server, OpenAIEndpoint(server.base_url, **limits) as endpoint:
        return *await read(endpoint, body), len(server.bodies)


@pytest.mark.parametrize("first", [reset, stop, garbage, stream([], stop), stream([], reset), stream([]), answer(503)])
async def test_a_stream_is_asked_for_again_while_nothing_has_come(first: Behaviour) -> None:
    """A reset, a close, garbage, an empty stream, a status that passes: the second try is what the caller sees."""
    status, came, error, asked = await run(first, GOOD, retry_for_s=20.0)
    assert (status, came, error, asked) == (200, EVENT + b"data: [DONE]\n\n", None, 2)


@pytest.mark.parametrize("end", [stop, reset])
async def test_a_stream_that_breaks_off_leaves_the_caller_what_came(end: Behaviour) -> None:
    """It is not asked for again: whoever has the beginning may continue it. The error says how much that was."""
    status, came, error, asked = await run(stream([EVENT], end), GOOD, retry_for_s=20.0)
    assert (status, came, asked) == (200, EVENT, 1)
    assert (error.code, error.details) == (Code.MODEL_FAILED, {"reason": "broke_off", "received_bytes": len(EVENT)})


async def test_a_stream_without_end_is_cut_at_the_limit_of_bytes() -> None:
    """The limit is named, and the server sees its client leave."""
    async with (
        rude_server(stream([EVENT], endless(EVENT * 100))) as server,
        OpenAIEndpoint(server.base_url, max_stream_bytes=100_000) as endpoint,
    ):
        _, came, error = await read(endpoint)
        with anyio.fail_after(10):
            await server.gone.wait()
    assert error
    assert (error.details["reason"], error.details["limit"]) == ("too_long", "max_stream_bytes")
    assert len(came) <= 100_000


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
async def test_a_stream_that_ignores_its_length_is_cut(name: str) -> None:
    """Far more events than tokens were asked for end it, long before the limit of bytes."""
    _, came, error, _ = await run(stream([EVENT], endless(EVENT * 10)), body={**BODY, name: 4})
    assert (error.details["reason"], error.details["limit"]) == ("too_long", "max_tokens")
    assert came.count(b"data:") <= SPARE_EVENTS + EVENTS_A_TOKEN * 4


@pytest.mark.parametrize("silent", [hang, stream([], hang)])
async def test_a_slow_first_token_ends_by_a_named_limit_and_is_not_asked_for_again(silent: Behaviour) -> None:
    """Before the head or after it; another try would only add work to a slow server."""
    _, came, error, asked = await run(silent, GOOD, first_token_timeout_s=SOON)
    assert (came, asked, error.details["reason"]) == (b"", 1, "first_token_timeout")
    assert error.details["limit"] == "first_token_timeout_s"


async def test_a_stream_that_falls_silent_ends_by_a_named_limit() -> None:
    """What came before is with the caller."""
    _, came, error, asked = await run(stream([EVENT], hang), GOOD, idle_timeout_s=SOON)
    assert (came, asked, error.details["reason"], error.details["limit"]) == (
        EVENT,
        1,
        "idle_timeout",
        "idle_timeout_s",
    )
    assert error.details["received_bytes"] == len(EVENT)


async def test_a_call_as_a_whole_ends_by_a_named_limit() -> None:
    """However lively its stream is."""
    _, came, error, _ = await run(stream([EVENT], hang), timeout_s=0.5, retry_for_s=0.0)
    assert (came, error.details["reason"], error.details["limit"]) == (EVENT, "timeout", "timeout_s")


@pytest.mark.parametrize("kind", ["text/html", "application/json"])
async def test_what_is_no_stream_is_typed_and_shown(kind: str) -> None:
    """A page, or a whole reply, where a stream was asked for: not tried again."""
    behaviour = stream([b"<html>a page</html>"], kind=kind)
    _, came, error, asked = await run(behaviour, GOOD)
    assert (came, asked, error.details["reason"]) == (b"", 1, "not_a_stream")
    assert "a page" in error.message
    assert kind in error.message


async def test_events_are_events_with_parameters_or_without_a_type() -> None:
    """Only a type that says something else is refused."""
    for kind in ("text/event-stream; charset=utf-8", "Text/Event-Stream"):
        assert (await run(stream([EVENT], kind=kind)))[1] == EVENT


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_waited_for(status: int) -> None:
    """One second is asked for and passes before the second try; streamed or not."""
    busy = answer(status, b'{"error": {"message": "busy"}}', "Retry-After: 1")
    began = anyio.current_time()
    _, came, error, asked = await run(busy, GOOD, retry_for_s=20.0)
    assert (came[: len(EVENT)], error, asked) == (EVENT, None, 2)
    assert anyio.current_time() - began >= 1.0


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_retry_after_past_the_deadline_is_not_waited_for(streamed: bool) -> None:
    """The call fails at once, with the status, the wait that was asked for, and the limit that it passes."""
    busy = answer(429, b'{"error": {"message": "busy"}}', "Retry-After: 3600")
    async with rude_server(busy) as server, OpenAIEndpoint(server.base_url, retry_for_s=5.0) as endpoint:
        call = endpoint.stream(ROUTE, BODY).__aenter__() if streamed else endpoint.complete(ROUTE, BODY)
        with anyio.fail_after(3), pytest.raises(ParticipantError, match="asks to wait 3600 s") as caught:
            await call
        assert len(server.bodies) == 1
    expected = {"reason": "unreachable", "status": 429, "retry_after_s": 3600.0, "limit": "retry_for_s"}
    assert caught.value.details == expected


@pytest.mark.parametrize("behaviour", [reset, garbage, answer(500), answer(503)])
async def test_tries_are_bounded(behaviour: Behaviour) -> None:
    """What stays as it is ends as `unreachable` after the time for tries."""
    with anyio.fail_after(10):
        _, came, error, asked = await run(behaviour, retry_for_s=0.3)
    assert (came, error.code, error.details["reason"]) == (b"", Code.MODEL_FAILED, "unreachable")
    assert asked >= 1


async def test_a_refusal_keeps_its_status_and_body() -> None:
    """4xx are answers: not tried again, streamed or not."""
    refused = answer(400, b'{"error": {"message": "no"}}', "Content-Type: application/json")
    status, came, error, asked = await run(refused, GOOD)
    assert (status, came, error, asked) == (400, b'{"error": {"message": "no"}}', None, 1)


async def test_a_second_try_that_is_refused_cannot_take_the_status_back() -> None:
    """The caller was told 200 already."""
    status, _, error, asked = await run(stream([], stop), answer(404), retry_for_s=20.0)
    assert (status, error.details["status"], asked) == (200, 404, 2)


async def test_a_wrong_model_is_named_and_not_tried_again() -> None:
    """As the server says it, or in words of ours where it does not name the model."""
    async with served(Vllm) as (url, wire, _), OpenAIEndpoint(url) as endpoint:
        reply = await endpoint.complete(ROUTE, {"model": "other", "prompt": "x"})
        assert (reply.status, "other" in reply.body["error"]["message"], len(wire.requests)) == (404, True, 1)
    async with (
        rude_server(answer(404, b'{"detail": "Not Found"}')) as server,
        OpenAIEndpoint(server.base_url) as endpoint,
    ):
        reply = await endpoint.complete(ROUTE, {"model": "other", "prompt": "x"})
    assert (reply.status, reply.body["error"]["code"], len(server.bodies)) == (404, "model_not_found", 1)
    assert "'other'" in reply.body["error"]["message"]
    assert "Not Found" in reply.body["error"]["message"]


@pytest.mark.parametrize("said", [b'{"detail": "Not Found"}', b"<html>", b""])
async def test_a_wrong_model_of_a_stream_is_named_too(said: bytes) -> None:
    """The status is kept, and the body is an error of OpenAI's API."""
    status, came, error, asked = await run(answer(404, said), GOOD)
    assert (status, error, asked) == (404, None, 1)
    named = json.loads(came)["error"]
    assert (named["code"], "'tiny'" in named["message"]) == ("model_not_found", True)


async def test_each_try_is_told_to_a_subclass() -> None:
    """Failures as they come, and None for an answer; streamed or not."""
    told: list[str] = []

    class Telling(OpenAIEndpoint):
        def tried(self, failure: Unreachable | None) -> None:
            told.append("answered" if failure is None else str(failure.status))

    whole = answer(200, b'{"choices": [{"text": "x"}]}')
    behaviours = (answer(503), whole, answer(429), GOOD)
    async with rude_server(*behaviours) as server, Telling(server.base_url, retry_for_s=20.0) as endpoint:
        await endpoint.complete(ROUTE, BODY)
        assert told == ["503", "answered"]
        await read(endpoint)
    assert told == ["503", "answered", "429", "answered", "answered"]  # its head, and its first bytes


async def test_a_reply_without_end_is_cut() -> None:
    """Without a stream, too; the limit is named."""
    behaviour = stream([b"{"], endless(b" " * 10_000), kind="application/json")
    async with rude_server(behaviour) as server, OpenAIEndpoint(server.base_url, max_reply_bytes=50_000) as endpoint:
        with anyio.fail_after(10), pytest.raises(ParticipantError, match="max_reply_bytes") as caught:
            await endpoint.complete(ROUTE, BODY)
    assert caught.value.details["limit"] == "max_reply_bytes"


async def _is_told_of_the_end(chunks: Any) -> None:
    with anyio.fail_after(10), pytest.raises(ParticipantError, match="was closed") as caught:
        [chunk async for chunk in chunks]
    assert caught.value.details["reason"] == "closed"


async def test_closing_ends_whoever_waits_for_a_chunk() -> None:
    """At once and typed, before the first chunk and after it; the server sees its client leave."""
    for behaviour in (stream([], hang), stream([EVENT], hang)):
        async with rude_server(behaviour) as server, OpenAIEndpoint(server.base_url) as endpoint:
            async with endpoint.stream(ROUTE, BODY) as chunks, anyio.create_task_group() as tasks:
                tasks.start_soon(_is_told_of_the_end, chunks)
                await anyio.wait_all_tasks_blocked()
                chunks.close()
            with anyio.fail_after(10):
                await server.gone.wait()


async def test_leaving_the_block_early_ends_the_generation() -> None:
    """A client that disconnects ends the call of the backend, as cancelling its reader does."""
    backend = Backend(Settings(control=True))
    body = {"prompt": "x", "max_tokens": 100_000, "stream": True, "ignore_eos": True}
    async with serving(backend) as url, OpenAIEndpoint(url) as endpoint:
        backend.board.set_pace(backend.board.pace.model_copy(update={"tokens_per_s": 200.0}))
        async with endpoint.stream(ROUTE, body) as chunks:
            await anext(chunks)
        await backend.calls.wait(lambda: backend.calls.counts()["aborted"] == 1)

        async def abandoned() -> None:
            async with endpoint.stream(ROUTE, body) as again:
                async for _ in again:
                    tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(abandoned)
        await backend.calls.wait(lambda: backend.calls.counts()["aborted"] == 2)
    backend.close()


async def test_a_worker_is_told_life_and_call() -> None:
    """So that it can stage what it generates for them."""
    from participants.data import CallId
    from store import Life

    backend = Backend(Settings())
    async with serving(backend) as url, OpenAIEndpoint(url) as endpoint:
        call = CallId("agent.main", 3, 1)
        async with endpoint.stream(
            ROUTE, {**BODY, "model": "", "max_tokens": 2}, Life("r", 1, 0, 0), call=call
        ) as chunks:
            assert [chunk async for chunk in chunks]
        [record] = backend.calls.since(0)
    backend.close()
    assert record.headers["x-midflight-life"] == "r/1.0#0"
    assert record.headers["x-midflight-call"] == "agent.main:3.1"


async def test_tokens_and_text_are_had_or_typed() -> None:
    """Ids of a text and the text of ids; what is no answer is `model_failed` with the status."""
    backend = Backend(Settings())
    async with serving(backend) as url, OpenAIEndpoint(url) as endpoint:
        ids = await endpoint.tokenize({"prompt": "and the rest"})
        assert await endpoint.detokenize(ids, backend.settings.model) == "and the rest"
    backend.close()
    async with rude_server(answer(404)) as server, OpenAIEndpoint(server.base_url) as endpoint:
        for asking in (endpoint.tokenize({"prompt": "x"}), endpoint.detokenize([1])):
            with pytest.raises(ParticipantError, match="answered 404") as caught:
                await asking
            assert caught.value.details == {"reason": "no_answer", "status": 404}
