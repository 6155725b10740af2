"""A prefix as JSON in a checkpoint's record, and back.

Ids are a plain list: after the record's compression it is no larger than four packed bytes an id (of 3,000 ids of a
large vocabulary 4.2 KB against 5.6 KB), and it is read faster.
"""

from array import array
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..errors import Code, ParticipantError
from .prefix import Prefix, Segment, StagedIds

MAX_STORED_TOKENS = 4 * 1024 * 1024
"""More than any model's context has."""


def dump_prefix(prefix: Prefix) -> dict[str, Any]:
    """JSON values, sharing what is immutable in the prefix."""
    return {
        "prompt": None if prefix.prompt is None else list(prefix.prompt),
        "ids": None if prefix.ids is None else list(prefix.ids),
        "staged": None if prefix.staged is None else asdict(prefix.staged),
        "text": prefix.text,
        "logprobs": list(prefix.logprobs),
        "segments": [[segment.start, segment.count, segment.weights] for segment in prefix.segments],
        "calls": prefix.calls,
        "reasoning": prefix.reasoning,
        "head": dict(prefix.head),
        "finish": prefix.finish,
        "extras": dict(prefix.extras),
        "beside": prefix.beside,
        "gaps": prefix.gaps,
    }


def load_prefix(value: Any) -> Prefix:
    """The prefix again. Raises `corrupt_checkpoint`, and says what is wrong."""
    fields = _typed(value, dict, "a prefix")
    prompt, ids, staged = _ids(fields, "prompt"), _ids(fields, "ids"), _staged(fields.get("staged"))
    if ids is not None and staged is not None:
        raise _corrupt("ids and where they are staged")
    logprobs = tuple(_typed(entry, dict, "a log probability") for entry in _list(fields, "logprobs"))
    if any(not isinstance(entry.get("token"), str) for entry in logprobs):
        raise _corrupt("a log probability without a token")
    return Prefix(
        prompt=prompt,
        ids=ids,
        text=_typed(fields.get("text"), str, "text"),
        logprobs=logprobs,
        staged=staged,
        segments=_segments(_list(fields, "segments"), staged.count if staged else len(ids or ())),
        calls=_typed(fields.get("calls"), bool, "calls"),
        reasoning=_typed(fields.get("reasoning"), bool, "reasoning"),
        head=_typed(fields.get("head"), dict, "head"),
        # Checkpoints of before do not have these.
        finish=_typed(fields.get("finish", ""), str, "finish"),
        extras=_typed(fields.get("extras", {}), dict, "extras"),
        beside=_typed(fields.get("beside", False), bool, "beside"),
        gaps=_typed(fields.get("gaps", False), bool, "gaps"),
    )


def _ids(fields: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    if fields.get(name) is None:
        return None
    numbers = _list(fields, name)
    try:
        return tuple(array("I", numbers))
    except (TypeError, OverflowError) as error:
        raise _corrupt(f"{name} with what is no token id ({error})") from error


def _staged(value: Any) -> StagedIds | None:
    if value is None:
        return None
    fields = _typed(value, dict, "staged ids")
    texts = [_typed(fields.get(name), str, name) for name in ("key", "digest", "life", "call")]
    return StagedIds(texts[0], _typed(fields.get("count"), int, "count"), *texts[1:])


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    found: list[Any] = _typed(fields.get(name), list, name)
    if len(found) > MAX_STORED_TOKENS:
        raise _corrupt(f"{len(found)} {name}, more than {MAX_STORED_TOKENS} (max_stored_tokens)")
    return found


def _segments(items: list[Any], count: int) -> tuple[Segment, ...]:
    segments, end = [], 0
    for item in items:
        if not isinstance(item, list) or list(map(type, item)) != [int, int, str]:
            raise _corrupt(f"a segment {item!r:.80}")
        start, length, weights = item
        if start != end or length <= 0:
            raise _corrupt(f"segments with a gap at {end}")
        segments.append(Segment(start, length, weights))
        end = start + length
    if end != count:
        raise _corrupt(f"segments of {end} tokens for {count}")
    return tuple(segments)


def _typed(value: Any, kind: type, name: str) -> Any:
    if type(value) is not kind:
        raise _corrupt(f"{name} that is no {kind.__name__}: {value!r:.80}")
    return value


def _corrupt(problem: str) -> ParticipantError:
    return ParticipantError(Code.CORRUPT_CHECKPOINT, f"a generation's prefix has {problem}")
