"""What a data call costs between two of our own processes, by each way that it can go.

    python -m bench.routing --json

A server of two workers that echoes, each a process with a forwarding in front, and this process as their client:

    in process    LocalPeer: the floor
    http          HttpPeer, to the owner of each rollout
    channel       to the owner, over one WebSocket connection to each worker
    forwarded     a channel to the wrong worker, which hands the call on to the owner over another one

Rounds go there and back again. `cpu` is processor time of this process and of the workers, which other processes of the
machine disturb least. Then so many calls are held at once over channels: how long until the server has them all, until
all are answered, and what each costs on both sides; over HTTP with fewer, because each needs a socket.
"""

import gc
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import anyio
import httpx

from participants import HttpPeer, LocalPeer, data_app
from participants.channels import UVICORN_OPTIONS, Channels, channel_route, workers_route
from participants.data import CallId, Peer, Reply, Request
from participants.forwarding import Forwarding
from participants.routing import worker_of
from participants.serving.sockets import bind, server_of, url_of
from store import Life

from . import command_line
from .command_line import count
from .endpoint import END_S

ROLE = "resources.main"
CALL = CallId("agent.main", 0, 0)
WORKERS = 2
KIB = 1024
WAYS = ("in process", "http", "channel", "forwarded")
Make = Callable[[int], Awaitable[Reply]]


# The server


class Echo:
    """Answers with what it was asked; holds what it is told to hold."""

    role = ROLE
    epoch = 0

    def __init__(self) -> None:
        self._released = anyio.Event()
        self.held = 0

    async def handle(self, request: Request) -> Reply:
        """One data call, or a question of the bench."""
        match request.route:
            case "/stats":
                return Reply(200, {"held": self.held, **asdict(Usage.now())})
            case "/release":
                self._released.set()
                self._released = anyio.Event()
            case "/hold":
                self.held += 1
                await self._released.wait()
                self.held -= 1
        return Reply(200, {"echo": request.body})


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a process, or the sum of several."""

    cpu_s: float
    kib: float
    descriptors: int

    @classmethod
    def now(cls) -> "Usage":
        """Of this process, without what it could give back."""
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        return cls(time.process_time(), pages * os.sysconf("SC_PAGE_SIZE") / KIB, len(os.listdir("/proc/self/fd")))

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(self.cpu_s - other.cpu_s, self.kib - other.kib, self.descriptors - other.descriptors)


async def _serve(number: int, fd: int, urls: Sequence[str]) -> None:
    """Serve until the process is ended."""
    async with Channels() as channels:
        front = Forwarding(Echo(), number, urls, channels)
        app = data_app(front)
        app.router.routes[:0] = [channel_route(front), workers_route(ROLE, urls)]
        await server_of(app, shutdown_s=END_S, **UVICORN_OPTIONS).serve([socket.socket(fileno=fd)])


@contextmanager
def server() -> Iterator[list[str]]:
    """The addresses of its workers, for the length of a block."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(bind("127.0.0.1", 0)) for _ in range(WORKERS)]
        urls = [url_of(listener) for listener in listeners]
        for number, listener in enumerate(listeners):
            fd = listener.fileno()
            command = [sys.executable, "-m", "bench.routing", "--serve", str(number), str(fd), *urls]
            process = stack.enter_context(subprocess.Popen(command, pass_fds=[fd]))
            stack.callback(process.kill)
        yield urls


# The client


@dataclass(frozen=True, slots=True)
class Load:
    """How much is asked for."""

    rounds: int = 5
    at_once: tuple[int, ...] = (1, 64, 1000)
    calls: int = 2000
    """Of each way in each round; a tenth of it over HTTP, and one at a time."""
    body_bytes: int = 1000
    held: int = 16_000
    held_http: int = 1000


@dataclass(slots=True)
class Cost:
    """Of one way with so many calls at once, round by round: µs a call."""

    wall_us: list[float] = field(default_factory=list)
    client_us: list[float] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)

    def medians(self) -> dict[str, float]:
        """As JSON shows them; `cpu_us` is of both sides."""
        wall, client, served = (statistics.median(each) for each in (self.wall_us, self.client_us, self.server_us))
        return {
            "wall_us": round(wall, 1), "calls_per_s": round(1e6 / wall), "client_us": round(client, 1),
            "server_us": round(served, 1), "cpu_us": round(client + served, 1),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Held:
    """Calls that are held at once."""

    calls: int
    taken_s: float
    """Until the server has them all."""
    answered_s: float
    """From their release on."""
    client_kib: float
    """For each call."""
    server_kib: float
    client_descriptors: int
    server_descriptors: int


class Bench:
    """The client and its connections."""

    def __init__(self, urls: Sequence[str], channels: Channels, http: httpx.AsyncClient, load: Load) -> None:
        self._stats = [HttpPeer(url, ROLE, http) for url in urls]
        self._local = LocalPeer(Echo())
        self._channel = channels.peer(urls[0], ROLE)
        self._workers = [channels.worker(url, ROLE) for url in urls]
        self._https = self._stats
        self._body = {"text": "x" * load.body_bytes}
        self._load = load
        self._made = 0

    async def usage(self) -> tuple[Usage, Usage, int]:
        """Of this process, of the workers, and how many calls those hold."""
        told = [(await peer.call(Request(route="/stats", body={}))).body for peer in self._stats]
        held = sum(each.pop("held") for each in told)
        usages = [Usage(**each) for each in told]
        total = Usage(*(sum(values) for values in zip(*[list(asdict(each).values()) for each in usages], strict=True)))
        return Usage.now(), total, held

    def _peer(self, way: str, rollout: str) -> Peer:
        owner = worker_of(rollout, WORKERS)
        peers: dict[str, Peer] = {
            "in process": self._local, "http": self._https[owner], "channel": self._channel,
            "forwarded": self._workers[1 - owner],
        }  # fmt: skip
        return peers[way]

    async def call(self, way: str, route: str = "/x") -> Reply:
        """One call of a rollout of its own."""
        self._made += 1
        life = Life(f"rollout-{self._made}", 1, 0, self._made)
        request = Request(route=route, body=self._body, life=life, call=CALL)
        return await self._peer(way, life.rollout_id).call(request)

    async def round(self, way: str, at_once: int, calls: int, cost: Cost | None) -> None:
        """So many calls, `at_once` of them at a time; their costs are added."""
        _, theirs, _ = await self.usage()
        mine, began, left = Usage.now(), time.perf_counter(), calls

        async def caller() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await self.call(way)

        async with anyio.create_task_group() as group:
            for _ in range(at_once):
                group.start_soon(caller)
        wall, mine_after = time.perf_counter() - began, Usage.now()
        _, theirs_after, _ = await self.usage()
        if cost is not None:
            cost.wall_us.append(wall / calls * 1e6)
            cost.client_us.append((mine_after - mine).cpu_s / calls * 1e6)
            cost.server_us.append((theirs_after - theirs).cpu_s / calls * 1e6)

    async def hold(self, way: str, calls: int) -> Held:
        """So many calls that the server holds all at once."""
        gc.collect()
        (mine, theirs, _), began = await self.usage(), time.perf_counter()
        async with anyio.create_task_group() as group:
            for _ in range(calls):
                group.start_soon(self.call, way, "/hold")
            while (found := await self.usage())[2] < calls:  # noqa: ASYNC110 - another process is no event
                await anyio.sleep(0.05)
            taken = time.perf_counter() - began
            mine_held, theirs_held = found[0] - mine, found[1] - theirs
            released = time.perf_counter()
            for peer in self._stats:
                await peer.call(Request(route="/release", body={}))
        return Held(
            calls, round(taken, 2), round(time.perf_counter() - released, 2), round(mine_held.kib / calls, 2),
            round(theirs_held.kib / calls, 2), mine_held.descriptors, theirs_held.descriptors,
        )  # fmt: skip


async def _measure(urls: Sequence[str], load: Load) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        channels = await stack.enter_async_context(Channels())
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=600.0, limits=limits))
        bench = Bench(urls, channels, http, load)
        costs = {at_once: {way: Cost() for way in WAYS} for at_once in load.at_once}
        for number in range(load.rounds + 1):
            for at_once, ways in costs.items():
                for way in WAYS if number % 2 else reversed(WAYS):
                    slow = at_once == 1 or way == "http"
                    calls = max(at_once, load.calls // 10 if slow else load.calls)
                    await bench.round(way, at_once, calls, ways[way] if number else None)
        held = {"channel": await bench.hold("channel", load.held), "http": await bench.hold("http", load.held_http)}
    found = {str(at_once): {way: cost.medians() for way, cost in ways.items()} for at_once, ways in costs.items()}
    return {"calls": found, "held": {way: asdict(each) for way, each in held.items()}}


def measure(load: Load) -> dict[str, Any]:
    """All figures."""
    with server() as urls:
        return anyio.run(_measure, urls, load, backend_options={"use_uvloop": True})


def print_table(found: dict[str, Any], load: Load) -> None:
    """For people."""
    print(f"µs a call of {load.body_bytes} bytes each way, median of {load.rounds} rounds")
    print(f"{'at once':<9}{'way':<12}{'wall':>9}{'calls/s':>9}{'cpu client':>12}{'cpu server':>12}{'cpu':>9}")
    for at_once, ways in found["calls"].items():
        for way, cost in ways.items():
            print(
                f"{at_once:<9}{way:<12}{cost['wall_us']:>9.1f}{cost['calls_per_s']:>9}{cost['client_us']:>12.1f}"
                f"{cost['server_us']:>12.1f}{cost['cpu_us']:>9.1f}"
            )
    for way, held in found["held"].items():
        print(f"held by {way}: " + ", ".join(f"{name} {value}" for name, value in held.items()))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = command_line.Command("bench.routing", __doc__)
    usual = Load()
    parser.add_argument("--rounds", type=count, default=usual.rounds, help="of each way in turns")
    parser.add_argument("--calls", type=count, default=usual.calls, help="of each way in a round")
    parser.add_argument("--bytes", type=count, default=usual.body_bytes, help="of a body, each way")
    parser.add_argument("--held", type=count, default=usual.held, help="calls that are held at once over channels")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument(
        "--serve",
        nargs="+",
        metavar="ARGUMENT",
        help="be a worker, for the bench itself: number, socket, all addresses",
    )
    parsed = parser.parse_args(arguments)
    if parsed.serve:
        number, fd, *urls = parsed.serve
        anyio.run(_serve, int(number), int(fd), urls, backend_options={"use_uvloop": True})
        return
    load = Load(parsed.rounds, calls=parsed.calls, body_bytes=parsed.bytes, held=parsed.held)
    found = measure(load)
    print_table(found, load)
    if parsed.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
