"""Cohorts: members whose rewards are decided together. Pure: it is told the time and what happens, and decides.

A cohort collects until every index has a member, is evaluated, and is then over for good, completed or failed.
A member is a rollout at its index. Its newest life counts: an older one is stale, and a newer one with another answer
takes its place while nothing is decided. What is over is kept and answers the same member with the same answer again;
with another answer, that is too late. A later attempt of a group supersedes the earlier ones.

What is over outlives the process, because members that have their reward never come again: `export` gives what concerns
a scope, and `import_` what concerns a restore. It is kept until nobody can ask for it any more:

    a life of it is open in a run    it stays
    of a run, and not open           until each member is done, or the floor has passed it. One that a controller which
                                     has just come, or its restore, may bring back counts as pending in that epoch,
                                     until its life of that epoch has come and is passed as well
    not open, whoever it is of       for `terminal_ttl_s`, and at most `terminal_max` of them

Times are active time, which stands still while a checkpoint is open.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from store import Life

from ..errors import Code, ParticipantError
from ..fences import Floor, position
from .cohort import Cohort, CohortKey, CohortLimits, Event, Joining, Member, Phase, dump, load

SWEEP_S = 60.0
"""Between two looks at all cohorts."""


class Cohorts:
    """All cohorts of one worker."""

    def __init__(
        self, size: int, limits: CohortLimits | None = None, changed: Callable[[Cohort], None] = lambda cohort: None
    ) -> None:
        """Cohorts of `size` members; `changed` is told of each one that has changed, and must be quick."""
        self._size = size
        self._limits = limits or CohortLimits()
        self._changed = changed
        self._cohorts: dict[str, Cohort] = {}
        self._newest: dict[str, CohortKey] = {}
        """The newest attempt of each group."""
        self._of: dict[str, Cohort] = {}
        """The newest of each rollout."""
        self._floor = Floor()
        self._in_run = False
        self._next_sweep = 0.0
        self._staged: dict[str, Cohort] = {}
        self._restored: frozenset[str] = frozenset()
        self._epoch = 0
        """Of the restore that is open."""
        self._replaced: dict[str, Cohort] = {}

    def __repr__(self) -> str:
        return f"<Cohorts {self.undecided} undecided, {len(self._cohorts) - self.undecided} over>"

    def __len__(self) -> int:
        """The number of all."""
        return len(self._cohorts)

    @property
    def undecided(self) -> int:
        """How many are not over."""
        return sum(not cohort.over for cohort in self._cohorts.values())

    def find(self, key: str) -> Cohort | None:
        """One of them."""
        return self._cohorts.get(key)

    # Members

    def join(self, asked: Joining, now: float) -> Cohort:
        """Its cohort, with this member. Raises what refuses it, and why a cohort that has failed did."""
        if now >= self._next_sweep:
            self.sweep(now)
        cohort = self._cohorts.get(asked.key.text) or self._begin(asked.key, now)
        self.expire(cohort, now)
        cohort.check(asked)
        if cohort.phase is Phase.FAILED:
            self._see(cohort, asked)
            raise cohort.error()
        if cohort.phase is Phase.COMPLETED:
            self._see(cohort, asked)
        else:
            self._place(cohort, asked, now)
        return cohort

    def _begin(self, key: CohortKey, now: float) -> Cohort:
        newest = self._newest.get(key.group) if key.group else None
        if newest is not None and newest.attempt > key.attempt:
            raise ParticipantError(Code.COHORT_FAILED, f"{key.text} is superseded by attempt {newest.attempt}")
        if newest is not None and (older := self._cohorts.get(newest.text)) is not None and not older.over:
            self.fail(older, Code.COHORT_FAILED, f"{newest.text} is superseded by attempt {key.attempt}", now)
        if key.group:
            self._newest[key.group] = key
        cohort = self._cohorts[key.text] = Cohort(key, self._size, now)
        return cohort

    def _see(self, cohort: Cohort, asked: Joining) -> None:
        """A member of what is over has come again: its newest life is known from here on."""
        member = cohort.members.get(asked.index)
        if member is None:
            member = cohort.members[asked.index] = Member(asked.index, asked.life, asked.digest)
        member.life, member.digest, member.done = asked.life, asked.digest, False
        if asked.life is not None:
            self._of[asked.life.rollout_id] = cohort
            if asked.life.epoch >= member.pending:
                member.pending = 0

    def _place(self, cohort: Cohort, asked: Joining, now: float) -> None:
        before = cohort.members.get(asked.index)
        if before is not None and before.digest != asked.digest and cohort.phase is Phase.EVALUATING:
            cohort.move(Event.LOSE, now)
        cohort.members[asked.index] = Member(asked.index, asked.life, asked.digest, asked.answer, asked.boundary)
        if asked.life is not None:
            self._of[asked.life.rollout_id] = cohort
        if cohort.phase is Phase.COLLECTING and len(cohort.members) == cohort.size:
            cohort.move(Event.FILL, now)
        self._changed(cohort)

    def leave(self, life: Life, now: float) -> None:
        """A life is over: nothing is decided with its answer any more. What is decided stays so."""
        if (found := self._member(life)) is not None and not found[0].over:
            self._remove(found[0], found[1].index, now)

    def done(self, life: Life, now: float) -> None:
        """As `leave`; and the result of its rollout is durable, so that it never asks for it again."""
        self.leave(life, now)
        if (found := self._member(life)) is None:
            return
        cohort, member = found
        member.done = True
        if cohort.phase is Phase.COMPLETED and all(member.done for member in cohort.members.values()):
            self._drop(cohort)

    def _member(self, life: Life) -> tuple[Cohort, Member] | None:
        """Where its rollout is, with no newer life."""
        cohort = self._of.get(life.rollout_id)
        for member in cohort.members.values() if cohort else ():
            if member.life is not None and member.rollout == life.rollout_id:
                return (cohort, member) if cohort and position(member.life) <= position(life) else None
        return None

    def remove(self, cohort: Cohort, index: int, now: float) -> None:
        """A member has been told that it failed."""
        if not cohort.over and index in cohort.members:
            self._remove(cohort, index, now)

    def _remove(self, cohort: Cohort, index: int, now: float) -> None:
        member = cohort.members.pop(index)
        if self._of.get(member.rollout) is cohort:
            del self._of[member.rollout]
        if cohort.phase is Phase.EVALUATING:
            cohort.move(Event.LOSE, now)
        if not cohort.members:
            self._drop(cohort)
        self._changed(cohort)

    # Decisions

    def decide(self, cohort: Cohort, of: Sequence[str], rewards: Sequence[float], now: float) -> bool:
        """Give each member its reward; False where the evaluation was not of the answers that are there now."""
        if cohort.phase is not Phase.EVALUATING or cohort.answers != tuple(of):
            return False
        for index, reward in enumerate(rewards):
            cohort.members[index].reward = reward
        self._end(cohort, Event.DECIDE, now)
        return True

    def fail(self, cohort: Cohort, code: Code, message: str, now: float) -> None:
        """Nobody of it gets a reward; whoever comes later is told the same."""
        cohort.failure = code, message
        self._end(cohort, Event.FAIL, now)

    def scrap(self, cohort: Cohort, code: Code, message: str, now: float) -> None:
        """As `fail` to those who wait now; whoever comes later begins it anew."""
        self.fail(cohort, code, message, now)
        self._drop(cohort)

    def _end(self, cohort: Cohort, event: Event, now: float) -> None:
        cohort.move(event, now)
        cohort.kept.clear()
        for member in cohort.members.values():
            member.answer = None
        self._changed(cohort)

    def ends_at(self, cohort: Cohort) -> float:
        """When its phase has taken too long."""
        limits = self._limits
        collecting = cohort.phase is Phase.COLLECTING
        return cohort.since + (limits.collection_timeout_s if collecting else limits.evaluation_timeout_s)

    def expire(self, cohort: Cohort, now: float) -> None:
        """Fail it where its phase has taken too long."""
        if cohort.over or now < self.ends_at(cohort):
            return
        left = f"without the indices {cohort.missing}" if cohort.missing else "without a verdict"
        took = f"{now - cohort.since:.0f} s of {cohort.phase}"
        self.fail(cohort, Code.COHORT_FAILED, f"{cohort.key.text} ended after {took}, {left}", now)

    # How what is over is bounded

    def sweep(self, now: float) -> None:
        """End what has taken too long, and forget what has been over for long and is not open in a run."""
        self._next_sweep = now + SWEEP_S
        for cohort in list(self._cohorts.values()):
            self.expire(cohort, now)
        kept = sorted((c for c in self._over() if not self._is_open(c)), key=lambda cohort: cohort.since)
        many = len(kept) - self._limits.terminal_max
        for number, cohort in enumerate(kept):
            if number < many or now - cohort.since > self._limits.terminal_ttl_s:
                self._drop(cohort)

    def _is_open(self, cohort: Cohort) -> bool:
        """Whether a life of it can still act in a run."""
        lives = (member.life for member in cohort.members.values() if not member.done)
        return self._in_run and any(life is not None and position(life) >= self._floor for life in lives)

    def _drop(self, cohort: Cohort) -> None:
        for member in cohort.members.values():
            if self._of.get(member.rollout) is cohort:
                del self._of[member.rollout]
        if self._cohorts.get(cohort.key.text) is cohort:
            del self._cohorts[cohort.key.text]
        if self._newest.get(cohort.key.group) == cohort.key:
            del self._newest[cohort.key.group]

    def raise_floor(self, floor: Floor, now: float) -> None:
        """Nothing below it can act any more."""
        if floor <= self._floor:
            return
        self._floor = floor
        for cohort in list(self._cohorts.values()):
            if cohort.over:
                if cohort.members and all(member.passed(self._floor) for member in cohort.members.values()):
                    self._drop(cohort)
                continue
            for member in list(cohort.members.values()):
                if member.life is not None and position(member.life) < self._floor:
                    self._remove(cohort, member.index, now)

    def adopted(self, epoch: int) -> None:
        """A new controller may bring back, from its head, who was not done before it came."""
        self._in_run = True
        for cohort in self._over():
            for member in cohort.members.values():
                if member.life is not None and not member.passed(self._floor) and member.life.epoch < epoch:
                    member.pending = max(member.pending, epoch)

    def _over(self) -> list[Cohort]:
        return [cohort for cohort in self._cohorts.values() if cohort.over]

    # Checkpoints

    def export(self, scope: Iterable[Life]) -> list[dict[str, Any]]:
        """What is over and has a member in the scope, as JSON."""
        rollouts = {life.rollout_id for life in scope}
        return [dump(c) for c in self._over() if any(m.rollout in rollouts for m in c.members.values())]

    def stage(
        self, items: Iterable[Any], scope: Iterable[Life], epoch: int, owns: Callable[[str], bool], now: float
    ) -> None:
        """Read what concerns the scope of a restore and belongs here. Raises `corrupt_checkpoint`."""
        self._staged, self._replaced, self._epoch = {}, {}, epoch
        self._restored = frozenset(life.rollout_id for life in scope)
        for item in items:
            cohort = load(item, now)
            mine = [member for member in cohort.members.values() if member.rollout in self._restored]
            if mine and owns(cohort.key.text):
                for member in mine:
                    member.pending = epoch
                self._staged[cohort.key.text] = cohort

    def activate(self, now: float) -> None:
        """What all members of a cohort go back behind is decided anew; with others that stay, it stands."""
        for cohort in list(self._cohorts.values()):
            mine = [member for member in cohort.members.values() if member.rollout in self._restored]
            if not cohort.over:
                for member in mine:
                    self._remove(cohort, member.index, now)
            elif mine and len(mine) == len(cohort.members):
                self._replaced[cohort.key.text] = cohort
                self._drop(cohort)
            else:
                for member in mine:
                    member.pending = max(member.pending, self._epoch)
        for key, cohort in self._staged.items():
            there = self._cohorts.get(key)
            if there is not None and there.over:
                continue
            if there is not None:
                self.scrap(there, Code.COHORT_FAILED, f"a restore has brought what became of {key}", now)
            self._put(cohort)

    def _put(self, cohort: Cohort) -> None:
        key = cohort.key
        self._cohorts[key.text] = cohort
        self._of.update((member.rollout, cohort) for member in cohort.members.values() if member.life is not None)
        newest = self._newest.get(key.group)
        if key.group and (newest is None or newest.attempt < key.attempt):
            self._newest[key.group] = key

    def settle(self) -> None:
        """The restore succeeded everywhere."""
        self._staged, self._replaced, self._restored = {}, {}, frozenset()

    def discard(self) -> None:
        """It did not: drop what it has brought, and put back what that had replaced."""
        for key, cohort in self._staged.items():
            if self._cohorts.get(key) is cohort:
                self._drop(cohort)
        for cohort in self._replaced.values():
            self._put(cohort)
        self.settle()
