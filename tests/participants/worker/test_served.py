"""`midflight backend --real` as a process: exact over HTTP and over a kill, in the dialects of OpenAI's API."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest
from openai import OpenAI

from participants.inference.tokens import MARKS
from tests.support.backend import RunningBackend, start_backend

pytest.importorskip("torch", reason="the extra worker is not installed")

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

TOKENS = 16
TOLERANCE = 1e-4
"""Of log probabilities, after a cut."""
STORIES = ("the house", "a long river in the night", "people who would not come back", "what the animal said to him")
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.8, "seed": 5, "top_p": 0.9},
    "penalised": {"temperature": 0, "presence_penalty": 1.0, "repetition_penalty": 1.2},
}
FLAT_WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def module_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBackend]:
    """A worker that keeps nothing of earlier calls, for all tests of the module."""
    with start_backend(tmp_path_factory.mktemp("worker"), "--real", "--kept-tokens", "0") as running:
        yield running


@pytest.fixture
def worker(module_worker: RunningBackend) -> RunningBackend:
    """The same, with nothing left of the test before."""
    module_worker.control.reset()
    return module_worker


@asynccontextmanager
async def caller(backend: RunningBackend) -> AsyncIterator["Caller"]:
    """Who asks for completions."""
    async with httpx.AsyncClient(base_url=backend.base_url, timeout=120) as http:
        yield Caller(http, backend.model)


class Caller:
    """Asks for completions with ids and log probabilities."""

    def __init__(self, http: httpx.AsyncClient, model: str) -> None:
        self._http, self._model = http, model

    async def complete(self, prompt: str | list[int], **asked: Any) -> dict[str, Any]:
        """The choice of a whole completion."""
        body = {"model": self._model, "prompt": prompt, "max_tokens": TOKENS, "logprobs": 2, "return_token_ids": True}
        reply = await self._http.post("/completions", json=body | asked)
        return dict(reply.raise_for_status().json()["choices"][0])

    async def continues(self, uncut: dict[str, Any], cut: int, **asked: Any) -> bool:
        """Whether the rest after a cut is the uncut rest."""
        ids = uncut["token_ids"]
        prompt = uncut["prompt_token_ids"] + ids[:cut]
        rest = await self.complete(prompt, **asked, max_tokens=TOKENS - cut, continued_tokens=cut)
        expected = uncut["logprobs"]["token_logprobs"][cut:]
        near = [
            abs(one - other) < TOLERANCE
            for one, other in zip(rest["logprobs"]["token_logprobs"], expected, strict=True)
        ]
        return (rest["token_ids"], rest["finish_reason"]) == (ids[cut:], uncut["finish_reason"]) and all(near)


@pytest.mark.anyio
@pytest.mark.parametrize("way", WAYS)
async def test_every_cut_continues_exactly(worker: RunningBackend, way: str) -> None:
    """Prompts cut after every token and continued one at a time, then eight at once, all equal the uncut run."""
    asked = WAYS[way]
    wrong: list[tuple[str, int]] = []
    places = anyio.CapacityLimiter(8)
    async with caller(worker) as ask:

        async def check(text: str, uncut: dict[str, Any], cut: int) -> None:
            async with places:
                if not await ask.continues(uncut, cut, **asked):
                    wrong.append((text, cut))

        for text in STORIES:
            uncut = await ask.complete(text, **asked)
            for cut in range(1, len(uncut["token_ids"])):
                await check(text, uncut, cut)
            async with anyio.create_task_group() as tasks:
                for cut in range(1, len(uncut["token_ids"])):
                    tasks.start_soon(check, text, uncut, cut)
    assert wrong == []


@pytest.mark.anyio
async def test_a_killed_workers_generations_continue_in_the_next(tmp_path: Path) -> None:
    """Eight streams are cut by SIGKILL; a new process continues each to what an uncut run says."""
    prompts = [f"{story} {n}" for n in range(2) for story in STORIES]
    got: dict[str, list[int]] = {}
    start = lambda: start_backend(tmp_path, "--real")  # noqa: E731
    first = await anyio.to_thread.run_sync(start)

    async def stream(prompt: str) -> None:
        body = {"model": first.model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        body |= {"stream": True, "return_token_ids": True}
        ids = got[prompt] = []
        try:
            async with (
                httpx.AsyncClient(base_url=first.base_url, timeout=60) as http,
                http.stream("POST", "/completions", json=body) as reply,
            ):
                async for line in reply.aiter_lines():
                    if line.startswith("data: {"):
                        ids += json.loads(line[6:])["choices"][0].get("token_ids") or []
        except httpx.TransportError:
            pass

    with first:
        await anyio.to_thread.run_sync(lambda: first.control.hold(after_tokens=7))
        async with anyio.create_task_group() as tasks:
            for prompt in prompts:
                tasks.start_soon(stream, prompt)
            await anyio.to_thread.run_sync(lambda: first.control.wait(held=len(prompts), timeout_s=60))
            await anyio.to_thread.run_sync(first.kill)
    second = await anyio.to_thread.run_sync(start)
    try:
        async with caller(second) as ask:
            for prompt in prompts:
                assert len(got[prompt]) == 7
                uncut = await ask.complete(prompt, temperature=0, ignore_eos=True)
                assert uncut["token_ids"][:7] == got[prompt]
                assert await ask.continues(uncut, 7, temperature=0, ignore_eos=True)
    finally:
        await anyio.to_thread.run_sync(second.stop)


def test_the_official_client_is_served_in_all_dialects(worker: RunningBackend) -> None:
    """Chat with a tool, streamed and whole, completions and responses: the same words of the model in each."""
    script = '<script>[{"filler": 9, "call": {"name": "get_weather", "arguments": {"city": "Rome"}}}]</script>'
    messages: list[Any] = [{"role": "user", "content": script}]
    with OpenAI(base_url=worker.base_url, api_key="unused", max_retries=0) as client:
        chat: Any = {"model": worker.model, "messages": messages, "tools": [WEATHER], "temperature": 0}
        whole = client.chat.completions.create(**chat, logprobs=True, top_logprobs=2)
        [call] = whole.choices[0].message.tool_calls or []
        assert (call.type, whole.choices[0].finish_reason) == ("function", "tool_calls")
        assert '{"city":"Rome"}' in call.to_json(indent=None).replace("\\", "")
        words = whole.choices[0].message.content or ""
        assert len(words.split()) == 9
        assert all(entry.logprob < 0 for entry in (whole.choices[0].logprobs.content or [])[:9])
        chunks = list(client.chat.completions.create(**chat, stream=True))
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert streamed == words
        assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) == 9
        asked: Any = {"model": worker.model, "input": messages, "tools": [FLAT_WEATHER], "temperature": 0}
        response = client.responses.create(**asked)
        assert response.output_text == words
        assert [item.type for item in response.output] == ["message", "function_call"]


def test_chunks_and_replies_name_the_version_of_the_weights(worker: RunningBackend, tmp_path: Path) -> None:
    """The version stands at the top of chunks, replies and events, and changes in a stream where the weights do."""
    with start_backend(tmp_path, "--real", "--weight-version", "7") as other, httpx.Client(timeout=60) as http:
        plain = {"model": other.model, "prompt": "once", "temperature": 0, "ignore_eos": True, "max_tokens": 6}
        assert http.post(f"{other.base_url}/completions", json=plain).json()["weight_version"] == "7"
        responses = {"model": other.model, "input": "once", "max_output_tokens": 2}
        assert http.post(f"{other.base_url}/responses", json=responses).json()["weight_version"] == "7"
        hold = other.control.hold(after_tokens=3)
        with http.stream("POST", f"{other.base_url}/completions", json=plain | {"stream": True}) as reply:
            lines = (line for line in reply.iter_lines() if line.startswith("data: {"))
            seen = [next(lines) for _ in range(3)]
            other.control.wait(held=1)
            http.post(f"{other.url}/control/weights", json={"version": "8", "seed": 4}).raise_for_status()
            other.control.release(hold)
            seen += list(lines)
    assert [httpx.Response(200, content=line[6:]).json()["weight_version"] for line in seen[:6]] == ["7"] * 3 + [
        "8"
    ] * 3


def test_a_prompt_without_end_is_refused(worker: RunningBackend) -> None:
    """What does not fit into the context is 400 with the code that OpenAI's API has for it, and no call."""
    with httpx.Client(timeout=60) as http:
        models = http.get(f"{worker.base_url}/models").json()["data"]
        assert models[0]["max_model_len"] == 32_768
        reply = http.post(f"{worker.base_url}/completions", json={"model": worker.model, "prompt": [65] * 32_768})
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "context_length_exceeded"
    assert worker.control.calls() == []


def test_a_client_that_leaves_ends_its_generation(worker: RunningBackend) -> None:
    """Closing a stream aborts the call within a few tokens."""
    body = {"model": worker.model, "prompt": "x", "max_tokens": 30_000, "ignore_eos": True, "stream": True}
    with httpx.Client(timeout=60) as http, http.stream("POST", f"{worker.base_url}/completions", json=body) as reply:
        next(reply.iter_lines())
    worker.control.wait(aborted=1, live_at_most=0)
    [call] = worker.control.calls()
    assert call.disconnected
    assert call.generated < 3_000


def test_free_text_has_no_marks(worker: RunningBackend) -> None:
    """What the model says of its own is words, so that its text gives its ids again."""
    with httpx.Client(base_url=worker.url, timeout=60) as http:
        body = {"model": worker.model, "prompt": "say something", "max_tokens": 60, "return_token_ids": True, "seed": 1}
        choice = http.post("/v1/completions", json=body | {"ignore_eos": True}).json()["choices"][0]
        assert not any(mark in choice["text"] for mark in MARKS)
        again = http.post("/tokenize", json={"prompt": choice["text"]}).json()["tokens"]
        assert again == choice["token_ids"]
