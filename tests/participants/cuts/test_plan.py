"""How the rest is asked for, and each reason for which it is not."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants.backends import Capabilities, Feature
from participants.cuts import (
    Anew,
    Continue,
    Policy,
    Prefix,
    Reason,
    Segment,
    Verdict,
    asked_as_stream,
    older_than,
    plan,
)
from participants.cuts.prefix import StagedIds

from .uncut import CAPABILITIES, CHAT, COMPLETIONS, RESPONSES

pytestmark = pytest.mark.unit

MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}
PREFIX = Prefix(prompt=(1, 2), ids=(7, 8, 9), text="a b c", segments=(Segment(0, 2, "4"), Segment(2, 1, "5")))
ONLY_TEXT = replace(CAPABILITIES, token_ids_in=False, tool_format="")


def planned(
    body: dict[str, Any] | None = None,
    *,
    route: str = CHAT,
    prefix: Prefix = PREFIX,
    capabilities: Capabilities = CAPABILITIES,
    **more: Any,
) -> Continue | Anew:
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"messages": MESSAGES},
        COMPLETIONS: {"prompt": "p"},
        RESPONSES: {"input": "i"},
    }
    return plan(route, {**bodies[route], **(body or {})}, prefix, capabilities, **more)


def rest(*args: Any, **more: Any) -> Continue:
    made = planned(*args, **more)
    assert isinstance(made, Continue), made
    return made


def body_of(made: Continue) -> dict[str, Any]:
    assert made.body is not None
    return dict(made.body)


def without(feature: Feature) -> Capabilities:
    return replace(CAPABILITIES, declared=CAPABILITIES.declared - {feature})


ANEW: list[tuple[Reason, dict[str, Any]]] = [
    (Reason.NOTHING_GENERATED, {"prefix": Prefix(prompt=(1,), ids=())}),
    (Reason.NOTHING_GENERATED, {"prefix": Prefix()}),
    (Reason.NO_TOKEN_IDS, {"prefix": Prefix(text="a")}),
    (Reason.STAGED_LOST, {"prefix": Prefix(prompt=(1,), staged=StagedIds("k", 3, "d", "r0/1.0#0", "c"))}),
    (Reason.NO_TOKEN_IDS, {"prefix": replace(PREFIX, prompt=None)}),
    (Reason.REASONING, {"prefix": replace(PREFIX, reasoning=True)}),
    (Reason.POLICY, {"policy": older_than(0), "weights_now": "5"}),
    (Reason.UNDECLARED_FEATURE, {"body": {"temperature": 0}, "capabilities": without(Feature.GREEDY)}),
    (Reason.UNDECLARED_FEATURE, {"body": {"n": 2}, "resampled": True}),
    (
        Reason.UNDECLARED_FEATURE,
        {
            "body": {"response_format": {"type": "json_object"}},
            "capabilities": without(Feature.GRAMMAR),
            "resampled": True,
        },
    ),
    (Reason.TOOL_FORMAT, {"body": {"tools": [TOOL]}, "capabilities": replace(CAPABILITIES, tool_format="")}),
    (Reason.TOOL_FORMAT, {"body": {"tools": [TOOL]}, "capabilities": replace(CAPABILITIES, tool_format="unheard")}),
    (Reason.NO_TEXT, {"capabilities": replace(CAPABILITIES, detokenize=False)}),
    (Reason.NO_TEXT, {"capabilities": replace(CAPABILITIES, detokenize=False, tokenize=False, tool_format="")}),
    (Reason.NO_TOKENS_IN, {"capabilities": replace(ONLY_TEXT, tokenize=False)}),
    (Reason.NO_TOKENS_IN, {"capabilities": replace(ONLY_TEXT, continue_final_message=False)}),
    (Reason.NO_TOKENS_IN, {"capabilities": replace(CAPABILITIES, token_ids_in=False)}),
    (Reason.NO_TOKENS_IN, {"route": RESPONSES, "capabilities": ONLY_TEXT}),
    (Reason.NO_TOKENS_IN, {"route": COMPLETIONS, "capabilities": replace(ONLY_TEXT, routes=frozenset({CHAT}))}),
    (Reason.NO_TOKENS_IN, {"route": RESPONSES, "capabilities": replace(CAPABILITIES, ids_routes=frozenset({CHAT}))}),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "case"), ANEW)
def test_each_reason_for_generating_anew(reason: Reason, case: dict[str, Any]) -> None:
    """One row, one reason."""
    made = planned(**case)
    assert isinstance(made, Anew), made
    assert made.reason is reason


def test_sampling_parameters_stay_and_the_rest_is_translated() -> None:
    """What shaped the prompt goes, what limits is lowered, what is unknown stays, and the body is not changed."""
    body = {
        "model": "m", "temperature": 0.5, "top_k": 3, "stop": ["x"], "stop_token_ids": [3], "vendor_knob": 1,
        "max_completion_tokens": 10, "min_tokens": 5, "logprobs": True, "top_logprobs": 2, "tools": [TOOL],
        "stream": False, "metadata": {"a": 1}, "chat_template_kwargs": {}, "n": 1, "user": "u",
    }  # fmt: skip
    before = {**body}
    made = rest(body)
    assert body == before
    assert made.route == COMPLETIONS
    asked = body_of(made)
    asked.pop("continued_tokens", None)  # For our own backend alone.
    assert asked == {
        "model": "m", "temperature": 0.5, "top_k": 3, "stop": ["x"], "stop_token_ids": [3], "vendor_knob": 1,
        "max_tokens": 7, "min_tokens": 2, "logprobs": 2, "user": "u", "prompt": [1, 2, 7, 8, 9], "stream": True,
        "stream_options": {"include_usage": True}, "return_token_ids": True, "skip_special_tokens": False,
    }  # fmt: skip
    assert made.stops == ("x",)
    assert made.raw_ids == (7, 8, 9)
    assert made.needs_raw_text


@pytest.mark.parametrize(
    ("route", "body", "context", "left"),
    [
        (CHAT, {}, None, None),
        (CHAT, {}, 20, 15),
        (CHAT, {"max_tokens": 8}, 20, 5),
        (CHAT, {"max_tokens": 800}, 20, 15),
        (CHAT, {"max_tokens": 8, "max_completion_tokens": 6}, None, 3),
        (RESPONSES, {"max_output_tokens": 4}, None, 1),
        (COMPLETIONS, {}, None, 13),
        (COMPLETIONS, {"max_tokens": None}, None, None),
        (COMPLETIONS, {"max_tokens": None}, 6, 1),
    ],
)
def test_limits_are_lowered_by_what_is_there(
    route: str, body: dict[str, Any], context: int | None, left: int | None
) -> None:
    """Each dialect's own limit and default, and never more than the context has room for."""
    made = rest(body, route=route, capabilities=replace(CAPABILITIES, context_length=context))
    assert body_of(made)["max_tokens"] == left


@pytest.mark.parametrize(
    ("case", "finish"),
    [
        ({"body": {"max_tokens": 3}}, "length"),
        ({"body": {"max_tokens": 2}}, "length"),
        ({"capabilities": replace(CAPABILITIES, context_length=5)}, "length"),
        ({"capabilities": replace(CAPABILITIES, end_ids=frozenset({9}))}, "stop"),
        ({"body": {"stop_token_ids": [9], "max_tokens": 3}}, "stop"),
    ],
)
def test_a_prefix_that_is_the_whole_asks_for_nothing(case: dict[str, Any], finish: str) -> None:
    """At its limit, at the end of the context, or at an id that ends it."""
    made = rest(**case)
    assert made.body is None
    assert made.finish == finish


def test_an_end_that_is_ignored_is_no_end() -> None:
    """With `ignore_eos` the generation goes on."""
    made = rest({"ignore_eos": True}, capabilities=replace(CAPABILITIES, end_ids=frozenset({9})))
    assert made.body is not None


def test_resampled_is_said_only_where_it_is_so() -> None:
    """The caller's consent changes nothing where the feature survives the cut."""
    assert not rest({"temperature": 0}, resampled=True).resampled
    assert rest({"seed": 3}, capabilities=without(Feature.SEED), resampled=True).resampled


def test_text_is_checked_before_it_is_continued() -> None:
    """A text prompt goes on as text, if the backend tokenises it to the very ids."""
    made = rest({"model": "m"}, route=COMPLETIONS, capabilities=ONLY_TEXT)
    assert made.as_ == "text"
    assert body_of(made)["prompt"] == "pa b c"
    assert made.check is not None
    assert made.check.body == {"prompt": "pa b c", "model": "m"}
    assert made.check.expected == (1, 2, 7, 8, 9)


@pytest.mark.parametrize("continued", [False, True])
def test_chat_as_text_is_a_last_message_that_goes_on(continued: bool) -> None:
    """Added to the conversation, or to the message that was to be continued anyway."""
    messages = [*MESSAGES, {"role": "assistant", "content": "so "}] if continued else MESSAGES
    body = {"messages": messages, "max_tokens": 9, "logprobs": True, "continue_final_message": continued}
    made = rest(body, capabilities=ONLY_TEXT)
    asked = body_of(made)
    assert made.route == CHAT
    assert asked["messages"] == [*MESSAGES, {"role": "assistant", "content": "so a b c" if continued else "a b c"}]
    assert (asked["continue_final_message"], asked["add_generation_prompt"]) == (True, False)
    assert (asked["max_tokens"], asked["logprobs"]) == (6, True)
    assert made.check is not None
    assert made.check.body["messages"] == asked["messages"]


@pytest.mark.parametrize(
    ("k", "now", "verdict"),
    [
        (1, "5", Verdict.CONTINUE),
        (0, "5", Verdict.ANEW),
        (0, "4", Verdict.CONTINUE),
        (3, "8", Verdict.ANEW),
        (4, "8", Verdict.CONTINUE),
        (9, "", Verdict.ANEW),
        (9, "main", Verdict.ANEW),
    ],
)
def test_weights_that_are_too_old(k: int, now: str, verdict: Verdict) -> None:
    """The oldest segment counts; versions that are no numbers cannot be compared, and are too old."""
    assert older_than(k)(PREFIX, now) is verdict


def test_an_old_prefix_can_be_masked_instead() -> None:
    """It is continued, and the plan says that it is not to be trained on."""
    policy: Policy = older_than(0, then=Verdict.MASK)
    assert rest(policy=policy, weights_now="9").masked
    assert not rest(policy=policy, weights_now="4").masked


NAMES = """
messages prompt input max_tokens max_completion_tokens max_output_tokens min_tokens stop stop_token_ids tools
tool_choice logprobs top_logprobs include n temperature text response_format chat_template_kwargs metadata
continue_final_message seed presence_penalty modalities ignore_eos
"""
FIELDS = st.sampled_from(NAMES.split())
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 40) | st.floats(allow_nan=False) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "content", "role"]), inner),
    max_leaves=4,
)


@given(st.sampled_from([CHAT, COMPLETIONS, RESPONSES]), st.dictionaries(FIELDS, VALUES, max_size=5), st.booleans())
def test_no_body_makes_planning_fail(route: str, body: dict[str, Any], text: bool) -> None:
    """Whatever a client sends, there is a decision."""
    capabilities = ONLY_TEXT if text else CAPABILITIES
    made = plan(route, body, PREFIX, capabilities, resampled=True)
    assert isinstance(made, Continue | Anew)


def test_every_call_is_asked_as_a_stream() -> None:
    """With ids only where the route has them, and with the usage; the body is not changed."""
    body: dict[str, Any] = {"messages": MESSAGES, "stream_options": {"x": 1}}
    asked = asked_as_stream(CHAT, body, CAPABILITIES)
    assert asked == {
        "messages": MESSAGES,
        "stream": True,
        "stream_options": {"x": 1, "include_usage": True},
        "return_token_ids": True,
    }
    assert body == {"messages": MESSAGES, "stream_options": {"x": 1}}
    plain = asked_as_stream(RESPONSES, {"input": "i"}, replace(CAPABILITIES, ids_routes=frozenset()))
    assert plain == {"input": "i", "stream": True}
