"""One epoch of a run: begin where earlier ones ended, collect until it is over, stopped, or servers are lost.

Everything that an epoch knows beside the rows is found out anew for the next one, also in the same process: a loss is
handled as a crash of the controller is, but that nobody has to run the command again.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from participants import telemetry
from participants.telemetry import names
from participants.telemetry.operations import controlled
from store import Controller, Fenced, RootMissing, Store, StoreError

from ..errors import CoordinationError
from .checkpoints import Checkpoints
from .claims import later_claims
from .collector import Collector, Emit, Tally
from .config import Config
from .ending import Ending
from .groups import ENDS_GROUP, group_of
from .ledger import RunLedger
from .merge import failures_url, write_output
from .progress import report_progress
from .rows import Rollout
from .saved import Totals
from .segments import Header, Kept, Segments, Writer, count_failures, final_lines, forgiven
from .start import Before, Wishes, go_on, rows_only, seal_and_read
from .summary import EXIT_FAILURES, EXIT_FINE, Options, Summary
from .world import Lost, World, Worlds


@dataclass(slots=True)
class Run:
    """What one start works with; `store`, `controller` and `checkpoints` only where checkpoints are on."""

    config: Config
    options: Options
    emit: Emit
    rollouts: list[Rollout]
    fields: dict[str, str]
    segments: Segments
    worlds: Worlds
    store: Store | None = None
    controller: Controller | None = None
    """Of this epoch."""
    checkpoints: Checkpoints | None = None
    """Of this epoch."""
    wishes: Wishes = field(default_factory=Wishes)
    """Of the first epoch what the start was asked for; the later ones just go on."""
    ending: Ending = field(default_factory=Ending)
    summary: Summary = field(default_factory=Summary)
    tally: Tally = field(default_factory=Tally)
    earlier: Totals | None = None
    """What earlier starts came to; None before the first epoch."""
    left: list[str] = field(default_factory=list)
    """What killed starts left half written beside the output."""
    began: float = field(default_factory=time.monotonic)
    """Before the first claim, on the monotonic clock; in a later epoch when it has ended all rounds of earlier ones."""


@asynccontextmanager
async def bare_errors() -> AsyncIterator[None]:
    """What a task group raises comes out as itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__


async def run_epochs(run: Run) -> None:
    """One after the other, as often as servers are lost and come back. Raises Fenced, ServersGone."""
    async with bare_errors(), later_claims() as next_claim:
        while lost := await _run_epoch(run):
            assert run.store is not None
            assert run.controller is not None
            await _refuse_fenced(run)
            run.summary.servers_lost += len(lost)
            await run.worlds.recover(lost, run.tally.rows + run.tally.failures)
            with controlled("claim") as found:
                run.controller = await next_claim(run.store, run.controller)
                found.set(epoch=run.controller.epoch)
            run.wishes = replace(run.wishes, fresh=False, retry_failed=False)


async def _refuse_fenced(run: Run) -> None:
    """Servers that another collector has taken over look as if they were lost."""
    assert run.controller is not None
    try:
        await run.controller.refresh()
    except Fenced:
        raise
    except StoreError:
        return  # Unreachable for now; the next claim will tell.


async def _run_epoch(run: Run) -> Lost:
    """Collect until it is over; gives who is lost where that ended it, and another epoch has to go on."""
    world, lost = await run.worlds.world(), Lost()
    watching = anyio.CancelScope()
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            with watching:
                lost.update(await world.watch())
                group.cancel_scope.cancel()

        group.start_soon(watch)
        try:
            async with bare_errors():
                await _collect(run, world, watching)
        except CoordinationError as error:
            await anyio.sleep(world.notice_s(error))  # What a lost server fails is none of the run: this is cancelled.
            raise
        group.cancel_scope.cancel()
    if lost and run.ending.told is not None:
        _tell_without_checkpoint(run)
        return {}
    return lost


async def _collect(run: Run, world: World, watching: anyio.CancelScope) -> None:
    """When everything is delivered nobody is watched any more: nothing depends on the servers then."""
    run.summary.rollouts = len(run.rollouts)
    with telemetry.span(names.COLLECT_BEGIN, epoch=run.controller.epoch if run.controller else 0):
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
        before.adopted,
        [line.rollout_id for line in before.lines if line.why in ENDS_GROUP],
    )
    ledger.failed_for_good = sum(line.failed for rollout_id, line in decided.items() if rollout_id in ledger.done)
    ledger.lost_groups.update(group_of(line.rollout_id) for line in decided.values() if line.failed)
    first, run.earlier = run.earlier is None, run.earlier or before.totals
    forgiving = run.wishes.retry_failed
    collector = Collector(run.config, world, ledger, writer, run.emit, run.earlier, run.tally, forgiving=forgiving)
    if run.store is not None and run.controller is not None and world.fleet is not None:
        table = run.config.checkpoint
        run.checkpoints = Checkpoints(table, collector, world.fleet, run.controller, run.fields)
    if first:
        run.summary.found_done = len(ledger.done)
        _tell_start(run, ledger, world)
    else:
        run.began = time.monotonic()
        run.emit("went_on", {"epoch": ledger.epoch, **_counts(ledger)})
    try:
        stopped = await _until_done(run, collector)
    finally:
        _sum_up(run.summary, collector)
        run.tally.continued += ledger.continued
        run.tally.restarted += ledger.restarted
    watching.cancel()
    if not stopped:
        await finish(run, ledger, [*before.lines, *writer.lines])


async def _begin(run: Run, world: World) -> tuple[Before, Writer]:
    """Find what counts, restore, and begin this epoch's segment."""
    wishes = run.wishes
    header = Header(run.fields, wishes.accept, wishes.retry_failed)
    if run.store is None or run.controller is None:
        epoch, found = await rows_only(run.segments, run.fields, wishes)
        writer, lines = Writer(run.segments, epoch, found), found.lines
        if found.header is None or wishes.accept or wishes.retry_failed:
            await writer.begin(header)
        if wishes.fresh:
            await run.segments.put_others_aside()
        return Before(_without_failed(lines, wishes)), writer
    below = await seal_and_read(run.controller, run.segments, wishes)
    written = frozenset(line.life for line in below.lines)
    below.lines = _without_failed(below.lines, wishes)
    by_id = {rollout.rollout_id: rollout for rollout in run.rollouts}
    before = await go_on(run.store, run.controller, world, below.lines, written, by_id)
    if before.adopted or before.retired:
        run.summary.adopted += len(before.adopted)
        run.emit("adopted", {"lives": len(before.adopted), "retired": len(before.retired)})
    writer = Writer(run.segments, run.controller.epoch)
    await writer.begin(header)
    if wishes.fresh:
        await run.segments.put_others_aside()
    return before, writer


def _without_failed(lines: list[Kept], wishes: Wishes) -> list[Kept]:
    return forgiven(lines) if wishes.retry_failed else lines


def _counts(ledger: RunLedger) -> dict[str, int]:
    counts = {"done": len(ledger.done), "restored": len(ledger.restored), "waiting": len(ledger.waiting)}
    return {**counts, "adopted": len(ledger.open)} if ledger.open else counts


def _tell_start(run: Run, ledger: RunLedger, world: World) -> None:
    run.emit("started", {"epoch": ledger.epoch, "rollouts": len(run.rollouts), **_counts(ledger)})
    for life, reason in ledger.dropped.items():
        run.emit("dropped", {"life": str(life), "reason": reason})
    for role in world.undeclared() if run.store is not None else []:
        message = f"{role} declares no checkpoint_mode: its episodes start over after a crash"
        run.emit("restart_only", {"resources": role, "message": message})


# Signals and the end


async def _until_done(run: Run, collector: Collector) -> bool:
    """Collect; True where a signal stopped it. Raises what ended it too early, after a last checkpoint."""
    stopped = True
    try:
        stopped = await _collect_or_stop(run, collector)
    except anyio.get_cancelled_exc_class():
        if collector.broken is None:  # Else a signal has only cut short what was still to be done.
            raise
    if collector.broken is not None:
        raise collector.broken
    return stopped


async def _collect_or_stop(run: Run, collector: Collector) -> bool:
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
        group.start_soon(run.worlds.watch_endpoint)
        with run.ending.stopping_by(stop.set, within_s), run.ending.checkpointing_by(partial(_ask, wish)):
            async with report_progress(collector, run.checkpoints, run.emit, run.options.console):
                await collector.run()
                if collector.broken is not None:
                    await _last_checkpoint(run)
                elif run.checkpoints is not None:
                    await run.checkpoints.settle()
        group.cancel_scope.cancel()
    return stop.is_set() and not collector.ledger.finished


def _ask(wish: MemoryObjectSendStream[None]) -> None:
    with suppress(anyio.WouldBlock):  # One is asked for already.
        wish.send_nowait(None)


async def _take_when_wished(wishes: MemoryObjectReceiveStream[None], checkpoints: Checkpoints) -> None:
    async for _ in wishes:
        await checkpoints.take()


async def _last_checkpoint(run: Run) -> None:
    if run.checkpoints is not None and await run.checkpoints.stop() is None:
        _tell_without_checkpoint(run)


def _tell_without_checkpoint(run: Run) -> None:
    run.emit("stopped_without_checkpoint", {"hint": "The next start continues from the checkpoint before"})


def _sum_up(summary: Summary, collector: Collector) -> None:
    ledger, tally = collector.ledger, collector.tally
    summary.done, summary.dropped = len(ledger.done), len(ledger.dropped)
    summary.failed_for_good = ledger.failed_for_good
    summary.continued, summary.restarted = tally.continued + ledger.continued, tally.restarted + ledger.restarted
    summary.rows, summary.failures = tally.rows, tally.failures
    summary.saved_calls, summary.saved_tokens = tally.saved.calls, tally.saved.tokens
    summary.all_starts = asdict(collector.totals())
    summary.tokens, summary.checkpoints = tally.delivered.tokens, tally.checkpoints
    summary.failed_checkpoints = tally.failed_checkpoints
    if held := sorted(tally.held_s):
        picked = {"p50": held[len(held) // 2], "p99": held[len(held) * 99 // 100], "longest": held[-1]}
        summary.held_s = {name: round(value, 4) for name, value in picked.items()}


async def finish(run: Run, ledger: RunLedger, lines: list[Kept]) -> None:
    """Merge the segments, unless another collector owns the run by now; then sweep what killed starts have left."""
    summary = run.summary
    if run.controller is not None:
        with suppress(RootMissing):  # Without the store nobody can have claimed the run; the next start will say it.
            await run.controller.refresh()
    decided = final_lines(lines)
    failures = [line for line in lines if line.failed]
    output = run.config.run.output
    summary.mean_reward = await write_output(output, run.segments, decided, failures, ledger.rollouts)
    summary.exit_code = EXIT_FAILURES if summary.failed_for_good else EXIT_FINE
    summary.failures_file = failures_url(output) if summary.failed_for_good else ""
    await run.segments.remove(run.left)
    if run.checkpoints is not None:
        await run.checkpoints.sweep(older_than_s=time.monotonic() - run.began)
