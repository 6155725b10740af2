"""What a continuation saves: the model calls, and their tokens, that a rollout need not make again. Pure.

Counted from the records that the rollout continues from: the steps behind the agent's boundary, and a reply of the
model that was kept or held for the step after it, or the beginning of one that was cut. A rollout past its activation
has them all in its response.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Work:
    """Some work at the model."""

    calls: int = 0
    tokens: int = 0
    """Generated ones."""

    def __add__(self, other: "Work") -> "Work":
        return Work(self.calls + other.calls, self.tokens + other.tokens)


@dataclass(frozen=True, slots=True)
class Totals:
    """What continuing has come to in some starts of a run; each checkpoint carries those of the starts so far."""

    continued: int = 0
    restarted: int = 0
    saved_calls: int = 0
    saved_tokens: int = 0

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    @classmethod
    def of(cls, state: Any) -> "Totals":
        """From the controller's state in a checkpoint; zeros where that has none."""
        found = state.get("totals") if isinstance(state, Mapping) else None
        counts = [found.get(each.name) for each in fields(cls)] if isinstance(found, Mapping) else []
        return cls(*(count if isinstance(count, int) else 0 for count in counts))


def work_of_row(row: Mapping[str, Any]) -> Work:
    """Of a finished rollout."""
    response = row.get("response")
    return _of_response(response) if isinstance(response, Mapping) else Work()


def saved_by(environment: Any, agent: Any, model: Any) -> Work:
    """Of one rollout that continues, from the payloads of its records; None for a record that is not there."""
    episode = _state(environment)
    if isinstance(episode, Mapping) and isinstance(episode.get("response"), Mapping):
        return _of_response(episode["response"])
    activation = (_state(agent) or {}).get("activation") or {}
    state = activation.get("state") or {}
    behind = Work(int(state.get("steps", 0)), int((state.get("usage") or {}).get("output_tokens", 0)))
    boundary = activation.get("boundary", 0)
    kept = [reply for reply in (model or {}).get("replies", ()) if f":{boundary}." in str(reply.get("call"))]
    cuts = [cut for cut in (_state(model) or {}).get("cuts", ()) if f":{boundary}." in str(cut.get("call"))]
    begun = Work(0, sum(_cut_tokens(cut["prefix"]) for cut in cuts))
    return sum((Work(1, _tokens(reply.get("body"))) for reply in kept), behind + begun)


def _cut_tokens(prefix: Mapping[str, Any]) -> int:
    staged = prefix.get("staged") or {}
    return len(prefix.get("ids") or ()) or int(staged.get("count", 0))


def _state(payload: Any) -> Any:
    return payload.get("state") if isinstance(payload, Mapping) else None


def _of_response(response: Mapping[str, Any]) -> Work:
    steps = (response.get("metadata") or {}).get("midflight_steps", 0)
    return Work(int(steps), int((response.get("usage") or {}).get("output_tokens", 0) or 0))


def _tokens(body: Any) -> int:
    """Generated tokens of a reply of either dialect."""
    usage = (body.get("usage") if isinstance(body, Mapping) else None) or {}
    return int(usage.get("output_tokens") or usage.get("completion_tokens") or 0)
