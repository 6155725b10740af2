"""How one generation is asked for."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from participants import Code, ModelServer, OpenAIEndpoint, ParticipantError, Reply, Request
from participants.backends import LazyCapabilities, declared
from participants.data import CallId
from participants.flights import Flight
from participants.generating import Generator
from store import Life
from tests.support.wires import Vllm, served

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LIFE = Life("r0", 1, 0, 0)
CALL = CallId("agent.main", 1, 0)
CHAT = "/v1/chat/completions"


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


def said(text: str, ids: list[int], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish, "token_ids": ids}
    event = {"id": "x", "created": 1, "model": "m", "choices": [choice], "prompt_token_ids": [9, 9]}
    return b"data: " + orjson.dumps(event) + b"\n\n"


@dataclass
class Breaking:
    """An upstream of vLLM's kind whose one stream breaks, or ends as if it were whole."""

    pieces: Sequence[bytes]
    error: ParticipantError | None
    rests: list[bytes]
    """What it says to each further call."""
    asked: list[str] = field(default_factory=list)
    status: int = 200
    _left: list[bytes] = field(default_factory=list)
    _error: ParticipantError | None = None

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        raise AssertionError("a stream is asked for")

    @asynccontextmanager
    async def stream(
        self, route: str, body: Mapping[str, Any], life: Life | None = None, *, call: CallId | None = None
    ) -> AsyncIterator["Breaking"]:
        first = not self.asked
        self.asked.append(route)
        self._left = list(self.pieces) if first else [self.rests.pop(0)]
        self._error = self.error if first else None
        yield self

    def __aiter__(self) -> "Breaking":
        return self

    async def __anext__(self) -> bytes:
        if self._left:
            return self._left.pop(0)
        raise self._error or StopAsyncIteration

    def close(self) -> None: ...

    async def tokenize(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        raise AssertionError("nothing to tokenize")

    async def detokenize(self, ids: Sequence[int], model: str = "") -> str:
        return "".join({1: "a", 5: "b", 7: "c", 2: "<eos>"}[each] for each in ids)


BODY = {"model": "m", "messages": [{"role": "user", "content": "q"}], "max_tokens": 100}


def generator_of(upstream: Breaking, kind: str = "vllm") -> Generator:
    return Generator(upstream, cuts=LazyCapabilities(upstream, known=declared(kind)))  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", ["broke_off", "idle_timeout"])
async def test_a_connection_that_breaks_after_the_end_takes_nothing_away(reason: str) -> None:
    """The generation has said its reason; asked for more, the server would go on after its end."""
    error = ParticipantError(Code.MODEL_FAILED, "broken", {"reason": reason})
    upstream = Breaking([said("a", [1]), said("b", [5, 2], "stop")], error, [])
    made = await generator_of(upstream).make(Flight(Request(route=CHAT, body=BODY, life=LIFE, call=CALL)))
    assert made.reply.body["choices"][0]["message"]["content"] == "ab"
    assert made.reply.body["usage"]["completion_tokens"] == 3
    assert (made.finish, made.continued, upstream.asked) == ("stop", 0, [CHAT])


def rest(text: str, ids: list[int], finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish, "token_ids": ids}
    return b"data: " + orjson.dumps({"id": "y", "choices": [choice]}) + b"\n\n"


async def test_a_stream_that_ends_without_a_reason_is_continued_also_in_its_rest() -> None:
    """A clean end of the connection is no end of the generation, the first time and the next."""
    upstream = Breaking([said("a", [1])], None, [rest("b", [5]), rest("c", [7, 2], "stop")])
    made = await generator_of(upstream).make(Flight(Request(route=CHAT, body=BODY, life=LIFE, call=CALL)))
    assert made.reply.body["choices"][0]["message"]["content"] == "abc"
    assert made.whole is not None
    assert (made.whole.ids, made.continued, len(upstream.asked)) == ((1, 5, 7, 2), 2, 3)


HEAD = b"data: " + orjson.dumps({"id": "x", "choices": [], "prompt_token_ids": [9, 9]}) + b"\n\n"
"""What comes before the first token."""


async def test_a_stream_that_breaks_off_before_its_first_token_is_asked_for_again() -> None:
    """Nothing is lost by it, and a server that was killed just then costs the caller no more than at any other time."""
    error = ParticipantError(Code.MODEL_FAILED, "broken", {"reason": "broke_off"})
    upstream = Breaking([HEAD], error, [said("a", [1, 2], "stop")])
    made = await generator_of(upstream).make(Flight(Request(route=CHAT, body=BODY, life=LIFE, call=CALL)))
    assert made.reply.body["choices"][0]["message"]["content"] == "a"
    assert (made.continued, upstream.asked) == (0, [CHAT, CHAT])


async def test_a_server_that_always_breaks_off_before_its_first_token_is_asked_four_times() -> None:
    """Then the caller is told."""
    upstream = Breaking([HEAD], None, [HEAD] * 9)
    with pytest.raises(ParticipantError, match="ended before the generation"):
        await generator_of(upstream).make(Flight(Request(route=CHAT, body=BODY, life=LIFE, call=CALL)))
    assert upstream.asked == [CHAT] * 4


@pytest.mark.parametrize(("kind", "content"), [("vllm", "abc"), ("midflight", "a")])
async def test_a_field_that_a_backend_does_not_know_has_no_effect_on_a_rest(kind: str, content: str) -> None:
    """The stop string that is completed after a cut stays only where an uncut call would have kept it."""
    upstream = Breaking([said("a", [1]), said("", [5])], None, [rest("c", [7]), rest("", [2], "stop")])
    body = {**BODY, "stop": ["bc"], "include_stop_str_in_output": True}
    made = await generator_of(upstream, kind).make(Flight(Request(route=CHAT, body=body, life=LIFE, call=CALL)))
    assert made.reply.body["choices"][0]["message"]["content"] == content
