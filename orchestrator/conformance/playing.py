"""Plays cases at a stand, step by step, and records them with a checkpoint after every step.

A recording is the uninterrupted run: it went on after each of its checkpoints as if there had been none. Whatever is
restored from one of them must be answered as the recording was.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio

from participants import CallId, Case
from participants.cases import response_of
from store import Life, Ref
from store.backends import MemorySpace

from .answers import Answer, shown
from .stand import NotExported, Stand, stand
from .subject import Group, Subject, rollout_names

SEED, CLOSE, VERIFY = "/seed_session", "/close_session", "/verify"
Kind = Literal["seed", "call", "verify"]
_ABSENT = object()
_PLAIN = {"mask_sample": False, "failure_kind": None, "failure_reason": None}
"""What every verify without a failure says."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a group of cases."""

    kind: Kind
    who: int = 0
    """The case; a verify is of all of them at once."""
    number: int = 0
    """The call of the case."""


@dataclass(frozen=True, slots=True)
class Play:
    """A group of cases and the lives that play it."""

    group: Group
    lives: tuple[Life, ...]

    def continued(self, at: Stand) -> "Play":
        """The same under the lives that continue these at another stand."""
        return Play(self.group, tuple(at.next_lives(self.lives)))


def steps_of(group: Group) -> list[Step]:
    """Seeds, then calls in turns, then one verify of all."""
    longest = max((len(case.calls) for case in group), default=0)
    calls = [Step("call", who, n) for n in range(longest) for who, case in enumerate(group) if n < len(case.calls)]
    return [*(Step("seed", who) for who in range(len(group))), *calls, Step("verify")]


def words(group: Group, step: Step) -> str:
    """The step as a line of a sequence."""
    of = f" of case {step.who + 1}" if len(group) > 1 else ""
    if step.kind == "verify":
        return "verify, all at once" if len(group) > 1 else "verify"
    if step.kind == "seed":
        return f"seed{of} with {shown(dict(group[step.who].row))}"
    call = group[step.who].calls[step.number]
    return f"{call.name}{of} with {shown(dict(call.arguments))}"


@dataclass(slots=True)
class Outputs:
    """What the calls of each case were answered so far: an agent has that, whatever becomes of the server."""

    given: dict[int, list[Any]] = field(default_factory=dict)

    def copy(self) -> "Outputs":
        """Another one to go on with."""
        return Outputs({who: list(given) for who, given in self.given.items()})

    def note(self, step: Step, answer: Answer) -> None:
        """One more answer."""
        if step.kind == "call":
            self.given.setdefault(step.who, []).append(answer.body)


async def take(at: Stand, play: Play, step: Step, outputs: Outputs, *, again: int = 0) -> Answer:
    """One step. `again` gives its calls ids that are not those of the first time."""
    if step.kind == "verify":
        return await _verify(at, play, outputs, again)
    life, case = play.lives[step.who], play.group[step.who]
    if step.kind == "seed":
        return await at.call(life, SEED, dict(case.row), call_id("environment", 0, again))
    call = case.calls[step.number]
    answer = await at.call(life, f"/{call.name}", dict(call.arguments), call_id("agent", step.number + 1, again))
    outputs.note(step, answer)
    return answer


def call_id(kind: str, boundary: int, again: int = 0) -> CallId:
    """Of a call of an agent or environment; one that comes `again` is of a caller of its own, without older ones."""
    return CallId(f"{kind}.again{again}" if again else f"{kind}.main", boundary, 0)


def verify_body(case: Case, outputs: Sequence[Any]) -> dict[str, Any]:
    """What verify is given; calls that were not made are not in the response."""
    made = Case(row=case.row, calls=case.calls[: len(outputs)], said=case.said, cohort=case.cohort)
    return {**case.row, "response": response_of(made, outputs)}


async def _verify(at: Stand, play: Play, outputs: Outputs, again: int) -> Answer:
    answers: dict[int, Answer] = {}

    async def one(who: int) -> None:
        body = verify_body(play.group[who], outputs.given.get(who, []))
        answers[who] = await at.call(play.lives[who], VERIFY, body, call_id("environment", 1, again))

    async with anyio.create_task_group() as group:
        for who in range(len(play.group)):
            group.start_soon(one, who)
    return _together(play.group, [answers[who] for who in range(len(play.group))], at.server.measured)


def _together(group: Group, answers: Sequence[Answer], measured: frozenset[str]) -> Answer:
    """The answers of several verifies as one: the first failure, or every result as far as it can be compared.

    That leaves out what the caller sent, and what the server declares to be measurements.
    """
    failure = next((answer for answer in answers if answer.failed or answer.refused), None)
    if failure is not None:
        return failure
    results = [
        {key: value for key, value in answer.body.items() if key != "response" and sent.get(key, _ABSENT) != value}
        for sent, answer in (({**_PLAIN, **case.row}, answer) for case, answer in zip(group, answers, strict=True))
    ]
    return Answer(200, _without(results[0] if len(results) == 1 else results, measured))


def _without(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(inner, names) for key, inner in value.items() if key not in names}
    return [_without(inner, names) for inner in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Recording:
    """An uninterrupted run with a checkpoint after every step, from the last seed on."""

    play: Play
    steps: tuple[Step, ...]
    answers: tuple[Answer, ...]
    refs: dict[int, Ref]
    """By the number of steps that were done."""
    not_exported: str
    """Why there are no more of them; empty where there are."""
    space: MemorySpace
    run: str

    def outputs(self, count: int) -> Outputs:
        """Of the first so many steps."""
        made = Outputs()
        for step, answer in zip(self.steps[:count], self.answers[:count], strict=True):
            made.note(step, answer)
        return made

    def told(self, count: int) -> list[str]:
        """The first so many steps as lines."""
        return [words(self.play.group, step) for step in self.steps[:count]]


def begin(at: Stand, group: Group) -> Play:
    """The first lives of a group at a stand."""
    names = enumerate(rollout_names(group))
    return Play(group, tuple(Life(name, at.controller.epoch, 0, n) for n, name in names))


async def record(subject: Subject, group: Group) -> Recording:
    """Play a group without an interruption, taking a checkpoint after every step."""
    async with stand(subject.make()) as at:
        play, outputs = begin(at, group), Outputs()
        steps, answers, refs, problem = steps_of(group), list[Answer](), dict[int, Ref](), ""
        for done, step in enumerate(steps, 1):
            answers.append(await take(at, play, step, outputs))
            if done >= len(group) and not problem:
                try:
                    refs[done] = await at.checkpoint(play.lives)
                except NotExported as error:
                    problem = str(error)
        return Recording(play, tuple(steps), tuple(answers), refs, problem, at.space, at.store.run_id)
