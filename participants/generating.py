"""Carrying out one generation: asked as a stream, so that its prefix is here at any moment, and continued from one.

Where a stream breaks off, or a call is made again after a crash, what was generated is continued: by token ids, or as
text whose ids are checked, as `participants.cuts.plan` decides; else it is generated anew, and the reason is counted.
A backend that nobody has probed, or that does not stream, is asked for whole replies as any client would.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from . import telemetry
from .backends.capabilities import NOTHING, Capabilities
from .backends.lazy import LazyCapabilities
from .cuts import (
    Anew,
    CannotTell,
    Continue,
    Policy,
    Prefix,
    Reading,
    Reason,
    StopWatch,
    always_continue,
    asked_as_stream,
    check_marks,
    finished,
    for_client,
    is_inside_character,
    joined,
    plan,
    watch,
)
from .cuts.features import ranks_of
from .cuts.response_reading import finish_of
from .data import Reply, Request
from .errors import Code, ParticipantError
from .flights import Flight
from .generations import checked, parse
from .staged_cuts import StagedCuts, staged_body
from .telemetry import names
from .upstream import Upstream

MAX_BREAKS = 3
"""How often one call goes on after its stream broke off; also where nothing had come, so that nothing is lost."""
NO_PREFIX = Prefix()
log = logging.getLogger("midflight.model")
_ANYTHING = Prefix(prompt=(0,), ids=(0,))


@runtime_checkable
class Tokenizes(Protocol):
    """A backend that says the ids of texts and the texts of ids."""

    async def tokenize(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        """The ids of what is asked. Raises `model_failed`."""

    async def detokenize(self, ids: tuple[int, ...], model: str = "") -> str:
        """The text of ids. Raises `model_failed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A whole generation."""

    reply: Reply
    whole: Prefix | None = None
    """Its ids, log probabilities and segments, where the backend was asked for a stream."""
    finish: str = ""
    continued: int = 0
    """Tokens that were taken over from a cut."""
    masked: int = 0


class Generator:
    """Asks one backend for generations."""

    def __init__(
        self,
        upstream: Upstream,
        *,
        model: str | None = None,
        cuts: LazyCapabilities | None = None,
        resampled: bool = False,
        policy: Policy = always_continue,
        staged: StagedCuts | None = None,
        participant: str = "model.main",
    ) -> None:
        """`model` replaces the model that requests name; without `cuts` every call is asked for as a whole.

        `staged` is how prefixes are found that the worker keeps in its own token store; `participant` whose this is.
        """
        self._participant = participant
        self._upstream = upstream
        self._model = model
        self._cuts = cuts
        self._resampled = resampled
        self._policy = policy
        self.staged = staged
        self.weights = ""
        """The version that the backend named last."""
        self.anew: Counter[str] = Counter()
        """Prefixes that were not continued, by reason."""
        self.tokens: Counter[str] = Counter()
        """`continued`: taken over from cuts. `regenerated`: of prefixes that were generated anew."""

    async def capabilities(self, patience_s: float | None = None) -> Capabilities:
        """What the backend can do; probes it if that is due, and waits so long for a probe that goes on."""
        return NOTHING if self._cuts is None else await self._cuts.ensure(patience_s)

    @property
    def known(self) -> Capabilities:
        """What is known of it without asking."""
        return NOTHING if self._cuts is None else self._cuts.now

    def asked(self, request: Request) -> dict[str, Any]:
        """The body as the backend is to have it."""
        return {**request.body, "model": self._model} if self._model else dict(request.body)

    def uncuttable(self, request: Request) -> str:
        """Why a cut of this request would be generated anew, whatever has come; empty if it would be continued."""
        decision = plan(request.route, request.body, _ANYTHING, self.known, resampled=self._accepts(request))
        return decision.reason if isinstance(decision, Anew) else ""

    def _accepts(self, request: Request) -> bool:
        """Whether a rest will do that may differ from the uncut one."""
        return self._resampled or request.headers.get(ACCEPT_HEADER) == "resampled"

    def decide(self, request: Request, prefix: Prefix) -> Continue | Anew:
        """What becomes of a prefix."""
        weights = self.weights or (self._cuts.probed.weights if self._cuts else "")
        return plan(
            request.route,
            self.asked(request),
            prefix,
            self.known,
            resampled=self._accepts(request),
            policy=self._policy,
            weights_now=weights,
        )

    async def make(self, flight: Flight) -> Made:
        """One whole generation. Raises ParticipantError; what had come is in the flight then."""
        capabilities = self.known
        route = flight.request.route
        if not capabilities.streams or route not in capabilities.routes or self._loses_scores(flight.request):
            made = await self._upstream.complete(route, self.asked(flight.request), flight.request.life)
            self._noted(NO_PREFIX)
            return _whole_reply(route, made)
        return await self._streamed(flight)

    def _loses_scores(self, request: Request) -> bool:
        """Whether a stream would say less than a whole reply, and without ids no prefix that could be continued.

        vLLM's streams of Responses leave out log probabilities of tokens that show no text.
        """
        return request.route not in self.known.ids_routes and ranks_of(request.route, request.body) is not None

    async def _streamed(self, flight: Flight) -> Made:
        for _ in range(MAX_BREAKS):
            try:
                return await self._once(flight)
            except ParticipantError as error:
                if error.details.get("reason") not in GOES_ON:
                    raise
        return await self._once(flight)

    async def _once(self, flight: Flight) -> Made:
        prefix = await self.whole_prefix(flight)
        if prefix is not None:
            decision = self.decide(flight.request, prefix)
            made = await self._joined(flight, prefix, decision) if isinstance(decision, Continue) else decision
            if isinstance(made, Made):
                return made
            self.give_up(made, prefix)
        flight.start_over()
        return await self._fresh(flight)

    async def whole_prefix(self, flight: Flight) -> Prefix | None:
        """The prefix with its ids, wherever they are; without them where the worker does not give them any more."""
        prefix, request = flight.prefix(), flight.request
        if prefix is None or prefix.staged is None or prefix.ids is not None or self.staged is None:
            return prefix
        assert request.life is not None
        try:
            found = await self.staged.ids_of(prefix, request.life, request.call)
        except ParticipantError as error:
            log.warning("%s of %s is generated anew: %s", request.call, request.life, error)
            return prefix
        flight.begin(found)
        return found

    def give_up(self, why: Anew, prefix: Prefix) -> None:
        """A prefix is not continued: count it."""
        if why.reason is not Reason.NOTHING_GENERATED:
            self.anew[why.reason] += 1
            self.tokens["regenerated"] += prefix.count
            labels = {"participant": self._participant, "reason": why.reason.value}
            telemetry.add(names.TOKENS_REGENERATED, prefix.count, **labels)

    async def _fresh(self, flight: Flight) -> Made:
        request = flight.request
        body = self.asked(request)
        reading = await self._read(flight, request.route, asked_as_stream(request.route, body, self.known))
        if isinstance(reading, Reply):
            return _whole_reply(request.route, reading)
        return self.whole(request, reading)

    def whole(self, request: Request, reading: Reading) -> Made:
        """The reply of a stream that was read to its end. Raises `model_failed` where it has none."""
        if reading.failure is not None:
            raise reading.failure
        if reading.reply is None:
            raise _ended_early()
        self._noted(reading.prefix)
        reply = for_client(request.route, request.body, reading.reply)
        made = checked(request.route, Reply(200, reply))
        return Made(reply=made, whole=reading.prefix, finish=reading.finish or "")

    def asked_stream(self, request: Request) -> dict[str, Any]:
        """The body of a stream that goes through to its client."""
        known = self.known
        ids = {"return_token_ids": True} if request.route in known.ids_routes and known.streams else {}
        return {**self.asked(request), **ids}

    def passed(self, flight: Flight, reply: Reply) -> Made:
        """What a stream was that has gone through, in `reply` as it was. Raises `model_failed` where it has no end."""
        reading = flight.reading()
        if reading is None or reading.failure is not None or reading.reply is None:
            raise (reading and reading.failure) or _ended_early()
        self._noted(reading.prefix)
        return Made(reply=reply, whole=reading.prefix, finish=reading.finish or "")

    async def _read(
        self, flight: Flight, route: str, body: Mapping[str, Any], until: StopWatch | None = None
    ) -> Reading | Reply:
        """Read one stream into the flight; a refusal comes as it is."""
        request = flight.request
        async with self._upstream.stream(route, body, request.life, call=request.call) as chunks:
            if chunks.status != 200:
                return Reply(chunks.status, parse(b"".join([chunk async for chunk in chunks])))
            listening = flight.listen(route)
            try:
                while (chunk := await listening.hear(chunks)) is not None:
                    if until is not None and until.feed(chunk):
                        break
            except ParticipantError as error:
                # What breaks after the generation has said its end takes nothing away.
                if error.details.get("reason") not in GOES_ON or not listening.reading().ended:
                    raise
        return listening.reading()

    async def _joined(self, flight: Flight, prefix: Prefix, decision: Continue) -> "Made | Anew":
        """As `_continued`, where marks cannot be told from their names as well."""
        try:
            return await self._continued(flight, prefix, decision)
        except CannotTell as error:
            return Anew(Reason.MARKS, str(error))

    async def _continued(self, flight: Flight, prefix: Prefix, decision: Continue) -> "Made | Anew":
        """The joined reply, or why there is none after all."""
        if decision.check is not None and not await self._is_same(decision):
            return Anew(Reason.RETOKENISED)
        raw = await self._text_of(decision.raw_ids) if decision.needs_raw_text else None
        request, tool_format = flight.request, self.known.tool_format
        body = self.asked(request)
        check_marks(body, prefix, route=request.route, raw_text=raw, tool_format=tool_format)
        rest = await self._rest(flight, prefix, decision, raw)
        if isinstance(rest, Reply):
            return Anew(Reason.REFUSED, str(rest.status))
        if rest.failure is not None:
            raise rest.failure
        whole_text = None
        if is_inside_character(raw):
            whole_text = await self._text_of((*decision.raw_ids, *(rest.prefix.ids or ())))
        result = joined(
            request.route,
            body,
            prefix,
            rest,
            raw_text=raw,
            whole_text=whole_text,
            tool_format=tool_format,
            kind=self.known.kind,
        )
        self._noted(result.whole)
        taken = len(prefix.ids or ())
        self.tokens["continued"] += taken
        telemetry.add(names.TOKENS_CONTINUED, taken, participant=self._participant)
        exact = prefix.finish or (self.known.bit_equal and not decision.resampled)
        headers = {CONTINUED_HEADER: "exact" if exact else "prefix"}
        reply = Reply(200, for_client(request.route, request.body, result.reply), headers)
        return Made(
            reply=checked(request.route, reply),
            whole=result.whole,
            finish=result.finish,
            continued=taken,
            masked=taken if decision.masked else 0,
        )

    async def _rest(self, flight: Flight, prefix: Prefix, decision: Continue, raw: str | None) -> Reading | Reply:
        """What comes after the prefix; a refusal as it is."""
        says_why = self.known.says_stop_reason
        if decision.body is None:
            return finished(decision.finish or "stop", says_stop_reason=says_why, extras=prefix.extras)
        body = staged_body(dict(decision.body), prefix) if decision.as_ == "tokens" else decision.body
        if not decision.stops:
            return await self._read(flight, decision.route, body)
        request = flight.request
        watching = watch(
            self.asked(request), prefix, route=request.route, raw_text=raw, tool_format=self.known.tool_format
        )
        if watching.stop is not None:
            return finished("stop", says_stop_reason=says_why)
        return await self._read(flight, decision.route, watching.asked(body), watching)

    async def _is_same(self, decision: Continue) -> bool:
        assert decision.check is not None
        if not isinstance(self._upstream, Tokenizes):
            return False
        try:
            return await self._upstream.tokenize(decision.check.body) == tuple(decision.check.expected)
        except ParticipantError:
            return False

    async def _text_of(self, ids: tuple[int, ...]) -> str:
        if not ids:
            return ""
        assert isinstance(self._upstream, Tokenizes), "a backend that was seen to detokenize"
        return await self._upstream.detokenize(ids, self._model or "")

    def _noted(self, whole: Prefix) -> None:
        """The backend has answered."""
        if self._cuts is not None:
            self._cuts.note_success()
        if whole.segments:
            self.weights = whole.segments[-1].weights or self.weights


def _ended_early() -> ParticipantError:
    return ParticipantError(Code.MODEL_FAILED, "the stream ended before the generation", {"reason": "broke_off"})


def _whole_reply(route: str, reply: Reply) -> Made:
    """What a backend answered as a whole, a refusal as well."""
    made = checked(route, reply)
    return Made(reply=made, finish=finish_of(route, made.body) if made.ok else "")


GOES_ON = frozenset({"broke_off", "idle_timeout"})
"""Breaks of a stream after which what came before is continued at once."""
ACCEPT_HEADER = "x-midflight-accept"
"""`resampled`: the caller of a model call accepts a continuation that is not the uncut one."""
CONTINUED_HEADER = "x-midflight-continued"
"""On a reply that was continued: `exact`, or `prefix` where the rest may differ from the uncut one."""
