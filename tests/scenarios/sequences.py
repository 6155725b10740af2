"""Random sequences of what can happen to a run, and what each of them must lead to: pure, from a seed.

A `World` is what the test knows: where each rollout stands, what the head has of it, and what each life has done so
far. Between two operations every rollout stands still, at a held model call, in a held tool call or at its end, so what
an operation leads to is known exactly: `after` says it, and `possible` says what can come next. `tests/scenarios/
player.py` carries it out against real servers, and compares.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from participants.routing import worker_of
from store import Life

from .stage import ROLES, Workers
from .tasks import Task

ROLLOUTS = 5
CALLS, TOOLS = 4, 3
"""Of a whole rollout."""
FILLER = 30
"""Words in each turn: more than what all holds together let through."""
TOKENS = (0, 3)
"""After how many tokens the calls of a rollout are held; of the even numbers and the odd ones."""
LENGTHS = range(8, 16)
MOST_STARTS = 3
"""Of the whole fleet; they take most of the time."""
COUNTS = tuple(Workers(model, others) for model in (1, 2) for others in (1, 2))


@dataclass(frozen=True, slots=True)
class Place:
    """How much of a rollout is behind it."""

    calls: int = 0
    tools: int = 0
    verified: bool = False
    prefix: int = 0
    """Tokens that the next model call has from before."""
    by: tuple[Life, ...] = ()
    """Whose calls those are that are behind it."""
    ledger: Life | None = None
    """Whose ledger has them: that of the last life that came to the model with a call."""


@dataclass(frozen=True, slots=True)
class Did:
    """What one life has done: numbers of model calls and tool calls from 1."""

    calls: tuple[int, ...] = ()
    continued: tuple[int, ...] = ()
    """Tokens that each call had from before."""
    tools: tuple[int, ...] = ()
    verified: bool = False
    least: "Did | None" = None
    """What it has done in any case, where it was ended in motion: between this and the rest."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One rollout. `new`, `open`, `restored` and not taken up, to `restart`, or `done`: delivered."""

    number: int
    state: str = "new"
    life: Life | None = None
    """The one that is open, or the one before the next."""
    place: Place = Place()
    at: str = ""
    """Of an open one: `model`, `tool` or `end`."""
    broken: bool = False
    """Open, and without something that it needs."""

    @property
    def name(self) -> str:
        """Its id."""
        return self.task.rollout_id

    @property
    def task(self) -> Task:
        """What it does."""
        return Task(self.number, adds=CALLS - 2, filler=FILLER)

    @property
    def tokens(self) -> int:
        """After how many its calls are held."""
        return TOKENS[self.number % 2]

    @property
    def goes(self) -> bool:
        """Whether it is open and whole."""
        return self.state == "open" and not self.broken

    @property
    def tool(self) -> str:
        """The tool call that it is held in; else empty."""
        return f"tool {self.task.amount(self.place.tools)}" if self.state == "open" and self.at == "tool" else ""


Rollouts = Mapping[str, Rollout]


@dataclass(frozen=True, slots=True)
class World:
    """Everything that is known between two operations."""

    phase: str = "down"
    """`down`; `running`, with a controller; `headless`, with servers alone."""
    workers: Workers = COUNTS[0]
    starts: int = 0
    epoch: int = 0
    dispatched: int = 0
    """In this epoch."""
    rollouts: Rollouts = field(default_factory=lambda: {r.name: r for r in map(Rollout, range(ROLLOUTS))})
    head: Rollouts | None = None
    """What the last checkpoint has: as `restored`, or to `restart`."""
    did: dict[Life, Did] = field(default_factory=dict)

    def of(self, *states: str) -> list[Rollout]:
        """The rollouts in these states."""
        return [rollout for rollout in self.rollouts.values() if rollout.state in states]

    def put(self, *rollouts: Rollout) -> "World":
        """With these rollouts as they are now."""
        return replace(self, rollouts={**self.rollouts, **{rollout.name: rollout for rollout in rollouts}})

    @property
    def held_tools(self) -> tuple[str, ...]:
        """All tool calls that are held, also those of broken lives."""
        return tuple(rollout.tool for rollout in self.rollouts.values() if rollout.tool)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation."""

    name: str
    on: tuple[str, ...] = ()
    """Rollouts."""
    moving: tuple[str, ...] = ()
    """Rollouts whose calls are let go right before it: it ends them somewhere on their way."""
    role: str = ""
    worker: int | None = None
    workers: Workers | None = None

    def __str__(self) -> str:
        counts = f"{self.workers.model} and {self.workers.others} workers" if self.workers else ""
        one = "" if self.worker is None else f"w{self.worker}"
        moving = f"while {', '.join(self.moving)} move" if self.moving else ""
        return " ".join(filter(None, (self.name, *self.on, self.role, one, counts, moving)))


# What can come next

WEIGHTS = {
    "dispatch": 2.0,
    "step": 5.0,
    "step into tool": 3.0,
    "run": 7.0,
    "let tool go": 3.0,
    "deliver": 10.0,
    "checkpoint": 3.0,
    "checkpoint and release": 2.0,
    "retire": 2.0,
    "lose": 3.0,
    "leave": 2.0,
    "crash": 1.5,
    "adopt": 3.0,
    "take over": 1.0,
    "start": 1.0,
}
"""How often each is taken, among those that can be."""


def possible(world: World) -> dict[str, list[Op]]:
    """By name, every operation that can come next."""
    found = {"down": _when_down, "running": _when_running, "headless": _when_headless}[world.phase](world)
    by_name: dict[str, list[Op]] = {}
    for op in found:
        by_name.setdefault(op.name, []).append(op)
    return by_name


def _when_down(world: World) -> Iterator[Op]:
    yield from (Op("start", workers=workers) for workers in COUNTS)


def _when_running(world: World) -> Iterator[Op]:
    yield from _dispatches(world)
    yield from _steps(world)
    yield from (Op("run", (r.name,)) for r in world.of("open") if r.at == "model")
    yield from (Op("deliver", (r.name,)) for r in world.of("open") if r.at == "end")
    if world.of("open", "restored", "restart"):
        yield Op("checkpoint")
    yield from (Op("checkpoint and release", (r.name,)) for r in world.of("open") if r.at == "model")
    for r in world.of("open"):
        yield Op("retire", (r.name,), moving=(r.name,) if r.at == "model" else ())
        yield Op("retire", (r.name,))
    if world.of("open"):
        yield Op("leave")
        yield from _losses(world)
        yield from _crashes(world)


def _when_headless(world: World) -> Iterator[Op]:
    yield Op("adopt")
    yield from (Op("take over", moving=moving) for moving in _moves(world))
    yield from (op for op in _steps(world) if world.rollouts[op.on[0]].place.calls < CALLS - 1)
    yield from _crashes(world)


def _dispatches(world: World) -> Iterator[Op]:
    waiting = tuple(r.name for r in world.of("restored", "restart", "new"))
    yield from (Op("dispatch", waiting[:count]) for count in range(1, min(len(waiting), 3) + 1))


def _steps(world: World) -> Iterator[Op]:
    for r in world.of("open"):
        if r.goes and r.at == "model":
            yield Op("step", (r.name,))
            if r.place.calls + 1 < TOOLS:  # The last tool has the same name in all rollouts.
                yield Op("step into tool", (r.name,))
        if r.goes and r.at == "tool":
            yield Op("let tool go", (r.name,))


def _losses(world: World) -> Iterator[Op]:
    for role in ROLES:
        yield Op("lose", role=role)
        if (count := world.workers.of(role)) > 1:
            yield from (Op("lose", role=role, worker=worker) for worker in range(count))


def _crashes(world: World) -> Iterator[Op]:
    if world.starts < MOST_STARTS:
        yield from (Op("crash", moving=moving) for moving in _moves(world))


def _moves(world: World) -> list[tuple[str, ...]]:
    """Nothing, or everything that can."""
    return [(), tuple(r.name for r in world.of("open") if r.goes and r.at == "model")]


# What an operation leads to


def after(world: World, op: Op) -> World:
    """The world once everything stands still again."""
    world = _let_go(world, op.moving)
    on = [world.rollouts[name] for name in op.on]
    match op.name:
        case "start":
            return _claimed(replace(world, workers=op.workers or Workers(), starts=world.starts + 1))
        case "take over":
            return _claimed(world)
        case "adopt":
            return _adopted(world)
        case "dispatch":
            return reduce(_dispatched, on, world)
        case "step":
            return reduce(_stepped, on, world)
        case "step into tool":
            return reduce(_in_tool, on, world)
        case "let tool go":
            return reduce(_advanced, on, world)
        case "deliver":
            return world.put(*(replace(r, state="done") for r in on))
        case "checkpoint" | "checkpoint and release":
            return _saved(world, on)
        case "retire":
            return world.put(*(Rollout(r.number, "restart", r.life) for r in on))
        case "leave":
            return replace(world, phase="headless")
        case "lose":
            return _lost(world, op)
        case "crash":
            return replace(world.put(*(_ended(r) for r in world.rollouts.values())), phase="down")
        case "run":
            return reduce(_finished, on, world)
        case "finish":
            return reduce(_finished, world.of("open"), world)
    raise ValueError(op.name)


def _let_go(world: World, names: tuple[str, ...]) -> World:
    moved = reduce(_finished, (world.rollouts[name] for name in names), world)
    lives = [life for life, did in moved.did.items() if did != world.did[life]]
    return replace(
        world, did={**world.did, **{life: replace(moved.did[life], least=world.did[life]) for life in lives}}
    )


def _dispatched(world: World, r: Rollout) -> World:
    life = Life(r.name, world.epoch, r.life.attempt + 1 if r.life else 0, world.dispatched)
    world = replace(world, dispatched=world.dispatched + 1, did={**world.did, life: Did()})
    place = r.place if r.place.verified else replace(r.place, ledger=life)
    return _advanced(world, replace(r, state="open", life=life, place=place))


def _advanced(world: World, r: Rollout) -> World:
    """A rollout goes on up to its next model call, or to its end."""
    assert r.life is not None
    place, did = r.place, world.did[r.life]
    if place.tools < min(place.calls, TOOLS):
        place = replace(place, tools=place.tools + 1)
        did = replace(did, tools=(*did.tools, place.tools))
    if place.calls < CALLS:
        did = replace(did, calls=(*did.calls, place.calls + 1), continued=(*did.continued, place.prefix))
        at = "model"
    else:
        did, at = replace(did, verified=did.verified or not place.verified), "end"
        place = replace(place, verified=True)
    return replace(world, did={**world.did, r.life: did}).put(replace(r, place=place, at=at))


def _replied(r: Rollout) -> Rollout:
    """Its model call has come to its end."""
    assert r.life is not None
    return replace(r, place=replace(r.place, calls=r.place.calls + 1, prefix=0, by=(*r.place.by, r.life)))


def _stepped(world: World, r: Rollout) -> World:
    return _advanced(world, _replied(r))


def _in_tool(world: World, r: Rollout) -> World:
    life, r = r.life, _replied(r)
    assert life is not None
    r = replace(r, place=replace(r.place, tools=r.place.calls), at="tool")
    did = replace(world.did[life], tools=(*world.did[life].tools, r.place.tools))
    return replace(world, did={**world.did, life: did}).put(r)


def _finished(world: World, r: Rollout) -> World:
    while world.rollouts[r.name].at != "end":
        r = world.rollouts[r.name]
        world = _stepped(world, r) if r.at == "model" else _advanced(world, r)
    return world


def _saved(world: World, released: list[Rollout]) -> World:
    """The head has everything; a call that was released meanwhile with its reply, a tool call with its result."""
    head = {}
    for r in world.of("open", "restored", "restart"):
        if r.state == "open" and r.at == "model" and r not in released:
            r = replace(r, place=replace(r.place, prefix=r.place.prefix + r.tokens))
        elif r in released:
            r = _replied(r)
        state = "restart" if r.state == "restart" else "restored"
        head[r.name] = replace(r, state=state, at="")
    world = reduce(_stepped, released, replace(world, head=head))
    return reduce(_advanced, (r for r in world.of("open") if r.at == "tool"), world)


def _lost(world: World, op: Op) -> World:
    """What a server, or one of its workers, had is broken; of what has come to its end the environment alone has it."""

    def is_broken(r: Rollout) -> bool:
        hit = op.worker is None or worker_of(r.name, world.workers.of(op.role)) == op.worker
        return r.state == "open" and hit and (r.at != "end" or op.role == "environment.main")

    lost = [replace(r, broken=True) for r in world.rollouts.values() if is_broken(r)]
    return replace(world.put(*lost), phase="headless")


def _ended(r: Rollout) -> Rollout:
    """Unless it is done, nothing of it is left but what the head has."""
    return r if r.state == "done" else Rollout(r.number)


def _claimed(world: World) -> World:
    """A new controller for whom everything ends that goes on, and that restores the head."""
    head = world.head or {}
    found = {r.name: head.get(r.name, _ended(r)) if r.state != "done" else r for r in world.rollouts.values()}
    return replace(world, phase="running", epoch=world.epoch + 1, dispatched=0, rollouts=found)


def _adopted(world: World) -> World:
    """A new controller for whom what is whole goes on; what is broken is restored, or starts over."""
    head = world.head or {}
    found = {}
    for r in world.rollouts.values():
        if r.goes or r.state == "done":
            found[r.name] = r
        elif r.broken and (r.name not in head or head[r.name].state == "restart"):
            found[r.name] = Rollout(r.number, "restart", r.life)
        else:
            found[r.name] = head.get(r.name, _ended(r))
    return replace(world, phase="running", epoch=world.epoch + 1, dispatched=0, rollouts=found)


# Sequences


def sequence(seed: int) -> list[Op]:
    """The operations of a seed; the same in every process."""
    rng = random.Random(seed)
    world, ops = World(), list[Op]()
    for _ in range(rng.choice(LENGTHS)):
        choices = possible(world)
        [name] = rng.choices(list(choices), [WEIGHTS[name] for name in choices])
        ops.append(rng.choice(choices[name]))
        world = after(world, ops[-1])
    return [*ops, *ending(world)]


def ending(world: World) -> list[Op]:
    """What is left to do until every rollout is delivered."""
    ops = {"down": [Op("start", workers=COUNTS[0])], "headless": [Op("adopt")], "running": []}[world.phase]
    world = reduce(after, ops, world)
    if waiting := tuple(r.name for r in world.of("new", "restored", "restart")):
        ops.append(Op("dispatch", waiting))
        world = after(world, ops[-1])
    if left := tuple(r.name for r in world.of("open")):
        ops += [Op("finish"), Op("deliver", left)]
    return ops
