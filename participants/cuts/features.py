"""What a request asks for that a cut must not change, read from its body."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..backends.capabilities import Feature
from ..generations import CHAT, RESPONSES

_GRAMMARS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "structural_tag",
             "json_schema", "regex", "ebnf", "grammar", "guided_decoding_backend")  # fmt: skip
_PENALTIES: Mapping[str, float] = {
    "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "repeat_penalty": 1, "dry_multiplier": 0,
}  # fmt: skip
"""Each with the value that means none."""
_REASONING = ("reasoning_effort", "reasoning", "include_reasoning", "separate_reasoning", "thinking_token_budget")
_OTHER = ("echo", "suffix", "use_beam_search", "prompt_embeds", "prompt_logprobs", "functions", "function_call",
          "prediction", "audio", "previous_response_id", "conversation", "background", "logits_processors",
          "custom_logit_processor", "mirostat", "input_ids", "web_search_options")  # fmt: skip
_COUNTS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "top_logprobs")
_PLAIN_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})
_PLAIN_ITEMS = frozenset({"message", "function_call", "function_call_output", "reasoning", None})


def features_of(route: str, body: Mapping[str, Any]) -> frozenset[Feature]:
    """The features of one request to a generating route. Whatever it does not know of a body counts as plain.

    A body that no backend would take has `Feature.OTHER`.
    """
    try:
        return _features(route, body)
    except (TypeError, ValueError, AttributeError):
        return frozenset({Feature.OTHER})


def _features(route: str, body: Mapping[str, Any]) -> frozenset[Feature]:
    found = {_drawing(body)}
    asked: Iterable[tuple[bool, Feature]] = (
        (body.get("seed") is not None and Feature.GREEDY not in found, Feature.SEED),
        (any(body.get(key, none) not in (None, none) for key, none in _PENALTIES.items()), Feature.PENALTIES),
        (bool(body.get("min_tokens")), Feature.MIN_TOKENS),
        (bool(stops_of(body)), Feature.STOP),
        (_has_grammar(body), Feature.GRAMMAR),
        (ranks_of(route, body) is not None, Feature.LOGPROBS),
        (may_call(body), Feature.TOOLS),
        (any(body.get(key) for key in _REASONING) or _thinks(body), Feature.REASONING),
        (_is_other(route, body), Feature.OTHER),
    )
    return frozenset(found | {feature for holds, feature in asked if holds})


def stops_of(body: Mapping[str, Any]) -> tuple[str, ...]:
    """The stop strings of a request."""
    stop = body.get("stop")
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    return tuple(each for each in stops if isinstance(each, str) and each)


def ranks_of(route: str, body: Mapping[str, Any]) -> int | None:
    """How many alternatives a token are asked for; None without log probabilities."""
    if route == RESPONSES:
        wanted = "message.output_text.logprobs" in (body.get("include") or ())
        return body.get("top_logprobs") or 0 if wanted else None
    if route == CHAT:
        return body.get("top_logprobs") or 0 if body.get("logprobs") else None
    ranks = body.get("logprobs")
    return None if ranks is None or ranks is False else int(ranks)


def may_call(body: Mapping[str, Any]) -> bool:
    """Whether tools may be called."""
    return bool(body.get("tools")) and body.get("tool_choice") != "none"


def _drawing(body: Mapping[str, Any]) -> Feature:
    temperature = body.get("temperature")
    return Feature.GREEDY if temperature is not None and temperature == 0 else Feature.SAMPLED


def _has_grammar(body: Mapping[str, Any]) -> bool:
    if any(body.get(key) for key in _GRAMMARS):
        return True
    text = body.get("text")
    formats = (body.get("response_format"), text.get("format") if isinstance(text, Mapping) else None)
    if any(isinstance(each, Mapping) and each.get("type", "text") != "text" for each in formats):
        return True
    # A demanded call is made by a grammar.
    return may_call(body) and body.get("tool_choice") not in (None, "auto")


def _thinks(body: Mapping[str, Any]) -> bool:
    options = body.get("chat_template_kwargs")
    return isinstance(options, Mapping) and any(bool(options.get(key)) for key in ("enable_thinking", "thinking"))


def _is_other(route: str, body: Mapping[str, Any]) -> bool:
    if any(body.get(key) for key in _OTHER):
        return True
    if any((body.get(key) or 1) != 1 for key in ("n", "best_of")):
        return True
    if not all(body.get(key) is None or type(body[key]) is int for key in _COUNTS):
        return True
    if any(
        isinstance(tool, Mapping) and tool.get("type", "function") != "function" for tool in body.get("tools") or ()
    ):
        return True
    if route == CHAT:
        return "audio" in (body.get("modalities") or ()) or not _all_plain(body.get("messages") or ())
    if route == RESPONSES:
        items = body.get("input")
        return not isinstance(items, str) and not _all_plain(items or ())
    return _has_several_prompts(body.get("prompt"))


def _all_plain(messages: Iterable[Any]) -> bool:
    """Whether there is nothing but text and calls of functions."""
    for message in messages:
        if not isinstance(message, Mapping) or message.get("type") not in _PLAIN_ITEMS:
            return False
        content = message.get("content")
        if isinstance(content, list) and message.get("type") != "reasoning":
            kinds = {part.get("type") for part in content if isinstance(part, Mapping)}
            if not kinds <= _PLAIN_PARTS:
                return False
    return True


def _has_several_prompts(prompt: Any) -> bool:
    """A list of texts, or of lists of ids, with more than one."""
    return isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)
