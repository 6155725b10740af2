"""One start of a collection run, from the configuration to the exit code. The same command starts and continues it.

exit code    meaning
0            every rollout is done; the output is merged
1            the same, and some rollouts failed for good
75           stopped by SIGTERM or SIGINT; the same command continues
76           another collector has taken over; this one's later rows do not count
77           servers of the run are lost, or did not come up; the same command continues
78           nothing but failures for so long that the run has stopped; the same command continues

Order: whatever can be refused without the store is refused first; then what the store and the output say, and servers
that are attached to; then the run is claimed, and only then a server is started or ended, for it may be another
collector's. Where servers are lost, another epoch goes on in the same process. The summary is told as soon as it
stands, before anything is closed, which may take long.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial

import anyio
import anyio.to_thread

from participants import Upstream
from participants.serving import ConfigError
from participants.telemetry.operations import controlled
from store import DEFAULT_LIMITS, Limits, Store, StoreError, claim, open_store
from store.publish import Base

from ..deployment import DeploymentError
from ..errors import CoordinationError
from .asking import check_parameters
from .collector import Emit, NothingWorks
from .config import CheckpointTable, Config
from .embedded import EmbeddedWorlds, make_parts
from .ending import LONGEST_CLOSE_S, Ending
from .epoch import Run, bare_errors, run_epochs
from .fingerprint import fingerprint
from .places import check_places, try_places
from .rows import load_rollouts
from .segments import ROWS_ONLY, Segments, open_segments
from .servers import ServedWorlds
from .start import check_run, mark_output, refuse_lost_output, refuse_lost_store
from .summary import EXIT_NOTHING_WORKS, Options, Summary
from .telemetry import recording
from .world import Worlds

ENDS_RUN = (ConfigError, StoreError, CoordinationError, DeploymentError, NothingWorks)
"""What `collect` raises: each says in a sentence what is wrong and what to do. Anything else is a bug."""
KILL_S = 10.0
"""How long servers that are stopped may take beyond their own time."""


async def collect(
    config: Config,
    options: Options,
    emit: Emit,
    upstream: Upstream | None = None,
    segments: Segments | None = None,
    ending: Ending | None = None,
) -> Summary:
    """Run to the end, or until `ending` hears that it shall stop; the summary is the last event.

    Raises `ENDS_RUN`: Fenced is a StoreError, and ServersGone a CoordinationError.
    `upstream` and `segments` are opened from the configuration unless they are given.
    """
    ending, summary, close_s = ending or Ending(), Summary(), _close_s(config)
    ending.attach()

    def tell_end() -> None:
        """Before anything is closed, which may take long, or be cut short."""
        ending.code = summary.exit_code
        emit("summary", summary.as_facts())
        ending.limit(max(LONGEST_CLOSE_S, close_s) if ending.told is None else close_s)

    told, failed = False, list[Exception]()
    with anyio.CancelScope() as scope, ending.stopping_by(scope.cancel, close_s):
        async with bare_errors(), AsyncExitStack() as stack, _noted(failed):
            _check_fleet(config)
            _check_base(config, options)
            check_parameters(config)
            await stack.enter_async_context(recording(config.telemetry))
            rollouts = await anyio.to_thread.run_sync(load_rollouts, config)
            fields = await anyio.to_thread.run_sync(fingerprint, config, rollouts)
            await anyio.to_thread.run_sync(check_places, config, options.file)
            worlds = await _make_worlds(stack, config, options, emit, upstream)
            ending.dying = worlds.die
            store, segments = await _open_storage(stack, config, options, segments)
            run = Run(config, options, emit, rollouts, fields, segments, worlds, store, ending=ending, summary=summary)
            run.left, run.wishes = await segments.leftovers(), options.wishes
            if store is not None:
                checked = await check_run(store, segments, fields, options.wishes)
                refuse_lost_output(store, segments, checked, options.wishes)
                await worlds.look()
                await mark_output(segments, checked)
                base: Base = "none" if options.fresh else options.base or "head"
                with controlled("claim") as found:
                    claimed = claim(store, base, take_over=options.take_over, chain=checked.chain)
                    run.controller = await stack.enter_async_context(claimed)
                    found.set(epoch=run.controller.epoch)
            await stack.enter_async_context(worlds.open(store))
            with anyio.CancelScope() as work, ending.stopping_by(work.cancel, close_s):
                try:
                    await run_epochs(run)
                except NothingWorks:
                    summary.exit_code = EXIT_NOTHING_WORKS
                    tell_end()
                    raise
            tell_end()
            told = True
    if failed:
        raise failed[0]  # A signal cut short what was being closed because of it, and took its place.
    if not told:
        tell_end()
    return summary


@asynccontextmanager
async def _noted(failed: list[Exception]) -> AsyncIterator[None]:
    """Write down what comes out of a block and ends the run."""
    try:
        yield
    except ENDS_RUN as error:
        failed.append(error)
        raise


def _close_s(config: Config) -> float:
    """What closing everything may take once a run was told to stop."""
    return config.run.close_s + (config.fleet.shutdown_s + KILL_S if config.fleet is not None else 0.0)


def _check_fleet(config: Config) -> None:
    if config.fleet is not None and not config.checkpoint.enabled:
        raise ConfigError(
            "[fleet] needs [checkpoint] with enabled = true: servers obey the one controller that has claimed the run "
            "in its store. interval_s = 0 there takes checkpoints at a signal alone"
        )


def _check_base(config: Config, options: Options) -> None:
    if options.base is None:
        return
    if options.fresh:
        raise ConfigError("--from continues from a checkpoint, and --fresh from none: give one of them")
    if not config.checkpoint.enabled:
        raise ConfigError("--from needs [checkpoint] with enabled = true: without it there is none to continue from")


async def _make_worlds(
    stack: AsyncExitStack, config: Config, options: Options, emit: Emit, upstream: Upstream | None
) -> Worlds:
    """Whatever the configuration has wrong shows here, as far as it can without the servers."""
    if config.fleet is None:
        parts = make_parts(config, upstream, partial(_tell_endpoint, emit))
        return EmbeddedWorlds(config, await stack.enter_async_context(parts))
    path = options.file.resolve().parent if options.file is not None else None
    beats_s = 3 * config.checkpoint.liveness_beat_s if options.take_over else 0.0
    return ServedWorlds(config, config.fleet, emit, path=path, patience_s=_close_s(config) + beats_s)


def _tell_endpoint(emit: Emit, base_url: str, message: str) -> None:
    emit("endpoint", {"base_url": base_url, "message": message})


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
async def _open_store(table: CheckpointTable) -> AsyncIterator[Store]:
    limits: Limits = replace(DEFAULT_LIMITS, liveness_beat_s=table.liveness_beat_s)
    async with open_store(str(table.url), "write", limits=limits, single_writer=table.single_writer) as store:
        yield store
