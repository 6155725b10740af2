"""Which lives may act at one state holder. Pure: it decides, and whoever asks carries it out.

A life is created where a creating call (dispatch, seed, an agent session's opening, the first model call) brings it,
unless it is below the floor or older than the rollout's current one. Every other call needs a life that is known and
current. A newer life supersedes the old one, whose work is stopped first. A fence is kept until the floor passes it, so
memory is bounded by what the controller has open.

What goes over all lives compares plain tuples: there may be very many of them, and the event loop waits meanwhile.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from store import Life

from .errors import Code, ParticipantError


@dataclass(frozen=True, slots=True, order=True)
class Floor:
    """The lowest (epoch, n) still open: nothing below it can ever act again."""

    epoch: int = 0
    n: int = 0


def position(life: Life) -> Floor:
    """Where a life stands in the order of dispatches."""
    return Floor(life.epoch, life.n)


@dataclass(frozen=True, slots=True)
class Admitted:
    """The call may go on; `supersedes` is stopped first, `created` says that the life is new here."""

    created: bool = False
    supersedes: Life | None = None


class Fences:
    """The lives of one state holder."""

    def __init__(self) -> None:
        """No life is known, and nothing is fenced."""
        self.floor = Floor()
        self._current: dict[str, Life] = {}
        self._fenced: dict[str, Life] = {}

    def __repr__(self) -> str:
        return (
            f"<Fences {len(self._current)} live, {len(self._fenced)} fenced, floor {self.floor.epoch}.{self.floor.n}>"
        )

    def __len__(self) -> int:
        """The number of fenced lives."""
        return len(self._fenced)

    @property
    def live(self) -> list[Life]:
        """Every life that may act."""
        return list(self._current.values())

    @property
    def fenced(self) -> list[Life]:
        """The lives that are ended and not yet below the floor, the newest of each rollout."""
        return list(self._fenced.values())

    def current(self, rollout_id: str) -> Life | None:
        """The life of a rollout that may act here."""
        return self._current.get(rollout_id)

    def admit(self, life: Life, *, creates: bool) -> Admitted:
        """Decide on one call. Raises `stale_life`, and changes nothing, where it may not act."""
        current = self._current.get(life.rollout_id)
        if life == current:
            return Admitted()
        self.check_not_stale(life)
        if not creates:
            raise ParticipantError(Code.STALE_LIFE, f"{life} is not known here", {"current": current and str(current)})
        self._current[life.rollout_id] = life
        return Admitted(created=True, supersedes=current)

    def check_not_stale(self, life: Life) -> None:
        """Refuse a life that is over, whatever asks. Raises `stale_life`."""
        if position(life) < self.floor:
            raise ParticipantError(
                Code.STALE_LIFE, f"{life} is below the floor", {"floor": [self.floor.epoch, self.floor.n]}
            )
        current, fenced = self._current.get(life.rollout_id), self._fenced.get(life.rollout_id)
        for other, what in ((current, "superseded by"), (fenced, "fenced by the end of")):
            if other is not None and position(life) <= position(other):
                raise ParticipantError(Code.STALE_LIFE, f"{life} is {what} {other}", {"by": str(other)})

    def check_newest(self, life: Life, epoch: int) -> None:
        """Refuse to begin an episode in an epoch older than the known one. Raises `stale_life`, `stale_epoch`."""
        self.check_not_stale(life)
        if life.epoch < epoch:
            problem = f"{life} is not known here, and epoch {epoch} alone begins episodes"
            raise ParticipantError(Code.STALE_EPOCH, problem, {"epoch": epoch})

    def check_not_ended(self, life: Life) -> None:
        """Refuse a life that is known to be over, whoever owns its rollout. Raises `stale_life`."""
        if life != self._current.get(life.rollout_id):
            self.check_not_stale(life)

    def fence(self, life: Life) -> bool:
        """End a life for good, known or not; True where it was the current one."""
        at = life.epoch, life.n
        was_current = self._current.get(life.rollout_id)
        ended = was_current is not None and (was_current.epoch, was_current.n) <= at
        if ended:
            del self._current[life.rollout_id]
        fenced = self._fenced.get(life.rollout_id)
        if at >= (self.floor.epoch, self.floor.n) and (fenced is None or (fenced.epoch, fenced.n) < at):
            self._fenced[life.rollout_id] = life
        return ended

    def raise_floor(self, floor: Floor) -> list[Life]:
        """Take the controller's floor; returns the lives that it ended. A lower floor changes nothing."""
        if floor <= self.floor:
            return []
        self.floor = floor
        lowest = floor.epoch, floor.n
        self._fenced = {key: life for key, life in self._fenced.items() if (life.epoch, life.n) >= lowest}
        ended = [life for life in self._current.values() if (life.epoch, life.n) < lowest]
        for life in ended:
            del self._current[life.rollout_id]
        return ended

    def install(self, lives: Iterable[Life]) -> None:
        """Make these the current lives of their rollouts, as a restore does."""
        for life in lives:
            self._current[life.rollout_id] = life
