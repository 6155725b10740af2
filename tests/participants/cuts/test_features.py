"""What a request asks for that a cut must not change."""

from typing import Any

import pytest

from participants.backends import Feature
from participants.cuts import features_of

from .uncut import CHAT, COMPLETIONS, RESPONSES

pytestmark = pytest.mark.unit

MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}
PARTS = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
REASONED = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}

TABLE: list[tuple[str, dict[str, Any], set[Feature]]] = [
    (CHAT, {}, {Feature.SAMPLED}),
    (CHAT, {"temperature": None, "seed": None, "stop": None, "n": None}, {Feature.SAMPLED}),
    (CHAT, {"temperature": 0}, {Feature.GREEDY}),
    (CHAT, {"temperature": 0.0, "seed": 4}, {Feature.GREEDY}),
    (CHAT, {"temperature": 0.7, "seed": 4}, {Feature.SAMPLED, Feature.SEED}),
    (CHAT, {"seed": 0}, {Feature.SAMPLED, Feature.SEED}),
    (CHAT, {"presence_penalty": 0.5}, {Feature.SAMPLED, Feature.PENALTIES}),
    (CHAT, {"repetition_penalty": 1.0, "frequency_penalty": 0}, {Feature.SAMPLED}),
    (CHAT, {"repetition_penalty": 1.1}, {Feature.SAMPLED, Feature.PENALTIES}),
    (CHAT, {"min_tokens": 0}, {Feature.SAMPLED}),
    (CHAT, {"min_tokens": 5}, {Feature.SAMPLED, Feature.MIN_TOKENS}),
    (CHAT, {"stop": "a"}, {Feature.SAMPLED, Feature.STOP}),
    (CHAT, {"stop": []}, {Feature.SAMPLED}),
    (CHAT, {"logprobs": True}, {Feature.SAMPLED, Feature.LOGPROBS}),
    (CHAT, {"logprobs": False, "top_logprobs": 3}, {Feature.SAMPLED}),
    (COMPLETIONS, {"prompt": "p", "logprobs": 0}, {Feature.SAMPLED, Feature.LOGPROBS}),
    (COMPLETIONS, {"prompt": "p", "logprobs": None}, {Feature.SAMPLED}),
    (RESPONSES, {"input": "i", "include": ["message.output_text.logprobs"]}, {Feature.SAMPLED, Feature.LOGPROBS}),
    (CHAT, {"tools": [TOOL]}, {Feature.SAMPLED, Feature.TOOLS}),
    (CHAT, {"tools": [TOOL], "tool_choice": "none"}, {Feature.SAMPLED}),
    (CHAT, {"tools": []}, {Feature.SAMPLED}),
    (CHAT, {"tools": [TOOL], "tool_choice": "required"}, {Feature.SAMPLED, Feature.TOOLS, Feature.GRAMMAR}),
    (CHAT, {"response_format": {"type": "text"}}, {Feature.SAMPLED}),
    (CHAT, {"response_format": {"type": "json_schema"}}, {Feature.SAMPLED, Feature.GRAMMAR}),
    (CHAT, {"guided_regex": "a*"}, {Feature.SAMPLED, Feature.GRAMMAR}),
    (RESPONSES, {"input": "i", "text": {"format": {"type": "json_schema"}}}, {Feature.SAMPLED, Feature.GRAMMAR}),
    (RESPONSES, {"input": "i", "text": {"verbosity": "low"}}, {Feature.SAMPLED}),
    (CHAT, {"reasoning_effort": "low"}, {Feature.SAMPLED, Feature.REASONING}),
    (CHAT, {"chat_template_kwargs": {"enable_thinking": True}}, {Feature.SAMPLED, Feature.REASONING}),
    (CHAT, {"chat_template_kwargs": {"enable_thinking": False}}, {Feature.SAMPLED}),
    (CHAT, {"n": 2}, {Feature.SAMPLED, Feature.OTHER}),
    (CHAT, {"messages": [PARTS]}, {Feature.SAMPLED}),
    (CHAT, {"messages": [IMAGE]}, {Feature.SAMPLED, Feature.OTHER}),
    (CHAT, {"messages": "no list"}, {Feature.SAMPLED, Feature.OTHER}),
    (COMPLETIONS, {"prompt": [1, 2]}, {Feature.SAMPLED}),
    (COMPLETIONS, {"prompt": ["a"]}, {Feature.SAMPLED}),
    (COMPLETIONS, {"prompt": ["a", "b"]}, {Feature.SAMPLED, Feature.OTHER}),
    (COMPLETIONS, {"prompt": "p", "echo": True}, {Feature.SAMPLED, Feature.OTHER}),
    (COMPLETIONS, {"prompt": "p", "best_of": 3}, {Feature.SAMPLED, Feature.OTHER}),
    (RESPONSES, {"input": [{"role": "user", "content": "x"}, REASONED]}, {Feature.SAMPLED}),
    (RESPONSES, {"input": [{"type": "computer_call"}]}, {Feature.SAMPLED, Feature.OTHER}),
    (RESPONSES, {"input": "i", "previous_response_id": "r"}, {Feature.SAMPLED, Feature.OTHER}),
    (RESPONSES, {"input": "i", "tools": [{"type": "web_search"}]}, {Feature.SAMPLED, Feature.TOOLS, Feature.OTHER}),
]


@pytest.mark.parametrize(("route", "body", "wanted"), TABLE)
def test_features_are_read_from_the_body(route: str, body: dict[str, Any], wanted: set[Feature]) -> None:
    """One row, one body."""
    more = {"messages": MESSAGES} if route == CHAT else {}
    assert features_of(route, {**more, **body}) == wanted
