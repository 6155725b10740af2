"""What the controller knows of every rollout of a run: pure, and the one place that says what is in which set.

A rollout is `waiting` (to be dispatched), `restored` (parked at the participants, to be dispatched as attempt N + 1),
`open` (dispatched, undelivered) or `done`. Scope, restarts and floor of a checkpoint follow from these sets.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from participants import Floor
from store import Life

from .rows import Rollout


@dataclass(slots=True)
class RunLedger:
    """The rollouts of one run in one epoch."""

    epoch: int
    rollouts: Mapping[str, Rollout]
    waiting: deque[str] = field(default_factory=deque)
    restored: dict[str, Life] = field(default_factory=dict)
    open: dict[str, Life] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    failures: dict[str, int] = field(default_factory=dict)
    """Failed starts of each rollout, over all epochs."""
    attempts: dict[str, int] = field(default_factory=dict)
    """The next attempt of each rollout that had one."""
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
    ) -> "RunLedger":
        """Where a run begins or goes on. What the checkpoint has and the output does not is restored first."""
        by_id = {rollout.rollout_id: rollout for rollout in rollouts}
        restored = {life.rollout_id: life for life in scope if life.rollout_id not in done and life.rollout_id in by_id}
        again = {life.rollout_id: life for life in restarts if life.rollout_id not in done}
        waiting = deque(r for r in by_id if r not in done and r not in restored)
        attempts = {rollout_id: life.attempt + 1 for rollout_id, life in {**again, **restored}.items()}
        return cls(
            epoch,
            by_id,
            waiting,
            restored,
            done={r for r in done if r in by_id},
            failures=dict(failures or {}),
            attempts=attempts,
            restarted=len(again.keys() & by_id.keys()),
        )

    def __repr__(self) -> str:
        counts = (
            f"{len(self.waiting)} waiting, {len(self.restored)} restored, {len(self.open)} open, {len(self.done)} done"
        )
        return f"<RunLedger epoch {self.epoch}: {counts}>"

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
        """The life is over; unless that is final, the rollout is to be started again."""
        del self.open[life.rollout_id]
        if final:
            self.done.add(life.rollout_id)
        else:
            self.waiting.append(life.rollout_id)

    def start_over(self, lives: Iterable[Life]) -> None:
        """These lives were retired without a result."""
        for life in lives:
            if self.is_open(life):
                self.close(life, final=False)
                self.restarted += 1

    @property
    def floor(self) -> Floor:
        """The lowest position still open."""
        return Floor(self.epoch, min((life.n for life in self.open.values()), default=self.dispatched))

    def sets(self, restarts: Collection[Life]) -> tuple[list[Life], list[Life]]:
        """Scope and restarts of a checkpoint taken now."""
        undelivered = [*self.open.values(), *self.restored.values()]
        return [x for x in undelivered if x not in restarts], [x for x in undelivered if x in restarts]
