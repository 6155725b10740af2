"""What the controller knows of every rollout of a run: pure, and the one place that says what is in which set.

A rollout is `waiting` (to be dispatched), `restored` (parked at the participants, to be dispatched as attempt N + 1),
`open` (dispatched, undelivered: in this epoch, or in a lower one by servers that outlived it) or `done`. Scope,
restarts and floor of a checkpoint follow from these sets: a life that ended without a final result, and whose rollout
waits to be started over, is a restart.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from participants import Floor
from store import Life

from .groups import Attempts
from .rows import Rollout


@dataclass(frozen=True, slots=True)
class Sets:
    """The three sets of a checkpoint."""

    scope: list[Life]
    restarts: list[Life]
    dropped: dict[Life, str]


@dataclass
class RunLedger:
    """The rollouts of one run in one epoch."""

    epoch: int
    rollouts: Mapping[str, Rollout]
    waiting: deque[str] = field(default_factory=deque)
    restored: dict[str, Life] = field(default_factory=dict)
    open: dict[str, Life] = field(default_factory=dict)
    """In the order of their dispatch, those of lower epochs first."""
    done: set[str] = field(default_factory=set)
    again: dict[str, Life] = field(default_factory=dict)
    """The ended lives of rollouts that wait to be started over."""
    dropped: dict[Life, str] = field(default_factory=dict)
    """Lives of the head that are not continued, and why."""
    failures: dict[str, int] = field(default_factory=dict)
    """Failed starts of each rollout, over all epochs."""
    attempts: dict[str, int] = field(default_factory=dict)
    """The next attempt of each rollout that had one."""
    group_attempts: Attempts = field(default_factory=Attempts)
    lost_groups: set[str] = field(default_factory=set)
    """Groups of which a member has failed for good: no cohort of theirs is ever whole."""
    failed_for_good: int = 0
    """Of those that are done."""
    dispatched: int = 0
    continued: int = 0
    restarted: int = 0

    @classmethod
    def begin(
        cls,
        epoch: int,
        rollouts: Iterable[Rollout],
        done: Collection[str],
        scope: Iterable[Life] = (),
        restarts: Iterable[Life] = (),
        failures: Mapping[str, int] | None = None,
        dropped: Mapping[Life, str] | None = None,
        adopted: Iterable[Life] = (),
        group_failures: Iterable[str] = (),
    ) -> "RunLedger":
        """Where a run begins or goes on. What the checkpoint has and the output does not is restored first.

        `adopted` are lives that servers which outlived their controller go on with; none of them stands elsewhere.
        `group_failures` has each rollout as often as it has failed with its group.
        """
        by_id = {rollout.rollout_id: rollout for rollout in rollouts}
        left = by_id.keys() - set(done)
        going_on = {life.rollout_id: life for life in sorted(adopted, key=_position) if life.rollout_id in left}
        left -= going_on.keys()
        restored = {life.rollout_id: life for life in scope if life.rollout_id in left}
        again = {life.rollout_id: life for life in restarts if life.rollout_id in left}
        waiting = deque(r for r in by_id if r in left and r not in restored)
        return cls(
            epoch,
            by_id,
            waiting,
            restored,
            going_on,
            done={r for r in done if r in by_id},
            again=again,
            dropped=dict(dropped or {}),
            failures=dict(failures or {}),
            attempts={rollout_id: life.attempt + 1 for rollout_id, life in {**again, **restored, **going_on}.items()},
            group_attempts=Attempts(group_failures),
            restarted=len(again),
        )

    def __repr__(self) -> str:
        counts = (
            f"{len(self.waiting)} waiting, {len(self.restored)} restored, {len(self.open)} open, {len(self.done)} done"
        )
        return f"<RunLedger epoch {self.epoch}: {counts}>"

    @cached_property
    def has_repeats(self) -> bool:
        """Whether rows are run more than once."""
        return any(rollout.repeat for rollout in self.rollouts.values())

    @property
    def finished(self) -> bool:
        """Whether every rollout is done."""
        return not (self.waiting or self.restored or self.open)

    def next_dispatch(self) -> tuple[Life, Rollout] | None:
        """Open the next life: continued rollouts first. None where there is none left to dispatch."""
        if self.restored:
            rollout_id = next(iter(self.restored))
            del self.restored[rollout_id]
            self.continued += 1
        elif self.waiting:
            rollout_id = self.waiting.popleft()
            self.again.pop(rollout_id, None)
        else:
            return None
        attempt = self.attempts.get(rollout_id, 0)
        life = Life(rollout_id, self.epoch, attempt, self.dispatched)
        self.dispatched += 1
        self.attempts[rollout_id] = attempt + 1
        self.open[rollout_id] = life
        return life, self.rollouts[rollout_id]

    def is_open(self, life: Life) -> bool:
        """Whether a result of this life is awaited; any other is ignored."""
        return self.open.get(life.rollout_id) == life

    def close(self, life: Life, *, final: bool) -> None:
        """The life is over; unless that is final, the rollout is to be started again.

        A repeat is, before any that has not begun: its siblings may be waiting for it, and take up all the room.
        """
        del self.open[life.rollout_id]
        if final:
            self.done.add(life.rollout_id)
            return
        self.again[life.rollout_id] = life
        if self.has_repeats:
            self.waiting.appendleft(life.rollout_id)
        else:
            self.waiting.append(life.rollout_id)

    def start_over(self, lives: Iterable[Life]) -> None:
        """These lives were ended without a result."""
        for life in lives:
            if self.is_open(life):
                self.close(life, final=False)
                self.restarted += 1

    @property
    def floor(self) -> Floor:
        """The lowest position still open."""
        first = next(iter(self.open.values()), None)
        return Floor(self.epoch, self.dispatched) if first is None else Floor(*_position(first))

    def sets(self, restarts: Collection[Life]) -> Sets:
        """The three sets of a checkpoint taken now; `restarts` are the lives that participants cannot capture."""
        undelivered = [*self.open.values(), *self.restored.values()]
        scope = [life for life in undelivered if life not in restarts]
        started_over = [life for life in undelivered if life in restarts]
        taken = {life.rollout_id for life in undelivered} | self.again.keys()
        dropped = {life: why for life, why in self.dropped.items() if life.rollout_id not in taken}
        return Sets(scope, [*started_over, *self.again.values()], dropped)


def _position(life: Life) -> tuple[int, int]:
    return life.epoch, life.n
