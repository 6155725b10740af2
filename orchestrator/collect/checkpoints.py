"""The checkpoints of a run: when they are taken, what hinders them, and the last one before a stop.

A checkpoint that fails costs itself alone: it is reported and the next one is tried in time. Only a higher epoch on the
chain ends the run. Blockers get more time once; then work goes on and they are reported. At the end of a stop's grace
they are retired, so that everything else is saved. What is full, or denies access, is not tried for that long.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace

import anyio

from participants import telemetry
from participants.errors import STORE_ERROR, ParticipantError
from participants.telemetry import names
from store import (
    AccessDenied,
    Controller,
    Fenced,
    IOFailed,
    Life,
    NoSpace,
    Ref,
    Retention,
    RootMissing,
    StoreError,
    UnsafeObject,
)

from ..coordination import retire
from ..errors import CoordinationError
from ..fleet import Fleet
from ..gauges import watching_head
from ..rounds import Blocked, Round, RoundLimits, checkpoint
from .collector import Collector
from .config import CheckpointTable
from .saved import Work

RETRY_S = 1.0
"""Between the first two tries of the last checkpoint; each later pause is twice as long."""
LONGEST_RETRY_S = 8.0
LAST_TRIES = 3
"""Of the last checkpoint, where the storage is full or refuses it."""
LASTING: tuple[type[StoreError], ...] = (NoSpace, AccessDenied, RootMissing, IOFailed, UnsafeObject)
"""What somebody has to mend; everything else may pass."""
LAST_PREPARE_S = 5.0
"""For the short steps that began while long ones were retired."""
LAST_ROUNDS = 5
RETIRE_TIMEOUT_S = 5.0
SETTLE_S = 30.0
"""For the checkpoint that is being taken when the last row is there."""
CLOCK_STEP_S = 1.0
"""By which an object store rounds its dates; what is younger than this start is its own, and named by the chain."""
PRUNE_EVERY_S = 10.0
"""It takes as long as a small checkpoint, so that short intervals are not spent on it."""


def lasts(error: CoordinationError | StoreError) -> bool:
    """Whether a checkpoint has failed for storage that is full or refuses, here or at a participant."""
    if isinstance(error, StoreError):
        return isinstance(error, LASTING)
    names = {kind.__name__ for kind in LASTING}
    found = error.failures.values()
    return any(isinstance(one, ParticipantError) and one.details.get(STORE_ERROR) in names for one in found)


class Checkpoints:
    """Takes the checkpoints of one run in one epoch."""

    def __init__(
        self,
        table: CheckpointTable,
        collector: Collector,
        fleet: Fleet,
        controller: Controller,
        fingerprint: dict[str, str],
    ) -> None:
        """`fleet` has adopted the controller's epoch."""
        self._table = table
        self._collector = collector
        self._fleet = fleet
        self._controller = controller
        self._fingerprint = fingerprint
        self._one_at_a_time = anyio.Lock()
        self._pruned: float | None = None
        self._refused = 0
        """How often in a row the storage had no room for one, or refused it."""
        self._behind: dict[Life, Work] = {}
        """What the last checkpoint has of each rollout."""
        self._began = time.monotonic()
        self._last_at_risk: Work | None = None
        """As of the last time that somebody asked; None before the first."""
        self._limits = RoundLimits(
            prepare_timeout_s=table.prepare_timeout_s,
            more_time_s=table.more_time_s,
            commit_timeout_s=table.commit_timeout_s,
            publish_timeout_s=table.publish_timeout_s,
            lease_s=table.lease_s,
        )

    async def run(self) -> None:
        """Take one in every interval, and look for a higher epoch, until cancelled. Raises Fenced."""
        with self._shown():
            await self._run()

    def _shown(self) -> AbstractContextManager[None]:
        """What it tells of itself while it runs."""
        return watching_head(
            self._controller,
            age_s=lambda: time.monotonic() - (self._collector.tally.last_checkpoint or self._began),
            at_risk=lambda: None if self._last_at_risk is None else self._last_at_risk.tokens,
            blocked=lambda: self._collector.tally.blocked,
        )

    async def _run(self) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch)
            while self._table.interval_s:
                await anyio.sleep(self._table.interval_s)
                if not self._collector.closing:
                    await self.take()

    async def _watch(self) -> None:
        """A collector that was taken over need not wait for its next checkpoint to hear of it."""
        while True:
            await anyio.sleep(self._table.liveness_beat_s)
            try:
                await self._controller.refresh()
            except Fenced:
                raise
            except StoreError:
                continue  # Unreachable for now: nothing is known, and nothing rests on it.

    async def take(self, *, limits: RoundLimits | None = None) -> Ref | None:
        """Take one; None where blockers or a failure prevented it, which is reported. Raises Fenced."""
        tally, emit = self._collector.tally, self._collector.emit
        async with self._one_at_a_time:
            refused, self._refused = self._refused, 0
            try:
                with telemetry.span(names.COLLECT_CHECKPOINT):
                    return await self._take(limits or self._limits)
            except Blocked as error:
                tally.blocked += 1
                facts = {"times": tally.blocked, "count": error.standstill.blocker_count}
                emit("blocked", {**facts, "blockers": {who: str(why) for who, why in error.failures.items()}})
            except Fenced:
                raise
            except (CoordinationError, StoreError) as error:
                self._refused = refused + 1 if lasts(error) else 0
                tally.failed_checkpoints += 1
                emit("checkpoint_failed", {"error": str(error)})
            return None

    async def _take(self, limits: RoundLimits) -> Ref | None:
        collector, began = self._collector, time.monotonic()
        fleet = self._fleet.with_floor(collector.ledger.floor)
        await collector.still.acquire()
        holding = True

        def let_go() -> None:
            nonlocal holding
            if holding:
                collector.still.release()
                holding = False

        try:
            async with checkpoint(fleet, self._controller, limits, resumed=let_go) as opened:
                self._fill(opened)
                behind = await collector.work_in_flight()
        finally:
            let_go()
        self._behind, self._last_at_risk = behind, Work()
        self._report(opened, time.monotonic() - began)
        await self._prune()
        return opened.published

    def _fill(self, opened: Round) -> None:
        """Give the round what the controller has to say, in one step."""
        collector = self._collector
        sets = collector.ledger.sets(opened.standstill.restarts)
        opened.take(
            scope=sets.scope,
            restarts=sets.restarts,
            dropped=sets.dropped,
            state={
                "done": len(collector.ledger.done),
                "rollouts": len(collector.ledger.rollouts),
                "totals": asdict(collector.totals()),
            },
            output=[collector.segment],
            fingerprint=self._fingerprint,
        )

    def _report(self, opened: Round, took_s: float) -> None:
        tally = self._collector.tally
        tally.checkpoints += 1
        tally.blocked = 0
        tally.held_s.append(opened.held_s)
        tally.last_checkpoint = time.monotonic()
        facts = {"checkpoint": str(opened.id), "rollouts": len(opened.scope or ()), "held_s": round(opened.held_s, 4)}
        self._collector.emit("checkpoint", {**facts, "took_s": round(took_s, 4)})

    async def _prune(self) -> None:
        if self._pruned is not None and time.monotonic() - self._pruned < PRUNE_EVERY_S:
            return
        self._pruned = time.monotonic()
        await self._prune_with(None)

    async def sweep(self, *, older_than_s: float) -> None:
        """Prune once more, and remove what lay there before this start: only killed or fenced ones have left it."""
        await self._prune_with(max(0.0, older_than_s - CLOCK_STEP_S))

    async def _prune_with(self, sweep_after_s: float | None) -> None:
        try:
            await self._controller.prune(Retention(keep_last=self._table.keep_last), sweep_after_s=sweep_after_s)
        except Fenced:
            raise
        except StoreError as error:
            self._collector.emit("prune_failed", {"error": str(error)})

    async def settle(self) -> None:
        """Let one that is being taken come to its end, within limits: cancelled, it would leave what nobody needs."""
        with anyio.move_on_after(SETTLE_S):
            async with self._one_at_a_time:
                return

    def at_risk(self, in_flight: Mapping[Life, Work]) -> Work:
        """Of the work of the episodes in flight, what no checkpoint has yet."""
        total = Work()
        for life, work in in_flight.items():
            last = self._behind.get(life, Work())
            restored = self._collector.continued_from.get(life, Work())  # until this start has one of its own
            calls, tokens = max(last.calls, restored.calls), max(last.tokens, restored.tokens)
            total += Work(max(0, work.calls - calls), max(0, work.tokens - tokens))
        self._last_at_risk = total
        return total

    # The end

    async def stop(self) -> Ref | None:
        """The last checkpoint: waits for blockers as long as the grace lasts, then retires them. Raises Fenced.

        Storage that is full or refuses ends it after LAST_TRIES.
        """
        self._collector.closing, self._refused, pause_s = True, 0, RETRY_S
        ends = anyio.current_time() + self._table.grace_s
        while (left := ends - anyio.current_time()) > 0:
            if (ref := await self.take(limits=self._within(left))) is not None:
                return ref
            if self._refused >= LAST_TRIES:
                return None
            await anyio.sleep(min(pause_s, max(0.0, ends - anyio.current_time())))
            pause_s = min(2 * pause_s, LONGEST_RETRY_S)
        for _ in range(LAST_ROUNDS):
            blocking = [life for life in await self._collector.world.blocking() if self._collector.ledger.is_open(life)]
            if not blocking:
                return None
            await self._retire(blocking)
            if (ref := await self.take(limits=self._within(LAST_PREPARE_S))) is not None:
                return ref
        return None

    def _within(self, timeout_s: float) -> RoundLimits:
        lease_s = max(self._limits.lease_s, timeout_s + 10.0)
        return replace(self._limits, prepare_timeout_s=timeout_s, more_time_s=0.0, lease_s=lease_s)

    async def _retire(self, lives: Sequence[Life]) -> None:
        """End lives everywhere; their rollouts are started over."""
        async with self._collector.still:
            open_lives = [life for life in lives if self._collector.ledger.is_open(life)]
            try:
                left = await retire(self._fleet, open_lives, timeout_s=RETIRE_TIMEOUT_S)
            except CoordinationError as error:
                self._collector.emit("retire_failed", {"error": str(error)})
                return
            self._collector.start_over(open_lives)
        facts = {"lives": [str(life) for life in open_lives], "not_stopped": [str(life) for life in left]}
        self._collector.emit("retired", facts)
