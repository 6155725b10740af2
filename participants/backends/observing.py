"""Reads what a backend answered to a probe. Pure; whatever it sends, a reading is a reading or None, never an error."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from ..data import Reply

DONE = "[DONE]"


@dataclass(slots=True)
class Generated:
    """What one generation showed."""

    events: int = 0
    """How many events it came in; 0 for a reply without a stream."""
    text: str = ""
    ids: tuple[int, ...] = ()
    prompt: tuple[int, ...] = ()
    """The ids of the prompt, where they were named."""
    scores: int = 0
    """Tokens with a log probability."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    weights: str = ""
    """The version of the weights, where it was named."""
    failed: bool = field(default=False)
    """It had an event that says so."""


def generated(reply: Reply) -> Generated | None:
    """A generation in any dialect, streamed or whole; None where the reply is none."""
    if not reply.ok:
        return None
    streamed = isinstance(reply.body, str)
    documents = list(_events(reply.body)) if streamed else [reply.body]
    found = Generated()
    for document in documents:
        if isinstance(document, dict):
            _take(found, document)
            found.events += streamed
    says_something = found.text or found.ids or found.output_tokens or found.events
    return found if says_something and not found.failed else None


def ids_of(reply: Reply) -> tuple[int, ...] | None:
    """The answer of `/tokenize`; None where it is none."""
    tokens = reply.body.get("tokens") if reply.ok and isinstance(reply.body, dict) else None
    return _ids(tokens) or None


def text_of(reply: Reply) -> str | None:
    """The answer of `/detokenize`: `prompt` in vLLM, `text` in SGLang, `content` in llama.cpp."""
    body = reply.body if reply.ok and isinstance(reply.body, dict) else {}
    return next((body[key] for key in ("prompt", "text", "content") if isinstance(body.get(key), str)), None)


def card_of(reply: Reply, model: str) -> Mapping[str, Any] | None:
    """The entry of a model in `/v1/models`, or the first one without a name; None where there is none."""
    data = reply.body.get("data") if reply.ok and isinstance(reply.body, dict) else None
    cards = [card for card in data if isinstance(card, dict) and card.get("id")] if isinstance(data, list) else []
    return next((card for card in cards if not model or card["id"] == model), None)


def context_of(card: Mapping[str, Any], props: Any = None) -> int | None:
    """Tokens of prompt and output together: `max_model_len`, or in llama.cpp `n_ctx` of `/props`."""
    settings = props.get("default_generation_settings") if isinstance(props, dict) else None
    n_ctx = settings.get("n_ctx") if isinstance(settings, dict) else None
    return next((n for n in (card.get("max_model_len"), n_ctx) if type(n) is int and n > 0), None)


def _events(text: str) -> Iterator[Any]:
    for line in text.splitlines():
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data != DONE:
            try:
                yield orjson.loads(data)
            except orjson.JSONDecodeError:
                yield {"error": "not JSON"}


def _take(found: Generated, document: dict[str, Any]) -> None:
    """Add one event, or the whole reply."""
    found.failed |= bool(document.get("error"))
    response = document.get("response")
    _take_usage(found, document)
    if isinstance(response, dict):  # An event of Responses with all there is so far.
        _take_usage(found, response)
        found.prompt = found.prompt or _ids(response.get("prompt_token_ids"))
        found.failed |= bool(response.get("error"))
    if isinstance(document.get("delta"), str):
        found.text += document["delta"]
        found.ids += _ids(document.get("token_ids"))
    found.prompt = found.prompt or _ids(document.get("prompt_token_ids"))
    places = (document, document.get("metadata"), document.get("sglext"))
    versions = (place.get("weight_version") for place in places if isinstance(place, dict))
    found.weights = next((str(each) for each in versions if isinstance(each, str | int)), found.weights)
    choices = document.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        if isinstance(choice, dict):
            _take_choice(found, choice)


def _take_choice(found: Generated, choice: dict[str, Any]) -> None:
    said = choice.get("delta") or choice.get("message") or {}
    text = choice.get("text") or (said.get("content") if isinstance(said, dict) else "")
    found.text += text if isinstance(text, str) else ""
    found.ids += _ids(choice.get("token_ids"))
    found.prompt = found.prompt or _ids(choice.get("prompt_token_ids"))
    scores = choice.get("logprobs")
    if isinstance(scores, dict):
        per_token = scores.get("token_logprobs") or scores.get("content")
        found.scores += len(per_token) if isinstance(per_token, list) else 0


def _take_usage(found: Generated, document: dict[str, Any]) -> None:
    usage = document.get("usage")
    if not isinstance(usage, dict):
        return
    counts = [usage.get(name) for name in ("prompt_tokens", "input_tokens")]
    outputs = [usage.get(name) for name in ("completion_tokens", "output_tokens")]
    found.prompt_tokens = next((n for n in counts if type(n) is int), found.prompt_tokens)
    found.output_tokens = next((n for n in outputs if type(n) is int), found.output_tokens)


def _ids(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list) and all(type(each) is int for each in value) else ()
