"""What a checker has to say: a violation of one of the twelve invariants, and the table of these."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from .view import View


@dataclass(frozen=True, slots=True)
class Violation:
    """One invariant does not hold."""

    invariant: int
    """1 to 12; 0 for a defect that none of them names."""
    what: str
    n: int = -1
    """The event that shows it."""

    def __str__(self) -> str:
        where = f" (event {self.n})" if self.n >= 0 else ""
        return f"invariant {self.invariant}: {self.what}{where}"


Check = Callable[[View], Iterator[Violation]]
INVARIANTS: Mapping[int, str] = {
    1: "only the newest life changes anything",
    2: "a published checkpoint restores, or every reader says why not",
    3: "nothing is delivered twice, or delivered and continued",
    4: "no dispatched rollout vanishes, and the cursor is never ahead",
    5: "no failed commit damages an older checkpoint",
    6: "admission reopens within the lease",
    7: "a restore opens everything or nothing",
    8: "pruning deletes nothing that is needed",
    9: "no token of a dead life after its boundary is in a lineage",
    10: "deadlines hold",
    11: "nothing before the boundary is repeated, and counts are exact",
    12: "nothing is left",
}
