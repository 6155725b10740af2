"""What a commit and a restore may ask of one participant: pure checks of the lives that they name."""

import heapq
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from store import Checkpoint, Life

from .errors import Code, ParticipantError
from .wire import Commit, Stage

MAX_NAMED_LIVES = 20


def check_once(scope: frozenset[Life], call: Commit) -> None:
    """Refuse a life that stands twice in scope, restarts and dropped. Raises `scope_mismatch`."""
    twice = scope.intersection(call.left_out) or _repeated(call.scope, scope) or _repeated(call.left_out)
    if twice:
        message = f"{len(twice)} lives stand twice in scope, restarts and dropped, such as {min(twice)}"
        raise ParticipantError(Code.SCOPE_MISMATCH, message, named(twice))


def check_complete(checkpoint: Checkpoint, call: Stage) -> None:
    """A rollout is restored at all of its participants or at none."""
    named = {f"{process.name.kind}.{process.name.name}" for process in checkpoint.processes}
    if call.participants is not None and (absent := sorted(named.difference(call.participants))):
        message = f"{checkpoint!r} has {', '.join(absent)}, and the fleet that restores it has not"
        raise ParticipantError(Code.SCOPE_MISMATCH, message, {"absent": absent})


def _repeated(lives: Sequence[Life], distinct: Collection[Life] | None = None) -> set[Life]:
    """Those that stand there more than once."""
    if len(lives) == len(set(lives) if distinct is None else distinct):
        return set()
    return {life for life, times in Counter(lives).items() if times > 1}


def named(lives: Collection[Life]) -> dict[str, Any]:
    """The lowest few, for the details of an error."""
    return {"lives": [str(life) for life in heapq.nsmallest(MAX_NAMED_LIVES, lives)]}
