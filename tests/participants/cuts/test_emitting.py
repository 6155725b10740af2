"""A whole reply, sent as the stream that its client asked for."""

from typing import Any

import httpx
import pytest
from openai import OpenAI

from participants.cuts import read
from participants.cuts.emitting import KEEP_ALIVE, as_stream

from .test_every_cut import CASES, same
from .uncut import CHAT, COMPLETIONS, RESPONSES, whole

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", CASES)
def test_reading_the_events_gives_the_reply_again(name: str) -> None:
    """In every dialect: nothing of the reply is lost on the way through its events."""
    route, body = CASES[name]
    reply = whole(route, body)
    events = as_stream(route, reply, {**body, "stream_options": {"include_usage": True}})
    reading = read(route, [KEEP_ALIVE, *events, KEEP_ALIVE])
    assert reading.ended
    same(dict(reading.reply or {}), dict(reply))


def test_usage_is_sent_only_where_it_is_asked_for() -> None:
    """Without `include_usage` no chunk has an empty list of choices."""
    route, body = CASES["chat"]
    events = as_stream(route, whole(route, body), body)
    assert b'"usage"' not in b"".join(events)
    assert events[-1] == b"data: [DONE]\n\n"


def served(route: str, body: dict[str, Any]) -> OpenAI:
    """The official client, for which any call is answered with one stream."""
    content = KEEP_ALIVE + b"".join(as_stream(route, whole(route, body), body))

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=content)

    options: dict[str, Any] = {"http_client": httpx.Client(transport=httpx.MockTransport(answer))}
    return OpenAI(base_url="http://x/v1", api_key="none", **options)


@pytest.mark.parametrize("name", ["chat-scored-one", "chat-calls", "chat-refusal", "chat-mixed", "chat-empty"])
def test_the_official_client_reads_chat(name: str) -> None:
    """Its accumulating helper comes to the same message."""
    route, body = CASES[name]
    assert route == CHAT
    wanted = whole(route, body)["choices"][0]
    asked = {key: value for key, value in body.items() if key in ("messages", "logprobs", "top_logprobs")}
    with served(route, body).chat.completions.stream(model="m", **asked) as stream:
        stream.until_done()
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == wanted["finish_reason"]
    assert (choice.message.content or "") == (wanted["message"]["content"] or "")
    assert choice.message.refusal == wanted["message"]["refusal"]
    calls = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    given = wanted["message"].get("tool_calls") or ()
    assert calls == [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in given]


def test_the_official_client_reads_completions() -> None:
    """Text and reason come out of the chunks."""
    route, body = CASES["completion-scored"]
    assert route == COMPLETIONS
    chunks = list(served(route, body).completions.create(model="m", prompt="p", stream=True))
    wanted = whole(route, body)["choices"][0]
    assert "".join(chunk.choices[0].text for chunk in chunks) == wanted["text"]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, wanted["finish_reason"]]


@pytest.mark.parametrize("name", ["response-scored", "response-calls", "response-mixed", "response-limited"])
def test_the_official_client_reads_responses(name: str) -> None:
    """Its accumulating helper comes to the same items, event by event."""
    route, body = CASES[name]
    assert route == RESPONSES
    wanted = whole(route, body)
    with served(route, body).responses.stream(model="m", input="i") as stream:
        events = list(stream)
    last: Any = events[-1]
    assert last.type == f"response.{wanted['status']}"
    assert [item.type for item in last.response.output] == [item["type"] for item in wanted["output"]]
    snapshot = [event.text for event in events if event.type == "response.output_text.done"]
    parts = [part for item in wanted["output"] if item["type"] == "message" for part in item["content"]]
    assert snapshot == [part["text"] for part in parts if part["type"] == "output_text"]
