"""One start of a collection run, from the configuration to the exit code.

With checkpoints on: claim an epoch; fix the lengths of lower segments with a seal; restore what the head has and the
output does not; then collect. The same command does this whether the run is new or was killed.

    exit code    meaning
    0            every rollout is done; the output is merged
    1            the same, and some rollouts failed for good
    75           stopped by SIGTERM after a checkpoint; the same command continues
"""

import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
from rich.console import Console

from store import (
    DEFAULT_LIMITS,
    Chain,
    Controller,
    Life,
    Limits,
    Seal,
    Segment,
    Store,
    claim,
    open_checkpoint,
    open_store,
)

from ..coordination import restore, resume
from ..fleet import adopt
from .collector import Collector, Emit
from .config import Config, ConfigError
from .fingerprint import fingerprint
from .ledger import RunLedger
from .output import Line, Output, count_failures, final_lines, merge, open_output
from .progress import live_table
from .rows import Rollout, load_rollouts
from .world import World, open_world

EXIT_FINE, EXIT_FAILURES, EXIT_STOPPED = 0, 1, 75
RESTORE_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says beside the configuration."""

    fresh: bool = False
    take_over: bool = False
    accept: Sequence[str] = ()
    """Fingerprint fields that may differ."""
    live: bool = False
    """Show a live table on stderr."""


@dataclass(slots=True)
class Summary:
    """What a start of a run came to."""

    exit_code: int = EXIT_FINE
    rollouts: int = 0
    done: int = 0
    rows: int = 0
    failed: int = 0
    found_done: int = 0
    """Finished by earlier starts."""
    continued: int = 0
    restarted: int = 0
    checkpoints: int = 0
    facts: dict[str, Any] = field(default_factory=dict)

    def as_facts(self) -> dict[str, Any]:
        """For an event."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "facts"}
        return {**plain, **self.facts}


@dataclass(frozen=True, slots=True)
class _Before:
    """What earlier starts left."""

    lines: list[Line]
    scope: tuple[Life, ...] = ()
    restarts: tuple[Life, ...] = ()


async def collect(config: Config, options: Options, emit: Emit, upstream: Any = None) -> Summary:
    """Run to the end, or to SIGTERM. Raises ConfigError, StoreError and CoordinationError."""
    rollouts = await anyio.to_thread.run_sync(load_rollouts, config)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(_open_store(config)) if config.checkpoint.enabled else None
        controller = None
        if store is not None:
            claimed = claim(store, "none" if options.fresh else "head", take_over=options.take_over)
            controller = await stack.enter_async_context(claimed)
        epoch = controller.epoch if controller else 0
        output = await open_output(config.run.output, epoch)
        stack.push_async_callback(output.aclose)
        world = await stack.enter_async_context(open_world(config, store, upstream))
        return await _collect(config, options, emit, rollouts, store, controller, output, world)


@asynccontextmanager
async def _open_store(config: Config) -> AsyncIterator[Store]:
    table = config.checkpoint
    limits: Limits = replace(DEFAULT_LIMITS, liveness_beat_s=table.liveness_beat_s)
    async with open_store(str(table.url), "write", limits=limits, single_writer=table.single_writer) as store:
        yield store


async def _collect(
    config: Config,
    options: Options,
    emit: Emit,
    rollouts: list[Rollout],
    store: Store | None,
    controller: Controller | None,
    output: Output,
    world: World,
) -> Summary:
    fields = fingerprint(config, rollouts) if controller else {}
    if store is None or controller is None:
        before = await _rows_only(options, output)
        world_now = world
    else:
        before = await _seal_and_read(options, store, controller, output)
        world_now, before = await _restore(options, store, controller, world, before, fields)
    decided = final_lines(before.lines)
    epoch = controller.epoch if controller else 0
    ledger = RunLedger.begin(
        epoch, rollouts, decided.keys(), before.scope, before.restarts, count_failures(before.lines)
    )
    collector = Collector(
        config, world_now, ledger, output, store=store, controller=controller, fingerprint=fields, emit=emit
    )
    summary = Summary(rollouts=len(rollouts), found_done=len(ledger.done))
    emit(
        "started",
        {"epoch": epoch, "rollouts": len(rollouts), "done": len(ledger.done), "restored": len(ledger.restored)},
    )
    stopped = await _until_done(config, collector, emit, live=options.live)
    return await _finish(config, collector, output, before, summary, stopped)


async def _rows_only(options: Options, output: Output) -> _Before:
    """Without checkpoints: finished rows are kept, and nothing else."""
    if options.fresh and await output.epochs():
        raise ConfigError(f"{output.url}.segments has rows of an earlier run; remove it to start afresh")
    lines, length = await output.read_segment(0)
    await output.go_on(length)
    return _Before(lines)


async def _seal_and_read(options: Options, store: Store, controller: Controller, output: Output) -> _Before:
    """Fix the lengths of lower segments on the chain, and read what counts. A fresh start seals them all at 0."""
    sealed = _sealed_lengths(await store.chain())
    lines: list[Line] = []
    segments = []
    for epoch in range(1, controller.epoch):
        found, length = await output.read_segment(epoch, 0 if options.fresh else sealed.get(epoch))
        lines.extend(found)
        segments.append(Segment(name=str(epoch), length=length))
    if segments:
        await controller.seal(segments)
    return _Before(lines)


def _sealed_lengths(chain: Chain) -> dict[int, int]:
    """The lengths that the seals so far have fixed; a later seal, of a fresh start, overrules."""
    lengths: dict[int, int] = {}
    for entry in chain.entries:
        if isinstance(entry.action, Seal):
            lengths.update((int(segment.name), segment.length) for segment in entry.action.segments)
    return lengths


async def _restore(
    options: Options, store: Store, controller: Controller, world: World, before: _Before, fields: dict[str, str]
) -> tuple[World, _Before]:
    """Adopt the new epoch everywhere, and restore what the head has and the output does not."""
    assert world.fleet is not None
    fleet, _ = await adopt(world.fleet, controller.epoch)
    world = replace(world, fleet=fleet)
    head = controller.head
    if head is None:
        return world, before
    opened = await open_checkpoint(store, head)
    opened.check_fingerprint(fields, options.accept)
    decided = final_lines(before.lines)
    scope = tuple(life for life in opened.manifest.scope if life.rollout_id not in decided)
    if scope:
        round_id = controller.next_round()
        await restore(fleet, round_id, head, scope, timeout_s=RESTORE_TIMEOUT_S)
        await resume(fleet, round_id)
    return world, replace(before, scope=scope, restarts=opened.manifest.restarts)


# Signals and the end


async def _until_done(config: Config, collector: Collector, emit: Emit, *, live: bool) -> bool:
    """Collect; True where SIGTERM stopped it."""
    stopped = False
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            nonlocal stopped
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGUSR1) as signals:
                async for number in signals:
                    if number == signal.SIGUSR1:
                        group.start_soon(_checkpoint_now, collector)
                        continue
                    if stopped:
                        group.cancel_scope.cancel()  # The second one stops at once.
                        return
                    stopped = True
                    emit("stopping", {"signal": number})
                    group.start_soon(_stop, config, collector, group.cancel_scope)

        group.start_soon(watch)
        async with live_table(collector, Console(stderr=True), on=live):
            await collector.run()
        group.cancel_scope.cancel()
    return stopped and not collector.ledger.finished


async def _checkpoint_now(collector: Collector) -> None:
    await collector.checkpoint()


async def _stop(config: Config, collector: Collector, scope: anyio.CancelScope) -> None:
    """Checkpoint and stop; blockers that outlast the grace are retired, so that the rest is saved."""
    with anyio.move_on_after(config.checkpoint.grace_s):
        while await collector.checkpoint() is None and config.checkpoint.enabled:
            await anyio.lowlevel.checkpoint()
        scope.cancel()
    await collector.retire(collector.blockers())
    await collector.checkpoint()
    scope.cancel()


async def _finish(
    config: Config, collector: Collector, output: Output, before: _Before, summary: Summary, stopped: bool
) -> Summary:
    ledger, tally = collector.ledger, collector.tally
    summary.done, summary.continued, summary.restarted = len(ledger.done), ledger.continued, ledger.restarted
    summary.checkpoints, summary.rows, summary.failed = tally.checkpoints, tally.rows, tally.failures
    summary.facts = {"tokens": tally.tokens, "held_s": tally.held_s}
    if stopped:
        summary.exit_code = EXIT_STOPPED
        return summary
    lines = [*before.lines, *(await output.read_own())]
    decided = final_lines(lines)
    failures = [line for line in lines if line.failed]
    await merge(config.run.output, decided, failures, list(ledger.rollouts))
    if any(line.failed for line in decided.values()):
        summary.exit_code = EXIT_FAILURES
    return summary
