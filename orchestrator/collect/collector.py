"""The collector: dispatches episodes, and makes their rows durable before their episodes are acknowledged.

Order, which no crash may break: a row is durable in the segment before its episode is acknowledged; while everything
stands still no result, dispatch or retire is processed (`still` is held); a checkpoint's three sets come from the
ledger in one step. A failure is written like a row, and is final once a rollout has had its attempts.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
from anyio.streams.memory import MemoryObjectSendStream

from participants import Code, ParticipantError, Result
from store import Fenced, Life, Segment, StoreError

from .asking import asked_row
from .config import Config
from .ledger import RunLedger
from .rows import Rollout
from .saved import Totals, Work, work_of_row
from .segments import Line, Writer
from .world import World

Emit = Callable[[str, dict[str, Any]], None]
"""Called with the name and the facts of an event; must not raise."""
LARGEST_BATCH = 256
DISPATCH_BATCH = 64
"""Episodes dispatched before other tasks get a turn."""
END_TIMEOUT_S = 10.0
REFUSED_STAGE = "seed"
"""A dispatch that fails comes before every step of its episode."""
FLOOR_STEP = 64
"""The floor rises in steps, since each one looks at every fence."""


@dataclass(slots=True)
class Tally:
    """What happened so far in this start of the run, for progress and summary."""

    rows: int = 0
    failures: int = 0
    delivered: Work = field(default_factory=Work)
    saved: Work = field(default_factory=Work)
    """What continued rollouts did not have to generate again."""
    checkpoints: int = 0
    blocked: int = 0
    """Checkpoints in a row that blockers prevented."""
    failed_checkpoints: int = 0
    held_s: list[float] = field(default_factory=list)
    last_checkpoint: float | None = None
    """Monotonic time."""


class Collector:
    """One run in one epoch."""

    def __init__(
        self,
        config: Config,
        world: World,
        ledger: RunLedger,
        output: Writer,
        emit: Emit = lambda name, facts: None,
        earlier: Totals | None = None,
    ) -> None:
        """`emit` must not raise; `earlier` is of the starts before this one."""
        self._config = config
        self._output = output
        self._room = anyio.Event()
        self._floor = 0
        self._earlier = earlier or Totals()
        self._scope = anyio.CancelScope()
        self.world = world
        self.emit = emit
        self.still = anyio.Lock()
        """Held while everything stands still for a checkpoint."""
        self.ledger = ledger
        self.tally = Tally()
        self.continued_from: dict[Life, Work] = {}
        """What each life in flight that continues one of a checkpoint has from there."""
        self.closing = False
        """Nothing is dispatched any more."""
        self.broken: StoreError | None = None
        """Why no row could be made durable any more."""

    def __repr__(self) -> str:
        return f"<Collector {self.ledger!r}, {self.tally.rows} rows>"

    async def run(self) -> None:
        """Dispatch and deliver until every rollout is done, or the output breaks; cancel it to stop earlier."""
        with self._scope:
            async with anyio.create_task_group() as group:
                group.start_soon(self._dispatch)
                group.start_soon(self._deliver)

    def wake(self) -> None:
        """There may be room, or work, for another dispatch."""
        self._room.set()

    async def _dispatch(self) -> None:
        while True:
            async with self.still:
                await self._fill()
            if self.ledger.finished:
                self._scope.cancel()
            self._room = anyio.Event()
            await self._room.wait()

    async def _fill(self) -> None:
        while not self.closing and self.broken is None and len(self.ledger.open) < self._config.run.concurrency:
            restored = next(iter(self.ledger.restored), None)
            following = self.ledger.next_dispatch()
            if following is None:
                return
            if self.ledger.dispatched % DISPATCH_BATCH == 0:
                await anyio.lowlevel.checkpoint()
            if restored is not None:
                saved = self.continued_from[following[0]] = self.world.saved(restored)
                self.tally.saved += saved
            await self._start(*following)

    async def _start(self, life: Life, rollout: Rollout) -> None:
        try:
            await self.world.environment.dispatch(life, asked_row(rollout.row, self._config.model))
        except (ParticipantError, StoreError) as error:
            await self._refused(life, error)

    async def _refused(self, life: Life, error: ParticipantError | StoreError) -> None:
        """The row, or what the life was to continue from, is of no use: end it everywhere; it counts as a failure."""
        await self.world.end(life, END_TIMEOUT_S)
        if not await self._keep([Result(life=life, row=None, failure=_failure_of(error), active_s=0.0)]):
            self.ledger.start_over([life])
            self._scope.cancel()

    # Results

    async def _deliver(self) -> None:
        send, receive = anyio.create_memory_object_stream[Result](LARGEST_BATCH)
        async with anyio.create_task_group() as group, send, receive:
            group.start_soon(self._read_results, send)
            async for result in receive:
                batch = [result]
                while len(batch) < LARGEST_BATCH and receive.statistics().current_buffer_used:
                    batch.append(receive.receive_nowait())
                async with self.still:
                    awaited = {result.life: result for result in batch if self.ledger.is_open(result.life)}
                    if not await self._keep(list(awaited.values())):
                        self._scope.cancel()
                        return
                self.wake()

    async def _read_results(self, send: MemoryObjectSendStream[Result]) -> None:
        async for result in self.world.environment.results():
            await send.send(result)

    async def _keep(self, results: list[Result]) -> bool:
        """Make results durable, then acknowledge them; False where the output takes no more."""
        if not results:
            return True
        lines = [self._line(result) for result in results]
        try:
            await self._output.append(lines)
        except Fenced:
            raise
        except StoreError as error:
            self.broken = error
            self.emit("output_failed", {"error": str(error)})
            return False
        for result, line in zip(results, lines, strict=True):
            self._count(line)
            self.world.release(result.life)
            self.ledger.close(result.life, final=line.final)
            self.continued_from.pop(result.life, None)
        self._raise_floor()
        return True

    def _line(self, result: Result) -> Line:
        rollout_id = result.life.rollout_id
        if result.failure is None:
            return Line(rollout_id, str(result.life), dict(result.row or {}))
        failures = self.ledger.failures.get(rollout_id, 0) + 1
        final = bool(result.failure.get("terminal")) or failures >= self._config.run.max_attempts
        facts = {f"_ng_failure_{key}": value for key, value in result.failure.items()}
        return Line(rollout_id, str(result.life), facts, failed=True, final=final)

    def _count(self, line: Line) -> None:
        if line.failed:
            self.ledger.failures[line.rollout_id] = self.ledger.failures.get(line.rollout_id, 0) + 1
            self.tally.failures += 1
            self.emit("failure", {"rollout_id": line.rollout_id, "life": line.life, "final": line.final, **line.row})
        else:
            work = work_of_row(line.row)
            self.tally.rows += 1
            self.tally.delivered += work
            facts = {"rollout_id": line.rollout_id, "life": line.life, "reward": line.row.get("reward")}
            self.emit("row", {**facts, "calls": work.calls, "tokens": work.tokens})

    def _raise_floor(self) -> None:
        floor = self.ledger.floor
        if floor.n - self._floor >= FLOOR_STEP + len(self.ledger.open) // 4:
            self._floor = floor.n
            self.world.raise_floor(floor)

    # What is in flight

    def work_in_flight(self) -> dict[Life, Work]:
        """What each episode in flight has behind its boundary."""
        return {
            held.life: Work(
                held.state.activation.state["steps"], held.state.activation.state["usage"].get("output_tokens", 0)
            )
            for held in self.world.agent.held()
            if held.state.activation is not None
        }

    def totals(self) -> Totals:
        """Of this start and those before."""
        saved = self.tally.saved
        return self._earlier + Totals(self.ledger.continued, self.ledger.restarted, saved.calls, saved.tokens)

    @property
    def segment(self) -> Segment:
        """This epoch's segment of the output as of now."""
        return Segment(name=str(self._output.epoch), length=self._output.length)

    def checkpoint_age_s(self) -> float | None:
        """Since the last checkpoint of this start; None before the first."""
        last = self.tally.last_checkpoint
        return None if last is None else time.monotonic() - last


def _failure_of(error: ParticipantError | StoreError) -> dict[str, Any]:
    """Facts of a dispatch that failed; another try cannot mend a row that is wrong."""
    terminal = isinstance(error, ParticipantError) and error.code is Code.INVALID_REQUEST
    named = Code.INVALID_REQUEST.value if terminal else Code.STEP_FAILED.value
    return {"class": named, "message": str(error)[:2000], "stage": REFUSED_STAGE, "terminal": terminal}
