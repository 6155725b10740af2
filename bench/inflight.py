"""Episodes in flight in one process: how long a checkpoint of all of them takes, and a restore of it.

    python -m bench.inflight --rollouts 16000 --json

Every episode has had one model call and one tool call, and is held in its second model call by an upstream in this
process, so that no socket is needed. Then: prepare, commit, renew, resume, publish; everything is dropped as a crash
would; and new participants restore. The restore is then taken up, which parses the records, and is timed apart.

The limit on paper is what this machine needs to serialise, compress and hash the same records on all cores, and for a
restore to hash, decompress and parse them. `lag` is the longest that the event loop did not run.
"""

import gc
import hashlib
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from orchestrator import Fleet, adopt, commit, prepare, renew, restore, resume
from orchestrator.collect import Config, EmbeddedWorld, open_world
from participants import Chunks, Floor, Reply
from participants.data import CallId
from participants.serving.settings import GC_THRESHOLD
from store import (
    DEFAULT_LIMITS,
    Controller,
    Draft,
    Life,
    ParticipantRef,
    Ref,
    Store,
    claim,
    open_checkpoint,
    open_store,
)

from . import command_line, speeds
from .command_line import count, count_or_none
from .memory import peak_mb

TICK_S = 0.005
BATCH = 64
CALL = {"type": "function_call", "call_id": "call_1", "name": "increment_counter", "arguments": '{"count": 1}'}
TOOLS = [{"type": "function", "name": "increment_counter", "parameters": {"type": "object", "properties": {}}}]
TIMEOUT_S, LEASE_S = 600.0, 900.0


class HoldingUpstream:
    """Answers a first call with a tool call, and holds every later one."""

    def __init__(self, words: int) -> None:
        """`words` of text come with each answer."""
        self._words = words
        self.held = 0
        self.changed = anyio.Event()

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        """Hold what has a tool result."""
        if body["input"][-1].get("type") != "function_call_output":
            message = {"type": "message", "content": [{"type": "output_text", "text": self._text(life)}]}
            usage = {"input_tokens": 10, "output_tokens": 10, "total_tokens": 20}
            return Reply(200, {"status": "completed", "output": [message, CALL], "usage": usage})
        self.held += 1
        self.changed.set()
        await anyio.sleep_forever()
        raise AssertionError

    def _text(self, life: Life | None) -> str:
        """Words that are not the same for everybody, so that records compress as text does."""
        return " ".join(hashlib.sha256(f"{life}{n}".encode()).hexdigest()[:6] for n in range(self._words))

    def stream(
        self, route: str, body: Mapping[str, Any], life: Life | None = None, *, call: CallId | None = None
    ) -> AbstractAsyncContextManager[Chunks]:
        """Never asked for."""
        raise NotImplementedError

    async def wait_held(self, count: int) -> None:
        """Until so many calls are held."""
        while self.held < count:
            self.changed = anyio.Event()
            await self.changed.wait()


@dataclass(slots=True)
class Stages:
    """Seconds of each stage, processor time of it, and the longest that the event loop stood still in it."""

    seconds: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    """Of all threads; other processes disturb it least."""
    lag: dict[str, float] = field(default_factory=dict)
    worst: float = 0.0

    last: float = 0.0

    @asynccontextmanager
    async def stage(self, name: str) -> AsyncIterator[None]:
        """Measure one."""
        gc.collect()
        await anyio.sleep(2 * TICK_S)
        self.last = began = time.perf_counter()
        self.worst, cpu = 0.0, time.process_time()
        yield
        self.seconds[name], self.cpu[name] = time.perf_counter() - began, time.process_time() - cpu
        self.lag[name] = max(self.worst, time.perf_counter() - self.last - TICK_S)

    async def watch(self) -> None:
        """Notice when the event loop does not run."""
        while True:
            await anyio.sleep(TICK_S)
            now = time.perf_counter()
            self.worst, self.last = max(self.worst, now - self.last - TICK_S), now


@dataclass(slots=True)
class Result:
    """What one size came to."""

    rollouts: int
    stages: Stages = field(default_factory=Stages)
    bytes: int = 0
    raw_bytes: int = 0
    paper: speeds.Speeds | None = None

    def summary(self) -> dict[str, Any]:
        """The last line."""
        seconds = self.stages.seconds
        times = {f"{name}_s": round(seconds[name], 3) for name in ("prepare", "commit", "restore")}
        spent = {f"{name}_cpu_s": round(self.stages.cpu[name], 3) for name in ("prepare", "commit", "restore")}
        return {"rollouts": self.rollouts, **times, **spent, "bytes": self.bytes, "peak_rss_mb": peak_mb()}


def _config(folder: Path) -> Config:
    return Config.model_validate(
        {
            "run": {"input": "none", "output": str(folder / "out.jsonl")},
            "model": {"base_url": "http://localhost/v1", "model": "held", "dialect": "responses"},
            "resources": {"counter": {"server": "participants.servers.counter:CounterServer"}},
        }
    )


@asynccontextmanager
async def _participants(
    config: Config, store: Store, words: int
) -> AsyncIterator[tuple[EmbeddedWorld, HoldingUpstream]]:
    upstream = HoldingUpstream(words)
    async with open_world(config, store, upstream) as world:
        yield world, upstream


async def _adopted(world: EmbeddedWorld, controller: Controller) -> Fleet:
    assert world.fleet is not None
    return (await adopt(world.fleet, controller.epoch, Floor(controller.epoch, 0)))[0]


async def _dispatch(
    world: EmbeddedWorld, upstream: HoldingUpstream, epoch: int, attempt: int, rollouts: int
) -> list[Life]:
    lives = [Life(f"rollout-{n}", epoch, attempt, n) for n in range(rollouts)]
    messages = [{"role": "user", "content": "add 1 and then hold"}]
    for n, life in enumerate(lives):
        if n % BATCH == 0:
            await anyio.lowlevel.checkpoint()
        row = {"responses_create_params": {"input": messages, "tools": TOOLS}, "initial_count": n, "expected_count": n}
        await world.environment.dispatch(life, row)
    await upstream.wait_held(rollouts)
    return lives


async def _checkpoint(result: Result, store: Store, fleet: Fleet, controller: Controller, lives: list[Life]) -> Ref:
    stages, round_id = result.stages, controller.next_round()
    async with stages.stage("prepare"):
        standstill = await prepare(fleet, round_id, timeout_s=TIMEOUT_S, lease_s=LEASE_S)
    assert standstill.prepared
    async with stages.stage("commit"):
        answers = await commit(fleet, round_id, lives, None, timeout_s=TIMEOUT_S)
        await renew(fleet, round_id, lease_s=LEASE_S)
    async with stages.stage("resume"):
        await resume(fleet, round_id)
    refs: list[ParticipantRef] = [answer.manifest for answer in answers]
    result.bytes = sum(answer.bytes_written for answer in answers)
    async with stages.stage("publish"):
        draft = Draft(checkpoint=round_id, parent=None, participants=refs, scope=lives)
        return await controller.publish(draft, timeout_s=TIMEOUT_S)


async def _measure(rollouts: int, words: int, folder: Path) -> Result:
    result, config = Result(rollouts), _config(folder)
    async with (
        anyio.create_task_group() as group,
        open_store(str(folder / "store"), "write", limits=DEFAULT_LIMITS) as store,
    ):
        group.start_soon(result.stages.watch)
        async with claim(store) as controller, _participants(config, store, words) as (world, upstream):
            fleet = await _adopted(world, controller)
            async with result.stages.stage("dispatch"):
                lives = await _dispatch(world, upstream, controller.epoch, 0, rollouts)
            ref = await _checkpoint(result, store, fleet, controller, lives)
        await _weigh(result, store, ref)
        async with claim(store) as controller, _participants(config, store, words) as (world, upstream):
            fleet = await _adopted(world, controller)
            round_id = controller.next_round()
            async with result.stages.stage("restore"):
                await restore(fleet, round_id, ref, lives, timeout_s=TIMEOUT_S)
                await resume(fleet, round_id)
            async with result.stages.stage("take up"):
                await _dispatch(world, upstream, controller.epoch, 1, rollouts)
        group.cancel_scope.cancel()
    return result


async def _weigh(result: Result, store: Store, ref: Ref) -> None:
    """What the records are uncompressed, and what this machine does with such records."""
    opened = await open_checkpoint(store, ref)
    result.raw_bytes = sum(part.raw_size for process in opened.processes for part in process.manifest.parts)
    sample: list[dict[str, Any]] = []
    for process in opened.processes:
        async with opened.records([process]) as records:
            async for record in records:
                sample.append({"life": str(record.life), "payload": record.payload})
                if len(sample) % 500 == 0:
                    break
    result.paper = speeds.measure(sample, DEFAULT_LIMITS.frame_bytes)


def print_table(result: Result) -> None:
    """For people."""
    raw, cores = result.raw_bytes, os.cpu_count() or 1
    print(
        f"{result.rollouts} rollouts, {raw / 1e6:.1f} MB of records, {result.bytes / 1e6:.1f} MB stored, {cores} cores"
    )
    print(f"{'stage':<10}{'seconds':>9}{'cpu':>9}{'µs each':>9}{'lag s':>8}")
    for name, seconds in result.stages.seconds.items():
        cpu, lag = result.stages.cpu[name], result.stages.lag[name]
        each = cpu / result.rollouts * 1e6
        print(f"{name:<10}{seconds:>9.3f}{cpu:>9.3f}{each:>9.1f}{lag:>8.3f}")
    paper = result.paper
    assert paper is not None
    for name, limit_s in (("commit", paper.commit_s(raw, cores)), ("restore", paper.restore_s(raw, cores))):
        print(f"{name}: {limit_s:.3f} s on paper, ratio {result.stages.seconds[name] / limit_s:.1f}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = command_line.Command("bench.inflight", __doc__)
    parser.add_argument("--rollouts", type=count, default=1_000, help="episodes in flight")
    parser.add_argument("--words", type=count_or_none, default=50, help="of text that each episode has generated")
    parser.add_argument(
        "--folder", type=command_line.folder, help="where to work; default: a temporary folder right here"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parsed = parser.parse_args(arguments)
    temporary = tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd())
    with nullcontext(parsed.folder) if parsed.folder else temporary as folder:
        gc.set_threshold(*GC_THRESHOLD)
        result = anyio.run(_measure, parsed.rollouts, parsed.words, Path(folder))
    print_table(result)
    if parsed.json:
        print(json.dumps(result.summary()))


if __name__ == "__main__":
    main()
