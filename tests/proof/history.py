"""What happened in one simulation, in order: the only thing that the checker sees.

An event is a flat record of plain values. Its `what` says which fields it has; `KINDS` is the table of them.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

KINDS: Mapping[str, str] = {
    "started": "process, incarnation: a process begins a life of its own",
    "crashed": "process, incarnation: it is gone, with all that it held",
    "ended": "process, incarnation, how: it came to its end by itself",
    "fault": "kind and its facts: something was done to the system",
    "sent": "process, number, member, operation, round, timeout_s: a controller begins a control call",
    "heard": "process, number: it has its answer, or gave it up",
    "claimed": "process, epoch: a controller has claimed the run",
    "audited": "checkpoint, records or damage: what a reader found at the end",
    "control": "process, incarnation, operation, epoch, round, code, facts: a participant has answered",
    "asked": "process, incarnation, route, life, call: a state holder lets a data call in",
    "answered": "process, incarnation, route, life, call, code: and is through with it",
    "did": "process, incarnation, effect, life, call and facts: something changed, or was generated",
    "gate": "process, incarnation, closed: admission of a process closed or reopened",
    "settled": "process, incarnation, round, lives: what a restore has brought is installed for good",
    "holds": "process, incarnation, counts: what a state holder has at the end of the run",
    "object": "space, verb, key, digest, process: an object was written or deleted",
    "told": "process, name, facts: an event of the controller",
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened."""

    n: int
    at: float
    what: str
    facts: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.facts.get(name)


@dataclass
class History:
    """All of it."""

    events: list[Event] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    """How often each fault, code and error was met."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """By digest, what was ever written below checkpoints/ and chain/, and as output."""

    def add(self, at: float, what: str, **facts: Any) -> Event:
        event = Event(len(self.events), at, what, facts)
        self.events.append(event)
        return event

    def of(self, *kinds: str) -> Iterator[Event]:
        """Events of some kinds, in order."""
        return (event for event in self.events if event.what in kinds)

    @property
    def digest(self) -> str:
        """Of every event; two runs of one seed have the same."""
        total = hashlib.sha256()
        for event in self.events:
            total.update(orjson.dumps([event.at, event.what, event.facts], default=str, option=orjson.OPT_SORT_KEYS))
        return total.hexdigest()
