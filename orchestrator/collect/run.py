"""One start of a collection run, from the configuration to the exit code. The same command starts and continues it.

exit code    meaning
0            every rollout is done; the output is merged
1            the same, and some rollouts failed for good
75           stopped by SIGTERM or SIGINT; the same command continues
76           another collector has taken over; this one's later rows do not count

Order: whatever can be refused without the store is refused first; then what the store and the output say; then the run
is claimed. The summary is told as soon as it stands, before anything is closed, which may take long.
"""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from rich.console import Console

from participants import Upstream
from participants.serving import Endpoint
from store import DEFAULT_LIMITS, Controller, Limits, RootMissing, Store, claim, open_store

from .asking import check_parameters
from .checkpoints import Checkpoints
from .collector import Collector, Emit
from .config import CheckpointTable, Config
from .embedded import make_parts, run_world
from .ending import EXIT_STOPPED, LONGEST_CLOSE_S, Ending
from .fingerprint import fingerprint
from .ledger import RunLedger
from .merge import failures_url, write_output
from .places import check_places, try_places
from .progress import report_progress
from .rows import Rollout, load_rollouts
from .segments import ROWS_ONLY, Header, Kept, Segments, Writer, count_failures, final_lines, open_segments
from .start import Before, Wishes, check_run, refuse_lost_store, restore_head, rows_only, seal_and_read
from .world import World

EXIT_FINE, EXIT_FAILURES, EXIT_FENCED = 0, 1, 76


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says beside the configuration."""

    fresh: bool = False
    take_over: bool = False
    accept: tuple[str, ...] = ()
    """Fingerprint fields that may differ."""
    retry_failed: bool = False
    """Try again what has failed for good."""
    console: Console | None = None
    """Where a live table is shown, if one is."""
    file: Path | None = None
    """That of the configuration, which the run must not replace."""

    @property
    def wishes(self) -> Wishes:
        """Those that concern what earlier starts left."""
        return Wishes(fresh=self.fresh, accept=self.accept, retry_failed=self.retry_failed)


@dataclass(slots=True)
class Summary:
    """What a start of a run came to."""

    exit_code: int = EXIT_STOPPED
    """As of a run that did not come to its end."""
    rollouts: int = 0
    done: int = 0
    """By this start and earlier ones."""
    failed_for_good: int = 0
    failures_file: str = ""
    """Where the failures stand, if some are for good."""
    found_done: int = 0
    """By earlier starts."""
    rows: int = 0
    """Written by this start, as everything below."""
    failures: int = 0
    continued: int = 0
    """Rollouts that went on from a checkpoint."""
    restarted: int = 0
    """Rollouts that started over although an earlier life of theirs was known."""
    dropped: int = 0
    """Rollouts of the checkpoint that the input does not have any more."""
    saved_calls: int = 0
    """Model calls that continued rollouts did not repeat."""
    saved_tokens: int = 0
    all_starts: dict[str, int] = field(default_factory=dict)
    """These four of every start so far, as far as a checkpoint or this start has counted them."""
    tokens: int = 0
    """Of the rows written."""
    checkpoints: int = 0
    failed_checkpoints: int = 0
    held_s: dict[str, float] = field(default_factory=dict)
    """For how long checkpoints kept work waiting: p50, p99 and the longest."""

    def as_facts(self) -> dict[str, Any]:
        """For an event."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class _Run:
    """What one start works with; `store`, `controller` and `checkpoints` only where checkpoints are on."""

    config: Config
    options: Options
    emit: Emit
    rollouts: list[Rollout]
    fields: dict[str, str]
    segments: Segments
    store: Store | None = None
    controller: Controller | None = None
    checkpoints: Checkpoints | None = None
    ending: Ending = field(default_factory=Ending)
    summary: Summary = field(default_factory=Summary)
    endpoint: Endpoint | None = None
    """Where it is the configuration's own."""
    left: list[str] = field(default_factory=list)
    """What killed starts left half written beside the output."""
    began: float = field(default_factory=time.monotonic)
    """Before the claim, on the monotonic clock."""


async def collect(
    config: Config,
    options: Options,
    emit: Emit,
    upstream: Upstream | None = None,
    segments: Segments | None = None,
    ending: Ending | None = None,
) -> Summary:
    """Run to the end, or until `ending` hears that it shall stop; the summary is the last event.

    Raises ConfigError, StoreError (Fenced among them) and CoordinationError. `upstream` and `segments` are opened from
    the configuration unless they are given.
    """
    ending, summary, close_s = ending or Ending(), Summary(), config.run.close_s
    ending.attach()

    def tell_end() -> None:
        """Before anything is closed, which may take long, or be cut short."""
        ending.code = summary.exit_code
        emit("summary", summary.as_facts())
        ending.limit(LONGEST_CLOSE_S if ending.told is None else close_s)

    told = False
    with anyio.CancelScope() as scope, ending.stopping_by(scope.cancel, close_s):
        async with _bare_errors(), AsyncExitStack() as stack:
            check_parameters(config)
            rollouts = await anyio.to_thread.run_sync(load_rollouts, config)
            fields = await anyio.to_thread.run_sync(fingerprint, config, rollouts)
            await anyio.to_thread.run_sync(check_places, config, options.file)
            parts = await stack.enter_async_context(make_parts(config, upstream, partial(_tell_endpoint, config, emit)))
            store, segments = await _open_storage(stack, config, options, segments)
            run = _Run(config, options, emit, rollouts, fields, segments, store, ending=ending, summary=summary)
            run.endpoint = parts.upstream if isinstance(parts.upstream, Endpoint) else None
            run.left = await segments.leftovers()
            if store is not None:
                await check_run(store, segments, fields, options.wishes)
                base = "none" if options.fresh else "head"
                claimed = claim(store, base, take_over=options.take_over)  # type: ignore[arg-type]
                run.controller = await stack.enter_async_context(claimed)
            world = await stack.enter_async_context(run_world(config, parts, store))
            with anyio.CancelScope() as work, ending.stopping_by(work.cancel, close_s):
                await _collect(run, world)
            tell_end()
            told = True
    if not told:
        tell_end()
    return summary


def _tell_endpoint(config: Config, emit: Emit, message: str) -> None:
    emit("endpoint", {"base_url": config.model.base_url, "message": message})


async def _open_storage(
    stack: AsyncExitStack, config: Config, options: Options, segments: Segments | None
) -> tuple[Store | None, Segments]:
    """The store, where there is one, and this run's segments; no store is made where one has gone."""
    table = config.checkpoint
    if segments is None:
        segments = await open_segments(config.run.output, ROWS_ONLY, single_writer=table.single_writer)
        stack.push_async_callback(segments.aclose)
        await anyio.to_thread.run_sync(try_places, config.run.output)
    if not table.enabled:
        return None, segments
    if not options.fresh:
        await refuse_lost_store(str(table.url), segments)
    store = await stack.enter_async_context(_open_store(table))
    return store, segments.of(store.run_id)


@asynccontextmanager
async def _bare_errors() -> AsyncIterator[None]:
    """What a task group raises comes out as itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__


@asynccontextmanager
async def _open_store(table: CheckpointTable) -> AsyncIterator[Store]:
    limits: Limits = replace(DEFAULT_LIMITS, liveness_beat_s=table.liveness_beat_s)
    async with open_store(str(table.url), "write", limits=limits, single_writer=table.single_writer) as store:
        yield store


async def _collect(run: _Run, world: World) -> None:
    run.summary.rollouts = len(run.rollouts)
    before, writer = await _begin(run, world)
    decided = final_lines(before.lines)
    ledger = RunLedger.begin(
        writer.epoch,
        run.rollouts,
        decided.keys(),
        before.scope,
        before.restarts,
        count_failures(before.lines),
        before.dropped,
    )
    collector = Collector(run.config, world, ledger, writer, run.emit, before.totals)
    if run.store is not None and run.controller is not None and world.fleet is not None:
        table = run.config.checkpoint
        run.checkpoints = Checkpoints(table, collector, world.fleet, run.store, run.controller, run.fields)
    _tell_start(run, ledger, world)
    run.summary.found_done = len(ledger.done)
    try:
        stopped = await _until_done(run, collector)
    finally:
        _sum_up(run.summary, collector)
    if not stopped:
        await _finish(run, ledger, [*before.lines, *writer.lines])


async def _begin(run: _Run, world: World) -> tuple[Before, Writer]:
    """Find what counts, restore, and begin this epoch's segment."""
    wishes = run.options.wishes
    header = Header(run.fields, wishes.accept, wishes.retry_failed)
    if run.store is None or run.controller is None:
        epoch, found = await rows_only(run.segments, run.fields, wishes)
        writer, lines = Writer(run.segments, epoch, found), found.lines
        if found.header is None or wishes.accept or wishes.retry_failed:
            await writer.begin(header)
        if wishes.fresh:
            await run.segments.put_others_aside()
        return Before(_without_failed(lines, wishes)), writer
    below = await seal_and_read(run.store, run.controller, run.segments, wishes)
    below.lines = _without_failed(below.lines, wishes)
    by_id = {rollout.rollout_id: rollout for rollout in run.rollouts}
    before = await restore_head(run.store, run.controller, world, below, by_id, final_lines(below.lines))
    writer = Writer(run.segments, run.controller.epoch)
    await writer.begin(header)
    if wishes.fresh:
        await run.segments.put_others_aside()
    return before, writer


def _without_failed(lines: list[Kept], wishes: Wishes) -> list[Kept]:
    return [line for line in lines if not line.failed] if wishes.retry_failed else lines


def _tell_start(run: _Run, ledger: RunLedger, world: World) -> None:
    counts = {"done": len(ledger.done), "restored": len(ledger.restored), "waiting": len(ledger.waiting)}
    run.emit("started", {"epoch": ledger.epoch, "rollouts": len(run.rollouts), **counts})
    for life, reason in ledger.dropped.items():
        run.emit("dropped", {"life": str(life), "reason": reason})
    for role in world.undeclared() if run.store is not None else []:
        message = f"{role} declares no checkpoint_mode: its episodes start over after a crash"
        run.emit("restart_only", {"resources": role, "message": message})


# Signals and the end


async def _until_done(run: _Run, collector: Collector) -> bool:
    """Collect; True where a signal stopped it. Raises what broke the output, after a last checkpoint."""
    stop, close_s = anyio.Event(), run.config.run.close_s
    within_s = close_s if run.checkpoints is None else run.config.checkpoint.grace_s + close_s
    wish, wishes = anyio.create_memory_object_stream[None](1)
    async with wish, wishes, anyio.create_task_group() as group:

        async def stop_when_told() -> None:
            await stop.wait()
            if run.ending.told is not None:
                run.emit("stopping", {"signal": run.ending.told.name})
            async with run.ending.prolonged(within_s):
                await _last_checkpoint(run)
            group.cancel_scope.cancel()

        group.start_soon(stop_when_told)
        if run.checkpoints is not None:
            group.start_soon(run.checkpoints.run)
            group.start_soon(_take_when_wished, wishes, run.checkpoints)
        if run.endpoint is not None:
            group.start_soon(run.endpoint.watch)
        with run.ending.stopping_by(stop.set, within_s), run.ending.checkpointing_by(partial(_ask, wish)):
            async with report_progress(collector, run.checkpoints, run.emit, run.options.console):
                await collector.run()
                if collector.broken is not None:
                    await _last_checkpoint(run)
                elif run.checkpoints is not None:
                    await run.checkpoints.settle()
        group.cancel_scope.cancel()
    if collector.broken is not None:
        raise collector.broken
    return stop.is_set() and not collector.ledger.finished


def _ask(wish: MemoryObjectSendStream[None]) -> None:
    with suppress(anyio.WouldBlock):  # One is asked for already.
        wish.send_nowait(None)


async def _take_when_wished(wishes: MemoryObjectReceiveStream[None], checkpoints: Checkpoints) -> None:
    async for _ in wishes:
        await checkpoints.take()


async def _last_checkpoint(run: _Run) -> None:
    if run.checkpoints is not None and await run.checkpoints.stop() is None:
        run.emit("stopped_without_checkpoint", {"hint": "The next start continues from the checkpoint before"})


def _sum_up(summary: Summary, collector: Collector) -> None:
    ledger, tally = collector.ledger, collector.tally
    summary.done, summary.continued, summary.restarted = len(ledger.done), ledger.continued, ledger.restarted
    summary.rows, summary.failures, summary.dropped = tally.rows, tally.failures, len(ledger.dropped)
    summary.saved_calls, summary.saved_tokens = tally.saved.calls, tally.saved.tokens
    summary.all_starts = asdict(collector.totals())
    summary.tokens, summary.checkpoints = tally.delivered.tokens, tally.checkpoints
    summary.failed_checkpoints = tally.failed_checkpoints
    if held := sorted(tally.held_s):
        picked = {"p50": held[len(held) // 2], "p99": held[len(held) * 99 // 100], "longest": held[-1]}
        summary.held_s = {name: round(value, 4) for name, value in picked.items()}


async def _finish(run: _Run, ledger: RunLedger, lines: list[Kept]) -> None:
    """Merge the segments, unless another collector owns the run by now; then sweep what killed starts have left."""
    summary = run.summary
    if run.controller is not None:
        with suppress(RootMissing):  # Without the store nobody can have claimed the run; the next start will say it.
            await run.controller.refresh()
    decided = final_lines(lines)
    await write_output(run.config.run.output, run.segments, decided, [x for x in lines if x.failed], ledger.rollouts)
    summary.failed_for_good = sum(decided[r].failed for r in ledger.rollouts)
    summary.exit_code = EXIT_FAILURES if summary.failed_for_good else EXIT_FINE
    summary.failures_file = failures_url(run.config.run.output) if summary.failed_for_good else ""
    await run.segments.remove(run.left)
    if run.checkpoints is not None:
        await run.checkpoints.sweep(older_than_s=time.monotonic() - run.began)
