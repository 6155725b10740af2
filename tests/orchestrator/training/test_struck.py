"""A trainer that is struck at its n-th call of the store or of a participant: of every n, what follows is one moment.

It dies there, before or after the call took effect, alone or with the participants; or the call fails, or its reply is
lost, or the trainer's own task is cancelled. Then it goes on, or starts again. Every checkpoint that was published has
each row up to its cursor once, and in the end every row was trained on once.
"""

from typing import Any

import anyio
import pytest

from midflight import CoordinationError, CursorDiffers, StoreError, TrainingRun

from .stage import Mode, Stage, Strike, one_life, row
from .trainer import Trainer, check_chain, check_finished, id_of, problems_of

pytestmark = pytest.mark.anyio
ROWS = [row(10 * (position % 3)) for position in range(5)]
MOST_LIVES = 4
CALLS = {False: 60, True: 40}
"""One life makes a few more, of them those of participants that do not outlive it."""
MODES: tuple[Mode, ...] = ("dies", "dies after", "fails", "loses reply", "cancelled")
FEW = [(n, MODES[n % 5], n % 8 < 4) for n in range(12, CALLS[True], 3)]


async def struck(nth: int, mode: Mode, *, outlives: bool, trainer: type[Trainer] = Trainer) -> Strike:
    """A trainer that is struck, and those after it until one comes to its end; `outlives` is of participants."""
    stage, first = Stage(), Strike(nth, mode)

    def train(strike: Strike) -> Any:
        async def work(run: TrainingRun) -> None:
            one = trainer(ROWS)
            one.begin(run)
            while True:
                with anyio.CancelScope() as strike.loop:
                    await one.train(run)
                    return

        return work

    async def lives(links: Any) -> None:
        strike = first
        for _ in range(MOST_LIVES):
            try:
                if await one_life(stage, strike, train(strike), links):
                    return
            except (CoordinationError, StoreError):
                assert first.struck
            strike = Strike()
        raise AssertionError("no life came to its end")

    with anyio.fail_after(60):
        if outlives:
            async with stage.participants() as links:
                await lives(links)
        else:
            await lives(None)
    check_finished(await check_chain(stage.store(), len(ROWS)), len(ROWS))
    assert not stage.environments[-1].held()
    return first


@pytest.mark.unit
@pytest.mark.parametrize(("nth", "mode", "outlives"), FEW)
async def test_a_trainer_that_is_struck_skips_no_row_and_trains_on_none_twice(
    nth: int, mode: Mode, outlives: bool
) -> None:
    """Some calls of each step; the next test has all."""
    assert (await struck(nth, mode, outlives=outlives)).struck


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize("outlives", [False, True])
@pytest.mark.parametrize("mode", MODES)
async def test_a_trainer_may_be_struck_at_any_call(mode: Mode, outlives: bool) -> None:
    """Each of them in one of the modes, until a life makes no more."""
    calls = range(1 + MODES.index(mode), CALLS[outlives] + 10, len(MODES))
    strikes = [await struck(n, mode, outlives=outlives) for n in calls]
    assert sum(strike.struck for strike in strikes) >= CALLS[outlives] // len(MODES)


class Ahead(Trainer):
    """A wrong trainer: it has a position of its own, reads one row more than it dispatches, and saves that position."""

    position: int = 0

    def begin(self, run: TrainingRun) -> None:
        super().begin(run)
        self.in_flight = 2
        self.position = run.state["position"] if run.state else 0

    def own_state(self) -> Any:
        return {**super().own_state(), "position": min(self.position + 1, len(self.rows))}

    async def fill(self, run: TrainingRun) -> None:
        while self.position < len(self.rows) and len(run.undelivered) < self.in_flight:
            row, behind = self.rows[self.position], self.position + 1
            await run.dispatch({id_of(self.position): row}, after=self.position or None, cursor=behind)
            self.position = behind


@pytest.mark.unit
async def test_a_trainer_that_saves_a_position_ahead_of_its_work_is_stopped_at_its_next_dispatch() -> None:
    """While it lives nothing is wrong; a start that reads on from that position would skip a row, and is refused."""
    alone = await struck(0, "dies", outlives=False, trainer=Ahead)
    nth = alone.calls.index("create chain/000000000002.json") + 2
    with pytest.raises(CursorDiffers, match="skipped or run twice"):
        await struck(nth, "dies", outlives=False, trainer=Ahead)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda state: state.update(cursor=4), "row-3 is behind the cursor, and nowhere"),
        (lambda state: state["trainer"]["buffer"].append("row-2"), "row-2 is there 2 times"),
        (lambda state: state["rows"].pop("row-2"), "row-2 is behind the cursor, and nowhere"),
        (lambda state: state.update(cursor=2), "row-2 is there, and the cursor before it"),
    ],
)
def test_the_check_finds_what_is_of_two_moments(spoil: Any, says: str) -> None:
    """A cursor ahead of the work, and behind it; a rollout in two places, and in none."""
    state = {"cursor": 3, "rows": {"row-2": {}}, "trainer": {"trained": ["row-0"], "buffer": ["row-1"]}}
    assert problems_of(state, 5) == []
    spoil(state)
    assert problems_of(state, 5) == [says]
