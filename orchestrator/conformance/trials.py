"""What every rule has at hand: the server, how much to try, and the comparison that most rules end in.

Most rules restore a checkpoint of a recording into a fresh instance, do there what must not matter, and go on: every
answer from then on must be the one that the recording has. A server may seed by chance, because both begin with the
same checkpoint.
"""

import math
import random
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from .answers import Answer
from .fresh import Child, child
from .playing import Outputs, Play, Recording, Step, begin, record, steps_of, take, words
from .reports import Measures, Violation
from .stand import Stand, stand
from .subject import Group, Subject

CRASH = "a checkpoint; the process dies; restored into a fresh one, under the next attempt"


@dataclass(slots=True)
class Trial:
    """One server under trial."""

    subject: Subject
    thorough: bool = False
    seed: int = 0
    groups: Sequence[Group] = ()
    ends: float = math.inf
    """When the rule that is tried now has used up its time, on the monotonic clock."""
    shortening: bool = False
    """Whether a sequence that breaks a rule is being shortened."""
    measures: Measures = field(default_factory=Measures)
    scores: dict[int, list[str]] = field(default_factory=dict)
    """Of the groups that have been played, by their id."""
    _recordings: dict[int, Recording] = field(default_factory=dict)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _child: Child | None = None

    async def elsewhere(self, run: Recording, done: int, later_s: float) -> list[Answer]:
        """What a recording is answered in another process. Raises ChildDied."""
        if self._child is None:
            self._child = await self._stack.enter_async_context(child(self.subject))
        return await self._child.continuation(run, done, later_s=later_s)

    async def aclose(self) -> None:
        """End the other process."""
        await self._stack.aclose()

    def neighbour(self, group: Group) -> Group | None:
        """Another group; None where there is no other."""
        return next((other for other in self.groups if other[0].row != group[0].row), None)

    def some(self, numbers: Iterable[int], most: int) -> Iterator[int]:
        """A few of these, evenly, the first and the last among them; all where the trial is thorough.

        No further one once the rule has used up its time.
        """
        every = list(numbers)
        if not self.thorough and len(every) > most:
            every = [every[round(place * (len(every) - 1) / (most - 1))] for place in range(most)]
        for number in every:
            if self.spent:
                return
            yield number

    def boundaries(self, numbers: Iterable[int], most: int) -> Iterator[int]:
        """A few of these boundaries; all of a sequence that is being shortened, which could else hide in the others."""
        return iter(list(numbers)) if self.shortening else self.some(numbers, most)

    @property
    def spent(self) -> bool:
        """Whether the rule has used up its time, of which a note is made."""
        if time.monotonic() < self.ends:
            return False
        self.measures.note("its time was used up before all that was chosen had been tried; --thorough sets no limit")
        return True

    def choose(self, most: int) -> Sequence[Group]:
        """The first case, and some others by the seed; all where the trial is thorough.

        The second one is scored otherwise than the first where one is known to be: a score that is lost shows there.
        """
        if self.thorough or len(self.groups) <= most:
            return self.groups
        others = random.Random(self.seed).sample(self.groups[1:], len(self.groups) - 1)
        first = self.scores.get(id(self.groups[0]))
        others.sort(key=lambda group: self.scores.get(id(group), first) == first)  # Stable: else as drawn.
        return [self.groups[0], *others[: most - 1]]

    async def record(self, group: Group) -> Recording:
        """An uninterrupted run; one for all rules, unless calls were left out."""
        if all(group is not each for each in self.groups):
            return await record(self.subject, group)
        if id(group) not in self._recordings:
            self._recordings[id(group)] = await record(self.subject, group)
        return self._recordings[id(group)]

    @asynccontextmanager
    async def restored(self, run: Recording, done: int, *, at_life: Play | None = None) -> AsyncIterator["Restored"]:
        """A fresh instance with a recording as it was after so many steps."""
        async with stand(self.subject.make(), run.space, run.run) as at:
            play = at_life or run.play
            await at.restore(run.refs[done], play.lives)
            yield Restored(at, play.continued(at), run, done, run.outputs(done))

    async def plain(self, group: Group) -> tuple[list[Answer], Play]:
        """The answers of a run that nothing happens to."""
        async with stand(self.subject.make()) as at:
            play, outputs = begin(at, group), Outputs()
            return [await take(at, play, step, outputs) for step in steps_of(group)], play


@dataclass(slots=True)
class Restored:
    """A stand at which a recording goes on."""

    at: Stand
    play: Play
    run: Recording
    done: int
    """Steps that the recording had done."""
    outputs: Outputs
    between: list[str] = field(default_factory=list)
    """What has happened since the restore, as lines."""

    @property
    def told(self) -> list[str]:
        """All so far, as lines."""
        return [*self.run.told(self.done), CRASH, *self.between]

    async def go_on(self, until: int | None = None, *, start: int | None = None) -> None:
        """Do the next steps as the recording has done them. Raises Violation at the first other answer."""
        begin_at = self.done if start is None else start
        for number, step in enumerate(self.run.steps[begin_at:until], begin_at):
            answer = await self.take(step)
            self.check(answer, self.run.answers[number], "without the interruption")

    async def take(self, step: Step, *, again: int = 0) -> Answer:
        """One step."""
        self.between.append(words(self.run.play.group, step))
        return await take(self.at, self.play, step, self.outputs, again=again)

    def check(self, answer: Answer, wanted: Answer, when: str) -> None:
        """Raises Violation where an answer is another one."""
        if not answer.same(wanted):
            raise Violation(f"the last was answered {answer}, and {wanted} {when}", self.told)


def differing(answers: Sequence[Answer], wanted: Sequence[Answer], names: dict[str, str]) -> int | None:
    """The number of the first answer that is another one; None where all are the same."""
    pairs = enumerate(zip(answers, wanted, strict=True))
    return next((number for number, (one, other) in pairs if not one.same(other, names)), None)


def names_between(play: Play, other: Play) -> dict[str, str]:
    """The rollouts of one play by those of another one of the same group."""
    return {a.rollout_id: b.rollout_id for a, b in zip(play.lives, other.lives, strict=True)}
