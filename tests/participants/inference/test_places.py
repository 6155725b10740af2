"""Places for calls that generate at once are handed out in order, and never lost."""

import anyio
import pytest
from anyio.lowlevel import checkpoint

from participants.inference.control import Places

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


async def take(places: Places, name: str, order: list[str], scope: anyio.CancelScope) -> None:
    """Take a place, note the name, keep it."""
    with scope:
        await places.take()
        order.append(name)


async def use(places: Places, name: str, order: list[str], scope: anyio.CancelScope) -> None:
    """Take a place, note the name at its next step, give the place back whatever happens."""
    with scope:
        await places.take()
        try:
            await checkpoint()
            order.append(name)
        finally:
            places.give_back()


async def test_places_are_taken_in_order_of_arrival() -> None:
    """With one place, each return lets exactly the next one in; without a limit nobody waits."""
    places, order = Places(1), list[str]()
    async with anyio.create_task_group() as tasks:
        for name in "abc":
            tasks.start_soon(take, places, name, order, anyio.CancelScope())
            await anyio.wait_all_tasks_blocked()
        assert order == ["a"]
        places.give_back()
        await anyio.wait_all_tasks_blocked()
        assert order == ["a", "b"]
        places.set_limit(None)
    assert order == ["a", "b", "c"]


async def test_a_place_given_to_one_who_left_is_not_lost() -> None:
    """Whoever is cancelled while waiting, or just when it was his turn, leaves the place to the next."""
    places, order = Places(1), list[str]()
    waiting, chosen = anyio.CancelScope(), anyio.CancelScope()
    await places.take()
    async with anyio.create_task_group() as tasks:
        for name, scope in (("gone", waiting), ("chosen", chosen), ("next", anyio.CancelScope())):
            tasks.start_soon(use, places, name, order, scope)
            await anyio.wait_all_tasks_blocked()
        waiting.cancel()
        await checkpoint()
        places.give_back()
        chosen.cancel()
    assert order == ["next"]
    await places.take()
