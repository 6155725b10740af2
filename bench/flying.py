"""Generations in flight at one model server: a checkpoint of all of them, as one process that nothing else disturbs.

    python -m bench.flying --flights 16000 --json

Each generation is a call of a life of its own, admitted by a real ModelServer and read from an upstream in this
process, so that no socket is needed. The upstream streams chunks as vLLM does, one token each, with the ids of prompt
and output; then it holds, and goes on when it is told. Then: status, prepare, commit, renew and resume through a
control plane; and the upstream ends every stream, so that each call is seen to get its whole reply.

Limits on paper. Of prepare: a bare loop that takes a reference and a length of each generation's buffer. Of commit:
what this machine needs to serialise, compress and hash the same records on all cores (`bench.speeds`). `lag` is the
longest that the event loop did not run, seen by a task that wakes every few milliseconds.
"""

import gc
import hashlib
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import orjson

from orchestrator import Fleet, LocalLink, adopt, commit, discover, prepare, renew, resume
from participants import Chunks, ControlPlane, Floor, ModelServer, Reply, Request
from participants.backends import Capabilities, LazyCapabilities
from participants.backends.kinds import declared
from participants.data import CallId
from participants.serving.settings import GC_THRESHOLD
from store import DEFAULT_LIMITS, Life, Store, claim, open_store

from . import command_line, speeds
from .command_line import count
from .inflight import Stages
from .memory import peak_mb

CHAT = "/v1/chat/completions"
BATCH = 64
TIMEOUT_S, LEASE_S = 600.0, 900.0
VOCABULARY = 50_000
DRIVEN = frozenset({"intake", "end"})
"""Stages in which the upstream here gives everything at once, as no socket does: their lag says nothing."""
SAMPLE = 500
"""Records that the limit on paper is measured with."""


@dataclass(frozen=True, slots=True)
class Size:
    """How many generations, and how long each is."""

    flights: int
    prompt: int = 256
    """Tokens of each prompt."""
    tokens: int = 100
    """That each has when it is cut."""
    logprobs: bool = False
    staging: bool = False
    """Whether a worker keeps the prefixes; it answers at once, in this process."""


class HoldingStreams:
    """An upstream whose streams hold after so many tokens, and end when it is told."""

    def __init__(self, size: Size) -> None:
        """Nothing has been asked."""
        self._size = size
        self.held = 0
        self.changed = anyio.Event()
        self.go_on = anyio.Event()

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        """Never asked for."""
        raise NotImplementedError

    @asynccontextmanager
    async def stream(
        self, route: str, body: Mapping[str, Any], life: Life | None = None, *, call: CallId | None = None
    ) -> AsyncIterator[Chunks]:
        """One generation."""
        yield HeldStream(self, self._size, life.n if life else 0)

    async def get(self, path: str) -> Reply:
        """As a worker that stages: it has no pins."""
        return Reply(200, {"pinned": []})

    async def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        """As a worker that stages: it has all that it is asked for."""
        if not path.endswith("/stage"):
            return Reply(200, {"pinned": len(body["keys"])})
        return Reply(200, {"items": [{**each, "key": each["digest"]} for each in body["items"]]})

    async def wait_held(self, count: int) -> None:
        """Until so many streams are held."""
        while self.held < count:
            self.changed = anyio.Event()
            await self.changed.wait()


class HeldStream:
    """The chunks of one generation."""

    status = 200

    def __init__(self, upstream: HoldingStreams, size: Size, number: int) -> None:
        """`number` makes its words and ids its own."""
        self._upstream = upstream
        self._chunks = _chunks(size, number)
        self._end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'

    def __aiter__(self) -> "HeldStream":
        return self

    async def __anext__(self) -> bytes:
        chunk = next(self._chunks, None)
        if chunk is not None:
            return chunk
        upstream = self._upstream
        if not upstream.go_on.is_set():
            upstream.held += 1
            upstream.changed.set()
            await upstream.go_on.wait()
        end, self._end = self._end, b""
        if not end:
            raise StopAsyncIteration
        return end

    def close(self) -> None:
        """Nothing more comes."""
        self._end = b""


def _chunks(size: Size, number: int) -> Iterator[bytes]:
    """A chunk a token, as vLLM writes them."""
    seed = hashlib.sha256(str(number).encode()).digest()
    head = {"id": f"chatcmpl-{seed.hex()[:32]}", "object": "chat.completion.chunk", "created": 1, "model": "held"}
    for k in range(size.tokens):
        token = (int.from_bytes(seed[k % 28 : k % 28 + 4], "big") + k) % VOCABULARY
        word = f" w{token}"
        choice: dict[str, Any] = {"index": 0, "delta": {"content": word}, "logprobs": None, "finish_reason": None}
        if size.logprobs:
            entry = {"token": word, "logprob": -token / 1e4, "bytes": list(word.encode()), "top_logprobs": []}
            choice["logprobs"] = {"content": [entry]}
        choice["token_ids"] = [token]
        first = {"prompt_token_ids": [(number * 31 + n * 7) % VOCABULARY for n in range(size.prompt)]} if k == 0 else {}
        yield b"data: " + orjson.dumps({**head, "choices": [choice], **first}) + b"\n\n"


@dataclass(frozen=True, slots=True)
class Flown:
    """What one size came to. Seconds, and for each stage the longest that the event loop stood still in it."""

    flights: int
    tokens: int
    prompt: int
    intake_us_per_token: float
    seconds: dict[str, float]
    lag: dict[str, float]
    bytes_written: int
    raw_bytes: int
    prepare_paper_s: float
    commit_paper_s: float
    peak_mb: float


async def fly(size: Size, folder: Path) -> Flown:
    """Measure one size; works below `folder`."""
    upstream, stages = HoldingStreams(size), Stages()
    known = LazyCapabilities(upstream, known=_capabilities(size))
    model = ModelServer(upstream, model="held", cuts=known, staging=upstream if size.staging else None)
    lives = [Life(f"rollout-{n}", 1, 0, n) for n in range(size.flights)]
    async with (
        anyio.create_task_group() as group,
        open_store(str(folder / "store"), "write", limits=DEFAULT_LIMITS) as store,
        ControlPlane(model, store).run() as plane,
        anyio.create_task_group() as calls,
    ):
        group.start_soon(stages.watch)
        replies: list[Reply] = []
        done = anyio.Event()

        async def call(life: Life) -> None:
            replies.append(await _call(model, life))
            if len(replies) == size.flights:
                done.set()

        async with stages.stage("intake"):
            for n, life in enumerate(lives):
                calls.start_soon(call, life)
                if n % BATCH == 0:
                    await anyio.lowlevel.checkpoint()
            await upstream.wait_held(size.flights)
        written = await _checkpoint(plane, store, lives, stages)
        raw, paper_s, prepare_paper_s = _paper(model, lives)
        async with stages.stage("end"):
            upstream.go_on.set()
            await done.wait()
        if any(reply.body["usage"]["completion_tokens"] != size.tokens for reply in replies):
            raise RuntimeError("a generation was not as long as what was streamed")
        group.cancel_scope.cancel()
    intake = stages.seconds["intake"] / (size.flights * size.tokens) * 1e6
    return Flown(
        size.flights, size.tokens, size.prompt, round(intake, 2), _rounded(stages.seconds), _rounded(stages.lag),
        written, raw, prepare_paper_s, paper_s, peak_mb(),
    )  # fmt: skip


def _capabilities(size: Size) -> Capabilities:
    return declared("midflight" if size.staging else "vllm")


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in seconds.items()}


async def _call(model: ModelServer, life: Life) -> Reply:
    body = {"messages": [{"role": "user", "content": f"task {life.n}"}], "max_tokens": 10_000}
    return await model.handle(Request(route=CHAT, body=body, life=life, call=CallId("agent.main", 1, 0)))


async def _checkpoint(plane: ControlPlane, store: Store, lives: Sequence[Life], stages: Stages) -> int:
    async with claim(store) as controller:
        found = await discover([LocalLink(plane)], store.run_id)
        fleet: Fleet = (await adopt(found, controller.epoch, Floor(controller.epoch, 0)))[0]
        round_ = controller.next_round()
        async with stages.stage("status"):
            counts = plane.status().counts
        if (counts["in_flight"], counts["cut"]) != (len(lives), len(lives)):
            raise RuntimeError(f"not all is in flight and can be cut: {counts}")
        async with stages.stage("prepare"):
            standstill = await prepare(fleet, round_, timeout_s=TIMEOUT_S, lease_s=LEASE_S)
        if not standstill.prepared:
            raise RuntimeError(f"the prepare waits: {standstill}")
        async with stages.stage("commit"):
            [answer] = await commit(fleet, round_, lives, None, timeout_s=TIMEOUT_S)
            await renew(fleet, round_, lease_s=LEASE_S)
        async with stages.stage("resume"):
            await resume(fleet, round_)
    return answer.bytes_written


def _paper(model: ModelServer, lives: Sequence[Life]) -> tuple[int, float, float]:
    """Bytes of the records, the least time to commit them on paper, and that of the bare loop that cuts them."""
    held = model.held()
    sample = [{"life": str(each.life), "payload": model.dump(each)} for each in held[:SAMPLE]]
    raw = len(orjson.dumps(sample)) * len(lives) // len(sample)
    commit_s = speeds.measure(sample, DEFAULT_LIMITS.frame_bytes).commit_s(raw, os.cpu_count() or 1)
    buffers = [bytearray(b"x") for _ in lives]
    began = time.perf_counter()
    cuts = [(buffer, len(buffer)) for buffer in buffers]
    return raw, round(commit_s, 4), round((time.perf_counter() - began) * len(cuts) / len(lives), 6)


def measure(size: Size, folder: Path) -> Flown:
    """The same, from outside of an event loop."""
    return anyio.run(fly, size, folder)


def print_table(flown: Flown) -> None:
    """For people."""
    print(
        f"{flown.flights} generations of {flown.tokens} tokens after prompts of {flown.prompt}: "
        f"{flown.raw_bytes / 1e6:.1f} MB of records, {flown.bytes_written / 1e6:.1f} MB stored, "
        f"peak {flown.peak_mb:.0f} MB, {flown.intake_us_per_token} µs to take a token in"
    )
    print(f"{'stage':<10}{'seconds':>9}{'µs each':>9}{'lag s':>8}")
    for name, seconds in flown.seconds.items():
        lag = f"{flown.lag[name]:>8.3f}" if name not in DRIVEN else ""
        print(f"{name:<10}{seconds:>9.4f}{seconds / flown.flights * 1e6:>9.1f}{lag}")
    for name, limit_s in (("prepare", flown.prepare_paper_s), ("commit", flown.commit_paper_s)):
        print(f"{name}: {limit_s:.4f} s on paper, ratio {flown.seconds[name] / limit_s:.1f}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = command_line.Command("bench.flying", __doc__)
    parser.add_argument("--flights", type=count, default=1_000, help="generations in flight")
    parser.add_argument("--prompt", type=count, default=256, help="tokens of each prompt")
    parser.add_argument("--tokens", type=count, default=100, help="tokens that each has when it is cut")
    parser.add_argument("--logprobs", action="store_true", help="chunks have log probabilities")
    parser.add_argument("--staging", action="store_true", help="a worker keeps the prefixes")
    parser.add_argument(
        "--folder", type=command_line.folder, help="where to work; default: a temporary folder right here"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parsed = parser.parse_args(arguments)
    size = Size(parsed.flights, parsed.prompt, parsed.tokens, parsed.logprobs, parsed.staging)
    temporary = tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd())
    with nullcontext(parsed.folder) if parsed.folder else temporary as folder:
        gc.set_threshold(*GC_THRESHOLD)  # As the collection run does.
        flown = measure(size, Path(folder))
    print_table(flown)
    if parsed.json:
        print(json.dumps(asdict(flown)))


if __name__ == "__main__":
    main()
