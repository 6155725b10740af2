"""The policy model server: held, kept and undelivered replies, streams, dispositions, and the official client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import openai
import pytest
from openai import AsyncOpenAI

from participants import Code, ModelServer, OpenAIEndpoint, ParticipantError, Reply, Request, data_app
from participants.backends import LazyCapabilities
from participants.data import CallId
from participants.inference import Backend, Settings, serving
from participants.inference.control import FailOrder
from store import Life
from tests.participants.resources.harness import checkpoint, restore
from tests.support.journal import Journal
from tests.support.owners import Pause, settle
from tests.support.scripted import STREAM, ScriptedUpstream, scripted_row

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LIFE = Life("r0", 1, 0, 0)
NEXT = Life("r0", 2, 1, 0)
BODY = scripted_row("r0", ["done", "more"])["responses_create_params"]
CALL = CallId("agent.main", 1, 0)


def ask(life: Life | None = LIFE, call: CallId | None = CALL, **more: Any) -> Request:
    """One call for the first turn."""
    return Request(route="/v1/responses", body={**BODY, **more}, life=life, call=call)


class Setting:
    """A model server over the scripted backend, and the replies that arrived."""

    def __init__(self) -> None:
        self.upstream = ScriptedUpstream(Journal())
        self.server = ModelServer(self.upstream)
        self.replies: list[Reply] = []

    async def call(self, request: Request) -> None:
        """Make one call, and keep its reply."""
        self.replies.append(await self.server.handle(request))

    @property
    def generations(self) -> int:
        return len(self.upstream.lives)

    async def crashed(self) -> "Setting":
        """Another process that has restored what this one exports."""
        after = Setting()
        server: Any = self.server
        records = await checkpoint(server, {LIFE})
        await restore(after.server, records)  # type: ignore[arg-type]
        return after


@asynccontextmanager
async def finished_while_closed(request: Request) -> AsyncIterator[Setting]:
    """A call that is in flight when admission closes, and finishes while it is closed."""
    one = Setting()
    pause = one.upstream.holds["model r0 0"] = Pause()
    async with anyio.create_task_group() as group:
        group.start_soon(one.call, request)
        await pause.reached.wait()
        one.server.gate.close()
        assert one.server.counts()["anew"] == 1
        pause.released.set()
        await settle()
        assert one.replies == []
        one.upstream.holds.clear()
        yield one
        group.cancel_scope.cancel()


@pytest.mark.parametrize("call", [CALL, None])
async def test_a_held_response_is_delivered_once_after_resume(call: CallId | None) -> None:
    """It is counted as held while closed, and leaves when admission opens; a repeat without an id generates anew."""
    async with finished_while_closed(ask(call=call)) as one:
        assert (one.server.counts()["held"], one.server.counts()["anew"]) == (1, 0)
        one.server.gate.reopen()
        await settle()
        assert len(one.replies) == one.generations == 1
        assert one.server.counts()["held"] == 0
        await one.call(ask(call=call))
        assert one.generations == (1 if call else 2)


@pytest.mark.parametrize("call", [CALL, None])
async def test_after_a_crash_a_held_response_is_served_once_without_generating(call: CallId | None) -> None:
    """By its id, or by the digest of the request; without an id the second call of the same kind generates."""
    async with finished_while_closed(ask(call=call)) as one:
        after = await one.crashed()
        await after.call(ask(NEXT, call))
        assert (after.generations, after.replies[0].body["id"]) == (0, "r0")
        await after.call(ask(NEXT, call))
        assert after.generations == (0 if call else 1)


async def test_a_delivered_response_without_an_id_is_not_served_again() -> None:
    """Only what nobody has had yet matches by digest."""
    one = Setting()
    await one.call(ask(call=None))
    after = await one.crashed()
    await after.call(ask(NEXT, None))
    assert after.generations == 1


async def test_a_reply_that_somebody_waits_for_is_not_given_to_another_call() -> None:
    """A second call of the same kind that comes after resume generates its own."""
    async with finished_while_closed(ask(call=None)) as one, anyio.create_task_group() as group:
        group.start_soon(one.call, ask(call=None))
        await settle()
        one.server.gate.reopen()
        await settle()
        assert (len(one.replies), one.generations) == (2, 2)


async def test_a_kept_reply_is_served_until_the_next_boundary() -> None:
    """Also after a crash; another request under the same id is generated anew; a call below the boundary is stale."""
    one = Setting()
    await one.call(ask())
    await one.call(ask())
    assert (one.generations, one.server.counts()["kept"]) == (1, 1)
    after = await one.crashed()
    await after.call(ask(NEXT))
    assert after.generations == 0
    await after.call(ask(NEXT, temperature=0.5))
    assert after.generations == 1
    await after.call(ask(NEXT, CallId("agent.main", 2, 0)))
    with pytest.raises(ParticipantError) as caught:
        await after.call(ask(NEXT))
    assert caught.value.code is Code.STALE_CALL


async def test_a_call_inside_a_waited_step_is_admitted_and_keeps_a_commit_from_being_made() -> None:
    """It passes the closed gate both ways; meanwhile the export is refused; its reply goes when its caller moves on."""
    one = Setting()
    await one.call(ask())
    inside = CallId("resources.main", 0, 0, str(CALL))
    pause = one.upstream.holds["model r0 0"] = Pause()
    async with anyio.create_task_group() as group:
        one.server.gate.close()
        group.start_soon(one.call, ask(call=inside, n=1))
        await pause.reached.wait()
        with pytest.raises(ParticipantError, match="inside steps"):
            one.server.check_export()
        pause.released.set()
        await settle()
        assert len(one.replies) == 2
    one.server.check_export()
    one.server.gate.reopen()
    assert one.server.counts()["kept_replies"] == 2
    await one.call(ask(call=CallId("agent.main", 2, 0)))
    assert one.server.counts()["kept_replies"] == 1


async def test_a_stream_holds_while_closed_and_goes_on() -> None:
    """Nothing comes out while closed although the backend has ended; after resume the rest comes at once."""
    one = Setting()
    pause = one.upstream.holds["model r0 0"] = Pause()
    reply = await one.server.handle(ask(call=None, stream=True))
    assert reply.stream is not None
    got: list[bytes] = []

    async def read() -> None:
        assert reply.stream is not None
        got.extend([chunk async for chunk in reply.stream])

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await pause.reached.wait()
        assert b"".join(got) == b""
        one.server.gate.close()
        pause.released.set()
        await settle()
        seen = b"".join(got)
        assert b"response.completed" not in seen
        assert one.server.counts()["held"] == 1
        after = await one.crashed()
        one.server.gate.reopen()
    assert one.server.counts()["anew"] == one.server.counts()["held"] == 0
    again = await after.server.handle(ask(NEXT, None, stream=True))
    assert again.stream is not None
    assert [chunk async for chunk in again.stream] == [b"".join(STREAM)]
    assert after.generations == 0


async def test_a_stream_that_its_reader_is_still_at_is_given_to_nobody_else() -> None:
    """Read on while closed and delivered after resume; the same request meanwhile has a generation of its own."""
    one = Setting()
    reply: Any = await one.server.handle(ask(call=None, stream=True))
    one.server.gate.close()
    async with anyio.create_task_group() as group:
        got: list[bytes] = []

        async def read() -> None:
            got.append(await anext(reply.stream))

        group.start_soon(read)
        await settle()
        assert (got, one.server.counts()["held"]) == ([], 1)
        one.server.gate.reopen()
    assert b"response.completed" in got[0]
    await one.server.handle(ask(call=None, stream=True))
    assert one.generations == 2
    assert [chunk async for chunk in reply.stream] == []
    assert one.server.counts()["held"] == 0


async def test_a_stream_of_a_retired_life_ends_at_once() -> None:
    """The backend's side is closed although nobody reads, and the reader's next turn is refused."""
    one = Setting()
    reply = await one.server.handle(ask(call=None, stream=True))
    assert reply.stream is not None
    stream: Any = reply.stream
    assert await anext(stream) == STREAM[0]
    assert await one.server.retire([LIFE], 1.0) == []
    assert stream._chunks.closed
    with pytest.raises(ParticipantError, match="stale_life"):
        await anext(stream)
    await stream.aclose()
    assert one.server.counts()["in_flight"] == 0


@pytest.mark.parametrize("request_", [
    Request(route="/v1/embeddings", body={}, life=LIFE),
    Request(route="/v1/responses", body=[], life=LIFE),
])  # fmt: skip
async def test_a_malformed_call_is_refused(request_: Request) -> None:
    """Another route and a body that is no object reach no backend."""
    one = Setting()
    with pytest.raises(ParticipantError) as caught:
        await one.server.handle(request_)
    assert (caught.value.code, one.generations) == (Code.INVALID_REQUEST, 0)


@asynccontextmanager
async def proxied(*, cuts: bool = False) -> AsyncIterator[tuple[Backend, AsyncOpenAI]]:
    """The official client, before the proxy, before the deterministic backend."""
    backend = Backend(Settings(control=True))
    async with serving(backend) as url, OpenAIEndpoint(f"{url}/v1", retry_for_s=0.0) as endpoint:
        known = LazyCapabilities(endpoint, backend.settings.model) if cuts else None
        model = ModelServer(endpoint, cuts=known)
        model.adopted(1)
        transport = httpx.ASGITransport(app=data_app(model))
        http: Any
        async with httpx.AsyncClient(transport=transport) as http:
            base = "http://proxy/rollouts/r0/1.0.0/v1"
            yield backend, AsyncOpenAI(base_url=base, api_key="none", http_client=http, max_retries=0)
    backend.close()


@pytest.mark.parametrize("cuts", [False, True])
async def test_the_official_client_works_through_the_proxy(cuts: bool) -> None:
    """Models, chat, completions and responses, with tools, streamed and not; the life goes on to the backend."""
    task: Any = [{"role": "user", "content": "add 1 then get the count"}]
    tools: Any = [{"type": "function", "function": {"name": "increment_counter", "parameters": {"type": "object"}}}]
    async with proxied(cuts=cuts) as (backend, client):
        model = backend.settings.model
        assert [each.id async for each in client.models.list()] == [model]
        whole = await client.chat.completions.create(model=model, messages=task, tools=tools)
        [called] = whole.choices[0].message.tool_calls or []
        streamed = await client.chat.completions.create(model=model, messages=task, tools=tools, stream=True)
        names = [c.function.name async for e in streamed for c in e.choices[0].delta.tool_calls or [] if c.function]
        assert called.type == "function"
        assert [name for name in names if name] == [called.function.name] == ["increment_counter"]
        text = await client.completions.create(model=model, prompt="hello", max_tokens=5)
        parts = await client.completions.create(model=model, prompt="hello", max_tokens=5, stream=True)
        assert "".join([e.choices[0].text async for e in parts if e.choices]) == text.choices[0].text
        answer = await client.responses.create(model=model, input="hello")
        events = [e async for e in await client.responses.create(model=model, input="hello", stream=True)]
        done: Any = events[-1]
        assert (done.type, done.response.output_text) == ("response.completed", answer.output_text)
        lives = {call.headers.get("x-midflight-life") for call in backend.calls.since(0)}
        assert lives == ({"r0/1.0#0", None} if cuts else {"r0/1.0#0"})  # Probes are made for nobody.


async def test_failures_of_the_backend_are_typed() -> None:
    """What cannot be had is `model_failed`; a refusal passes with its status and body, streamed or not."""
    async with proxied() as (backend, client):
        model = backend.settings.model
        backend.board.fail(FailOrder(status=503))
        with pytest.raises(openai.APIStatusError) as caught:
            await client.completions.create(model=model, prompt="x")
        assert (caught.value.status_code, caught.value.response.json()["error"]["code"]) == (502, "model_failed")
        for stream in (False, True):
            with pytest.raises(openai.NotFoundError, match="does not exist"):
                await client.completions.create(model="other", prompt="x", stream=stream)


async def test_a_stream_that_breaks_off_is_an_error_and_is_kept_by_nobody() -> None:
    """The reader is told, nothing is left in flight, and the same call again begins anew."""
    backend = Backend(Settings(control=True))
    body = {"model": backend.settings.model, "prompt": "x", "max_tokens": 50, "stream": True}
    request = Request(route="/v1/completions", body=body, life=LIFE, call=CALL)
    async with serving(backend) as url, OpenAIEndpoint(f"{url}/v1") as endpoint:
        server = ModelServer(endpoint)
        backend.board.fail(FailOrder(after_tokens=2))
        broken: Any = await server.handle(request)
        with pytest.raises(ParticipantError, match="broke off"):
            [chunk async for chunk in broken.stream]
        await broken.stream.aclose()
        assert (server.counts()["in_flight"], server.counts()["kept_replies"]) == (0, 0)
        whole: Any = await server.handle(request)
        assert b"[DONE]" in b"".join([chunk async for chunk in whole.stream])
        again: Any = await server.handle(request)
        assert b"[DONE]" in b"".join([chunk async for chunk in again.stream])
        assert backend.calls.counts()["total"] == 2
    backend.close()
