"""What backends send with status 200 and is no generation: `model_failed`, and nothing of it is kept."""

from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from participants import Code, OpenAIEndpoint, ParticipantError, Reply
from participants.generations import CHAT, RESPONSES, checked, is_storable, parse
from tests.support.scripted import scripted_row
from tests.support.world import world

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

MESSAGE: dict[str, Any] = {"role": "assistant", "content": "so"}
NO_CHAT: list[Any] = [
    {"error": {"message": "overloaded"}},
    {},
    "text",
    {"choices": []},
    {"choices": "none"},
    {"choices": ["none"]},
    {"choices": [{"message": None}]},
    {"choices": [{"message": {"content": 1}}]},
    {"choices": [{"message": {"tool_calls": "f"}}]},
    {"choices": [{"message": {"tool_calls": [{"function": None}]}}]},
    {"choices": [{"message": MESSAGE}], "usage": "much"},
    {"choices": [{"message": MESSAGE}], "usage": {"prompt_tokens": "much"}},
    {"choices": [{"message": MESSAGE}], "usage": {"prompt_tokens": float("nan")}},
    {"choices": [{"message": MESSAGE}], "usage": {"total_tokens": 10**20}},
    {"choices": [{"message": MESSAGE}], "usage": {"prompt_tokens_details": {"cached_tokens": "many"}}},
    {"choices": [{"message": {"content": "\ud800"}}]},
]
NO_RESPONSE: list[Any] = [
    {"error": {"message": "overloaded"}, "output": []},
    {},
    {"output": None},
    {"output": "said"},
    {"output": ["said"]},
    {"output": [], "usage": {"input_tokens": 1.5}},
]
GARBAGE = {
    "invalid UTF-8": b'{"choices": [{"message": {"content": "\xff"}}]}',
    "nested too deeply": b'{"choices": [{"message": {"content": "so", "x": ' + b"[" * 230 + b"]" * 230 + b"}}]}",
    "a lone surrogate": b'{"choices": [{"message": {"content": "\\ud800"}}]}',
    "NaN": b'{"choices": [{"message": {"content": "so"}}], "usage": {"prompt_tokens": NaN}}',
    "a large integer": b'{"choices": [{"message": {"content": "so"}}], "usage": {"prompt_tokens": 1'
    + b"0" * 30
    + b"}}",
    "a page": b"<html>busy</html>",
    "nothing": b"",
}
CASES = [*((CHAT, body) for body in NO_CHAT), *((RESPONSES, body) for body in NO_RESPONSE)]


@pytest.mark.parametrize(("route", "body"), CASES)
def test_what_is_no_generation_is_model_failed(route: str, body: Any) -> None:
    """Whatever the status says; the error is not terminal and can itself be told."""
    with pytest.raises(ParticipantError) as caught:
        checked(route, Reply(200, body))
    assert (caught.value.code, caught.value.details) == (Code.MODEL_FAILED, {"status": 200})
    assert is_storable(caught.value.to_body())


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (CHAT, {"choices": [{"message": {"content": ""}}], "error": None}),
        (CHAT, {"choices": [{"message": {"content": None}}], "usage": {"prompt_tokens": 1, "cost": 0.1}}),
        (RESPONSES, {"output": [], "error": None, "usage": None}),
        ("/v1/completions", {"choices": [{"text": ""}]}),
    ],
)
def test_an_empty_generation_is_one(route: str, body: Any) -> None:
    """It said nothing, and that is what it said."""
    assert checked(route, Reply(200, body)).body is body


@pytest.mark.parametrize("dialect", ["responses", "chat"])
async def test_an_error_with_status_200_fails_the_episode_and_gives_no_row(dialect: str) -> None:
    """The failure is `model_failed`, and another try may mend it."""
    async with world(dialect=dialect) as one:
        one.upstream.failures["model r0 0"] = Reply(200, {"error": {"message": "overloaded"}})
        await one.start({"r0": scripted_row("r0", ["done"])})
        [result] = (await one.results(1)).values()
    assert result.row is None
    assert result.failure is not None
    assert (result.failure["class"], result.failure["terminal"]) == ("model_failed", False)


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
async def test_garbage_of_a_backend_is_model_failed(data: bytes) -> None:
    """Bytes that are no JSON, or none that a record can hold, end with the typed error."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=data, content_type="application/json")

    app = web.Application()
    app.router.add_post(CHAT, answer)
    async with TestServer(app) as server, OpenAIEndpoint(str(server.make_url("/v1"))) as endpoint:
        with pytest.raises(ParticipantError) as caught:
            await endpoint.complete(CHAT, {})
    assert caught.value.code is Code.MODEL_FAILED


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_of_a_refusal_can_be_kept(data: bytes) -> None:
    """What comes with another status is kept as it came where a record can hold it, else as text."""
    assert is_storable(parse(data))
