"""A start of a run in this process whose parts a test holds in its hands: leaving it is the crash."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread

from orchestrator.collect import (
    Checkpoints,
    Collector,
    Config,
    EmbeddedWorld,
    RunLedger,
    load_rollouts,
    open_segments,
    open_world,
)
from orchestrator.collect.segments import Header, Writer, final_lines
from orchestrator.collect.start import Wishes, go_on, seal_and_read
from participants import Reply
from store import Controller, Life, Store, claim, open_store

from .test_in_process import CALL, Events, OneTool

PATIENCE_S = 20.0


class Turns(OneTool):
    """Calls the tool so many times; from the second one on each model call waits to be let go."""

    def __init__(self, turns: int) -> None:
        """Every call generates two tokens."""
        super().__init__()
        self._turns = turns
        self._places = anyio.Semaphore(0)
        self._changed = anyio.Event()
        self.held = 0

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        """Answer by how many tool results there are."""
        reply = await super().complete(route, body, life)
        done = sum(item.get("type") == "function_call_output" for item in body["input"])
        if done:
            await self._wait()
        called = {**CALL, "call_id": f"c{done}"}
        said = {"type": "message", "content": [{"type": "output_text", "text": "done"}]}
        output = [called if done < self._turns else said]
        return Reply(200, {**reply.body, "output": output})

    async def _wait(self) -> None:
        self._count(1)
        try:
            await self._places.acquire()
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        self.held += more
        self._changed.set()

    async def until_held(self, count: int) -> None:
        """Until so many calls wait."""
        with anyio.fail_after(PATIENCE_S):
            while self.held != count:
                self._changed = anyio.Event()
                await self._changed.wait()

    def let_go(self, count: int = 1) -> None:
        """So many calls, waiting now or later, are answered."""
        for _ in range(count):
            self._places.release()


@dataclass(slots=True)
class Inside:
    """The parts of one start."""

    store: Store
    controller: Controller
    world: EmbeddedWorld
    collector: Collector
    checkpoints: Checkpoints
    events: Events


@asynccontextmanager
async def inside(config: Config, upstream: OneTool) -> AsyncIterator[Inside]:
    """One start of a run with checkpoints, which collects while the block runs; nothing is said at the end."""
    events: Events = []
    async with (
        open_store(str(config.checkpoint.url), "write") as store,
        claim(store, take_over=True) as controller,
        open_world(config, store, upstream) as world,
        anyio.create_task_group() as group,
    ):
        segments = await open_segments(config.run.output, store.run_id)
        rollouts = await anyio.to_thread.run_sync(load_rollouts, config)
        below = await seal_and_read(controller, segments, Wishes())
        done = final_lines(below.lines)
        by_id = {rollout.rollout_id: rollout for rollout in rollouts}
        before = await go_on(store, controller, world, below.lines, (), by_id)
        writer = Writer(segments, controller.epoch)
        await writer.begin(Header())
        ledger = RunLedger.begin(controller.epoch, rollouts, done, before.scope, before.restarts)
        collector = Collector(config, world, ledger, writer, lambda name, facts: events.append((name, facts)))
        assert world.fleet is not None
        checkpoints = Checkpoints(config.checkpoint, collector, world.fleet, controller, {})
        group.start_soon(collector.run)
        yield Inside(store, controller, world, collector, checkpoints, events)
        group.cancel_scope.cancel()
        await segments.aclose()
