"""A server behind the model proxy: a call in flight is cut, a fresh proxy restores it, and the call is made again.

The stream of the server is held after so many tokens, on its way to the proxy, so that any server can be cut anywhere.
"""

from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from participants import Chunks, ModelServer, OpenAIEndpoint, Reply, Request
from participants.backends import Capabilities, LazyCapabilities
from participants.cuts import read
from participants.data import CallId
from participants.flights import Listening
from store import DEFAULT_LIMITS, CheckpointId, Life, RawRecord, Record
from store.records import encode_line
from store.values import BlobPlan

from .comparing import Comparison, ids_in
from .exact_cuts import Figures

CALL = CallId("agent.main", 1, 0)
DEADLINE_S = 300.0
"""Of one call."""


@dataclass(slots=True)
class Halt:
    """Holds one stream after so many tokens, or events where it names no ids."""

    after: int
    by_ids: bool
    ids: tuple[int, ...] = ()
    """What had come."""
    reached: anyio.Event = field(default_factory=anyio.Event)
    """Also set where the stream ended before."""


class HaltingEndpoint(OpenAIEndpoint):
    """A server whose streams can be held, by the life that they are for."""

    halts: dict[Life, Halt]

    def __init__(self, base_url: str, **options: Any) -> None:
        """As an OpenAIEndpoint."""
        super().__init__(base_url, **options)
        self.halts = {}

    def stream(
        self, route: str, body: Mapping[str, Any], life: Life | None = None, *, call: CallId | None = None
    ) -> AbstractAsyncContextManager[Chunks]:
        """Held where that was ordered, once."""
        opening = super().stream(route, body, life, call=call)
        halt = self.halts.pop(life, None) if life else None
        return opening if halt is None else _halting(opening, halt, route)


@asynccontextmanager
async def _halting(
    opening: AbstractAsyncContextManager[Chunks], halt: Halt, route: str
) -> AsyncIterator["_HaltedChunks"]:
    async with opening as chunks:
        try:
            yield _HaltedChunks(chunks, halt, route)
        finally:
            halt.reached.set()


class _HaltedChunks:
    """Hands on event by event, and after so many tokens nothing more."""

    def __init__(self, chunks: Chunks, halt: Halt, route: str) -> None:
        self.status = chunks.status
        self._chunks, self._halt = chunks, halt
        self._heard = Listening(route)
        self._events: deque[bytes] = deque()
        self._passed = 0
        self._begun = b""

    def __aiter__(self) -> "_HaltedChunks":
        return self

    async def __anext__(self) -> bytes:
        self._halt.ids = self._heard.reading().prefix.ids or ()
        if (len(self._halt.ids) if self._halt.by_ids else self._passed) >= self._halt.after:
            self._halt.reached.set()
            await anyio.sleep_forever()
        while not self._events:
            self._take(await anext(self._chunks))
        event = self._events.popleft()
        self._heard.feed(event)
        self._passed += 1
        return event

    def _take(self, chunk: bytes) -> None:
        *events, self._begun = (self._begun + chunk).split(b"\n\n")
        self._events += [event + b"\n\n" for event in events]

    def close(self) -> None:
        self._chunks.close()


@dataclass(frozen=True, slots=True)
class Ask:
    """One call that is to be cut."""

    route: str
    body: Mapping[str, Any]


class Proxies:
    """Model servers in front of one endpoint, each fresh."""

    def __init__(self, endpoint: HaltingEndpoint, model: str, known: Capabilities) -> None:
        self._endpoint, self._model, self._known = endpoint, model, known
        self._numbers: Iterator[int] = iter(range(1, 1_000_000))

    def fresh(self) -> ModelServer:
        """One that knows nothing."""
        return ModelServer(
            self._endpoint,
            cuts=LazyCapabilities(self._endpoint, self._model, known=self._known),
            model=self._model,
            staging=self._endpoint if self._known.staging else None,
        )

    async def uncut(self, ask: Ask) -> dict[str, Any]:
        """The reply to a client that does not stream, and whose call nobody cuts. Raises where it is none."""
        life = Life(f"uncut-{next(self._numbers)}", 1, 0, 0)
        reply = await self.fresh().handle(Request(route=ask.route, body=dict(ask.body), life=life, call=CALL))
        return _whole(reply)

    async def cut(self, ask: Ask, k: int, expected: Mapping[str, Any], figures: Figures, where: str) -> None:
        """Cut a call after k tokens, restore it elsewhere, make it again, and compare."""
        rollout = f"cut-{next(self._numbers)}"
        lives = Life(rollout, 1, 0, 0), Life(rollout, 2, 1, 0)
        halt = self._endpoint.halts[lives[0]] = Halt(k, ask.route in self._known.ids_routes)
        with anyio.fail_after(DEADLINE_S):
            records = await self._until_cut(ask, halt, lives[0])
            server = self.fresh()
            await restore(server, records)
            reply = await server.handle(Request(route=ask.route, body=dict(ask.body), life=lives[1], call=CALL))
            found = await _read(ask.route, reply)
        compared = Comparison(expected, found)
        names = ids_in(found)
        continued = server.counts()["tokens_continued"]
        reasons = [f"anew: {reason}" for reason in server.generator.anew]
        figures.take(
            f"{where} at {k}",
            [*reasons, *compared.differences] if compared.differences else [],
            largest=compared.largest,
            kept=0 < continued == len(halt.ids) and (names is None or tuple(names[:continued]) == halt.ids),
            continued=continued > 0,
        )

    async def _until_cut(self, ask: Ask, halt: Halt, life: Life) -> list[RawRecord]:
        """Make a call, export it once it is held, and give it up."""
        server = self.fresh()
        async with anyio.create_task_group() as group:

            async def call() -> None:
                request = Request(route=ask.route, body=dict(ask.body), life=life, call=CALL)
                await _read(ask.route, await server.handle(request))
                halt.reached.set()  # Whole before it could be held.

            group.start_soon(call)
            await halt.reached.wait()
            records = await export(server, life)
            group.cancel_scope.cancel()
        return records


async def _read(route: str, reply: Reply) -> dict[str, Any]:
    """The reply as a whole; a stream is read to its end."""
    stream: Any = reply.stream
    if stream is None:
        return _whole(reply)
    try:
        data = b"".join([chunk async for chunk in stream])
    finally:
        if hasattr(stream, "aclose"):
            with anyio.CancelScope(shield=True):
                await stream.aclose()
    reading = read(route, [data])
    return reading.reply or {"failure": str(reading.failure)}


def _whole(reply: Reply) -> dict[str, Any]:
    if reply.status != 200 or not isinstance(reply.body, dict):
        raise RuntimeError(f"no generation: {reply.status} {reply.body!r:.300}")
    return reply.body


async def export(server: ModelServer, life: Life) -> list[RawRecord]:
    """What a commit writes of a life."""
    scope = {life}
    await server.freeze(scope)
    server.check_export()
    return [_raw(record) for record in (await server.export(scope)).records]


def _raw(record: Record | RawRecord) -> RawRecord:
    if isinstance(record, RawRecord):
        return record
    return RawRecord(record.life, encode_line(record, BlobPlan(CheckpointId(1, 1), (), DEFAULT_LIMITS)).data)


async def restore(server: ModelServer, records: Iterable[RawRecord]) -> None:
    """What a restore does with it."""
    every = list(records)

    async def each() -> AsyncIterator[RawRecord]:
        for record in every:
            yield record

    await server.stage({record.life for record in every}, each(), epoch=2)
    server.activate()
    server.settle()
