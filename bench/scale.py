"""A checkpoint, a crash and a restore of many rollouts in flight at real server processes, stage by stage.

Four servers run as `midflight collect` starts them: environment, agent, policy model with its capture ledger, and
resources, before a deterministic backend in a process of its own that survives. Every rollout makes one model call and
one tool call, and its second model call is held at the backend in the middle. Then: prepare, commit, publish; SIGKILL
to every server's process group; fresh servers; restore; and every rollout goes on to its end from its cut.

A stage takes as long as its slowest process; `each` has the slowest process of each server. A rollout whose result is
missing, is a failure, or has another reward than 1 counts as a replacement failure.
"""

import json
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import httpx
from pydantic import BaseModel

from orchestrator import Fleet, HttpLink, adopt, commit, discover, http_client, prepare, renew, restore, resume
from orchestrator.collect.config import Participants
from orchestrator.collect.served import ServedWorld
from orchestrator.deployment import Deployment, FleetTable
from participants import Message, Result
from participants.inference import DEFAULT_MODEL
from participants.wire import Status
from store import Controller, Draft, Life, Ref, Store, claim, open_checkpoint, open_store

from . import command_line
from .command_line import count
from .endpoint import endpoint, row

Answer = TypeVar("Answer", bound=BaseModel)
TIMEOUT_S, LEASE_S = 600.0, 900.0
PATIENCE_S = 1200.0
"""For all rollouts to come to their second call, and for all to end."""
FILLER, CUT_AT = 48, 24
"""Tokens of plain words in every reply, and how many of the second one there are when everything is killed."""
AFTER_A_TOOL_CALL = "success"
"""Stands in the prompt of a second call alone."""
BATCH = 500
MOST_BEHIND = 2_000
"""Rollouts on their way to their second call: a listening socket queues 4,096 connections, and resets those past it."""
TICKS = os.sysconf("SC_CLK_TCK")
DISPOSITIONS = ("kept", "held", "cut", "anew")


@dataclass(slots=True)
class Scale:
    """What one run came to; times in seconds."""

    rollouts: int
    workers: int
    others: int
    in_flight: int = 0
    stages: dict[str, float] = field(default_factory=dict)
    each: dict[str, dict[str, float]] = field(default_factory=dict)
    """Of each control operation, the slowest process of each server."""
    exported: dict[str, int] = field(default_factory=dict)
    """Records of each server in the checkpoint."""
    dispositions: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    objects: int = 0
    store_requests: dict[str, int] = field(default_factory=dict)
    """Of all processes of each server, and of the controller, over both starts."""
    continued: int = 0
    """Tokens that were not generated again."""
    regenerated: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    peak_rss_mb: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, dict[str, float]] = field(default_factory=dict)
    """Processor time of each stage, by server: what a busy machine does not change."""
    groups: dict[str, int] = field(default_factory=dict)
    """The process group of each server that runs."""

    def summary(self) -> dict[str, Any]:
        """The last line."""
        rounded = {name: round(seconds, 3) for name, seconds in self.stages.items()}
        each = {name: {role: round(s, 3) for role, s in by.items()} for name, by in self.each.items()}
        return {
            "rollouts": self.rollouts,
            "workers": self.workers,
            "other_workers": self.others,
            "in_flight": self.in_flight,
            **{f"{name}_s": rounded.get(name) for name in ("prepare", "commit", "restore")},
            "stages": rounded,
            "each": each,
            "exported": self.exported,
            "dispositions": self.dispositions,
            "bytes": self.bytes,
            "objects": self.objects,
            "store_requests": self.store_requests,
            "tokens_continued": self.continued,
            "tokens_regenerated": self.regenerated,
            "replacement_failures": self.failures.total(),
            "failures": dict(self.failures),
            "peak_rss_mb": self.peak_rss_mb,
            "cpu_s": self.cpu,
        }

    @asynccontextmanager
    async def stage(self, name: str) -> AsyncIterator[None]:
        """Measure one."""
        began, spent = time.perf_counter(), _cpu_s(self.groups)
        yield
        self.stages[name] = time.perf_counter() - began
        after = _cpu_s(self.groups)
        self.cpu[name] = {role: round(after[role] - spent.get(role, 0.0), 2) for role in after}


class TimedLink(HttpLink):
    """Notes how long each operation took, by the server that it went to."""

    def __init__(self, url: str, client: httpx.AsyncClient, role: str, each: dict[str, dict[str, float]]) -> None:
        """`each` is filled."""
        super().__init__(url, client)
        self._client_, self._role, self._each = client, role, each

    def at(self, url: str) -> "TimedLink":
        """The same, another worker."""
        return TimedLink(url, self._client_, self._role, self._each)

    async def send(self, message: Message, answer: type[Answer]) -> Answer:
        """One control operation."""
        began = time.perf_counter()
        try:
            return await super().send(message, answer)
        finally:
            slowest = self._each.setdefault(type(message).__name__.lower(), {})
            slowest[self._role] = max(slowest.get(self._role, 0.0), time.perf_counter() - began)


@dataclass(slots=True)
class Stand:
    """Servers that run, and the controller before them."""

    world: ServedWorld
    controller: Controller
    store: Store

    @property
    def fleet(self) -> Fleet:
        """As adopted."""
        assert self.world.fleet is not None
        return self.world.fleet

    async def statuses(self) -> list[Status]:
        """Of every process."""
        return [await member.link.status() for member in self.fleet.members]


def participants(folder: Path, base_url: str, workers: int, others: int) -> Participants:
    """What the file of such a run would say."""
    roles = {"model.main": workers, **dict.fromkeys(("environment.main", "agent.main", "resources.counter"), others)}
    return Participants.model_validate(
        {
            "model": {"base_url": base_url, "model": DEFAULT_MODEL, "dialect": "chat", "backend": "midflight"},
            "resources": {"counter": {"server": "participants.servers.counter:CounterServer"}},
            "checkpoint": {"enabled": True, "url": str(folder / "store")},
            "capture": {"folder": str(folder / "ledger")},
            "fleet": {
                "folder": str(folder / "fleet"),
                "servers": {role: {"workers": count} for role, count in roles.items()},
            },
        }
    )


@asynccontextmanager
async def standing(scale: Scale, table: Participants, store: Store, stage: str) -> AsyncIterator[Stand]:
    """Fresh servers and a claim; leaving it is SIGKILL to all servers."""
    fleet_table: FleetTable | None = table.fleet
    assert fleet_table is not None
    async with AsyncExitStack() as stack:
        deployment = await stack.enter_async_context(Deployment(table, fleet_table))
        async with scale.stage(stage):
            servers = await deployment.start()
        http = await stack.enter_async_context(http_client(deployment.token))
        controller = await stack.enter_async_context(claim(store))
        links = [TimedLink(server.url, http, server.role, scale.each) for server in servers]
        fleet = await discover(links, store.run_id)
        fleet, _ = await adopt(fleet, controller.epoch)
        stand = Stand(ServedWorld(fleet), controller, store)
        scale.groups = {server.role: server.pid for server in servers if server.pid is not None}
        try:
            yield stand
            for status in await stand.statuses():
                name = f"{status.kind}.{status.name}"
                scale.store_requests[name] = scale.store_requests.get(name, 0) + sum(status.store_requests.values())
        finally:
            found = peaks(scale.groups)
            scale.peak_rss_mb |= {name: max(mb, scale.peak_rss_mb.get(name, 0)) for name, mb in found.items()}
            for pid in scale.groups.values():
                os.killpg(pid, signal.SIGKILL)
            scale.groups = {}


def _members() -> dict[int, dict[int, float]]:
    """Of each process group, the processor time in seconds of its processes by pid."""
    found: dict[int, dict[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has ended meanwhile.
        found.setdefault(int(fields[2]), {})[int(path.parent.name)] = (int(fields[11]) + int(fields[12])) / TICKS
    return found


def _cpu_s(groups: Mapping[str, int]) -> dict[str, float]:
    members = _members() if groups else {}
    own = os.times()
    return {
        "controller": own.user + own.system,
        **{role: sum(members[group].values()) for role, group in groups.items()},
    }


def peaks(groups: Mapping[str, int]) -> dict[str, float]:
    """Peak resident memory in MB of each process of some groups, the supervisor first, and of this process."""
    found: dict[str, float] = {"controller": _peak_mb(os.getpid())}
    members = _members()
    for role, group in groups.items():
        for number, pid in enumerate(sorted(members.get(group, ()))):
            found[f"{role}/w{number - 1}" if number else f"{role}/supervisor"] = _peak_mb(pid)
    return found


def _peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
    return round(kib * 1024 / 1e6, 1)


class Board:
    """The control routes of the backend."""

    def __init__(self, base_url: str, http: httpx.AsyncClient) -> None:
        """`base_url` is the one of its models."""
        self._url = base_url.removesuffix("/v1") + "/control"
        self._http = http

    async def post(self, name: str, order: Mapping[str, Any]) -> httpx.Response:
        """One order."""
        return await self._http.post(f"{self._url}/{name}", json=order, timeout=PATIENCE_S)  # It may be very busy.

    async def wait(self, **order: int) -> None:
        """Until it is so. Raises TimeoutError."""
        with anyio.fail_after(PATIENCE_S):
            while (await self.post("wait", {**order, "timeout_s": 30})).status_code != 200:
                pass


async def dispatch(stand: Stand, lives: Sequence[Life]) -> None:
    """Submit all, a batch at a time."""
    for first in range(0, len(lives), BATCH):
        batch = lives[first : first + BATCH]
        refused = await stand.world.dispatch({life: row(_number(life), 1, FILLER) for life in batch})
        assert not refused, next(iter(refused.items()))


def _number(life: Life) -> int:
    return int(life.rollout_id.removeprefix("r"))


async def _nothing() -> None:
    """The default of what happens while everything stands still."""


async def take_checkpoint(
    scale: Scale, stand: Stand, lives: Sequence[Life], while_still: Callable[[], Awaitable[None]] = _nothing
) -> Ref:
    """Prepare, commit, renew, resume, publish; `while_still` is awaited once all stand still."""
    round_id = stand.controller.next_round()
    async with scale.stage("prepare"):
        standstill = await prepare(stand.fleet, round_id, timeout_s=TIMEOUT_S, lease_s=LEASE_S)
    assert standstill.prepared, standstill.blockers
    await while_still()
    model = [status.counts for status in await stand.statuses() if status.kind == "model"]
    scale.dispositions = {name: sum(counts[name] for counts in model) for name in DISPOSITIONS}
    async with scale.stage("commit"):
        answers = await commit(stand.fleet, round_id, lives, None, timeout_s=TIMEOUT_S)
    async with scale.stage("renew"):
        await renew(stand.fleet, round_id, lease_s=LEASE_S)
    scale.bytes = sum(answer.bytes_written for answer in answers)
    async with scale.stage("resume"):
        await resume(stand.fleet, round_id)
    async with scale.stage("publish"):
        draft = Draft(
            checkpoint=round_id, parent=None, participants=[answer.manifest for answer in answers], scope=lives
        )
        return await stand.controller.publish(draft, timeout_s=TIMEOUT_S)


async def weigh(scale: Scale, store: Store, ref: Ref, folder: Path) -> None:
    """What is in the checkpoint."""
    opened = await open_checkpoint(store, ref)
    for process in opened.processes:
        role = f"{process.name.kind}.{process.name.name}"
        scale.exported[role] = scale.exported.get(role, 0) + sum(part.records for part in process.manifest.parts)
    below = folder / "store" / "checkpoints"
    scale.objects = sum(path.is_file() for path in await anyio.to_thread.run_sync(lambda: list(below.rglob("*"))))


async def replace_all(scale: Scale, stand: Stand, lives: Sequence[Life]) -> None:
    """Dispatch every next life, and wait for every result."""
    send, receive = anyio.create_memory_object_stream[Result](1000)
    left = set(lives)
    async with send, receive, anyio.create_task_group() as group:
        group.start_soon(stand.world.read_results, send)
        async with scale.stage("dispatch_replacements"):
            await dispatch(stand, lives)
        with anyio.move_on_after(PATIENCE_S):
            async for result in receive:
                left.discard(result.life)
                if result.failure is not None:
                    scale.failures[str(result.failure.get("class"))] += 1
                elif result.row is None or result.row.get("reward") != 1.0:
                    scale.failures["wrong reward"] += 1
                if not left:
                    break
        group.cancel_scope.cancel()
    scale.failures["missing"] = len(left)


async def go_on(scale: Scale, stand: Stand, ref: Ref, lives: Sequence[Life]) -> list[Life]:
    """Restore these from a checkpoint, and take the next life of each to its end; those lives."""
    async with scale.stage("restore"):
        round_id = stand.controller.next_round()
        await restore(stand.fleet, round_id, ref, lives, timeout_s=TIMEOUT_S)
    async with scale.stage("resume_restored"):
        await resume(stand.fleet, round_id)
    following = [Life(x.rollout_id, stand.controller.epoch, 1, x.n) for x in lives]
    async with scale.stage("replacements"):
        await replace_all(scale, stand, following)
    model = [status.counts for status in await stand.statuses() if status.kind == "model"]
    scale.continued = sum(counts["tokens_continued"] for counts in model)
    scale.regenerated = sum(counts["tokens_regenerated"] for counts in model)
    return following


async def measure(scale: Scale, folder: Path) -> None:
    """One run."""
    with endpoint(folder, control=True) as backend:
        table = participants(folder, backend.base_url, scale.workers, scale.others)
        async with httpx.AsyncClient() as http, open_store(str(folder / "store"), "write") as opened:
            board = Board(backend.base_url, http)
            store, requests = opened.counted()
            held = {"match": {"substring": AFTER_A_TOOL_CALL}, "after_tokens": CUT_AT}
            await board.post("holds", held)
            async with standing(scale, table, store, "start") as stand:
                lives = [Life(f"r{n}", stand.controller.epoch, 0, n) for n in range(scale.rollouts)]
                async with scale.stage("fill"):
                    for first in range(0, len(lives), BATCH):
                        await dispatch(stand, lives[first : first + BATCH])
                        await board.wait(held=max(0, first - MOST_BEHIND))
                    await board.wait(held=scale.rollouts)
                scale.in_flight = scale.rollouts
                ref = await take_checkpoint(scale, stand, lives)
            await board.wait(live_at_most=0)
            await board.post("release", {"hold": None, "call": None})
            async with standing(scale, table, store, "restart") as stand:
                await go_on(scale, stand, ref, lives)
            scale.store_requests["controller"] = requests.total()
            await weigh(scale, store, ref, folder)


def print_table(scale: Scale) -> None:
    """For people."""
    print(
        f"{scale.in_flight} of {scale.rollouts} rollouts in flight, {scale.workers} model workers, {scale.others} of "
        f"each other server; {scale.bytes / 1e6:.1f} MB in {scale.objects} objects"
    )
    print(f"exported {scale.exported}; model calls {scale.dispositions}")
    for name, seconds in scale.stages.items():
        of_each = scale.each.get(name, {})
        slowest = ", ".join(f"{role} {s:.2f}" for role, s in sorted(of_each.items(), key=lambda item: -item[1]))
        print(f"{name:<22}{seconds:>9.3f} s{seconds / scale.rollouts * 1e6:>9.1f} us each  {slowest}")
    print(f"replacement failures: {scale.failures.total()} {dict(+scale.failures)}")
    print(f"tokens continued {scale.continued}, regenerated {scale.regenerated}")
    print(f"peak MB: {scale.peak_rss_mb}")
    for name, spent in scale.cpu.items():
        print(f"processor time of {name}: {', '.join(f'{role} {s:.2f}' for role, s in spent.items() if s)}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = command_line.Command("bench.scale", __doc__)
    parser.add_argument("--rollouts", type=count, default=1_000, help="in flight at the checkpoint")
    parser.add_argument("--workers", type=count, default=1, help="of the policy model server")
    parser.add_argument("--other-workers", type=count, default=1, help="of every other server")
    parser.add_argument(
        "--folder", type=command_line.folder, help="where to work; default: a temporary folder right here"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parsed = parser.parse_args(arguments)
    scale = Scale(parsed.rollouts, parsed.workers, parsed.other_workers)
    temporary = tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd())
    with nullcontext(parsed.folder) if parsed.folder else temporary as folder:
        anyio.run(measure, scale, Path(folder))
    print_table(scale)
    if parsed.json:
        print(json.dumps(scale.summary()))


if __name__ == "__main__":
    main()
