"""What a backend's reply must be before anything keeps it: a generation, and JSON that a record can hold.

A backend may say 200 and mean a failure, or send what is no generation at all. Both are `model_failed`, which another
try may mend, and never an empty reply. An empty reply is one whose message has no content.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from .data import Reply
from .errors import Code, ParticipantError

RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
MAX_TOKENS = 2**53
SPARE_DEPTH = 64
"""How much deeper than in the reply a value may come to stand in a record."""
_COUNTS = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens")
_DETAILS = {
    "prompt_tokens_details": "cached_tokens",
    "completion_tokens_details": "reasoning_tokens",
    "input_tokens_details": "cached_tokens",
    "output_tokens_details": "reasoning_tokens",
}
_TEXTS = ("content", "refusal", "reasoning_content", "reasoning")


def parse(data: bytes) -> Any:
    """JSON that a record can hold, else the bytes as text."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return data.decode(errors="replace")
    return value if is_storable(value) else data.decode(errors="replace")


def is_storable(value: Any) -> bool:
    """Whether a record can hold it: no lone surrogates, no integers past 64 bits, not nested too deeply."""
    for _ in range(SPARE_DEPTH):
        value = [value]
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True


def checked(route: str, reply: Reply) -> Reply:
    """A reply that may be kept. Raises `model_failed`."""
    if not is_storable(reply.body):
        raise _failed("what no record can hold", reply.status, None)
    if reply.ok:
        check_generation(route, reply.body)
    return reply


def check_generation(route: str, body: Any) -> None:
    """Raises `model_failed`, saying why, where the body of a reply with status 200 is no generation."""
    problem = _problem(route, body)
    if problem:
        raise _failed(problem, 200, body)


def _failed(problem: str, status: int, body: Any) -> ParticipantError:
    shown = "" if body is None else f": {body!r:.300}".encode(errors="replace").decode()
    return ParticipantError(Code.MODEL_FAILED, f"the model answered {status} with {problem}{shown}", {"status": status})


def _problem(route: str, body: Any) -> str:
    """Why it is no generation; empty where it is one."""
    if not isinstance(body, dict):
        return "what is no JSON object"
    if body.get("error"):
        return "an error"
    if not _is_usage(body.get("usage")):
        return "a usage that is none"
    if route == RESPONSES:
        return "" if _are_objects(body.get("output")) else "no list of output items"
    choices = body.get("choices")
    if not choices or not _are_objects(choices):
        return "no list of choices"
    if route == CHAT and not all(_is_message(choice.get("message")) for choice in choices):
        return "a choice without a message"
    return ""


def _are_objects(items: Any) -> bool:
    return isinstance(items, list) and all(isinstance(item, dict) for item in items)


def _is_message(message: Any) -> bool:
    if not isinstance(message, dict):
        return False
    texts = all(isinstance(message.get(key), str | None) for key in _TEXTS)
    calls = message.get("tool_calls") or []
    return texts and _are_objects(calls) and all(isinstance(call.get("function"), dict) for call in calls)


def _is_usage(usage: Any) -> bool:
    if usage is None:
        return True
    if not isinstance(usage, Mapping) or not all(_is_count(usage.get(key)) for key in _COUNTS):
        return False
    details = ((usage.get(name) or {}, key) for name, key in _DETAILS.items())
    return all(isinstance(each, Mapping) and _is_count(each.get(key)) for each, key in details)


def _is_count(value: Any) -> bool:
    return value is None or (type(value) is int and 0 <= value < MAX_TOKENS)
