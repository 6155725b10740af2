"""Explores every schedule of a few actors at one store, with every fault in between.

The schedules are walked over the actors' trees, the objects and what is in flight, without running anything again.
Rules of that walk:

1. Every request is a point where the other actors, or what is in flight, may come first.
2. A write may get lost: a copy of it stays in flight and takes effect at any later step or never, while the request is
   sent again. A request that is given up ends in OutcomeUnknown if a copy was ever sent, else in StoreUnavailable.
3. Death needs no rule of its own. An actor that dies is one that is not scheduled any more, and every state on the way
   is checked, not only the last ones; what it had in flight may still arrive.
4. Two schedules that lead to the same objects, the same replies to each actor and the same requests in flight have the
   same future. Such states are merged, and how many schedules lead there is counted exactly.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from store import AlreadyExists, NotFound, ObjectInfo, OutcomeUnknown, StoreUnavailable
from tests.support.scheduler import Actor, Node, Objects, Reply, Request

WRITES = {"create", "put", "delete"}
OLD_S = 0.0
"""When every object was written; whatever may be swept for its age is old enough."""


class Space:
    """Every set of objects that was met, by number, and what a request does to it."""

    def __init__(self) -> None:
        self.sets: list[dict[str, bytes]] = []
        self._numbers: dict[frozenset[tuple[str, bytes]], int] = {}
        self._known: dict[tuple[int, Request], tuple[int, Reply]] = {}

    def number(self, objects: Objects) -> int:
        """The number of this set of objects."""
        key = frozenset(objects.items())
        if key not in self._numbers:
            self._numbers[key] = len(self.sets)
            self.sets.append(dict(objects))
        return self._numbers[key]

    def apply(self, number: int, request: Request) -> tuple[int, Reply]:
        """The objects after a request, and its reply."""
        known = self._known.get((number, request))
        if known is None:
            objects = dict(self.sets[number])
            reply = _apply(objects, request)
            after = self.number(objects) if request.verb in WRITES else number
            known = self._known[number, request] = after, reply
        return known


def _apply(objects: dict[str, bytes], request: Request) -> Reply:
    verb, key, data = request
    match verb:
        case "list":
            infos = (ObjectInfo(k, len(objects[k]), OLD_S) for k in sorted(objects) if k.startswith(key))
            return Reply(tuple(infos))
        case "delete":
            for name in key.split():
                objects.pop(name, None)
            return Reply()
        case "put":
            objects[key] = data
            return Reply()
        case "create":
            if key in objects:
                return Reply(error=AlreadyExists)
            objects[key] = data
            return Reply()
    if key not in objects:
        return Reply(error=NotFound)
    return Reply(objects[key] if verb == "get" else ObjectInfo(key, len(objects[key]), OLD_S))


class State(NamedTuple):
    """Everything that decides what can happen next."""

    objects: int
    flying: tuple[Request, ...]
    """Copies of writes that got lost and may still take effect, sorted."""
    nodes: tuple[Node, ...]
    sent: tuple[bool, ...]
    """Whether a copy of the actor's pending request was ever sent."""
    faults: int
    """How many more there may be."""


StepKind = Literal["answered", "arrived late", "lost", "given up after sending", "given up unsent"]


class Step(NamedTuple):
    """Something that may happen next."""

    kind: StepKind
    who: str
    request: Request
    after: State

    def __str__(self) -> str:
        return f"{self.who:10} {self.request.verb} {self.request.key}: {self.kind}"


class Trail(NamedTuple):
    """How a state was first reached, newest step first."""

    step: Step
    before: "Trail | None"

    def __str__(self) -> str:
        steps, trail = list[str](), self
        while trail.before is not None:
            steps.append(str(trail.step))
            trail = trail.before
        return "\n".join(reversed([*steps, str(trail.step)]))


@dataclass(slots=True)
class Tally:
    """What an exploration has seen."""

    states: int = 0
    schedules: int = 0
    """Complete ones: until nothing is left to happen. Each of their beginnings is one with deaths."""
    ends: int = 0
    """Distinct states in which nothing is left to happen."""
    situations: int = 0
    """Different series of replies that an actor had; in each the code was really run."""
    kinds: Counter[StepKind] = field(default_factory=Counter)
    """How many steps of each kind there were."""
    complete: bool = True
    """False where time was over before the end."""

    def __str__(self) -> str:
        faults = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.kinds.items()))
        return (
            f"{self.schedules:,} schedules through {self.states:,} states to {self.ends:,} ends, "
            f"{self.situations:,} situations of an actor; steps: {faults}"
        )


Check = Callable[[State], str]
"""What is wrong with a state; empty where nothing is."""


class Violation(AssertionError):
    """A schedule that leads to a wrong state."""


@dataclass(slots=True)
class _Reached:
    """A state, and in how many ways it was reached."""

    state: State
    count: int
    trail: Trail | None


def _count(tally: Tally, reached: _Reached, steps: Sequence[Step]) -> None:
    tally.states += 1
    tally.kinds.update(step.kind for step in steps)
    if not steps:
        tally.ends += 1
        tally.schedules += reached.count


class Exploration:
    """All schedules of these actors, with at most so many faults."""

    def __init__(self, space: Space, start: int, actors: Sequence[Actor], check: Check, faults: int) -> None:
        self._space = space
        self._actors = actors
        self._check = check
        nodes = tuple(actor.root for actor in actors)
        self._start = State(start, (), nodes, (False,) * len(actors), faults)

    def run(self, until: float = math.inf) -> Tally:
        """Walk all of them, level by level; raises Violation with the schedule at the first wrong state.

        `until` is a time of the monotonic clock after which nothing more is tried.
        """
        tally = Tally()
        level = {self._key(self._start): _Reached(self._start, 1, None)}
        while level:
            following: dict[Any, _Reached] = {}
            for reached in level.values():
                if time.monotonic() > until:
                    tally.complete = False
                    return tally
                self._visit(reached)
                steps = list(self._steps(reached.state))
                for step in steps:
                    known = following.setdefault(
                        self._key(step.after), _Reached(step.after, 0, Trail(step, reached.trail))
                    )
                    known.count += reached.count
                _count(tally, reached, steps)
            level = following
        tally.situations = sum(actor.nodes for actor in self._actors)
        return tally

    def _visit(self, reached: "_Reached") -> None:
        problem = self._check(reached.state)
        if problem:
            told = [f"{a.name} was told {n.journal}" for a, n in zip(self._actors, reached.state.nodes, strict=True)]
            raise Violation("\n".join([problem, str(reached.trail), *told]))

    @staticmethod
    def _key(state: State) -> Any:
        return (state.objects, state.flying, tuple(map(id, state.nodes)), state.sent, state.faults)

    def _steps(self, state: State) -> Iterator[Step]:
        for position, request in enumerate(state.flying):
            if request not in state.flying[:position]:
                objects, _ = self._space.apply(state.objects, request)
                rest = (*state.flying[:position], *state.flying[position + 1 :])
                yield Step("arrived late", "", request, state._replace(objects=objects, flying=rest))
        for who, node in enumerate(state.nodes):
            if node.request is not None:
                yield from self._moves(state, who, node.request)

    def _moves(self, state: State, who: int, request: Request) -> Iterator[Step]:
        name = self._actors[who].name
        objects, reply = self._space.apply(state.objects, request)
        yield Step("answered", name, request, self._reply(state, who, reply)._replace(objects=objects))
        if state.sent[who]:
            after = self._reply(state, who, Reply(error=OutcomeUnknown))
            yield Step("given up after sending", name, request, after)
        elif state.faults:
            poorer = state._replace(faults=state.faults - 1)
            after = self._reply(poorer, who, Reply(error=StoreUnavailable))
            yield Step("given up unsent", name, request, after)
            if request.verb in WRITES:
                sent = (*state.sent[:who], True, *state.sent[who + 1 :])
                flying = tuple(sorted((*state.flying, request)))
                yield Step("lost", name, request, poorer._replace(flying=flying, sent=sent))

    def _reply(self, state: State, who: int, reply: Reply) -> State:
        node = self._actors[who].step(state.nodes[who], reply)
        nodes = (*state.nodes[:who], node, *state.nodes[who + 1 :])
        return state._replace(nodes=nodes, sent=(*state.sent[:who], False, *state.sent[who + 1 :]))
