"""The stream of `/v1/responses`, read: events that build items up, and at the end the whole response.

Ids may come with any event. The response in the last event is the reply; nothing is put together from the deltas but
the prefix.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ParticipantError
from ..generations import RESPONSES
from .prefix import Prefix
from .reading import SHAPES, Reading, failed, failure_of, ids_of, segments_of
from .scores import Entry

_GROWING = frozenset(
    {"output", "usage", "status", "prompt_token_ids", "token_ids", "error", "incomplete_details", "weight_version"}
)
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_REASONS = {"max_output_tokens": "length"}


class ResponseReader:
    """One response as it grows."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._prompt: list[int] | None = None
        self._ids: list[int] | None = None
        self._texts: list[str] = []
        self._chars = 0
        self._scores: list[Entry] = []
        self._covered = (0, 0)
        self._steps: list[tuple[int, int]] = []
        self._items: list[dict[str, Any]] = []
        self._reasoning = self._beside = False
        self._weights: list[tuple[int, str]] = []
        self._whole: dict[str, Any] | None = None
        self._failure: ParticipantError | None = None

    def feed(self, events: Iterable[dict[str, Any]]) -> None:
        """Take events until one is an error."""
        try:
            for event in events:
                if event.get("error") or event.get("type") == "error":
                    self._failure = failure_of(event if event.get("error") else {"error": event})
                    return
                self._take(event)
        except SHAPES as error:
            self._failure = failed(f"an event of another shape ({error!r})", None)

    def _take(self, event: dict[str, Any]) -> None:
        kind = event.get("type", "")
        self._note(event.get("weight_version"))
        if kind == "response.output_text.delta":
            self._texts.append("" + event["delta"])  # Refuses what is no text.
            self._chars += len(event["delta"])
            self._scores += event.get("logprobs") or ()
        elif kind == "response.output_item.added":
            self._open(event["item"])
        elif kind in _ENDS:
            self._end(event["response"])
        elif "response" in event and not self._head:
            self._begin(event["response"])
        elif "reasoning" in kind:
            self._reasoning = True
        elif "refusal" in kind:
            self._beside = True
        if (ids := event.get("token_ids")) is not None:
            if self._ids is None:
                self._ids = []
            self._ids += ids
            self._covered = (len(self._texts), len(self._scores))
            self._steps.append((len(self._ids), self._chars))

    def _note(self, version: Any) -> None:
        if version is not None and (not self._weights or self._weights[-1][1] != str(version)):
            self._weights.append((len(self._ids or ()), str(version)))

    def _begin(self, response: Mapping[str, Any]) -> None:
        self._head = {key: value for key, value in response.items() if key not in _GROWING}
        self._prompt = response.get("prompt_token_ids")
        self._note(response.get("weight_version"))

    def _open(self, item: Mapping[str, Any]) -> None:
        self._items.append({key: item.get(key) for key in ("type", "id", "call_id")})
        self._reasoning = self._reasoning or item["type"] == "reasoning"

    def _end(self, response: dict[str, Any]) -> None:
        if not self._head:
            self._begin(response)
        if response.get("status") == "failed" or response.get("error"):
            self._failure = failure_of({"error": response.get("error")})
        else:
            self._whole = response

    @property
    def has_ids(self) -> bool:
        """Whether the id of a generated token has come."""
        return bool(self._ids)

    def reading(self, failure: ParticipantError | None) -> Reading:
        """Everything that was taken; `failure` is what stopped the events."""
        try:
            return self._reading(self._failure or failure)
        except SHAPES as error:
            return Reading(prefix=Prefix(), failure=failed(f"events of another shape ({error!r})", None))

    def prefix(self) -> Prefix:
        """That of the reading alone, which is all that a cut takes."""
        try:
            return self._prefix()
        except SHAPES:
            return Prefix()

    def _reading(self, failure: ParticipantError | None) -> Reading:
        ended = self._whole is not None
        return Reading(
            prefix=self._prefix(),
            ended=ended,
            finish=finish_of(RESPONSES, self._whole) if self._whole is not None else None,
            reply=self._whole,
            usage=self._whole.get("usage") if self._whole is not None else None,
            failure=None if ended else failure,
            steps=tuple(self._steps),
        )

    def _prefix(self) -> Prefix:
        texts, scores = self._covered if self._ids is not None else (len(self._texts), len(self._scores))
        ids = self._ids
        if self._whole is not None:
            ids = self._whole.get("token_ids", ids)
            texts, scores = len(self._texts), len(self._scores)
        elif ids is None and self._prompt is not None:
            ids = []
        return Prefix(
            prompt=ids_of(self._prompt),
            ids=ids_of(ids),
            text="".join(self._texts[:texts]),
            logprobs=tuple(self._scores[:scores]),
            segments=segments_of(self._weights, len(ids or ())),
            calls=any(item["type"] not in ("message", "reasoning") for item in self._items),
            reasoning=self._reasoning,
            head=self._head | ({"items": self._items} if self._items else {}),
            finish=finish_of(RESPONSES, self._whole) if self._whole is not None else "",
            beside=self._beside,
        )


def finish_of(route: str, reply: Mapping[str, Any]) -> str:
    """Why a whole reply ended, in the one word that it has with and without a cut. Empty where it does not say."""
    if route == RESPONSES:
        return _finish(reply)
    choices = reply.get("choices")
    return str(choices[0].get("finish_reason") or "") if choices else ""


def _finish(response: Mapping[str, Any]) -> str:
    if response.get("status") != "incomplete":
        return "stop"
    reason = str((response.get("incomplete_details") or {}).get("reason"))
    return _REASONS.get(reason, reason)
