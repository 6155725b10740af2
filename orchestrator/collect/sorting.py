"""What becomes of the lives that servers have when a new controller comes to them. Pure.

a life that                                       then
has its line in the output                        is released: its result is durable, and not written again
is whole, of a rollout that is wanted             goes on as if nothing had happened
is anything else: broken, dropped from the        is ended everywhere; its rollout is restored from the head, or
input, or restored and not taken up               started over, if it is wanted; not where one of it goes on
"""

from collections.abc import Collection
from dataclasses import dataclass

from participants.fences import position
from store import Life

from ..adoption import Standing


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
