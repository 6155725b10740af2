"""What a training run knows of every rollout: pure, and the one place that says what is in which set of a checkpoint.

    a rollout is    until
    restored        parked at the participants as the head has it, until the trainer asks for something
    again           its life ended without a result; it begins anew from its row
    open            it has a life; once `results` has its result it can be given
    failed          its life was ended, and why waits to be given as a failed result
    given           by next(), and in no published checkpoint: after a crash it comes again, so its row is kept
    unreleased      the trainer has it in the head; participants are told, and it is forgotten

A life that ends here, whatever becomes of its rollout, is in `ending` until participants have ended it too.

Cursor and rollouts change in one step, and a checkpoint takes both in one step: it never has one without the other.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from participants import Floor
from participants.fences import position
from store import Life

from .errors import CursorDiffers, UnknownRollout

Row = dict[str, Any]
Failure = dict[str, Any]
"""`class`, `message`, `stage`, `terminal`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of a rollout; exactly one of `row` and `failure`."""

    rollout_id: str
    life: Life
    row: Row | None
    failure: Failure | None
    """`class`, `message`, `stage`, `terminal`: of an episode that failed, was refused, or was retired."""
    active_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sets:
    """Every dispatched rollout that no published checkpoint has delivered, in exactly one of these."""

    scope: list[Life]
    restarts: list[Life]
    dropped: dict[Life, str]
    delivered: list[Life]
    """Given by next(): what the trainer's state has of them is all that is left of them."""


@dataclass(slots=True)
class TrainingLedger:
    """The rollouts of one training run in one epoch."""

    epoch: int
    cursor: Any = None
    rows: dict[str, Row] = field(default_factory=dict)
    """Of every rollout that no published checkpoint has delivered."""
    restored: dict[str, Life] = field(default_factory=dict)
    again: dict[str, Life] = field(default_factory=dict)
    """The life that ended."""
    open: dict[str, Life] = field(default_factory=dict)
    unsubmitted: dict[str, Life] = field(default_factory=dict)
    """Of those that are open, what no participant has answered for; with the life that each continues, or itself."""
    results: dict[str, Result] = field(default_factory=dict)
    failed: dict[str, Result] = field(default_factory=dict)
    given: dict[str, Life] = field(default_factory=dict)
    ending: list[Life] = field(default_factory=list)
    """Over here, and maybe not at the participants: no checkpoint before they were told."""
    unreleased: list[Life] = field(default_factory=list)
    started_over: dict[str, str] = field(default_factory=dict)
    """Why rollouts began anew from their rows in this epoch."""
    dispatched: int = 0

    def __repr__(self) -> str:
        counts = f"{len(self.undelivered)} undelivered, {len(self.results)} to be given, {len(self.given)} given"
        return f"<TrainingLedger epoch {self.epoch}: {counts}>"

    @property
    def undelivered(self) -> tuple[str, ...]:
        """The ids that are dispatched and not given."""
        return tuple(rollout_id for rollout_id in self.rows if rollout_id not in self.given)

    # Dispatch

    def dispatch(self, rows: Mapping[str, Row], *, after: Any, cursor: Any) -> None:
        """Rows and cursor, both or neither. Raises UnknownRollout, CursorDiffers, InvalidName."""
        if after != self.cursor:
            raise CursorDiffers(after, self.cursor)
        if known := self.rows.keys() & rows.keys():
            raise UnknownRollout(known, "are dispatched already, and in no checkpoint that has delivered them")
        lives = [Life(rollout_id, self.epoch, 0, self.dispatched + n) for n, rollout_id in enumerate(rows)]
        self.dispatched += len(lives)
        self.rows.update(rows)
        self.cursor = cursor
        for life in lives:
            self.open[life.rollout_id] = self.unsubmitted[life.rollout_id] = life

    @property
    def waits_to_begin(self) -> bool:
        """Whether there is something to submit, or to end."""
        return bool(self.unsubmitted or self.restored or self.again or self.ending)

    def begin_all(self) -> None:
        """Give a life to what was restored, and to what starts over."""
        for waiting in (self.restored, self.again):
            for rollout_id, before in waiting.items():
                life = Life(rollout_id, self.epoch, before.attempt + 1, self.dispatched)
                self.dispatched += 1
                self.open[rollout_id] = life
                self.unsubmitted[rollout_id] = before if waiting is self.restored else life
            waiting.clear()

    def to_submit(self, most: int) -> dict[Life, Row]:
        """What no participant has answered for yet, up to so many."""
        return {self.open[rollout_id]: self.rows[rollout_id] for rollout_id in list(self.unsubmitted)[:most]}

    def submitted(self, lives: Collection[Life], refused: Mapping[Life, Failure]) -> None:
        """Participants have answered; what they refused is to end everywhere, and begins anew where it can."""
        self.ending += refused
        for life in lives:
            before = self.unsubmitted.pop(life.rollout_id, None)
            if before is None or life not in refused:
                continue
            if before != life:  # The record is of no use; the row is.
                del self.open[life.rollout_id]
                self.start_over(life, f"what it was to continue from was refused: {refused[life].get('message')}")
            else:
                self.fail(life, refused[life])

    # Results

    def arrived(self, result: Result) -> None:
        """An episode has finished; what is not awaited, or came already, is ignored."""
        if self.open.get(result.rollout_id) == result.life:
            self.results.setdefault(result.rollout_id, result)

    def give(self) -> Result | None:
        """The next result, if there is one."""
        for waiting in (self.failed, self.results):
            if waiting:
                result = waiting.pop(next(iter(waiting)))
                self.open.pop(result.rollout_id, None)
                self.unsubmitted.pop(result.rollout_id, None)
                self.given[result.rollout_id] = result.life
                return result
        return None

    # Lives that end here

    def retire(self, rollout_ids: Iterable[str], failure: Failure) -> None:
        """Fail rollouts that have no result yet, before anybody is told. Raises UnknownRollout."""
        wanted = dict.fromkeys(rollout_ids)
        if unknown := wanted.keys() - self.rows.keys():
            raise UnknownRollout(unknown, "are not dispatched, or delivered already")
        places = (self.open, self.restored, self.again)
        working = [r for r in wanted if r not in self.results and r not in self.failed and r not in self.given]
        lives = [place[rollout_id] for rollout_id in working for place in places if rollout_id in place]
        for life in lives:
            self.fail(life, failure)
        self.ending += lives

    def fail(self, life: Life, failure: Failure) -> None:
        """The life ends; why is its result, and what participants still send is none."""
        rollout_id = life.rollout_id
        for place in (self.open, self.unsubmitted, self.restored, self.again):
            place.pop(rollout_id, None)
        self.failed[rollout_id] = Result(rollout_id=rollout_id, life=life, row=None, failure=dict(failure))

    def ended(self, lives: Collection[Life]) -> None:
        """Participants have ended these."""
        self.ending = [life for life in self.ending if life not in lives]

    def start_over(self, life: Life, why: str) -> None:
        """The life has ended, or cannot go on; its rollout begins anew from its row."""
        self.again[life.rollout_id] = life
        self.started_over[life.rollout_id] = why

    # Checkpoints

    def sets(self, restarts: Collection[Life]) -> Sets:
        """Everything as of now; `restarts` are the lives that participants cannot capture."""
        here = [*self.open.values(), *self.restored.values()]
        return Sets(
            scope=[life for life in here if life not in restarts],
            restarts=[*(life for life in here if life in restarts), *self.again.values()],
            dropped={r.life: str((r.failure or {}).get("message") or "it failed") for r in self.failed.values()},
            delivered=list(self.given.values()),
        )

    def delivered(self, lives: Iterable[Life]) -> None:
        """A published checkpoint has these in the trainer's state."""
        for life in lives:
            if self.given.get(life.rollout_id) == life:
                del self.given[life.rollout_id], self.rows[life.rollout_id]
                self.unreleased.append(life)

    def released(self, lives: Collection[Life]) -> None:
        """Every participant was told."""
        self.unreleased = [life for life in self.unreleased if life not in lives]

    @property
    def floor(self) -> Floor:
        """The lowest position that may still act, or whose result has to be kept."""
        kept = (*self.open.values(), *self.given.values(), *self.unreleased)
        return min(map(position, kept), default=Floor(self.epoch, self.dispatched))
