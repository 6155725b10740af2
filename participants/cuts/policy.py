"""What a run may decide of a prefix before it is continued: go on, go on but mask it, or generate anew."""

from collections.abc import Callable
from enum import StrEnum

from .prefix import Prefix


class Verdict(StrEnum):
    """What becomes of a prefix."""

    CONTINUE = "continue"
    MASK = "mask"
    """Continue, and let the ledger say that the prefix is not to be trained on."""
    ANEW = "anew"


Policy = Callable[[Prefix, str], Verdict]
"""Given the prefix and the version of the weights now (empty if unknown)."""


def always_continue(prefix: Prefix, weights_now: str) -> Verdict:
    """Every prefix is continued."""
    return Verdict.CONTINUE


def older_than(k: int, *, then: Verdict = Verdict.ANEW) -> Policy:
    """`then` for a prefix with a token of weights more than `k` versions old. Versions are integers; a prefix whose
    version, or the one now, is not is taken as too old: a sample must not mix weights that nobody can compare.
    """

    def decide(prefix: Prefix, weights_now: str) -> Verdict:
        if not prefix.segments:
            return Verdict.CONTINUE
        try:
            age = int(weights_now) - min(int(segment.weights) for segment in prefix.segments)
        except ValueError:
            return then
        return then if age > k else Verdict.CONTINUE

    return decide
