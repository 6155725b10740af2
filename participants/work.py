"""What a rollout need not do again: the model calls behind its boundary, and the tokens that they generated. Pure.

An agent counts the model calls behind its boundary. A model has replies that it kept or held for the step after it, and
beginnings of what was cut; they count where they are of the same boundary, for the agent has counted earlier ones
itself. A rollout past its activation has all of it in its response, which the owner of its episode holds.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from .data import CallId
from .wire import Worked

Count = tuple[int, int]
"""Model calls, and generated tokens."""


def of_response(response: Any) -> Count | None:
    """Of an activation that has come to its end; None for what is no response."""
    if not isinstance(response, Mapping):
        return None
    return _number(response, "metadata", "midflight_steps"), _number(response, "usage", "output_tokens")


def of_reply(body: Any) -> Count:
    """Of one reply, in either dialect."""
    return 1, _number(body, "usage", "output_tokens") or _number(body, "usage", "completion_tokens")


def _number(body: Any, part: str, name: str) -> int:
    """A count in a part of a body that anybody may have made; 0 where it has none."""
    found = body.get(part) if isinstance(body, Mapping) else None
    count = found.get(name) if isinstance(found, Mapping) else None
    try:
        return int(count) if isinstance(count, int | float | str) else 0
    except (ValueError, OverflowError):
        return 0


def added(one: Count, other: Count) -> Count:
    """Both together."""
    return one[0] + other[0], one[1] + other[1]


def at_newest(found: Iterable[tuple[CallId, Count]]) -> tuple[Count, int]:
    """What a model holds for the newest boundary of its caller, and which that is."""
    own = [(call.boundary, count) for call, count in found if not call.parent]
    newest = max([boundary for boundary, _ in own], default=0)
    counts = [count for boundary, count in own if boundary == newest]
    return (sum(calls for calls, _ in counts), sum(tokens for _, tokens in counts)), newest


def joined(answers: Iterable[tuple[str, Worked]]) -> dict[str, Count]:
    """By rollout, from the answers of a fleet, each with the kind of who gave it."""
    whole: dict[str, Count] = {}
    behind: dict[str, tuple[Count, int | None]] = {}
    ahead: dict[str, tuple[Count, int | None]] = {}
    for kind, answer in answers:
        for rollout_id, count in answer.lives.items():
            boundary = answer.boundaries.get(rollout_id)
            if kind == "model":
                ahead[rollout_id] = count, boundary
            elif boundary is None:
                whole[rollout_id] = count
            else:
                behind[rollout_id] = count, boundary
    found = {rollout_id: count for rollout_id, (count, _) in behind.items()}
    for rollout_id, ((calls, tokens), boundary) in ahead.items():
        before, at = behind.get(rollout_id, ((0, 0), 0))
        if at == boundary:
            found[rollout_id] = added(before, (calls, tokens))
    return {**found, **whole}
