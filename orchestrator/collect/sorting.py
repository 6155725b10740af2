"""What becomes of the lives that servers have when a new controller comes to them. Pure.

a life that                                       then
has its line in the output                        is released: its result is durable, and not written again
is whole, of a rollout that is wanted             goes on as if nothing had happened
is anything else: broken, dropped from the        is ended everywhere; its rollout is restored from the head, or
input, or restored and not taken up               started over, if it is wanted; not where one of it goes on
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from participants import Adopted
from participants.fences import position
from store import Life

from ..fleet import Fleet


@dataclass(frozen=True, slots=True)
class Standing:
    """All lives that some participant has, and those of them that are whole."""

    lives: frozenset[Life]
    whole: frozenset[Life]


@dataclass(frozen=True, slots=True)
class Sorted:
    """Each life once, in the order of their dispatches."""

    going_on: list[Life]
    written: list[Life]
    broken: list[Life]


def sort_out(found: Standing, written: Collection[str], wanted: Collection[str]) -> Sorted:
    """`written` are lives with a line in the output, `wanted` the rollouts that are not done yet."""
    lives = sorted(found.lives, key=position)
    released = [life for life in lives if str(life) in written]
    going_on = [
        life for life in lives if life in found.whole and life.rollout_id in wanted and str(life) not in written
    ]
    kept = {life.rollout_id for life in going_on}  # A record of one that nobody has taken up yet is needed, too.
    broken = [life for life in lives if life.rollout_id not in kept and str(life) not in written]
    return Sorted(going_on, released, broken)


def standing(fleet: Fleet, answers: Mapping[str, Adopted]) -> Standing:
    """From the answers to an adopt, by the members' names."""
    roles = {member.name: member.name.partition("/")[0] for member in fleet.members}
    every: set[Life] = set()
    at: dict[str, set[Life]] = {}
    brought: dict[str, set[tuple[str, int]]] = {}
    needs: dict[Life, set[str]] = {}
    dispatched: set[Life] = set()
    lost: set[Life] = set()
    for name, answer in answers.items():
        role = roles[name]
        every.update(answer.lives, answer.brought)
        at.setdefault(role, set()).update(answer.lives)
        brought.setdefault(role, set()).update((life.rollout_id, life.attempt) for life in answer.brought)
        dispatched.update(answer.dispatched)
        lost.update(answer.lost)
        for needed, lives in answer.needs.items():
            for life in lives:
                needs.setdefault(life, set()).add(needed)

    def is_there(life: Life, role: str) -> bool:
        return life in at.get(role, ()) or (life.rollout_id, life.attempt - 1) in brought.get(role, ())

    whole = {life for life in dispatched - lost if all(is_there(life, role) for role in needs.get(life, ()))}
    return Standing(frozenset(every), frozenset(whole))
