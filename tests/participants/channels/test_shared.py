"""One try for all who wait."""

import anyio
import pytest

from participants.channels.line import Broken
from participants.channels.shared import Shared

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


class Maker:
    """Makes numbers, or fails."""

    def __init__(self) -> None:
        self.tries = 0
        self.go = anyio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> str:
        self.tries += 1
        await self.go.wait()
        if self.error:
            raise self.error
        return f"thing {self.tries}"


async def test_all_who_wait_share_one_try_and_its_outcome() -> None:
    """A thousand calls to a server that is gone knock once, not a thousand times; the next one knocks again."""
    make, outcomes = Maker(), list[str]()
    async with anyio.create_task_group() as group:
        shared = Shared(group, make, lambda _: True)

        async def want() -> None:
            try:
                outcomes.append(await shared.get())
            except Broken as error:
                outcomes.append(str(error))

        for error, expected in ((Broken("no"), "no"), (None, "thing 2")):
            make.error, make.go = error, anyio.Event()
            outcomes.clear()
            for _ in range(1000):
                group.start_soon(want)
            await anyio.wait_all_tasks_blocked()
            make.go.set()
            await anyio.wait_all_tasks_blocked()
            assert outcomes == [expected] * 1000
        assert make.tries == 2


async def test_one_who_gives_up_takes_it_from_nobody() -> None:
    """The try goes on for the others."""
    make = Maker()
    async with anyio.create_task_group() as group:
        shared = Shared(group, make, lambda _: True)
        async with anyio.create_task_group() as impatient:
            impatient.start_soon(shared.get)
            await anyio.wait_all_tasks_blocked()
            impatient.cancel_scope.cancel()
        make.go.set()
        assert await shared.get() == "thing 1"


async def test_it_is_made_anew_once_it_is_of_no_use_or_forgotten() -> None:
    """Who forgets what was replaced already forgets nothing."""
    make = Maker()
    make.go.set()
    useless = set[str]()
    async with anyio.create_task_group() as group:
        shared = Shared(group, make, lambda thing: thing not in useless)
        first = await shared.get()
        useless.add(first)
        second = await shared.get()
        shared.forget(first)
        assert shared.now() == second == "thing 2"
        shared.forget(second)
        assert await shared.get() == "thing 3"


async def test_where_its_group_ends_nobody_waits_for_ever() -> None:
    """Whoever waits for the try is told that it was closed."""
    make, told = Maker(), list[str]()
    async with anyio.create_task_group() as callers, anyio.create_task_group() as group:
        shared = Shared(group, make, lambda _: True)

        async def want() -> None:
            with pytest.raises(Broken) as caught:
                await shared.get()
            told.append(str(caught.value))

        callers.start_soon(want)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert told == ["it was closed by this side"]
