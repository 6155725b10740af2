"""Simulated controllers: one start of `midflight collect`, as `orchestrator.collect.run` does it, over simulated links.

What differs is where things come from: the store and the output are simulated, the fleet is found at addresses and
never started here, rows are given, and no signal comes.
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, cast

import anyio

from orchestrator.collect.config import Config
from orchestrator.collect.epoch import Run, bare_errors, run_epochs
from orchestrator.collect.rows import Rollout, plan_rollouts
from orchestrator.collect.segments import Segments
from orchestrator.collect.servers import ServedWorlds
from orchestrator.collect.start import check_run
from orchestrator.collect.summary import Options
from orchestrator.errors import (
    CommitFailed,
    ControlFailed,
    CoordinationError,
    PrepareFailed,
    RenewFailed,
    RestoreFailed,
    TalliesDiffer,
)
from orchestrator.rounds import Blocked
from store import StoreError, claim
from store.backends.retry import Retrying

from .machine import Process
from .model import row_of
from .network import SimClient
from .participants import ROLES, Grounds, addresses_of, open_store
from .scenario import LIMITS, Scenario
from .stores import SimBackend

OUTPUT = "memory://proof/rows.jsonl"
PATIENCE_S = 60.0
FIELDS = {"dataset": "the same"}
RAISED = (Blocked, CommitFailed, ControlFailed, PrepareFailed, RenewFailed, RestoreFailed, TalliesDiffer)


def config_of(scenario: Scenario) -> Config:
    """The file of the run."""
    lease_s = scenario.lease_s
    return Config.model_validate(
        {
            "run": {
                "input": "rows.jsonl",
                "output": OUTPUT,
                "concurrency": scenario.concurrency,
                "max_attempts": scenario.max_attempts,
            },
            "model": {"base_url": "http://model.simulated/v1", "model": "scripted", "dialect": "responses"},
            "resources": {"counter": {"server": "tests.proof.participants:SimCounter"}},
            "checkpoint": {
                "enabled": True,
                "url": "memory://store",
                "interval_s": scenario.interval_s,
                "prepare_timeout_s": scenario.prepare_timeout_s,
                "more_time_s": scenario.more_time_s,
                "commit_timeout_s": 8.0,
                "publish_timeout_s": 8.0,
                "lease_s": lease_s,
                "liveness_beat_s": LIMITS.liveness_beat_s,
                "keep_last": scenario.keep_last,
            },
            "fleet": {
                "mode": "attach",
                "start_s": PATIENCE_S,
                "servers": {role: {"url": addresses_of(scenario, role)[0]} for role in ROLES},
            },
        }
    )


def rollouts_of(scenario: Scenario) -> list[Rollout]:
    """The input."""
    rows = [row_of(f"task-{n}", n + 1, list(amounts)) for n, amounts in enumerate(scenario.amounts)]
    return plan_rollouts(rows, 1)


@dataclass(frozen=True)
class Placed:
    """A server that somebody else runs."""

    role: str
    url: str
    pid: None = None


@dataclass
class Attached:
    """Stands for the deployment: as much of it as a fleet that is attached to needs."""

    servers: list[Placed]
    token: str = "token"

    def lost(self) -> list[Any]:
        return []

    async def attach(self) -> None:
        """They are looked for when the fleet is discovered."""

    async def stop(self) -> None:
        """They go on."""

    def kill_at_once(self) -> None:
        """They are somebody else's."""


class SimWorlds(ServedWorlds):
    """Reaches its servers over the simulated network."""

    def __init__(self, grounds: Grounds, process: Process, config: Config, emit: Any) -> None:
        assert config.fleet is not None
        servers = [Placed(role, addresses_of(grounds.scenario, role)[0]) for role in ROLES]
        deployment = cast("Any", Attached(servers))
        super().__init__(config, config.fleet, emit, path=None, patience_s=PATIENCE_S, deployment=deployment)
        self._sim_client = SimClient(grounds.network, process)

    async def _begin(self) -> None:
        self._client = cast("Any", self._sim_client)


class Controller:
    """One start of the run."""

    def __init__(self, grounds: Grounds, *, take_over: bool) -> None:
        self._grounds = grounds
        self._take_over = take_over

    async def __call__(self, process: Process) -> str:
        """The exit code, or what ended it."""
        try:
            async with bare_errors():
                return str(await self._collect(process))
        except (StoreError, CoordinationError) as error:
            process.site.history.reached[f"controller ended: {type(error).__name__}"] += 1
            process.site.history.reached[f"raised: {type(error).__name__}"] += 1
            return type(error).__name__ + ": " + str(error)[:300]

    async def _collect(self, process: Process) -> int:
        grounds = self._grounds
        scenario, config = grounds.scenario, config_of(grounds.scenario)

        def emit(name: str, facts: Any) -> None:
            if name in TOLD:
                process.site.history.reached[f"told: {name}"] += 1
                if name == "failure":
                    process.site.history.reached[f"failure: {facts.get('_ng_failure_class')}"] += 1
                for kind in RAISED:
                    if str(facts.get("error", "")).startswith(f"{kind.what}: ") or name == kind.what:
                        process.site.history.reached[f"raised: {kind.__name__}"] += 1
                process.note("told", name=name, facts={key: str(value)[:200] for key, value in facts.items()})

        async with AsyncExitStack() as stack:
            worlds = SimWorlds(grounds, process, config, emit)
            store = await open_store(grounds, process)
            output = Retrying(SimBackend(grounds.output, process, grounds.skies), LIMITS.retry_for_s)
            segments = Segments(output, store.run_id)
            options = Options(take_over=self._take_over)
            run = Run(config, options, emit, rollouts_of(scenario), dict(FIELDS), segments, worlds, store, began=0.0)
            run.left, run.wishes = await segments.leftovers(), options.wishes
            await check_run(store, segments, FIELDS, run.wishes)
            await worlds.look()
            run.controller = await stack.enter_async_context(claim(store, "head", take_over=self._take_over))
            process.note("claimed", epoch=run.controller.epoch)
            await stack.enter_async_context(worlds.open(store))
            with anyio.CancelScope():
                await run_epochs(run)
            return run.summary.exit_code


TOLD = frozenset({"started", "went_on", "adopted", "dropped", "row", "failure", "checkpoint", "checkpoint_failed",
                  "blocked", "retired", "retire_failed", "prune_failed", "output_failed", "server_lost",
                  "servers_not_back", "stopped_without_checkpoint"})  # fmt: skip

__all__ = ["OUTPUT", "Controller", "config_of", "rollouts_of"]
