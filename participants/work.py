"""What a rollout need not do again: the model calls behind its boundary, and the tokens that they generated. Pure.

An agent counts the steps behind its boundary. A model has replies that it kept or held for the step after it, and
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
    calls = (response.get("metadata") or {}).get("midflight_steps", 0)
    return int(calls), int((response.get("usage") or {}).get("output_tokens", 0) or 0)


def of_state(state: Any) -> Count:
    """Of an agent's state at a boundary; nothing of one that does not count."""
    if not isinstance(state, Mapping):
        return 0, 0
    return int(state.get("steps", 0)), int((state.get("usage") or {}).get("output_tokens", 0) or 0)


def of_reply(body: Any) -> Count:
    """Of one kept reply, in either dialect."""
    usage = (body.get("usage") if isinstance(body, Mapping) else None) or {}
    return 1, int(usage.get("output_tokens") or usage.get("completion_tokens") or 0)


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
            found[rollout_id] = before[0] + calls, before[1] + tokens
    return {**found, **whole}
