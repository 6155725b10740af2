"""Scenario 39: very many rollouts in flight at once, all of which go on after a crash from exactly where they were.

The pieces are those of `bench/scale.py`, which prints the same stages for larger numbers.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import pytest

from bench.scale import (
    AFTER_A_TOOL_CALL,
    CUT_AT,
    Board,
    Scale,
    Stand,
    dispatch,
    go_on,
    participants,
    print_table,
    standing,
    take_checkpoint,
    weigh,
)
from participants import Result
from store import Life, Ref, Store, open_checkpoint, open_store
from tests.support.backend import Call, Control, RunningBackend, start_backend
from tests.support.waiting import let_run, until_asked

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

KINDS = ("environment", "agent", "model", "resources")
LOOK_S = 0.5
"""How long what must not come is looked out for."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What becomes of the second model call of so many rollouts until the crash."""

    replied: int
    """It ends, and so does the rollout: before the checkpoint."""
    held: int
    """It ends while everything stands still."""
    cut: int
    """It stands in the middle to the end."""

    @property
    def in_flight(self) -> int:
        """When the checkpoint is taken."""
        return self.held + self.cut


@dataclass(slots=True)
class Replies:
    """The results that come, as they come."""

    found: dict[Life, Result] = field(default_factory=dict)

    @asynccontextmanager
    async def read(self, stand: Stand) -> AsyncIterator[None]:
        """Read in the background."""
        send, receive = anyio.create_memory_object_stream[Result](1000)

        async def keep() -> None:
            async for result in receive:
                assert result.life not in self.found, f"{result.life} replied twice"
                self.found[result.life] = result

        async with send, receive, anyio.create_task_group() as group:
            group.start_soon(stand.world.read_results, send)
            group.start_soon(keep)
            yield
            group.cancel_scope.cancel()

    async def until(self, count: int) -> None:
        """Until there are so many."""

        async def so() -> bool:
            await anyio.lowlevel.checkpoint()
            return len(self.found) >= count

        await until_asked(so, 600)


async def let_end(control: Control, board: Board, calls: Sequence[Call]) -> None:
    """Let these calls, which are held, come to their end."""
    ended = control.counts()["finished"] + len(calls)
    for call in calls:
        await anyio.to_thread.run_sync(lambda number: control.release(call=number), call.number)
    await board.wait(finished=ended)


async def rollouts_of(store: Store, ref: Ref) -> dict[str, set[str]]:
    """Which rollouts each kind has exported."""
    opened = await open_checkpoint(store, ref)
    found: dict[str, set[str]] = defaultdict(set)
    for process in opened.processes:
        found[process.name.kind] |= {life.rollout_id for frame in process.frames for life in frame.lives}
    return found


@dataclass(slots=True)
class Flight:
    """One run: everything that is left of it when it is over."""

    shares: Shares
    scale: Scale
    lives: list[Life] = field(default_factory=list)
    replied: set[Life] = field(default_factory=set)
    ended_late: set[Life] = field(default_factory=set)
    """Whose call ended while everything stood still."""
    following: list[Life] = field(default_factory=list)
    exported: dict[str, set[str]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

    async def run(self, folder: Path, backend: RunningBackend) -> None:
        """Fill, stand still, crash, restore, and go on to the end."""
        table = participants(folder, backend.base_url, self.scale.workers, self.scale.others)
        async with httpx.AsyncClient() as http, open_store(str(folder / "store"), "write") as opened:
            board = Board(backend.base_url, http)
            store, requests = opened.counted()
            async with standing(self.scale, table, store, "start") as stand:
                ref = await self._until_checkpoint(stand, backend.control, board)
            await board.wait(live_at_most=0)
            backend.control.release()
            async with standing(self.scale, table, store, "restart") as stand:
                left = [life for life in self.lives if life not in self.replied]
                self.following = await go_on(self.scale, stand, ref, left)
            self.exported = await rollouts_of(store, ref)
            self.scale.store_requests["controller"] = requests.total()
            await weigh(self.scale, store, ref, folder)
        self.calls = [call for call in backend.control.calls() if call.life]

    async def _until_checkpoint(self, stand: Stand, control: Control, board: Board) -> Ref:
        shares, replies = self.shares, Replies()
        control.hold(substring=AFTER_A_TOOL_CALL, after_tokens=CUT_AT, times=shares.in_flight)
        self.lives = [Life(f"r{n}", stand.controller.epoch, 0, n) for n in range(self.scale.rollouts)]
        async with replies.read(stand):
            async with self.scale.stage("fill"):
                await dispatch(stand, self.lives)
                await board.wait(held=shares.in_flight)
                await replies.until(shares.replied)
            self.scale.in_flight = shares.in_flight
            self.replied = set(replies.found)
            await stand.world.release(list(self.replied))

            async def nobody_replies() -> None:
                held = [call for call in control.calls() if call.state == "held"]
                await let_end(control, board, held[: shares.held])
                self.ended_late = {Life.parse(str(call.life)) for call in held[: shares.held]}
                let_run(LOOK_S)  # The time is the point.
                await stand.statuses()
                assert set(replies.found) == self.replied

            left = [life for life in self.lives if life not in self.replied]
            return await take_checkpoint(self.scale, stand, left, nobody_replies)

    def made(self) -> dict[Life, list[Call]]:
        """Every model call, by life."""
        found: dict[Life, list[Call]] = defaultdict(list)
        for call in self.calls:
            found[Life.parse(str(call.life))].append(call)
        return found


async def fly(folder: Path, shares: Shares, **workers: int) -> Flight:
    """A run of so many."""
    rollouts = shares.replied + shares.in_flight
    flight = Flight(shares, Scale(rollouts, workers.get("model", 1), workers.get("others", 1)))
    with start_backend(folder) as backend:
        await flight.run(folder, backend)
    return flight


def check(flight: Flight) -> None:
    """Each rollout replied or is exported; all completed; no token and no call was made that was there already."""
    shares, scale, made = flight.shares, flight.scale, flight.made()
    replied = {life.rollout_id for life in flight.replied}
    everything = {life.rollout_id for life in flight.lives}
    assert len(replied) == shares.replied
    assert flight.exported == dict.fromkeys(KINDS, everything - replied)
    assert not +scale.failures, scale.failures
    assert {life.rollout_id for life in flight.following} == everything - replied
    one, two = [call.generated for call in made[min(flight.replied)]]
    late = {life.rollout_id for life in flight.ended_late}
    expected = {life: [(0, one), (0, two)] for life in flight.lives if life.rollout_id in replied | late}
    expected |= {life: [(0, one), (0, CUT_AT)] for life in flight.lives if life not in expected}
    expected |= {life: [(CUT_AT, two - CUT_AT)] for life in flight.following if life.rollout_id not in late}
    assert {life: [(call.continued, call.generated) for call in calls] for life, calls in made.items()} == expected
    assert sum(call.generated for call in flight.calls) == scale.rollouts * (one + two)
    assert (scale.continued, scale.regenerated) == (shares.cut * CUT_AT, 0)
    assert scale.dispositions == {"kept": 0, "held": shares.held, "cut": shares.cut, "anew": 0}


@pytest.mark.process
async def test_39_rollouts_in_flight_reply_or_are_exported_and_complete(tmp_path: Path) -> None:
    """A few of each kind, over two workers of every server."""
    check(await fly(tmp_path, Shares(replied=4, held=6, cut=10), model=2, others=2))


@pytest.mark.scale
async def test_39_a_thousand_rollouts_in_flight_reply_or_are_exported_and_complete(tmp_path: Path) -> None:
    """None replies while prepared, each goes on from its own token; and the stages are printed."""
    flight = await fly(tmp_path, Shares(replied=200, held=300, cut=500), model=2)
    print_table(flight.scale)
    check(flight)
    assert set(flight.scale.stages) >= {"fill", "prepare", "commit", "renew", "resume", "publish", "restore"}
