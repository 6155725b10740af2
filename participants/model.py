"""The policy model server: a proxy in front of an inference backend, as a participant.

A model call is a `replay` step of whoever makes it, so a prepare never waits for a generation. What becomes of each
admitted call when a checkpoint is taken is its disposition; the status counts them:

    kept       finished before; its reply is kept until the caller's next boundary, and exported
    held       finished while admission was closed; delivered after resume, and exported like a kept one
    cut        not finished; its prefix is exported, and continued after a crash. The backend goes on meanwhile
    anew       not finished; generated again after a crash, for a reason that is counted (`participants.cuts.Reason`)

A repeat of a call by its id gets the kept reply, unless its request differs: then it is generated anew. A call without
an id matches, by digest, only a reply or a cut that was not delivered yet, once. A call made inside a waited-for step
is always admitted, and a commit refuses while one is in flight. Streams follow the same rules (`participants.streams`).

With a capture ledger each call that has ended is a row of its life's, durable before the reply is released.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from store import CheckpointId, Life

from . import telemetry
from .backends.lazy import LazyCapabilities
from .backends.probe import Asks
from .capturing import Capture
from .cuts import Continue, Policy, Prefix, always_continue
from .cuts.emitting import as_stream
from .cuts.stored import dump_prefix, load_prefix
from .data import CallId, Reply, Request, on_the_wire, uncaptured
from .errors import Code, ParticipantError
from .flights import CUT, Cut, Flight, Flights
from .gate import Gate
from .generating import Generator, Made
from .generations import checked, parse
from .holder import Held, Holder
from .ledger import Ledger
from .model_state import ModelState, cut_of
from .replies import Kept
from .staged_cuts import StagedCuts
from .streams import EVENT_STREAM, PassingStream, replayed
from .telemetry import names
from .upstream import ListsModels, Upstream
from .wire import Modes
from .work import Count, at_newest, of_reply

ROUTES = frozenset({"/v1/responses", "/v1/chat/completions", "/v1/completions"})
MODELS = "/v1/models"
PROBE_PATIENCE_S = 2.0
"""How long a new generation waits while the backend is being probed; then it cannot be cut, and goes on.

With a capture ledger it waits for as long as the probe takes: asked for without ids, its row would have no tokens."""


class ModelServer(Holder[ModelState]):
    """Serves generations to sessions."""

    kind = "model"
    modes = Modes(checkpoint_mode="exported")
    ends_with_client = True
    """What had come of a call whose client has gone is kept for a repeat, and the backend is spared the rest."""

    def __init__(
        self,
        upstream: Upstream,
        *,
        name: str = "main",
        gate: Gate | None = None,
        model: str | None = None,
        cuts: LazyCapabilities | None = None,
        resampled: bool = False,
        policy: Policy = always_continue,
        ledger: Ledger | None = None,
        staging: Asks | None = None,
    ) -> None:
        """`upstream` is open for as long as this is used.

        `model` replaces the one that requests name. With `cuts`, what is known of the backend, generations are cut and
        continued; `resampled` accepts a rest that may differ from the uncut one, and `policy` decides of each prefix.
        With a `ledger` every call is captured. `staging` reaches the staging routes of a worker that has them.
        """
        super().__init__(name, gate=gate)
        self._upstream = upstream
        staged = StagedCuts(staging) if staging else None
        self.generator = Generator(
            upstream,
            model=model,
            cuts=cuts,
            resampled=resampled,
            policy=policy,
            staged=staged,
            participant=self.role,
        )
        self.capture = Capture(ledger)
        self.flights = Flights()
        """Of lives."""
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
        await self.capture.begin(request.life, held.state.captured)
        with self.working(held):  # Ids for a ledger, and a cut, are worth waiting for a slow probe; nothing else is.
            waits = bool(held.state.cuts) or self.capture.ledger is not None
            await self.generator.capabilities(None if waits else PROBE_PATIENCE_S)
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
            made = await self._upstream.complete(request.route, self.generator.asked(request))
            return checked(request.route, made)
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
            with self.holding():
                await self._deliver(held)
        return reply

    def _forget_other(self, held: Held[ModelState], request: Request, call: CallId) -> None:
        """The caller asks something else now under the same id: generate anew."""
        kept = self._kept(held, call)
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
        self.count_held()
        with self.working(held):
            await self.gate.wait_open()

    async def _generate(self, held: Held[ModelState], request: Request, *, inside_wait: bool = False) -> Reply:
        """One whole generation, from where an earlier one was cut; captured before it is released."""
        with self._flying(held, request, inside_wait=inside_wait) as flight:
            made = await self._made(held, flight)
        return made.reply

    async def _made(self, held: Held[ModelState], flight: Flight) -> Made:
        request, state = flight.request, held.state
        try:
            made = await self.generator.make(flight)
        except ParticipantError as error:
            await self.capture.failed(held.life, state.captured, request, error)
            raise
        await self._ended(held, flight, made)
        return made

    async def _ended(self, held: Held[ModelState], flight: Flight, made: Made) -> None:
        """It is whole: captured, and in flight no more."""
        await self.capture.ended(held.life, held.state.captured, flight.request, made)
        held.state.counts["generated"] += 1
        flight.done = True
        self._landed(held, flight)

    def _landed(self, held: Held[ModelState], flight: Flight) -> None:
        held.state.flights.discard(flight)
        self.flights.discard(flight)

    @contextmanager
    def _flying(self, held: Held[ModelState], request: Request, *, inside_wait: bool = False) -> Iterator[Flight]:
        flight = Flight(
            request,
            inside_wait=inside_wait,
            begun=held.state.take_cut(request),
            uncuttable=self.generator.uncuttable(request),
        )
        captured = on_the_wire(held.life) is not None
        held.state.flights.add(flight)
        if captured:
            self.flights.add(flight)
        try:
            yield flight
        finally:
            if not flight.done:  # Broken off, given up, or not captured: what had come is for whoever asks again.
                held.state.keep_cut(request, flight.prefix())
            self._landed(held, flight)

    # Streams

    async def _streamed(self, held: Held[ModelState], request: Request) -> Reply:
        call = request.call
        if call is None:
            reply = held.state.take(request.digest)
            held.state.counts["served"] += reply is not None
            return replayed(reply) if reply else await self._open_stream(held, request, None)
        self._forget_other(held, request, call)
        while (kept := self._kept(held, call)) is not None:
            if kept.reply is not None:
                held.state.counts["served"] += 1
                return replayed(kept.reply)
            with self.working(held):
                await kept.done.wait()
        return await self._open_stream(held, request, held.replies.begin(call, request.digest))

    async def _open_stream(self, held: Held[ModelState], request: Request, kept: Kept | None) -> Reply:
        """Begin upstream, so that a refusal keeps its status, and hand the stream over."""
        async with AsyncExitStack() as stack:
            if kept is not None and request.call is not None:
                stack.callback(_forget_unfinished, held, request.call, kept)
            flight = stack.enter_context(self._flying(held, request))
            with self.working(held):
                begun = await self.generator.whole_prefix(flight)
            if begun is not None:
                decision = self.generator.decide(request, begun)
                if isinstance(decision, Continue):
                    return await self._continue_stream(held, flight, kept)
                self.generator.give_up(decision, begun)
            flight.start_over()
            with self.working(held):
                body = self.generator.asked_stream(request)
                opening = self._upstream.stream(request.route, body, request.life, call=request.call)
                chunks = await stack.enter_async_context(opening)
                if chunks.status != 200:
                    refused = Reply(chunks.status, parse(b"".join([chunk async for chunk in chunks])))
                    await self._ended(held, flight, Made(reply=refused))
                    return refused
            stream = PassingStream(self, held, chunks, flight.listen(request.route), kept=kept is not None)
            held.state.streams.add(stream)
            stack.callback(held.state.streams.discard, stream)
            stream.on_end = lambda reply: self._stream_ended(held, flight, kept, reply)
            stream.on_failure = lambda error: self.capture.failed(held.life, held.state.captured, request, error)
            stream.resources = stack.pop_all()
        return Reply(200, None, {"content-type": EVENT_STREAM}, stream)

    def count_held(self) -> None:
        """A reply is finished, and to be delivered."""
        if self.gate.closed:
            telemetry.add(names.HELD, participant=self.role)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """While the reply to a call with an id is finished and waits to be delivered."""
        self._holding += 1
        try:
            yield
        finally:
            self._holding -= 1

    async def _continue_stream(self, held: Held[ModelState], flight: Flight, kept: Kept | None) -> Reply:
        """The whole of a stream that was cut, once the rest of it has been generated."""
        request = flight.request
        with self.working(held):
            made = await self._made(held, flight)
        if not made.reply.ok:
            return made.reply
        events = b"".join(as_stream(request.route, made.reply.body, request.body))
        reply = Reply(200, events.decode(), {**made.reply.headers, "content-type": EVENT_STREAM})
        over = self._keep_stream(held, request, kept, reply)
        await self._deliver(held)
        if over is not None:
            over(True)
        return replayed(reply)

    async def _stream_ended(
        self, held: Held[ModelState], flight: Flight, kept: Kept | None, reply: Reply
    ) -> Callable[[bool], None] | None:
        """All of it is here: keep it as any other reply. What to do when the client has had it, or has gone.

        Raises `model_failed` where it is no whole generation.
        """
        await self._ended(held, flight, self.generator.passed(flight, reply))
        return self._keep_stream(held, flight.request, kept, reply)

    def _keep_stream(
        self, held: Held[ModelState], request: Request, kept: Kept | None, reply: Reply
    ) -> Callable[[bool], None] | None:
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

    def _flights(self) -> Iterator[Flight]:
        for held in self._held.values():
            yield from held.state.flights

    def check_export(self) -> None:
        """Refuse while a call inside a waited-for step is in flight: its step is not at a boundary."""
        if any(flight.inside_wait for flight in self.flights) and (
            count := sum(flight.inside_wait for flight in self._flights())
        ):
            raise ParticipantError(
                Code.INVALID_PHASE, f"{count} model calls are in flight inside steps that are waited for"
            )

    def counts(self) -> dict[str, int]:
        """For the status; `kept`, `held`, `cut` and `anew` are the dispositions, `anew_<reason>` says why."""
        every = self._held.values()
        waiting = sum([sum(map(len, held.state.undelivered.values())) for held in every if held.state.undelivered])
        finished = sum([held.replies.finished for held in every])
        held_now = self._holding + waiting
        flying = self.flights.dispositions()
        reasons = {f"anew_{reason}": count for reason, count in flying.items() if reason != CUT}
        generator = self.generator
        return {
            **super().counts(),
            "in_flight": flying.total(),
            "kept": finished - self._holding,
            "held": held_now,
            "cut": flying[CUT],
            "anew": flying.total() - flying[CUT],
            **reasons,
            "tokens_continued": generator.tokens["continued"],
            "tokens_regenerated": generator.tokens["regenerated"],
            **{f"regenerated_{reason}": count for reason, count in generator.anew.items()},
            **(self.capture.ledger.counts() if self.capture.ledger else {}),
        }

    # Prefixes that the worker keeps

    @property
    def pins(self) -> bool:  # type: ignore[override]
        """Whether the worker keeps prefixes."""
        return self.generator.staged is not None and self.generator.known.staging

    async def freeze(self, scope: Collection[Life] | None = None) -> None:
        """A commit stages what is in flight of its scope, where the worker can."""
        staged = self.generator.staged
        if staged is None or not self.pins or scope is None:
            return
        held = [each for each in self._held.values() if each.life in scope]
        await staged.freeze([flight for each in held for flight in each.state.flights])
        staged.needs([cut.prefix for each in held for cut in each.state.cuts])

    def thaw(self) -> None:
        """What was staged was that of one commit."""
        for flight in self.flights:
            flight.staged = None

    async def pin(self, run: str, checkpoint: CheckpointId) -> None:
        """Have the worker keep what this commit has staged."""
        if self.generator.staged is not None:
            await self.generator.staged.pin(run, checkpoint)

    async def release(self, run: str, standing: Collection[CheckpointId], now: CheckpointId) -> None:
        """Let the worker drop what only deleted checkpoints needed."""
        if self.generator.staged is not None:
            await self.generator.staged.release(run, standing, now)

    async def retire(self, lives: Sequence[Life], timeout_s: float) -> list[Life]:
        """As every holder does; their ledgers are retired too."""
        left = await super().retire(lives, timeout_s)
        await self.capture.retire(lives)
        return left

    def free_state(self, held: Held[ModelState]) -> None:
        """End its streams at once, wherever their readers are."""
        for stream in list(held.state.streams):
            stream.abort()
        self.capture.leave(held.life)

    def _take_up(self, life: Life) -> Held[ModelState]:
        brought = self._brought.get(life.rollout_id)
        held = super()._take_up(life)
        if brought is not None and brought.record.life.attempt + 1 == life.attempt:
            held.state.captured.source = brought.record.life
        return held

    def new_state(self, life: Life) -> ModelState:
        """No call yet."""
        return ModelState()

    def export_state(self, held: Held[ModelState]) -> Any:
        """The counts, what nobody has had yet, the beginnings of what is not finished, and the ledger's rows."""
        state = held.state
        undelivered = [
            {"digest": digest, "status": r.status, "body": r.body, "headers": dict(r.headers)}
            for digest, items in state.undelivered.items()
            for r in (item.reply for item in items)
        ]
        prefixes = [(flight.request, flight.staged or flight.prefix()) for flight in state.flights]
        flying = [cut_of(request, p) for request, p in prefixes if p is not None and (p.ids or p.staged)]
        every = (*state.cuts, *flying)
        cuts = [{"call": cut.call, "digest": cut.digest, "prefix": dump_prefix(cut.prefix)} for cut in every]
        if every:
            telemetry.add(names.CUTS, len(every), participant=self.role)
            telemetry.add(names.CUT_TOKENS, sum(cut.prefix.count for cut in every), participant=self.role)
        rows = self.capture.rows(held.life, state.captured)
        return {"counts": dict(state.counts), "undelivered": undelivered, "cuts": cuts, "ledger": rows}

    def work_of(self, held: Held[ModelState]) -> tuple[Count, int]:
        """Of the newest boundary: whole replies, and the tokens of what is not finished."""
        kept = [(call, of_reply(item.reply.body)) for call, item in held.replies if item.reply is not None]
        cuts = [(cut.call, cut.prefix) for cut in held.state.cuts]
        flying = [(str(flight.request.call or ""), flight.prefix()) for flight in held.state.flights]
        return at_newest([*kept, *_begun([*cuts, *flying])])

    def work_in(self, payload: Any) -> tuple[Count, int]:
        """The same of a record."""
        kept = [(CallId.parse(reply["call"]), of_reply(reply["body"])) for reply in payload["replies"]]
        return at_newest([*kept, *_begun((cut.call, cut.prefix) for cut in self.import_state(payload["state"]).cuts)])

    def import_state(self, payload: Mapping[str, Any]) -> ModelState:
        """The state again."""
        state = ModelState(Counter({str(key): int(value) for key, value in payload["counts"].items()}))
        for item in payload["undelivered"]:
            state.hold(item["digest"], Reply(item["status"], item["body"], item["headers"]))
        state.cuts = [Cut(each["call"], each["digest"], load_prefix(each["prefix"])) for each in payload["cuts"]]
        state.captured.carried = payload["ledger"]
        return state


def _forget_unfinished(held: Held[ModelState], call: CallId, kept: Kept) -> None:
    if kept.reply is None:
        held.replies.finish(call, kept, None)


def _begun(prefixes: Iterable[tuple[str, Prefix | None]]) -> Iterator[tuple[CallId, Count]]:
    for call, prefix in prefixes:
        if call and prefix is not None:
            yield CallId.parse(call), (0, prefix.count)
