"""What a holder tells a controller of its lives, beside checkpoints: what goes on here, and how far it has come.

A controller that takes over asks every participant once, and decides from all answers together which lives are whole.
What one answers is of its own lives alone: who holds what a life needs elsewhere is for the controller to see.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Generic, TypeVar

from store import Life

from .errors import Code, ParticipantError
from .held import Brought, Held, in_turns
from .owner import Adoption, Result
from .wire import Dispatched, Refused, Worked
from .work import Count

State = TypeVar("State")


class Reports(ABC, Generic[State]):
    """The half of a holder that tells of its lives."""

    dispatches = False
    """Whether episodes begin here, so that a commit must say of each one where it stands."""
    _held: dict[str, Held[State]]
    _brought: dict[str, Brought]

    @property
    @abstractmethod
    def role(self) -> str:
        """`<kind>.<name>`, as peers call it."""

    def is_episode(self, state: State) -> bool:
        """Whether a state is that of an episode that was dispatched here; asked only of what `dispatches`."""
        return False

    def adoption(self) -> Adoption:
        """What goes on here, for a controller that has just come."""
        held = [held for held in self._held.values() if not held.stopped]
        needs: dict[str, list[Life]] = {}
        for each in held:
            for role in self.needs(each):
                needs.setdefault(role, []).append(each.life)
        return Adoption(
            lives=[each.life for each in held],
            dispatched=[each.life for each in held if self.dispatches and self.is_episode(each.state)],
            needs=needs,
            brought=[brought.record.life for brought in self._brought.values()],
            lost=[each.life for each in held if self.is_lost(each.state)],
        )

    def needs(self, held: Held[State]) -> set[str]:
        """The roles that hold something without which this life cannot go on."""
        return {role for role, _ in held.waited} | held.touched

    def is_lost(self, state: State) -> bool:
        """Whether a state is that of an episode that ended because a participant was lost."""
        return False

    async def work(self, rollouts: Collection[str] | None) -> Worked:
        """What is behind the boundaries of live lives, and of what a restore brought; of all for None."""
        counts: dict[str, Count] = {}
        boundaries: dict[str, int] = {}
        wanted = [*self._brought, *self._held] if rollouts is None else rollouts
        async for rollout_id in in_turns(wanted):
            if (found := self._work_behind(rollout_id)) is not None:
                counts[rollout_id], boundary = found
                if boundary is not None:
                    boundaries[rollout_id] = boundary
        return Worked(lives=counts, boundaries=boundaries)

    def _work_behind(self, rollout_id: str) -> tuple[Count, int | None] | None:
        if (held := self._held.get(rollout_id)) is not None:
            return self.work_of(held)
        brought = self._brought.get(rollout_id)
        return self.work_in(brought.record.parse().payload) if brought else None

    def work_of(self, held: Held[State]) -> tuple[Count, int | None] | None:
        """The work behind a life's boundary, and where a kind counts by boundaries its number; None for no word."""
        return None

    def work_in(self, payload: Any) -> tuple[Count, int | None] | None:
        """The same of a record's payload."""
        return None

    # Episodes that a controller submits; only an environment takes any

    async def submit(self, episodes: Sequence[Dispatched], epoch: int) -> list[Refused]:
        """Begin them. Raises `invalid_request` where there is no such thing."""
        raise self._no_episodes()

    def check_after(self, after: int) -> None:
        """Refuse a reader of results that has more than there were."""
        raise self._no_episodes()

    async def next_result(self, after: int, epoch: int | None = None) -> Result | None:
        """The first unacknowledged result behind `after`, as soon as there is one and admission is open.

        None once the known epoch is another one than `epoch`.
        """
        raise self._no_episodes()

    def _no_episodes(self) -> ParticipantError:
        return ParticipantError(Code.INVALID_REQUEST, f"{self.role} takes no episodes: submit them to an environment")
