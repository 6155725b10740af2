"""Between Responses items and Chat messages: nothing is lost, and what has no form in Chat is refused."""

from typing import Any

import pytest

from participants.chat_items import from_chat, to_chat
from participants.errors import ParticipantError

pytestmark = pytest.mark.unit


def test_a_conversation_becomes_messages() -> None:
    """Instructions, roles, parts, calls merged into their turn, tool outputs; reasoning is left out."""
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
    ]
    messages = to_chat({"instructions": "be brief", "input": items})["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool"]
    assert messages[1]["content"] == "ab"
    assert [call["id"] for call in messages[2]["tool_calls"]] == ["c1", "c2"]
    assert messages[3] == {"role": "tool", "tool_call_id": "c1", "content": "1"}


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ({"max_output_tokens": 5}, {"max_tokens": 5}),
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"tool_choice": {"type": "function", "name": "f"}},
         {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}},
         {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}}),
        ({"text": {"format": {"type": "text"}}, "store": True, "metadata": {}, "temperature": None}, {}),
        ({"tools": [{"type": "function", "name": "f", "parameters": {}, "strict": True}]},
         {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}]}),
        ({"temperature": 0.5, "seed": 1}, {"temperature": 0.5, "seed": 1}),
    ],
)  # fmt: skip
def test_parameters_take_the_form_of_chat(given: dict[str, Any], becomes: dict[str, Any]) -> None:
    """What is renamed, what is wrapped, and what Chat does not have."""
    assert to_chat({"input": [], **given}) == {"messages": [], **becomes}


def test_images_stay_images() -> None:
    """Parts stay parts where there is more than text."""
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:x"}]
    [message] = to_chat({"input": [{"role": "user", "content": parts}]})["messages"]
    assert message["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "data:x"}},
    ]


@pytest.mark.parametrize("body", [{"input": [{"type": "computer_call"}]}, {"tools": [{"type": "web_search"}]}])
def test_what_has_no_form_in_chat_is_refused(body: dict[str, Any]) -> None:
    """Rather than being left out in silence."""
    with pytest.raises(ParticipantError, match="no form in Chat"):
        to_chat(body)


@pytest.mark.parametrize(
    ("finish", "status", "reason"),
    [("stop", "completed", None), ("length", "incomplete", "max_output_tokens"),
     ("content_filter", "incomplete", "content_filter")],
)  # fmt: skip
def test_a_reply_becomes_items(finish: str, status: str, reason: str | None) -> None:
    """Reasoning, text and calls in order, each with an id; usage and the reason for the end."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"reasoning_content": "hm", "content": "so", "tool_calls": [call]}
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
             "completion_tokens_details": {"reasoning_tokens": 2}}  # fmt: skip
    reply = from_chat({"choices": [{"message": message, "finish_reason": finish}], "usage": usage}, "n")
    assert [item["type"] for item in reply["output"]] == ["reasoning", "message", "function_call"]
    assert [item["id"] for item in reply["output"]] == ["rs_n", "msg_n", "fc_n_0"]
    assert (reply["status"], (reply["incomplete_details"] or {}).get("reason")) == (status, reason)
    assert reply["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}


def test_a_reply_survives_the_way_back() -> None:
    """Items made of a message become that message again."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "so", "tool_calls": [call]}
    items = from_chat({"choices": [{"message": message}]}, "n")["output"]
    assert to_chat({"input": items})["messages"] == [message]
    assert from_chat({"choices": [{"message": {"content": ""}}]}, "n")["output"] == []
