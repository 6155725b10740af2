"""A model endpoint that does not answer, or not as it is configured, is told of at once and then now and then."""

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread
import pytest

from participants import OpenAIEndpoint
from participants.backends.breaks import Unreachable
from participants.serving import ModelSettings
from participants.serving.endpoint import PATIENCE_S, TELL_EVERY_S, Endpoint
from tests.support.backend import start_backend

pytestmark = pytest.mark.anyio


def table(base_url: str, model: str = "m", retry_for_s: float = 0.1) -> ModelSettings:
    """An endpoint."""
    return ModelSettings(base_url=base_url, model=model, retry_for_s=retry_for_s)


@pytest.mark.unit
async def test_a_silent_endpoint_is_told_of_at_the_first_try_and_at_intervals() -> None:
    """However many calls fail; and that it answers again is told once."""
    told: list[str] = []
    now = 0.0
    endpoint = Endpoint(table("http://model/v1", retry_for_s=120.0), told.append, lambda: now)
    for _ in range(50):
        endpoint.tried(Unreachable("refused"))
    assert told == ["http://model/v1 does not answer: refused; each call is tried for up to 120 s"]
    now = TELL_EVERY_S
    endpoint.tried(Unreachable("refused"))
    assert len(told) == 2
    endpoint.tried(None)
    endpoint.tried(None)
    assert told[2:] == ["http://model/v1 answers again"]


class Clock:
    """Says what it was set to."""

    def __init__(self) -> None:
        """At the beginning."""
        self.now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now


@asynccontextmanager
async def mute() -> AsyncIterator[str]:
    """A server that takes calls and answers none; its base URL."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")

    async def take(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await anyio.sleep_forever()

    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, take)
        yield f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/v1"
        group.cancel_scope.cancel()


async def ask(endpoint: Endpoint, streamed: bool) -> None:
    """One call, for ever."""
    if not streamed:
        await endpoint.complete("/v1/chat/completions", {"model": "m"})
        return
    async with endpoint.stream("/v1/chat/completions", {"model": "m", "stream": True}) as chunks:
        await anext(chunks)


@pytest.mark.process
@pytest.mark.parametrize(
    ("streamed", "says"),
    [
        (True, "2 calls wait for a first token, the oldest for 31 s; one is given up after 900 s"),
        (False, "2 calls wait for a whole reply, and none comes, the oldest for 31 s; one is given up after 3600 s"),
    ],
)
async def test_an_endpoint_that_takes_calls_and_never_answers_is_told_of(streamed: bool, says: str) -> None:
    """Once calls have waited for over 30 s, at most every 30 s, and once when none does any more."""
    told: list[str] = []
    clock = Clock()
    async with mute() as url, Endpoint(table(url), told.append, clock) as endpoint, anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(ask, endpoint, streamed)
        await anyio.wait_all_tasks_blocked()
        for now in (PATIENCE_S, 31.0, 40.0, 60.9):
            clock.now = now
            endpoint.look()
        [line] = told
        assert line.startswith(f"{url}: {says}")
        clock.now = 61.0
        endpoint.look()
        assert "the oldest for 61 s" in told[1]
        group.cancel_scope.cancel()
    endpoint.look()
    assert told[2:] == [f"{url}: no call waits for over 30 s any more"]


@pytest.mark.process
async def test_a_long_generation_is_no_silence(tmp_path: Path) -> None:
    """A stream that has begun is not told of, and a whole reply not where others come."""
    told: list[str] = []
    clock = Clock()
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 40}
    with start_backend(tmp_path) as backend:
        given = table(backend.base_url, backend.model)
        body["model"] = backend.model
        async with Endpoint(given, told.append, clock) as endpoint:
            async with endpoint.stream("/v1/chat/completions", {**body, "stream": True}) as chunks:
                await anext(chunks)
                clock.now = 100.0
                endpoint.look()
            backend.control.hold(times=1)
            async with anyio.create_task_group() as group:
                group.start_soon(endpoint.complete, "/v1/chat/completions", body)
                await anyio.to_thread.run_sync(lambda: backend.control.wait(held=1))
                clock.now = 150.0
                assert (await endpoint.complete("/v1/chat/completions", body)).ok
                endpoint.look()
                backend.control.release()
    assert told == []


@pytest.mark.unit
def test_the_timeouts_are_those_of_any_endpoint() -> None:
    """The defaults of `[model]` are those of the client, and what is set reaches it."""
    defaults = inspect.signature(OpenAIEndpoint).parameters
    for name in ("retry_for_s", "timeout_s", "first_token_timeout_s", "idle_timeout_s"):
        assert ModelSettings.model_fields[name].default == defaults[name].default
    given = table("http://model/v1").model_copy(update={"timeout_s": 3.0, "first_token_timeout_s": 1.0})
    watch = Endpoint(given.model_copy(update={"idle_timeout_s": 2.0}), print)._watch
    assert (watch.first_token_timeout_s, watch.idle_timeout_s, watch.timeout_s) == (1.0, 2.0, 3.0)


@pytest.mark.process
async def test_a_model_that_is_not_served_gives_no_hint_at_the_path(tmp_path: Path) -> None:
    """Also where the call is answered before the models are: only what they are tells which of the two is wrong."""
    told: list[str] = []
    body = {"model": "nobody", "messages": [{"role": "user", "content": "hello"}]}
    with start_backend(tmp_path) as backend:
        async with Endpoint(table(backend.base_url, "nobody"), told.append) as endpoint:
            endpoint._probing = True
            await endpoint.complete("/v1/chat/completions", body)
            assert told == []
            await endpoint.probe()
            await endpoint.complete("/v1/chat/completions", body)
    assert f"serves {backend.model}, and not 'nobody'" in told[0]
    assert "answered 404" in told[1]
    assert told[1].endswith(f"model is 'nobody', and GET /models lists {backend.model}")
    assert len(told) == 2


@pytest.mark.process
async def test_what_is_wrong_with_an_endpoint_is_told_when_it_is_probed(tmp_path: Path) -> None:
    """Nobody there; another path; another model; and of one that is right, nothing, with `/v1` or without."""
    with start_backend(tmp_path) as backend:
        cases = [
            (table("http://127.0.0.1:9/v1"), "http://127.0.0.1:9/v1 does not answer"),
            (table(f"{backend.url}/other/v1"), "/other/v1: GET /models answered 404"),
            (table(backend.base_url, "nobody"), f"serves {backend.model}, and not 'nobody'"),
            (table(backend.base_url, backend.model), ""),
            (table(backend.url, backend.model), ""),
        ]
        for given, says in cases:
            told: list[str] = []
            async with Endpoint(given, told.append) as endpoint:
                await endpoint.probe()
            assert [says in line for line in told] == [True] * bool(says), told


@pytest.mark.process
async def test_a_call_that_finds_nothing_says_what_base_url_usually_is(tmp_path: Path) -> None:
    """Once, and with the address."""
    told: list[str] = []
    with start_backend(tmp_path) as backend:
        async with Endpoint(table(f"{backend.url}/api"), told.append) as endpoint:
            for _ in range(2):
                await endpoint.complete("/v1/chat/completions", {"model": "m", "messages": []})
    [line] = told
    assert "/api: POST /chat/completions answered 404" in line
    assert line.endswith("base_url is what stands before /chat/completions, and usually ends in /v1")
