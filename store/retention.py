"""What to keep: a pure function from the checkpoints there are to a decision with a reason for each."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .layout import CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """A policy. The head is kept whatever it says, and so is what was imported, unless it is named in `drop`."""

    keep_last: int = 2
    """The newest so many, the head among them."""
    keep_every: int = 0
    """Each n-th publication of the chain; 0 for none."""
    keep_tagged: bool = True
    drop: frozenset[CheckpointId] = frozenset()
    """To be deleted whatever the rest says; the head is still kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A checkpoint that exists."""

    checkpoint: CheckpointId
    ordinal: int
    """Its place among all publications and imports of the chain, from 1; it never changes."""
    imported: bool = False
    tags: Collection[str] | None = ()
    """None where its manifest cannot be read."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one checkpoint, and why."""

    checkpoint: CheckpointId
    keep: bool
    reason: str


def decide(candidates: Sequence[Candidate], head: CheckpointId | None, policy: Retention) -> list[Decision]:
    """Decide on each candidate; they come oldest first, and so do the decisions."""
    first_kept = max(0, len(candidates) - max(0, policy.keep_last))
    newest = {candidate.checkpoint for candidate in candidates[first_kept:]}
    decisions = []
    for candidate in candidates:
        reason = _reason_to_keep(candidate, head, newest, policy)
        decisions.append(Decision(candidate.checkpoint, reason is not None, reason or "no rule keeps it"))
    return decisions


def _reason_to_keep(
    candidate: Candidate, head: CheckpointId | None, newest: Collection[CheckpointId], policy: Retention
) -> str | None:
    if candidate.checkpoint == head:
        return "the head"
    if candidate.checkpoint in policy.drop:
        return None
    rules = (
        (candidate.imported, "imported"),
        (candidate.checkpoint in newest, f"one of the last {policy.keep_last}"),
        (policy.keep_every > 0 and candidate.ordinal % max(1, policy.keep_every) == 0, f"each {policy.keep_every}-th"),
        (policy.keep_tagged and bool(candidate.tags), f"tagged {', '.join(sorted(candidate.tags or ()))}"),
        (policy.keep_tagged and candidate.tags is None, "its manifest cannot be read; name it in drop to delete it"),
    )
    return next((reason for holds, reason in rules if holds), None)
