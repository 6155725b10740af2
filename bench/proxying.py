"""What a model server costs between a client and its backend: per call and per token.

    python -m bench.proxying --json

Three processes: the deterministic backend, the proxy, and this client, which makes one call after the other through
`OpenAIEndpoint`. A round asks for whole replies of one token and of `--tokens` tokens, from the backend directly and
through each proxy; rounds go there and back again, and what counts is the difference within a round. The overhead per
call is that of replies of one token, per token that of the tokens beyond. `cpu` is the processor time of the proxy's
process, which other processes of the machine disturb least: once for these calls, where a fast backend sends many
tokens at once, and once with a paced backend and several calls at a time, where nearly every token comes by itself.

The limit is a bare proxy in the same place, on the same server and client libraries, which also asks for a stream of
token ids: it takes the bytes of the stream and looks at nothing.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from orchestrator.cli.backend import READY
from participants import ModelServer, OpenAIEndpoint, data_app
from participants.backends import LazyCapabilities
from participants.inference import DEFAULT_MODEL
from participants.ledger import Ledger
from participants.serving.sockets import bind, url_of
from store import Life

from . import command_line
from .command_line import count
from .endpoint import END_S, endpoint

CHAT = "/v1/chat/completions"
PROXIES = ("bare", "cuts", "ledger")
"""Takes the bytes; a model server with cuts; the same with a ledger on the local disk."""
CPU_CLOCK_OF_PROCESS = 2
"""clock_getcpuclockid(3), as Linux has it."""


# The proxy, a process of its own


def _bare(upstream: str) -> ASGIApp:
    endpoint = OpenAIEndpoint(upstream)

    async def serve(request: Request) -> Response:
        body = await request.json()
        async with endpoint.stream(request.url.path, {**body, "stream": True, "return_token_ids": True}) as stream:
            size = sum([len(chunk) async for chunk in stream])
        message = {"role": "assistant", "content": f"{size} bytes"}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        return JSONResponse({"choices": [choice], "usage": {"completion_tokens": body["max_tokens"]}})

    app = Starlette(routes=[Route("/{path:path}", serve, methods=["POST"])])
    app.state.endpoint = endpoint
    return app


async def _serve(kind: str, upstream: str, folder: str) -> None:
    """Serve until the process is ended."""
    listener = bind("127.0.0.1", 0)
    async with AsyncExitStack() as stack:
        if kind == "bare":
            app = _bare(upstream)
            await stack.enter_async_context(app.state.endpoint)  # type: ignore[attr-defined]
        else:
            open_endpoint = await stack.enter_async_context(OpenAIEndpoint(upstream))
            ledger = Ledger(folder) if kind == "ledger" else None
            app = data_app(ModelServer(open_endpoint, cuts=LazyCapabilities(open_endpoint), ledger=ledger))
        print(f"{READY}{url_of(listener)}", flush=True)
        config = uvicorn.Config(app, http="httptools", loop="none", lifespan="off", log_level="error", access_log=False)
        await uvicorn.Server(config).serve([listener])


@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere that answers model calls."""

    url: str
    pid: int = 0

    def cpu_s(self) -> float:
        """Processor time of its process so far."""
        return time.clock_gettime((~self.pid << 3) | CPU_CLOCK_OF_PROCESS) if self.pid else 0.0


@contextmanager
def proxy(kind: str, upstream: str, folder: Path) -> Iterator[Place]:
    """A proxy for the length of a block."""
    command = [sys.executable, "-m", "bench.proxying", "--serve", kind, upstream, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line.startswith(READY):
                raise RuntimeError(f"the proxy {kind} did not come up: {line!r}")
            yield Place(line.removeprefix(READY).strip() + "/v1", process.pid)
        finally:
            process.terminate()
            process.wait(END_S)


# The client


@dataclass(frozen=True, slots=True)
class Load:
    """How much is asked for."""

    rounds: int = 9
    calls: int = 16
    """Of each length, of each place, in each round."""
    tokens: int = 257
    paced_calls: int = 32
    """At a time."""
    paced_tokens_per_s: float = 100.0


@dataclass(slots=True)
class Costs:
    """Of one proxy, round by round: more than the direct way in ms a call and µs a token, and processor time."""

    ms_per_call: list[float] = field(default_factory=list)
    us_per_token: list[float] = field(default_factory=list)
    cpu_ms_per_call: list[float] = field(default_factory=list)
    cpu_us_per_token: list[float] = field(default_factory=list)
    paced_cpu_us_per_token: float = 0.0


@dataclass(frozen=True, slots=True)
class _Took:
    """Seconds for a call of one token, and for the tokens beyond in a longer one."""

    call_s: float
    tokens_s: float


def _body(number: int, tokens: int) -> dict[str, Any]:
    script = json.dumps([{"filler": tokens, "text": ""}])
    content = f"Task {number}. <script>{script}</script>"
    return {"model": DEFAULT_MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": tokens}


class Client:
    """Makes calls of lives that are all different."""

    def __init__(self) -> None:
        self._made = 0

    async def call(self, at: OpenAIEndpoint, tokens: int) -> None:
        """One whole reply, of exactly so many tokens."""
        self._made += 1
        reply = await at.complete(CHAT, _body(self._made, tokens), Life(f"rollout-{self._made}", 1, 0, self._made))
        if reply.status != 200 or reply.body["usage"]["completion_tokens"] != tokens:
            raise RuntimeError(f"not a reply of {tokens} tokens: {reply.body!r:.300}")

    async def round(self, place: Place, load: Load) -> tuple[_Took, _Took]:
        """By the clock, and in processor time of the place."""
        found = []
        async with OpenAIEndpoint(place.url) as at:
            await self.call(at, 2)  # Opens the connection.
            for tokens in (1, load.tokens):
                began, cpu = time.perf_counter(), place.cpu_s()
                for _ in range(load.calls):
                    await self.call(at, tokens)
                found.append((time.perf_counter() - began, place.cpu_s() - cpu))
        (short, short_cpu), (long, long_cpu) = [(wall / load.calls, cpu / load.calls) for wall, cpu in found]
        return _Took(short, long - short), _Took(short_cpu, long_cpu - short_cpu)

    async def paced(self, place: Place, load: Load) -> float:
        """Processor time of the place for each token, in µs, with many calls at a time."""
        cpu = place.cpu_s()
        async with OpenAIEndpoint(place.url) as at, anyio.create_task_group() as group:
            for _ in range(load.paced_calls):
                group.start_soon(self.call, at, load.tokens)
        return (place.cpu_s() - cpu) / (load.paced_calls * load.tokens) * 1e6


async def _measure(direct: Place, proxies: dict[str, Place], load: Load) -> dict[str, Costs]:
    client, costs = Client(), {name: Costs() for name in proxies}
    beyond = load.tokens - 1
    for number in range(load.rounds + 1):
        took = {}
        places = [("", direct), *proxies.items()]
        for name, place in places if number % 2 else reversed(places):
            took[name] = await client.round(place, load)
        if number == 0:  # Everything is warm now, and backends are probed.
            continue
        for name, cost in costs.items():
            (wall, cpu), bare = took[name], took[""][0]
            cost.ms_per_call.append((wall.call_s - bare.call_s) * 1e3)
            cost.us_per_token.append((wall.tokens_s - bare.tokens_s) / beyond * 1e6)
            cost.cpu_ms_per_call.append(cpu.call_s * 1e3)
            cost.cpu_us_per_token.append(cpu.tokens_s / beyond * 1e6)
    async with httpx.AsyncClient() as control:
        order = {"tokens_per_s": load.paced_tokens_per_s}
        (await control.post(direct.url.removesuffix("/v1") + "/control/pace", json=order)).raise_for_status()
    for name, place in proxies.items():
        costs[name].paced_cpu_us_per_token = await client.paced(place, load)
    return costs


def measure(folder: Path, load: Load, kinds: Sequence[str] = PROXIES) -> dict[str, Costs]:
    """The costs of each kind of proxy."""
    with ExitStack() as stack:
        served = stack.enter_context(endpoint(folder, control=True))
        found = {kind: stack.enter_context(proxy(kind, served.base_url, folder / kind)) for kind in kinds}
        return anyio.run(_measure, Place(served.base_url), found, load)


def print_table(costs: dict[str, Costs], load: Load) -> None:
    """For people."""

    def shown(runs: Sequence[float]) -> str:
        return f"{min(runs):8.2f} {statistics.median(runs):8.2f} {max(runs):8.2f}"

    paced = f"{load.paced_calls} calls at {load.paced_tokens_per_s:g} tokens/s"
    print(f"beyond the direct way, min / median / max of {load.rounds} rounds; paced: {paced}")
    print(f"{'proxy':<8}{'ms a call':>26}{'µs a token':>28}{'cpu ms a call':>15}{'cpu µs a token':>16}{'paced':>8}")
    for name, cost in costs.items():
        cpu = statistics.median(cost.cpu_ms_per_call), statistics.median(cost.cpu_us_per_token)
        print(
            f"{name:<8}{shown(cost.ms_per_call)}  {shown(cost.us_per_token)}{cpu[0]:>15.2f}{cpu[1]:>16.2f}"
            f"{cost.paced_cpu_us_per_token:>8.1f}"
        )
    bare, cuts = costs.get("bare"), costs.get("cuts")
    if bare and cuts:
        calls = statistics.median(cuts.cpu_ms_per_call) / statistics.median(bare.cpu_ms_per_call)
        paced_ratio = cuts.paced_cpu_us_per_token / bare.paced_cpu_us_per_token
        print(f"processor time, ratio of cuts to the bare proxy: {calls:.1f} a call, {paced_ratio:.1f} a paced token")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = command_line.Command("bench.proxying", __doc__)
    usual = Load()
    parser.add_argument("--rounds", type=count, default=usual.rounds, help="of each way in turns")
    parser.add_argument("--calls", type=count, default=usual.calls, help="of each length in a round")
    parser.add_argument("--tokens", type=count, default=usual.tokens, help="of a long reply")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument(
        "--serve", nargs=3, metavar=("KIND", "UPSTREAM", "FOLDER"), help="be a proxy: for the bench itself"
    )
    parsed = parser.parse_args(arguments)
    if parsed.serve:
        anyio.run(_serve, *parsed.serve, backend_options={"use_uvloop": True})
        return
    load = Load(parsed.rounds, parsed.calls, parsed.tokens)
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as folder:
        costs = measure(Path(folder), load)
    print_table(costs, load)
    if parsed.json:
        print(json.dumps({name: asdict(cost) for name, cost in costs.items()}))


if __name__ == "__main__":
    main()
