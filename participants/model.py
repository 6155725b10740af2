"""The policy model server: a proxy in front of an inference backend, as a participant.

A model call is a `replay` step of whoever makes it, so a prepare never waits for a generation. What becomes of each
admitted call when a checkpoint is taken is its disposition; the status counts them:

    kept       finished before; its reply is kept until the caller's next boundary, and exported
    held       finished while admission was closed; delivered after resume, and exported like a kept one
    anew       not finished; generated again after a crash

A repeat of a call by its id gets the kept reply, unless its request differs: then it is generated anew. A call without
an id matches, by digest, only a reply that was not delivered yet, once. A call made inside a waited-for step is always
admitted, and a commit refuses while one is in flight. Streams follow the same rules (`participants.streams`).

Exact continuation of a generation's prefix has its place in `Flight`: what a flight can say of its prefix at an export
would be exported beside the undelivered replies, and `_generate` would begin from it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from store import Life

from .data import CallId, Reply, Request, uncaptured
from .errors import Code, ParticipantError
from .gate import Gate
from .generations import checked, parse
from .holder import Held, Holder
from .replies import Kept
from .streams import EVENT_STREAM, PassingStream, replayed
from .upstream import ListsModels, Upstream
from .wire import Modes

ROUTES = frozenset({"/v1/responses", "/v1/chat/completions", "/v1/completions"})
MODELS = "/v1/models"


@dataclass(slots=True, eq=False)
class Undelivered:
    """A finished reply that its client has not had yet."""

    reply: Reply
    waiting: bool = False
    """The call that it was made for is still there, and nobody else is given it."""


@dataclass(slots=True)
class ModelState:
    """What the model server holds of one life, beside the kept replies."""

    counts: Counter[str] = field(default_factory=Counter)
    """`calls`; of them `generated`, and `served` from what was kept or held."""
    undelivered: dict[str, list[Undelivered]] = field(default_factory=dict)
    """Of calls without an id, by the digest of the request."""
    streams: set[PassingStream] = field(default_factory=set)

    def hold(self, digest: str, reply: Reply, *, waiting: bool = False) -> Undelivered:
        """It is finished, and nobody has it yet."""
        item = Undelivered(reply, waiting)
        self.undelivered.setdefault(digest, []).append(item)
        return item

    def drop(self, digest: str, item: Undelivered) -> None:
        """It is delivered."""
        items = self.undelivered.get(digest, [])
        if item in items:
            items.remove(item)
        if not items:
            self.undelivered.pop(digest, None)

    def take(self, digest: str) -> Reply | None:
        """A reply to such a request that nobody has had and nobody waits for, once."""
        item = next((each for each in self.undelivered.get(digest, ()) if not each.waiting), None)
        if item is None:
            return None
        self.drop(digest, item)
        return item.reply


@dataclass(slots=True, eq=False)
class Flight:
    """One admitted call that is not finished: it will be generated anew after a crash."""

    request: Request
    inside_wait: bool


class ModelServer(Holder[ModelState]):
    """Serves generations to sessions."""

    kind = "model"
    modes = Modes(checkpoint_mode="exported")

    def __init__(self, upstream: Upstream, *, name: str = "main", gate: Gate | None = None) -> None:
        """`upstream` is open for as long as this is used."""
        super().__init__(name, gate=gate)
        self._upstream = upstream
        self._flights: set[Flight] = set()
        self._holding = 0
        """Calls with an id that are finished and wait to be delivered."""

    async def handle(self, request: Request) -> Reply:
        """Serve one data call."""
        if request.route == MODELS and isinstance(self._upstream, ListsModels):
            return await self._upstream.models()
        if request.route not in ROUTES or not isinstance(request.body, dict):
            raise ParticipantError(Code.INVALID_REQUEST, f"{self.role} serves {sorted(ROUTES)} with a JSON object")
        if request.life is None:
            return await self._uncaptured(request)
        held = await self.enter(request.life, creates=True)
        inside_wait = bool(request.call and request.call.parent)
        if not inside_wait:
            with self.working(held):
                await self.gate.wait_open()
        held.state.counts["calls"] += 1
        if request.body.get("stream"):
            return await self._streamed(held, request)
        if request.call is None:
            return await self._without_id(held, request)
        return await self._with_id(held, request, request.call, inside_wait=inside_wait)

    async def _uncaptured(self, request: Request) -> Reply:
        """For a client that sends no life: nothing of it is kept."""
        await self.gate.wait_open()
        if not request.body.get("stream"):
            return checked(request.route, await self._upstream.complete(request.route, request.body))
        return await self._open_stream(Held(uncaptured(), ModelState()), request, None)

    async def _with_id(self, held: Held[ModelState], request: Request, call: CallId, *, inside_wait: bool) -> Reply:
        self._forget_other(held, request, call)
        before = held.state.counts["generated"]

        async def run() -> Reply:
            with self.working(held):
                return await self._generate(held, request, inside_wait=inside_wait)

        reply = await self.once(held, request, run)
        held.state.counts["served"] += held.state.counts["generated"] == before
        if not inside_wait:  # Finished while closed: held, and kept meanwhile.
            self._holding += 1
            try:
                await self._deliver(held)
            finally:
                self._holding -= 1
        return reply

    def _forget_other(self, held: Held[ModelState], request: Request, call: CallId) -> None:
        """The caller asks something else now under the same id: generate anew."""
        kept = held.replies.find(call)
        if kept is not None and kept.digest != request.digest:
            held.replies.finish(call, kept, None)

    async def _without_id(self, held: Held[ModelState], request: Request) -> Reply:
        digest = request.digest
        reply = held.state.take(digest)
        if reply is not None:
            held.state.counts["served"] += 1
        else:
            with self.working(held):
                reply = await self._generate(held, request)
        if self.gate.closed:
            item = held.state.hold(digest, reply, waiting=True)
            try:
                await self._deliver(held)
                held.state.drop(digest, item)
            finally:
                item.waiting = False  # Where its client has gone, a repeat may have it.
        return reply

    async def _deliver(self, held: Held[ModelState]) -> None:
        """Hold a finished reply while admission is closed."""
        with self.working(held):
            await self.gate.wait_open()

    async def _generate(self, held: Held[ModelState], request: Request, *, inside_wait: bool = False) -> Reply:
        with self._flying(request, inside_wait=inside_wait):
            made = await self._upstream.complete(request.route, request.body, request.life)
            reply = checked(request.route, made)
        held.state.counts["generated"] += 1
        return reply

    @contextmanager
    def _flying(self, request: Request, *, inside_wait: bool = False) -> Iterator[None]:
        flight = Flight(request, inside_wait)
        self._flights.add(flight)
        try:
            yield
        finally:
            self._flights.discard(flight)

    # Streams

    async def _streamed(self, held: Held[ModelState], request: Request) -> Reply:
        call = request.call
        if call is None:
            reply = held.state.take(request.digest)
            held.state.counts["served"] += reply is not None
            return replayed(reply) if reply else await self._open_stream(held, request, None)
        self._forget_other(held, request, call)
        while (kept := held.replies.find(call)) is not None:
            if kept.reply is not None:
                held.state.counts["served"] += 1
                return replayed(kept.reply)
            with self.working(held):
                await kept.done.wait()
        return await self._open_stream(held, request, held.replies.begin(call, request.digest))

    async def _open_stream(self, held: Held[ModelState], request: Request, kept: Kept | None) -> Reply:
        """Begin upstream, so that a refusal keeps its status, and hand the stream over."""
        async with AsyncExitStack() as stack:
            flight = Flight(request, inside_wait=False)
            self._flights.add(flight)
            stack.callback(self._flights.discard, flight)
            if kept is not None and request.call is not None:
                stack.callback(_forget_unfinished, held, request.call, kept)
            with self.working(held):
                opening = self._upstream.stream(request.route, request.body, request.life)
                chunks = await stack.enter_async_context(opening)
                if chunks.status != 200:
                    return Reply(chunks.status, parse(b"".join([chunk async for chunk in chunks])))
            stream = PassingStream(self, held, chunks)
            held.state.streams.add(stream)
            stack.callback(held.state.streams.discard, stream)
            stream.on_end = lambda reply: self._stream_ended(held, request, kept, reply)
            stream.resources = stack.pop_all()
        return Reply(200, None, {"content-type": EVENT_STREAM}, stream)

    def _stream_ended(
        self, held: Held[ModelState], request: Request, kept: Kept | None, reply: Reply
    ) -> Callable[[bool], None] | None:
        """The whole of it is here: keep it as any other reply. What to do when the client has had it, or has gone."""
        held.state.counts["generated"] += 1
        if kept is not None and request.call is not None:
            held.replies.finish(request.call, kept, reply)
            return None
        digest = request.digest
        item = held.state.hold(digest, reply, waiting=True)

        def over(delivered: bool) -> None:
            item.waiting = False
            if delivered:
                held.state.drop(digest, item)

        return over

    # What the control plane asks

    def check_export(self) -> None:
        """Refuse while a call inside a waited-for step is in flight: its step is not at a boundary."""
        if count := sum(flight.inside_wait for flight in self._flights):
            raise ParticipantError(
                Code.INVALID_PHASE, f"{count} model calls are in flight inside steps that are waited for"
            )

    def counts(self) -> dict[str, int]:
        """For the status; `kept`, `held` and `anew` are the dispositions."""
        waiting = sum(len(items) for held in self._held.values() for items in held.state.undelivered.values())
        finished = sum(kept.reply is not None for held in self._held.values() for _, kept in held.replies)
        held_now = self._holding + waiting
        dispositions = {"kept": finished - self._holding, "held": held_now, "anew": len(self._flights)}
        return {**super().counts(), "in_flight": len(self._flights), **dispositions}

    def free_state(self, held: Held[ModelState]) -> None:
        """End its streams at once, wherever their readers are."""
        for stream in list(held.state.streams):
            stream.abort()

    def new_state(self, life: Life) -> ModelState:
        """No call yet."""
        return ModelState()

    def export_state(self, held: Held[ModelState]) -> Any:
        """The counts, and what nobody has had yet."""
        state = held.state
        undelivered = [
            {"digest": digest, "status": r.status, "body": r.body, "headers": dict(r.headers)}
            for digest, items in state.undelivered.items()
            for r in (item.reply for item in items)
        ]
        return {"counts": dict(state.counts), "undelivered": undelivered}

    def import_state(self, payload: Mapping[str, Any]) -> ModelState:
        """The state again."""
        state = ModelState(Counter({str(key): int(value) for key, value in payload["counts"].items()}))
        for item in payload["undelivered"]:
            state.hold(item["digest"], Reply(item["status"], item["body"], item["headers"]))
        return state


def _forget_unfinished(held: Held[ModelState], call: CallId, kept: Kept) -> None:
    if kept.reply is None:
        held.replies.finish(call, kept, None)
