"""Answers of backends, read: each dialect, and anything else without an error."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants import Reply
from participants.backends.observing import card_of, context_of, generated, ids_of, text_of

pytestmark = pytest.mark.unit
NAMES = (
    *("choices", "delta", "message", "content", "text", "token_ids", "prompt_token_ids", "usage", "logprobs", "error"),
    *("response", "data", "id", "tokens", "prompt", "metadata", "weight_version", "token_logprobs"),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=20,
)


def sse(*documents: Any) -> Reply:
    """A streamed reply, as `post` gives it."""
    lines = [f"data: {json.dumps(document)}\n\n" for document in documents]
    return Reply(200, "".join([": keep-alive\n\n", *lines, "data: [DONE]\n\n"]))


def test_a_completion_is_read_from_its_stream() -> None:
    """Text, ids, ids of the prompt, log probabilities, usage, the version of the weights."""
    found = generated(
        sse(
            {
                "choices": [
                    {"text": "a", "token_ids": [5], "prompt_token_ids": [1, 2], "logprobs": {"token_logprobs": [-1]}}
                ]
            },
            {"choices": [{"text": "b", "token_ids": [6, 7], "prompt_token_ids": None}], "weight_version": "v3"},
            {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}},
        )
    )
    assert found
    assert (found.text, found.ids, found.prompt, found.scores) == ("ab", (5, 6, 7), (1, 2), 1)
    assert (found.prompt_tokens, found.output_tokens, found.weights, found.events) == (2, 3, "v3", 3)


def test_chat_is_read_from_its_stream_and_whole() -> None:
    """Ids of the prompt stand at the top in vLLM and in the choice in SGLang."""
    streamed = generated(
        sse(
            {"choices": [{"delta": {"role": "assistant", "content": ""}}], "prompt_token_ids": [1]},
            {"choices": [{"delta": {"content": "hi"}, "token_ids": [4], "logprobs": {"content": [{}]}}]},
        )
    )
    assert streamed
    assert (streamed.text, streamed.ids, streamed.prompt, streamed.scores) == ("hi", (4,), (1,), 1)
    choice = {"message": {"content": "hi"}, "token_ids": [4], "prompt_token_ids": [1]}
    whole = generated(Reply(200, {"choices": [choice], "metadata": {"weight_version": "default"}}))
    assert whole
    assert (whole.text, whole.prompt, whole.weights, whole.events) == ("hi", (1,), "default", 0)


def test_responses_are_read_from_their_events() -> None:
    """Usage and the prompt's ids stand in the response that the event carries."""
    found = generated(
        sse(
            {"type": "response.created", "response": {"prompt_token_ids": [1], "error": None}},
            {"type": "response.output_text.delta", "delta": "hi", "token_ids": [4]},
            {"type": "response.completed", "response": {"usage": {"input_tokens": 1, "output_tokens": 1}}},
        )
    )
    assert found
    assert (found.text, found.ids, found.prompt, found.output_tokens) == ("hi", (4,), (1,), 1)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(400, {"choices": [{"text": "a"}]}),
        Reply(200, "<html>a page</html>"),
        Reply(200, None),
        Reply(200, {}),
        sse({"choices": [{"text": "a"}]}, {"error": {"message": "out of memory"}}),
        sse({"type": "response.failed", "response": {"error": {"message": "no"}}}),
        Reply(200, "data: {not json\n\n"),
    ],
)
def test_a_refusal_a_page_and_an_error_are_no_generations(reply: Reply) -> None:
    """Also where the error comes in the middle of a stream, after a status of 200."""
    assert generated(reply) is None


def test_the_context_comes_from_the_list_or_from_the_slots() -> None:
    """`max_model_len`, else `n_ctx`; the first model is taken where none is named."""
    models = Reply(200, {"data": [{"id": "a", "max_model_len": 8}, {"id": "b"}]})
    assert card_of(models, "") == {"id": "a", "max_model_len": 8}
    assert card_of(models, "b") == {"id": "b"}
    assert card_of(models, "c") is None
    assert context_of({"max_model_len": 8}) == 8
    assert context_of({"max_model_len": None}, {"default_generation_settings": {"n_ctx": 9}}) == 9
    assert context_of({}) is None


def test_text_stands_where_each_server_puts_it() -> None:
    """vLLM, SGLang, llama.cpp."""
    assert [text_of(Reply(200, {key: "x"})) for key in ("prompt", "text", "content")] == ["x"] * 3
    assert text_of(Reply(200, {"prompt": 3})) is None
    assert ids_of(Reply(200, {"tokens": [{"id": 1, "piece": "x"}]})) is None


@given(VALUES, st.integers(200, 500))
def test_anything_is_read_without_an_error(value: Any, status: int) -> None:
    """As a body, and as an event."""
    for reply in (Reply(status, value), sse(value), Reply(status, json.dumps(value))):
        generated(reply)
        ids_of(reply)
        text_of(reply)
        card_of(reply, "")
    if isinstance(value, dict):
        context_of(value, value)
