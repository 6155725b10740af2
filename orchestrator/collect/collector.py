"""The collector: dispatches episodes, makes their rows durable, and takes checkpoints meanwhile.

Order, which no crash may break: a row is durable in the segment before its episode is acknowledged; while everything
stands still no result, dispatch or retire is processed (`_still` is held); a checkpoint's three sets come from the
ledger in one step. A failure is written like a row, and is final once a rollout has had its attempts.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio

from participants import Result
from store import Controller, Life, Ref, Retention, Store, StoreError, prune

from ..coordination import retire
from ..errors import CoordinationError
from ..rounds import Blocked, RoundLimits, checkpoint
from .config import Config
from .ledger import RunLedger
from .output import Line, Output
from .world import World

Emit = Callable[[str, dict[str, Any]], None]
"""Called with the name and the facts of an event."""
LARGEST_BATCH = 256
RETIRE_TIMEOUT_S = 30.0


@dataclass(slots=True)
class Tally:
    """What happened so far, for progress and summary."""

    rows: int = 0
    failures: int = 0
    checkpoints: int = 0
    blocked: int = 0
    """Checkpoints in a row that blockers prevented."""
    tokens: int = 0
    held_s: list[float] = field(default_factory=list)
    last_checkpoint: float | None = None
    """Monotonic time."""


class Collector:
    """One run in one epoch. `controller` is None where checkpoints are off."""

    def __init__(
        self,
        config: Config,
        world: World,
        ledger: RunLedger,
        output: Output,
        *,
        store: Store | None = None,
        controller: Controller | None = None,
        fingerprint: dict[str, str] | None = None,
        emit: Emit = lambda name, facts: None,
    ) -> None:
        """`emit` must not raise."""
        self._config = config
        self._world = world
        self._output = output
        self._store = store
        self._controller = controller
        self._fingerprint = fingerprint or {}
        self._emit = emit
        self._still = anyio.Lock()
        self._room = anyio.Event()
        self._one_checkpoint = anyio.Lock()
        self._blocking: list[Life] = []
        self._saved: dict[Life, int] = {}
        self.ledger = ledger
        self.tally = Tally()
        self.finished = anyio.Event()

    def __repr__(self) -> str:
        return f"<Collector {self.ledger!r}, {self.tally.checkpoints} checkpoints>"

    async def run(self) -> None:
        """Dispatch and deliver until every rollout is done; cancel it to stop earlier."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._dispatch)
            group.start_soon(self._deliver, group.cancel_scope)
            if self._controller is not None and self._config.checkpoint.interval_s:
                group.start_soon(self._tick)

    async def _dispatch(self) -> None:
        while not self.finished.is_set():
            async with self._still:
                await self._fill()
            self._room = anyio.Event()
            if self.ledger.finished:
                self.finished.set()
            elif len(self.ledger.open) >= self._config.run.concurrency or not (
                self.ledger.waiting or self.ledger.restored
            ):
                await self._room.wait()

    async def _fill(self) -> None:
        while len(self.ledger.open) < self._config.run.concurrency:
            following = self.ledger.next_dispatch()
            if following is None:
                return
            life, rollout = following
            row = self._with_parameters(rollout.row)
            await self._world.environment.dispatch(life, row)

    def _with_parameters(self, row: Any) -> dict[str, Any]:
        model = self._config.model
        asked = {"model": model.model, **model.parameters, **(row.get("responses_create_params") or {})}
        return {**row, "responses_create_params": {**asked, "model": model.model}}

    # Results

    async def _deliver(self, scope: anyio.CancelScope) -> None:
        send, receive = anyio.create_memory_object_stream[Result](LARGEST_BATCH)
        async with anyio.create_task_group() as group, send, receive:
            group.start_soon(self._read_results, send)
            if self.ledger.finished:
                scope.cancel()
            async for result in receive:
                batch = [result]
                while len(batch) < LARGEST_BATCH and receive.statistics().current_buffer_used:
                    batch.append(receive.receive_nowait())
                async with self._still:
                    await self._keep([r for r in batch if self.ledger.is_open(r.life)])
                self._room.set()
                if self.ledger.finished:
                    scope.cancel()

    async def _read_results(self, send: Any) -> None:
        async for result in self._world.environment.results():
            await send.send(result)

    async def _keep(self, results: list[Result]) -> None:
        """Make results durable, then acknowledge them."""
        if not results:
            return
        lines = [self._line(result) for result in results]
        await self._output.append(lines)
        for result, line in zip(results, lines, strict=True):
            self._world.release(result.life)
            self.ledger.close(result.life, final=line.final)
            self._count(line)
        self._world.raise_floor(self.ledger.floor)

    def _line(self, result: Result) -> Line:
        rollout_id = result.life.rollout_id
        if result.failure is None:
            return Line(rollout_id, str(result.life), dict(result.row or {}))
        failures = self.ledger.failures.get(rollout_id, 0) + 1
        self.ledger.failures[rollout_id] = failures
        final = bool(result.failure.get("terminal")) or failures >= self._config.run.max_attempts
        facts = {f"_ng_failure_{key}": value for key, value in result.failure.items()}
        return Line(rollout_id, str(result.life), facts, failed=True, final=final)

    def _count(self, line: Line) -> None:
        if line.failed:
            self.tally.failures += 1
            self._emit("failure", {"rollout_id": line.rollout_id, "final": line.final, **line.row})
        else:
            self.tally.rows += 1
            usage = (line.row.get("response") or {}).get("usage") or {}
            self.tally.tokens += int(usage.get("output_tokens") or 0)
            self._emit("row", {"rollout_id": line.rollout_id, "reward": line.row.get("reward")})

    # Checkpoints

    async def _tick(self) -> None:
        while True:
            await anyio.sleep(self._config.checkpoint.interval_s)
            await self.checkpoint()

    async def checkpoint(self, *, tag: str | None = None) -> Ref | None:
        """Take one; None where blockers or a participant prevented it, which is reported. Raises Fenced."""
        if self._controller is None or self._world.fleet is None:
            return None
        async with self._one_checkpoint:
            try:
                return await self._checkpoint(tag)
            except Blocked as error:
                self.tally.blocked += 1
                self._blocking = [blocker.life for blocker in error.standstill.blockers]
                self._emit("blocked", {"times": self.tally.blocked, "blockers": error.failures})
            except CoordinationError as error:
                self._emit("checkpoint_failed", {"error": str(error)})
            return None

    async def _checkpoint(self, tag: str | None) -> Ref | None:
        assert self._controller is not None
        assert self._world.fleet is not None
        fleet = self._world.fleet.with_floor(self.ledger.floor)
        began = time.monotonic()
        await self._still.acquire()
        held = True

        def let_go() -> None:
            nonlocal held
            if held:
                self._still.release()
                held = False

        try:
            async with checkpoint(fleet, self._controller, self._limits, resumed=let_go) as opened:
                scope, restarts = self.ledger.sets(opened.standstill.restarts)
                saved = self._tokens()
                opened.take(
                    scope=scope,
                    restarts=restarts,
                    state={"done": len(self.ledger.done), "rollouts": len(self.ledger.rollouts)},
                    output=[self._output.segment],
                    fingerprint=self._fingerprint,
                    tags=[tag] if tag else [],
                )
        finally:
            let_go()
        self._saved = saved
        self._report(opened.published, opened.held_s, time.monotonic() - began, len(scope))
        await self._prune()
        return opened.published

    def _report(self, ref: Ref | None, held_s: float, took_s: float, rollouts: int) -> None:
        self.tally.checkpoints += 1
        self.tally.blocked = 0
        self.tally.held_s.append(held_s)
        self.tally.last_checkpoint = time.monotonic()
        facts = {"checkpoint": str(ref and ref.checkpoint), "rollouts": rollouts, "held_s": held_s, "took_s": took_s}
        self._emit("checkpoint", facts)

    async def _prune(self) -> None:
        assert self._store is not None
        try:
            await prune(self._store, Retention(keep_last=self._config.checkpoint.keep_last))
        except StoreError as error:
            self._emit("prune_failed", {"error": str(error)})

    @property
    def turns_in_flight(self) -> int:
        """Model calls that the episodes in flight have made."""
        return sum(state["steps"] for state in self._agent_states().values())

    @property
    def tokens_at_risk(self) -> int:
        """Tokens of the episodes in flight that no checkpoint has yet."""
        return sum(max(0, tokens - self._saved.get(life, 0)) for life, tokens in self._tokens().items())

    def _tokens(self) -> dict[Life, int]:
        """Tokens that each episode in flight has generated."""
        return {life: int(state["usage"].get("output_tokens", 0)) for life, state in self._agent_states().items()}

    def _agent_states(self) -> dict[Life, Any]:
        held = ((held.life, held.state.activation) for held in self._world.agent.held())
        return {life: activation.state for life, activation in held if activation is not None}

    def blockers(self) -> list[Life]:
        """The open lives that held the last checkpoint back."""
        return [life for life in self._blocking if self.ledger.is_open(life)]

    @property
    def _limits(self) -> RoundLimits:
        table = self._config.checkpoint
        return RoundLimits(
            prepare_timeout_s=table.prepare_timeout_s,
            more_time_s=table.more_time_s,
            commit_timeout_s=table.commit_timeout_s,
            publish_timeout_s=table.publish_timeout_s,
            lease_s=table.lease_s,
        )

    async def retire(self, lives: list[Life]) -> frozenset[Life]:
        """Retire lives everywhere and start their rollouts over; returns those that did not stop in time."""
        fleet = self._world.fleet
        if fleet is None or not lives:
            return frozenset()
        async with self._still:
            left = await retire(fleet, lives, timeout_s=RETIRE_TIMEOUT_S)
            self.ledger.start_over(lives)
        self._room.set()
        return left
