"""What a backend has streamed of one generation so far: its exact prefix, and the whole reply once it has ended.

Chat and Completions as vLLM, SGLang, llama.cpp's server and OpenAI stream them, and a generation's `/v1/responses`
(`response_reading`). Nothing raises: a stream that is no generation gives a `failure` and what came before it. An event
that is not whole yet does not count, and text that came after the last token ids is no part of the prefix.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import orjson

from ..backends import breaks
from ..backends.breaks import Break
from ..errors import ParticipantError
from ..generations import CHAT, RESPONSES
from . import sse
from .prefix import Prefix, Segment
from .scores import COLUMNS, Entry, entries_of

COMPLETIONS = "/v1/completions"
SHAPES = (AttributeError, TypeError, KeyError, ValueError, IndexError, OverflowError)
"""What an event of another shape may raise."""
_ENVELOPE = frozenset(
    {"choices", "usage", "object", "prompt_token_ids", "token_ids", "weight_version", "metadata", "error"}
)
_CHOICE = frozenset({"index", "delta", "text", "logprobs", "finish_reason", "token_ids", "prompt_token_ids"})
_OBJECTS = frozenset({dict})
_REASONING = ("reasoning_content", "reasoning")
_KNOWN_BESIDE = frozenset({*_REASONING, "function_call"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One stream, read as far as it came."""

    prefix: Prefix
    ended: bool = False
    """Whether the generation is over: everything that it said is here."""
    finish: str | None = None
    """`stop`, `length`, `tool_calls` or what else the backend says; None as long as it has not ended."""
    reply: dict[str, Any] | None = None
    """The body that a client without a stream would have had, with the ids that the stream had; only if ended."""
    usage: Mapping[str, Any] | None = None
    failure: ParticipantError | None = None
    """`model_failed`: an error event, or what is no generation."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """What else the backend says of the choice, such as `stop_reason`."""
    steps: tuple[tuple[int, int], ...] = ()
    """After each event with ids: how many ids and how many characters of text there were."""


def finished(
    finish: str, *, says_stop_reason: bool = False, extras: Mapping[str, Any] = MappingProxyType({})
) -> Reading:
    """A continuation of which nothing needs to be asked; of a server that `says_stop_reason` as it says it.

    `extras` are those that it has said already.
    """
    extras = ({"stop_reason": None} if says_stop_reason else {}) | dict(extras)
    return Reading(prefix=Prefix(ids=()), ended=True, finish=finish, extras=extras)


def read(route: str, chunks: Sequence[bytes]) -> Reading:
    """Read the chunks of a stream from its beginning, whatever their borders."""
    from .response_reading import ResponseReader

    events, failure = parsed(b"".join(chunks))
    if route == RESPONSES:
        responses = ResponseReader()
        responses.feed(events)
        return responses.reading(failure)
    reader = ChoiceReader(chat=route == CHAT)
    reader.feed(events)
    return reader.reading(failure)


def parsed(data: bytes) -> tuple[list[dict[str, Any]], ParticipantError | None]:
    """The events of a stream as objects, up to the first that is none, and the failure that this is."""
    payloads = sse.payloads(data)
    if sse.DONE in payloads:
        payloads = payloads[: payloads.index(sse.DONE)]
    return objects(payloads)


def objects(payloads: Sequence[bytes]) -> tuple[list[dict[str, Any]], ParticipantError | None]:
    """The same of payloads."""
    try:
        if len(payloads) == 1:
            event = orjson.loads(payloads[0])
            return ([event], None) if type(event) is dict else _one_by_one(payloads)
        # One call of the parser for all of them takes half the time.
        found = orjson.loads(b"[" + b",".join(payloads) + b"]")
        if len(found) == len(payloads) and {*map(type, found)} <= _OBJECTS:
            return found, None
    except orjson.JSONDecodeError:
        pass
    return _one_by_one(payloads)


def _one_by_one(payloads: Iterable[bytes]) -> tuple[list[dict[str, Any]], ParticipantError | None]:
    events: list[dict[str, Any]] = []
    for payload in payloads:
        try:
            event = orjson.loads(payload)
        except orjson.JSONDecodeError:
            event = None
        if not isinstance(event, dict):
            return events, failed(f"what is no event: {payload[:200]!r}", None)
        events.append(event)
    return events, None


def failed(problem: str, error: Any = None, *, reason: Break = Break.BAD_EVENT) -> ParticipantError:
    """The failure of a stream."""
    return breaks.failed(reason, f"the model streamed {problem}", error=error or None)


def failure_of(event: Mapping[str, Any]) -> ParticipantError:
    """An error event as a failure."""
    error = event.get("error")
    message = error.get("message") if isinstance(error, Mapping) else error
    return failed(f"an error: {str(message)[:300]}", error, reason=Break.ERROR_EVENT)


class _Choice:
    """One choice as it grows."""

    __slots__ = ("calls", "chars", "covered", "extras", "finish", "ids", "other", "scores", "steps", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.chars = 0
        self.ids: array[int] | None = None
        """Packed, as the prompt and the steps are: very many generations are in memory at once."""
        self.covered: tuple[int, int] = (0, 0)
        """Texts and log probabilities that had come when ids came last."""
        self.steps = array("I")
        """Of each event with ids: how many ids and how many characters of text there were then."""
        self.scores: list[Mapping[str, Any]] = []
        """Log probabilities as they came: most are never looked at."""
        self.finish: str | None = None
        self.calls: dict[int, dict[str, Any]] = {}
        self.other: dict[str, Any] = {}
        """What else the message has."""
        self.extras: dict[str, Any] = {}


class ChoiceReader:
    """Chat and Completions."""

    def __init__(self, *, chat: bool) -> None:
        self._chat = chat
        self._head: dict[str, Any] = {}
        self._late: dict[str, Any] = {}
        self._usage: Mapping[str, Any] | None = None
        self._prompt: array[int] | None = None
        self._choices: dict[int, _Choice] = {}
        self._failure: ParticipantError | None = None
        self._weights: list[tuple[int, str]] = []
        """From which id of the first choice on, which version."""
        self._version: Any = None

    def feed(self, events: Iterable[dict[str, Any]]) -> None:
        """Take events until one is an error."""
        try:
            for event in events:
                if event.get("error"):
                    self._failure = failure_of(event)
                    return
                self._take(event)
        except SHAPES as error:
            self._failure = failed(f"an event of another shape ({error!r})", None)

    def _take(self, event: dict[str, Any]) -> None:
        if not self._head:
            self._head = {key: value for key, value in event.items() if key not in _ENVELOPE}
            self._prompt = _packed(event.get("prompt_token_ids"))
        if usage := event.get("usage"):
            self._usage = usage
        version = event.get("weight_version")
        if version is None and "metadata" in event:
            version = (event["metadata"] or {}).get("weight_version")
        if version is not None and version != self._version:
            self._version = version
            first = self._choices.get(0)
            self._weights.append((len(first.ids or ()) if first else 0, str(version)))
        for raw in event.get("choices") or ():
            index = raw.get("index") or 0
            choice = self._choices.get(index)
            if choice is None:
                choice = self._choices[index] = _Choice()
            self._grow(choice, raw, event)
            if raw.get("finish_reason"):
                self._late = {key: value for key, value in event.items() if key not in _ENVELOPE}

    def _grow(self, choice: _Choice, raw: dict[str, Any], event: dict[str, Any]) -> None:
        if self._chat:
            for key, value in (raw.get("delta") or {}).items():
                if key == "content":
                    if value:
                        choice.texts.append("" + value)  # Refuses what is no text.
                        choice.chars += len(value)
                elif value and key != "role":
                    self._grow_other(choice, key, value)
        elif text := raw.get("text"):
            choice.texts.append("" + text)
            choice.chars += len(text)
        if logprobs := raw.get("logprobs"):
            choice.scores.append(logprobs)
        ids = raw.get("token_ids")
        if ids is None:
            ids = event.get("token_ids")
        if ids is not None:
            if choice.ids is None:
                choice.ids = array("I")
            choice.ids.extend(ids)
            choice.covered = (len(choice.texts), len(choice.scores))
            choice.steps.extend((len(choice.ids), choice.chars))
        if not raw.keys() <= _CHOICE:
            for key in raw.keys() - _CHOICE:
                if raw[key] is not None or key not in choice.extras:
                    choice.extras[key] = raw[key]
        if self._prompt is None:
            self._prompt = _packed(raw.get("prompt_token_ids"))
        choice.finish = raw.get("finish_reason") or choice.finish

    def _grow_other(self, choice: _Choice, key: str, value: Any) -> None:
        if key != "tool_calls":
            choice.other[key] = _added(choice.other.get(key), value)
            return
        for raw in value:
            index = raw.get("index", len(choice.calls))
            call = choice.calls.setdefault(index, {"id": "", "type": "function", "function": {}})
            function = raw.get("function") or {}
            call.update({k: v for k, v in raw.items() if k not in ("index", "function") and v})
            name = function.get("name")
            if name and name != call["function"].get("name"):
                call["function"]["name"] = call["function"].get("name", "") + name
            call["function"].setdefault("arguments", "")
            call["function"]["arguments"] += function.get("arguments") or ""

    # What it comes to

    @property
    def has_ids(self) -> bool:
        """Whether the id of a generated token has come."""
        return bool((first := self._choices.get(0)) and first.ids)

    def reading(self, failure: ParticipantError | None) -> Reading:
        """Everything that was taken; `failure` is what stopped the events."""
        try:
            return self._reading(self._failure or failure)
        except SHAPES as error:
            return Reading(prefix=Prefix(), failure=failed(f"events of another shape ({error!r})", None))

    def prefix(self) -> Prefix:
        """That of the reading alone, which is all that a cut takes."""
        try:
            return self._prefix(self._choices.get(0) or _Choice())
        except SHAPES:
            return Prefix()

    def _reading(self, failure: ParticipantError | None) -> Reading:
        first = self._choices.get(0) or _Choice()
        ended = failure is None and bool(self._choices) and all(each.finish for each in self._choices.values())
        return Reading(
            prefix=self._prefix(first),
            ended=ended,
            finish=first.finish,
            reply=self._reply() if ended else None,
            usage=self._usage,
            failure=failure,
            extras=first.extras,
            steps=tuple(zip(first.steps[::2], first.steps[1::2], strict=True)),
        )

    def _prefix(self, choice: _Choice) -> Prefix:
        texts, scores = len(choice.texts), len(choice.scores)
        if choice.ids is not None and not choice.finish:
            texts, scores = choice.covered
        ids = choice.ids
        if ids is None and self._prompt is not None:
            ids = array("I")
        calls = [choice.calls[index].get("id", "") for index in sorted(choice.calls)]
        return Prefix(
            prompt=ids_of(self._prompt),
            ids=ids_of(ids),
            text="".join(choice.texts[:texts]),
            logprobs=_entries(choice.scores[:scores]),
            segments=segments_of(self._weights, len(ids or ())),
            calls=bool(calls or choice.other.get("function_call")),
            reasoning=any(choice.other.get(key) for key in _REASONING),
            head=self._head | (self._late if choice.finish else {}) | ({"call_ids": calls} if calls else {}),
            finish=choice.finish or "",
            extras=choice.extras if choice.finish else {},
            beside=any(key not in _KNOWN_BESIDE for key in choice.other),
        )

    def _reply(self) -> dict[str, Any]:
        whole: dict[str, Any] = {**self._head, **self._late}
        whole["object"] = "chat.completion" if self._chat else "text_completion"
        whole["choices"] = [self._whole(index, self._choices[index]) for index in sorted(self._choices)]
        usage = self._usage or self._counted()
        if usage:
            whole["usage"] = usage
        if self._version is not None:
            whole["weight_version"] = self._version
        if self._chat and self._prompt is not None:
            whole["prompt_token_ids"] = self._prompt.tolist()
        return whole

    def _counted(self) -> dict[str, int] | None:
        """The usage, where a stream that names ids did not say it."""
        if self._prompt is None or any(each.ids is None for each in self._choices.values()):
            return None
        generated = sum(len(each.ids or ()) for each in self._choices.values())
        return usage_of(len(self._prompt), generated)

    def _whole(self, index: int, choice: _Choice) -> dict[str, Any]:
        text = "".join(choice.texts)
        whole: dict[str, Any] = {"index": index}
        if self._chat:
            whole["message"] = self._message(choice, text)
            refused = [entry for each in choice.scores for entry in each.get("refusal") or ()]
            content = {"content": list(_entries(choice.scores))} | ({"refusal": refused} if refused else {})
            whole["logprobs"] = content if choice.scores else None
        else:
            whole["text"] = text
            whole["logprobs"] = self._written(choice)
        whole |= {"finish_reason": choice.finish, **choice.extras}
        if choice.ids is not None:
            whole["token_ids"] = choice.ids.tolist()
        if not self._chat and self._prompt is not None:
            whole["prompt_token_ids"] = self._prompt.tolist()
        return whole

    def _message(self, choice: _Choice, text: str) -> dict[str, Any]:
        calls = [choice.calls[index] for index in sorted(choice.calls)]
        content = text or (None if calls or choice.other else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None, **choice.other}
        return message | ({"tool_calls": calls} if calls else {})

    @staticmethod
    def _written(choice: _Choice) -> dict[str, Any] | None:
        if not choice.scores:
            return None
        if "tokens" not in choice.scores[0]:
            return {"content": list(_entries(choice.scores))}
        return {name: [each for scores in choice.scores for each in scores.get(name) or ()] for name in COLUMNS}


def _entries(scores: Iterable[Mapping[str, Any]]) -> tuple[Entry, ...]:
    return tuple(entry for each in scores for entry in entries_of(each))


def _packed(numbers: Iterable[int] | None) -> "array[int] | None":
    return None if numbers is None else array("I", numbers)


def ids_of(numbers: Iterable[int] | None) -> tuple[int, ...] | None:
    """Token ids, checked to be some."""
    packed = numbers if isinstance(numbers, array) else _packed(numbers)
    return None if packed is None else tuple(packed)


def usage_of(prompt: int, generated: int) -> dict[str, int]:
    """Token counts as Chat and Completions have them."""
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def segments_of(weights: Sequence[tuple[int, str]], count: int) -> tuple[Segment, ...]:
    """Segments that cover so many ids, from where each version began."""
    if not count:
        return ()
    begun = dict([(0, ""), *weights])  # The last of those that began at one place counts.
    starts = [start for start in sorted(begun) if start < count]
    ends = [*starts[1:], count]
    merged: list[Segment] = []
    for start, end in zip(starts, ends, strict=True):
        if merged and merged[-1].weights == begun[start]:
            merged[-1] = Segment(merged[-1].start, end - merged[-1].start, begun[start])
        else:
            merged.append(Segment(start, end - start, begun[start]))
    return tuple(merged)


def _added(old: Any, new: Any) -> Any:
    """A delta added to what there is: texts and lists grow, objects field by field."""
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    if isinstance(old, list) and isinstance(new, list):
        return old + new
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: _added(old.get(key), value) for key, value in new.items()}
    return old if new is None else new
