"""The collector: dispatches episodes, and makes their rows durable before their episodes are released.

Order, which no crash may break: a row is durable in the segment before its episode is released; while everything
stands still no result, dispatch or retire is processed (`still` is held); a checkpoint's three sets come from the
ledger in one step. A failure is written like a row, and is final once a rollout has had its attempts. One that a lost
server may be the cause of is kept only once it is known that none is lost.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel

from participants import ParticipantError, Result, telemetry
from participants.telemetry import names
from store import Fenced, Life, Segment, StoreError

from .asking import asked_row
from .config import Config
from .groups import WAITED, Held, group_of, named_row
from .ledger import RunLedger
from .rows import Rollout
from .saved import Totals, Work, work_of_row
from .segments import Line, Writer
from .world import World, failure_of_dispatch

Emit = Callable[[str, dict[str, Any]], None]
"""Called with the name and the facts of an event; must not raise."""
LARGEST_BATCH = 256
DISPATCH_BATCH = 64
"""Episodes dispatched before other tasks get a turn."""
END_TIMEOUT_S = 10.0
FLOOR_STEP = 64
"""The floor rises in steps, since each one looks at every fence."""


class NothingWorks(Exception):
    """So many rows, one after the other, have failed that the run leaves the others to another start."""

    def __init__(self, failed: int, last: Mapping[str, Any], *, checkpoints: bool) -> None:
        """`last` is the failure of the last of them."""
        named, goes_on = last.get("class"), "goes on" if checkpoints else "starts over, as there are no checkpoints"
        said = str(last.get("message")).removeprefix(f"{named}: ")
        super().__init__(
            f"{failed} row{'s' * (failed > 1)} of the input failed and none worked meanwhile; the last failure is "
            f"{named}: {said:.500}. The run has stopped before the others fail too. Correct the cause and run the same "
            "command with --retry-failed, and with --accept if it asks for that, where the cause is part of what the "
            f"run is. What was done counts, and what was under way {goes_on}. stop_after_failures in [run] says how "
            "many rows it takes; with 0 no run stops so"
        )


@dataclass(slots=True)
class Tally:
    """What happened so far in this start of the run, over all its epochs, for progress and summary."""

    continued: int = 0
    """By epochs that are over, as the next one."""
    restarted: int = 0
    rows: int = 0
    failures: int = 0
    failing: set[str] = field(default_factory=set)
    """Of which groups an episode has failed since the last one of any that came to its end."""
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
        tally: Tally | None = None,
        *,
        forgiving: bool = False,
    ) -> None:
        """`emit` must not raise; `earlier` is of the starts before this one, `tally` of its epochs before this one.

        If `forgiving`, an episode that goes on from a checkpoint and fails is started over, which counts as no failure:
        what it failed of may be in the checkpoint, such as a reply from before the cause was corrected.
        """
        self._config = config
        self._output = output
        self._room = anyio.Event()
        self._floor = ledger.floor
        self._earlier = earlier or Totals()
        self._scope = anyio.CancelScope()
        self._held = Held(ledger.rollouts)
        self._forgiving = forgiving
        self._continuing: set[Life] = set()
        """Lives in flight that go on from a checkpoint, where they are forgiven."""
        self.world = world
        self.emit = emit
        self.still = anyio.Lock()
        """Held while everything stands still for a checkpoint."""
        self.ledger = ledger
        self.tally = tally or Tally()
        self.continued_from: dict[Life, Work] = {}
        """What each life in flight that continues one of a checkpoint has from there."""
        self.closing = False
        """Nothing is dispatched any more."""
        if ledger.restarted:
            telemetry.add(names.ROLLOUTS, ledger.restarted, end="restarted")
        self.broken: StoreError | NothingWorks | None = None
        """Why the run ends before its rollouts are done."""

    def __repr__(self) -> str:
        return f"<Collector {self.ledger!r}, {self.tally.rows} rows>"

    async def run(self) -> None:
        """Dispatch and deliver until every rollout is done, or `broken` says why not; cancel it to stop earlier."""
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
        while not self.closing and self.broken is None and (batch := self._next_batch()):
            await anyio.lowlevel.checkpoint()
            await self._remember_saved(batch)
            await self._start({life: rollout for life, rollout, _ in batch})

    def _next_batch(self) -> list[tuple[Life, Rollout, bool]]:
        """The next lives that there is room for, opened, and whether each continues a record."""
        batch: list[tuple[Life, Rollout, bool]] = []
        while len(batch) < DISPATCH_BATCH and len(self.ledger.open) < self._config.run.concurrency:
            restored = bool(self.ledger.restored)
            if (following := self.ledger.next_dispatch()) is None:
                break
            batch.append((*following, restored))
        if continued := [life for life, _, continues in batch if continues]:
            telemetry.add(names.ROLLOUTS, len(continued), end="continued")
            if self._forgiving:
                self._continuing.update(continued)
        return batch

    async def _remember_saved(self, batch: list[tuple[Life, Rollout, bool]]) -> None:
        restored = {life.rollout_id: life for life, _, continues in batch if continues}
        if restored:
            for rollout_id, saved in (await self.world.saved(list(restored))).items():
                self.continued_from[restored[rollout_id]] = saved
                self.tally.saved += saved

    async def _start(self, batch: Mapping[Life, Rollout]) -> None:
        rows: dict[Life, dict[str, Any]] = {}
        refused: dict[Life, dict[str, Any]] = {}
        for life, rollout in batch.items():
            try:
                rows[life] = self._row(rollout)
            except ParticipantError as error:
                refused[life] = failure_of_dispatch(error)
        refused |= await self.world.dispatch(rows)
        if refused:
            await self._refused(refused)

    def _row(self, rollout: Rollout) -> dict[str, Any]:
        """As servers get it; a repeat knows its siblings."""
        row = asked_row(rollout.row, self._config.model)
        if not self.ledger.has_repeats:
            return row
        return named_row(row, rollout, self.ledger.group_attempts.of(rollout.rollout_id), self._config.run.repeats)

    async def _refused(self, refused: Mapping[Life, Mapping[str, Any]]) -> None:
        """The row, or what a life was to continue from, is of no use: end it everywhere; it counts as a failure."""
        await self.world.end(list(refused), END_TIMEOUT_S)
        results = [Result(life=life, row=None, failure=failure, active_s=0.0) for life, failure in refused.items()]
        if not await self._keep(results):
            self.start_over(refused)
            self._scope.cancel()
        elif self._nothing_works(results):
            self._scope.cancel()

    # Results

    async def _deliver(self) -> None:
        send, receive = anyio.create_memory_object_stream[Result](LARGEST_BATCH)
        async with anyio.create_task_group() as group, send, receive:
            group.start_soon(self.world.read_results, send)
            async for result in receive:
                batch = [result]
                while len(batch) < LARGEST_BATCH and receive.statistics().current_buffer_used:
                    batch.append(receive.receive_nowait())
                await self.world.check(batch)
                async with self.still:
                    awaited = {result.life: result for result in batch if self.ledger.is_open(result.life)}
                    results = await self._forgive(awaited.values())
                    if not await self._take(results) or self._nothing_works(results):
                        self._scope.cancel()
                        return
                self.wake()

    async def _forgive(self, results: Iterable[Result]) -> list[Result]:
        """Start those over that failed and are forgiven; gives the others."""
        failed, others = list[Result](), list[Result]()
        for result in results:
            forgiven = result.life in self._continuing and result.failure is not None
            (failed if forgiven else others).append(result)
            self._continuing.discard(result.life)
        await self._end_and_start_over(failed)
        return others

    async def _end_and_start_over(self, results: Iterable[Result]) -> None:
        if lives := [result.life for result in results]:
            await self.world.end(lives, END_TIMEOUT_S)
            self.start_over(lives)

    async def _take(self, results: Iterable[Result]) -> bool:
        """Keep what need not wait for the rest of its cohort, and whole cohorts; False as `_keep`."""
        passed, again = self._held.take(results, self.ledger.group_attempts)
        await self._end_and_start_over(again)
        return await self._keep(passed) and await self._keep(self._held.complete(self.ledger.done))

    async def _keep(self, results: list[Result]) -> bool:
        """Make results durable, then release them; False where the output takes no more."""
        if not results:
            return True
        self.ledger.lost_groups.update(group_of(each.life.rollout_id) for each in results if self._is_spent(each))
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
            self.ledger.close(result.life, final=line.final)
            self.continued_from.pop(result.life, None)
        self._raise_floor()
        await self.world.release([result.life for result in results])
        return True

    def _line(self, result: Result) -> Line:
        rollout_id = result.life.rollout_id
        if result.failure is None:
            return Line(rollout_id, str(result.life), dict(result.row or {}))
        hopeless = result.failure.get("class") == WAITED and group_of(rollout_id) in self.ledger.lost_groups
        final = hopeless or self._is_spent(result)
        facts = {f"_ng_failure_{key}": value for key, value in result.failure.items()}
        return Line(rollout_id, str(result.life), facts, failed=True, final=final)

    def _is_spent(self, result: Result) -> bool:
        """Whether it is a failure of a rollout that is not started again, whatever becomes of others."""
        failures = self.ledger.failures.get(result.life.rollout_id, 0) + 1
        spent = failures >= self._config.run.max_attempts
        return result.failure is not None and (bool(result.failure.get("terminal")) or spent)

    def _nothing_works(self, results: Iterable[Result]) -> bool:
        """Notice of which rows an episode failed or came to its end; whether so many fail that the run ends.

        A row that fails again counts once, and so does a cohort, whose members fail together.
        """
        failing, limit, last = self.tally.failing, self._config.run.stop_after_failures, None
        for result in results:
            last = result.failure
            failing.clear() if last is None else failing.add(group_of(result.life.rollout_id))
        if last is not None and 0 < limit <= len(failing) and not self.ledger.finished:
            self.broken = NothingWorks(len(failing), last, checkpoints=self._config.checkpoint.enabled)
        return self.broken is not None

    def _count(self, line: Line) -> None:
        if line.failed:
            self.ledger.failures[line.rollout_id] = self.ledger.failures.get(line.rollout_id, 0) + 1
            self.tally.failures += 1
            self.ledger.failed_for_good += line.final
            telemetry.add(names.ROLLOUTS, end="failed")
            self.emit("failure", {"rollout_id": line.rollout_id, "life": line.life, "final": line.final, **line.row})
        else:
            work = work_of_row(line.row)
            self.tally.rows += 1
            telemetry.add(names.ROLLOUTS, end="delivered")
            self.tally.delivered += work
            facts = {"rollout_id": line.rollout_id, "life": line.life, "reward": line.row.get("reward")}
            self.emit("row", {**facts, "calls": work.calls, "tokens": work.tokens})

    def start_over(self, lives: Iterable[Life]) -> None:
        """These lives were ended without a result."""
        before = self.ledger.restarted
        self.ledger.start_over(lives)
        if restarted := self.ledger.restarted - before:
            telemetry.add(names.ROLLOUTS, restarted, end="restarted")

    def _raise_floor(self) -> None:
        floor, told = self.ledger.floor, self._floor
        if floor.epoch > told.epoch or floor.n - told.n >= FLOOR_STEP + len(self.ledger.open) // 4:
            self._floor = floor
            self.world.raise_floor(floor)

    # What is in flight

    async def work_in_flight(self) -> dict[Life, Work]:
        """What each episode in flight has behind its boundary."""
        work = await self.world.work()
        return {life: work[rollout_id] for rollout_id, life in self.ledger.open.items() if rollout_id in work}

    def totals(self) -> Totals:
        """Of this start and those before."""
        tally, ledger = self.tally, self.ledger
        continued, restarted = tally.continued + ledger.continued, tally.restarted + ledger.restarted
        return self._earlier + Totals(continued, restarted, tally.saved.calls, tally.saved.tokens)

    @property
    def segment(self) -> Segment:
        """This epoch's segment of the output as of now."""
        return Segment(name=str(self._output.epoch), length=self._output.length)

    def checkpoint_age_s(self) -> float | None:
        """Since the last checkpoint of this start; None before the first."""
        last = self.tally.last_checkpoint
        return None if last is None else time.monotonic() - last
