"""Rollouts that are checkpointed at a moment, killed there and continued, beside those that nobody disturbs."""

from collections.abc import Mapping, Sequence
from typing import Any

from participants import Result
from tests.support.checkpoints import memory_store
from tests.support.journal import Journal
from tests.support.world import world

Rows = Mapping[str, Mapping[str, Any]]


def rows_of(results: Mapping[str, Result]) -> dict[str, Any]:
    """What was delivered; a failure is told by the assertion."""
    assert all(result.failure is None for result in results.values()), [r.failure for r in results.values()]
    return {name: results[name].row for name in sorted(results)}


async def uninterrupted(rows: Rows, journal: Journal | None = None, **options: Any) -> dict[str, Any]:
    """The rows of a run that nobody disturbs."""
    async with world(journal=journal, **options) as one:
        await one.start(rows)
        return rows_of(await one.results(len(rows)))


async def killed_at(point: str, rows: Rows, **options: Any) -> tuple[dict[str, Any], Journal]:
    """The rows of a run that is checkpointed and killed at a moment: what began after the checkpoint began twice."""
    store, journal = memory_store(), Journal()
    async with world(store, journal, **options) as one:
        pause = one.hold(point)
        await one.start(rows)
        await one.checkpoint_at(pause, go_on=False)
        lost = journal.unsaved()
    async with world(store, journal, **options) as two:
        await two.start(rows)
        results = await two.results(len(rows))
        assert two.left() == {}
    assert journal.repeated() == dict.fromkeys(lost, 2)
    return rows_of(results), journal


async def killed_while_at(points: Sequence[str], rows: Rows, **options: Any) -> dict[str, Any]:
    """The rows of a run that is checkpointed and killed while each of its rollouts is at a model call of its own."""
    store, journal = memory_store(), Journal()
    async with world(store, journal, **options) as one:
        pauses = [one.hold(point) for point in points]
        await one.start(rows)
        for pause in pauses:
            await pause.reached.wait()
        await one.checkpoint()
    async with world(store, journal, **options) as two:
        await two.start(rows)
        results = await two.results(len(rows))
    assert journal.repeated() == dict.fromkeys(points, 2)
    return rows_of(results)
