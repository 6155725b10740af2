"""The policy model server: a proxy in front of an inference backend, as a participant.

A model call is a `replay` step of whoever makes it, so a prepare never waits for a generation. What becomes of each
admitted call when a checkpoint is taken is its disposition:

    kept       finished before; its reply is kept until the caller's next boundary, and exported
    held       finished while admission was closed; delivered after resume, and exported like a kept one
    anew       not finished; generated again after a crash (exact continuation of its prefix is to come here)

A repeat of a call by its id gets the kept reply, unless its request differs: then it is generated anew. A call without
an id matches, by digest, only a reply that was not delivered yet, once. A call made inside a waited-for step is always
admitted, and a commit refuses while one is in flight.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

from store import Life

from .data import Reply, Request
from .errors import Code, ParticipantError
from .gate import Gate
from .holder import Held, Holder
from .upstream import Upstream
from .wire import Modes

ROUTES = frozenset({"/v1/responses", "/v1/chat/completions", "/v1/completions"})


class ModelServer(Holder[Counter[str]]):
    """Serves generations to sessions; a life's own state is only its counts."""

    kind = "model"
    modes = Modes(checkpoint_mode="exported")

    def __init__(self, upstream: Upstream, *, name: str = "main", gate: Gate | None = None) -> None:
        """`upstream` is open for as long as this is used."""
        super().__init__(name, gate=gate)
        self._upstream = upstream
        self._in_flight = 0
        self._inside_wait = 0

    async def handle(self, request: Request) -> Reply:
        """Serve one data call."""
        if request.route not in ROUTES:
            raise ParticipantError(Code.INVALID_REQUEST, f"{self.role} has no route {request.route}")
        if request.life is None:
            await self.gate.wait_open()
            return await self._generate(request)
        held = await self.enter(request.life, creates=True)
        if request.body.get("stream"):
            return await self._streamed(held, request)
        inside_wait = bool(request.call and request.call.parent)
        if not inside_wait:
            await self.gate.wait_open()
        reply = await self._once_or_anew(held, request, inside_wait)
        if not inside_wait:
            await self.gate.wait_open()  # Finished while closed: held, and kept meanwhile.
        return reply

    async def _once_or_anew(self, held: Held[Counter[str]], request: Request, inside_wait: bool) -> Reply:
        call = request.call
        if call is not None and (kept := held.replies.find(call)) is not None and kept.digest != request.digest:
            held.replies.finish(call, kept, None)  # The caller asks something else now: generate anew.

        async def run() -> Reply:
            with self.working(held):
                return await self._generate(request, inside_wait=inside_wait)

        reply = await self.once(held, request, run)
        held.state["calls"] += 1
        return reply

    async def _generate(self, request: Request, *, inside_wait: bool = False) -> Reply:
        self._in_flight += 1
        self._inside_wait += inside_wait
        try:
            return await self._upstream.complete(request.route, request.body, request.life)
        finally:
            self._in_flight -= 1
            self._inside_wait -= inside_wait

    async def _streamed(self, held: Held[Counter[str]], request: Request) -> Reply:
        await self.gate.wait_open()
        return Reply(200, None, {"content-type": "text/event-stream"}, self._events(held, request))

    async def _events(self, held: Held[Counter[str]], request: Request) -> AsyncIterator[bytes]:
        self._in_flight += 1
        try:
            async with self._upstream.stream(request.route, request.body, request.life) as chunks:
                if chunks.status != 200:
                    raise ParticipantError(Code.INTERNAL, f"the backend answered {chunks.status}")
                async for chunk in chunks:
                    await self.gate.wait_open()
                    if held.stopped:
                        raise ParticipantError(Code.STALE_LIFE, f"{held.life} was stopped")
                    yield chunk
        finally:
            self._in_flight -= 1

    # What the control plane asks

    def check_export(self) -> None:
        """Refuse while a call inside a waited-for step is in flight: its step is not at a boundary."""
        if self._inside_wait:
            raise ParticipantError(
                Code.INVALID_PHASE, f"{self._inside_wait} model calls are in flight inside steps that are waited for"
            )

    def counts(self) -> dict[str, int]:
        """For the status."""
        return {**super().counts(), "in_flight": self._in_flight}

    def new_state(self, life: Life) -> Counter[str]:
        """No call yet."""
        return Counter()

    def export_state(self, held: Held[Counter[str]]) -> Any:
        """The counts."""
        return dict(held.state)

    def import_state(self, payload: Mapping[str, int]) -> Counter[str]:
        """The counts again."""
        return Counter({str(key): int(value) for key, value in payload.items()})
