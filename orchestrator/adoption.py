"""Which lives that servers have are whole when a new controller comes to them: pure, from the answers to its adopt.

A life is whole where the server at which its episode began still has it and did not see it fail for want of another
server, and everybody who holds something that it needs has it too: live, or restored and not taken up. A server that
was started again reports nothing, so each life that needs it is broken. What is broken is ended everywhere, and its
rollout restored from the head or started over.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from participants import Adopted, Floor
from participants.fences import position
from store import Life

from .fleet import Fleet


@dataclass(frozen=True, slots=True)
class Standing:
    """All lives that some participant has, and those of them that are whole."""

    lives: frozenset[Life]
    """Also those of restored records that nobody has taken up; each as its checkpoint has it."""
    whole: frozenset[Life]

    @property
    def broken(self) -> frozenset[Life]:
        """What is to be ended everywhere: all but the rollouts that go on.

        What a restore brought a rollout that goes on may still be needed, and so is not ended.
        """
        going_on = {life.rollout_id for life in self.whole}
        return frozenset(life for life in self.lives if life.rollout_id not in going_on)

    def floor(self, epoch: int) -> Floor:
        """The floor of a controller of this epoch that lets every whole life go on, and no others."""
        return min(map(position, self.whole), default=Floor(epoch, 0))


def standing(fleet: Fleet, answers: Mapping[str, Adopted]) -> Standing:
    """From the answers to an adopt, by the members' names."""
    roles = {m.name: f"{m.capabilities.kind}.{m.capabilities.name}" for m in fleet.members}
    live: set[tuple[str, Life]] = set()
    brought: set[tuple[str, str, int]] = set()
    missing: set[Life] = set()
    every: set[Life] = set()
    for name, answer in answers.items():
        every.update(answer.lives, answer.brought)
        live.update((roles[name], life) for life in answer.lives)
        brought.update((roles[name], life.rollout_id, life.attempt) for life in answer.brought)
        missing.update(answer.lost)
    for answer in answers.values():
        for role, lives in answer.needs.items():
            missing.update(
                life
                for life in lives
                if (role, life) not in live and (role, life.rollout_id, life.attempt - 1) not in brought
            )
    whole = {life for answer in answers.values() for life in answer.dispatched} - missing
    return Standing(frozenset(every), frozenset(whole))
