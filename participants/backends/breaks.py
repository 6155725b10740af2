"""How a backend can fail a call, each way with a name, and what is tried again. Pure.

Unreachable       internal: worth another try, until the time for tries is over
model_failed      everything else, with `details`: `reason` (a Break), and as they apply `limit` (the name of the
                  setting that was reached), `status`, `received_bytes`, `retry_after_s`
"""

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

from ..data import Reply
from ..errors import Code, ParticipantError

RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
EVENT_STREAM = "text/event-stream"
EVENTS_A_TOKEN, SPARE_EVENTS = 16, 256
"""A stream may have so many events for each token that was asked for, and so many more."""
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class Break(StrEnum):
    """Why a call of a backend has failed."""

    UNREACHABLE = "unreachable"
    """Nobody answered, or with a status that passes and did not, until the tries were over (`retry_for_s`)."""
    BROKE_OFF = "broke_off"
    """The connection ended in the middle. What came before it is with the caller."""
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"
    """Nothing came for `first_token_timeout_s`."""
    IDLE_TIMEOUT = "idle_timeout"
    """Something had come, then nothing for `idle_timeout_s`."""
    TIMEOUT = "timeout"
    """The whole call took over `timeout_s`."""
    TOO_LONG = "too_long"
    """More than `max_stream_bytes`, `max_reply_bytes`, or EVENTS_A_TOKEN for each token that was asked for."""
    NOT_A_STREAM = "not_a_stream"
    """A stream was asked for, and something else came."""
    ERROR_EVENT = "error_event"
    """A stream said an error, in an event of its own."""
    BAD_EVENT = "bad_event"
    """A stream had what is no event of a generation: no JSON, another shape, more than the limit of one event."""
    NO_ANSWER = "no_answer"
    """A reply that does not answer what was asked, such as ids that are none."""
    CLOSED = "closed"
    """We have closed the stream ourselves."""


class Unreachable(Exception):
    """Internal: worth another try."""

    def __init__(self, message: str, *, status: int | None = None, retry_after_s: float | None = None) -> None:
        """`retry_after_s` is what the server asked for."""
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


def failed(reason: Break, message: str, **details: Any) -> ParticipantError:
    """A `model_failed` that says how; details that are None are left out."""
    known = {key: value for key, value in details.items() if value is not None}
    return ParticipantError(Code.MODEL_FAILED, message, {"reason": reason.value, **known})


def retry_after_s(value: str | None, date: str | None) -> float | None:
    """Seconds of a Retry-After header, which has seconds or a date; None where it has neither.

    A date is compared with the reply's own one, for our clock is another; where that is missing, it says nothing.
    """
    if not value:
        return None
    if value.strip().isascii() and value.strip().isdigit():
        return float(value.strip()[:9])
    try:
        return max(0.0, (parsedate_to_datetime(value) - parsedate_to_datetime(date or "")).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None


def most_events(body: Mapping[str, Any]) -> int | None:
    """How many events a stream may have for what was asked; None where no length was asked for."""
    asked = [body[name] for name in _LIMITS if type(body.get(name)) is int and body[name] >= 0]
    choices = body.get("n")
    each = choices if type(choices) is int and choices > 1 else 1
    return SPARE_EVENTS + EVENTS_A_TOKEN * max(asked) * each if asked else None


def is_event_stream(content_type: str | None) -> bool:
    """Whether a header announces events; one that is not there says nothing against it."""
    return content_type is None or content_type.split(";")[0].strip().lower() == EVENT_STREAM


def naming_model(reply: Reply, body: Mapping[str, Any]) -> Reply:
    """A 404 whose message names the model that was asked for, as an error of OpenAI's API; other replies as they are.

    Servers say it differently, or answer 404 for the route with a page. The official client makes NotFoundError of it.
    """
    model = body.get("model")
    if reply.status != 404 or not isinstance(model, str) or _has_error_naming(reply.body, model):
        return reply
    said = _message(reply.body)
    message = f"the backend does not have the model {model!r}, or not this route{': ' if said else ''}{said}"
    error = {"message": message, "type": "invalid_request_error", "param": "model", "code": "model_not_found"}
    return Reply(reply.status, {"error": error}, reply.headers)


def _has_error_naming(body: Any, model: str) -> bool:
    error = body.get("error") if isinstance(body, dict) else None
    return isinstance(error, dict) and model in str(error.get("message", ""))


def _message(body: Any) -> str:
    """What an error body says: `error.message`, `message` (SGLang), `detail`, or its text."""
    if not isinstance(body, dict):
        return str(body or "")[:200]
    error = body.get("error")
    said = error.get("message") if isinstance(error, dict) else error
    return str(said or body.get("message") or body.get("detail") or "")[:200]
