"""The endpoint of a model server, which says when it does not answer, and what is likely to be wrong.

Calls are tried again for `retry_for_s`, so a dead endpoint would otherwise be silent for minutes. One line is told at
the first call that fails and at most one every `TELL_EVERY_S` after it, however many calls wait. An endpoint that takes
calls and sends nothing fails none for longer still: it is told of as often, once a call has waited for `PATIENCE_S`.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from store import Life

from ..backends.breaks import Unreachable
from ..data import CallId, Reply
from ..errors import ParticipantError
from ..upstream import Chunks, OpenAIEndpoint
from .model_settings import ModelSettings
from .settings import secret

TELL_EVERY_S = 30.0
PATIENCE_S = 30.0
LOOK_S = 5.0
"""Between two looks at the calls that wait."""
PROBE_TIMEOUT_S = 10.0
SHOWN_MODELS = 5
Tell = Callable[[str], None]
_KEY = "api_key_env names the environment variable with the key"
_PATH = "base_url is what stands before /chat/completions, and usually ends in /v1"
_ADVICE = {401: _KEY, 403: _KEY, 404: _PATH}


@dataclass(slots=True, eq=False)
class _Waiting:
    """A call of which nothing has come yet."""

    since: float
    stream: object = None
    """None where the reply comes whole."""

    @property
    def nothing_yet(self) -> bool:
        return not getattr(self.stream, "received_bytes", 0)


class Endpoint(OpenAIEndpoint):
    """Tells people what they would otherwise wait for in vain."""

    def __init__(self, settings: ModelSettings, tell: Tell, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError where the variable with the key is not set."""
        super().__init__(
            settings.base_url,
            api_key=secret(settings.api_key_env),
            retry_for_s=settings.retry_for_s,
            timeout_s=settings.timeout_s,
            first_token_timeout_s=settings.first_token_timeout_s,
            idle_timeout_s=settings.idle_timeout_s,
        )
        self._settings = settings
        self._tell = tell
        self._clock = clock
        self._told_at: float | None = None
        self._silent = False
        self._advised: set[int] = set()
        self._served: list[str] = []
        self._probing = False
        self._unexplained: tuple[str, Reply] | None = None
        """A 404 that came while it was not known yet what the endpoint serves."""
        self._waiting: set[_Waiting] = set()
        self._told_waiting_at: float | None = None
        self._heard_at = clock()
        """When a whole reply came last."""

    async def watch(self) -> None:
        """Ask what there is, and look at the calls that wait, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.probe)
            while True:
                await anyio.sleep(LOOK_S)
                self.look()

    async def probe(self) -> None:
        """Ask for the models once, before somebody wonders why nothing happens."""
        self._probing = True
        try:
            await self._probe()
        finally:
            self._probing = False
            if self._unexplained is not None:
                self._advise(*self._unexplained)

    async def _probe(self) -> None:
        url = f"{self._settings.base_url}: GET /models"
        with anyio.move_on_after(PROBE_TIMEOUT_S) as limit:
            try:
                reply = await self.models()
            except ParticipantError as error:
                self._failed(_why(error))
                return
            self._advise(url, reply)
            self._served = _names(reply.body) if reply.ok else []
            if self._served and self._settings.model not in self._served:
                self._tell(f"{self._settings.base_url} serves {self._shown()}, and not {self._settings.model!r}")
        if limit.cancelled_caught:
            self._failed(f"GET /models took over {PROBE_TIMEOUT_S:g} s")

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        """As any endpoint; a refusal that a wrong configuration would explain is told with that, once."""
        with self._counted(None):
            reply = await super().complete(route, body, life)
            self._heard_at = self._clock()
        self._advise(f"{self._settings.base_url}: POST {route.removeprefix('/v1')}", reply)
        return reply

    @asynccontextmanager
    async def stream(
        self, route: str, body: Mapping[str, Any], life: Life | None = None, *, call: CallId | None = None
    ) -> AsyncIterator[Chunks]:
        """As `complete`."""
        opening = super().stream(route, body, life, call=call)
        with self._counted(opening):
            async with opening as chunks:
                self._advise(f"{self._settings.base_url}: POST {route.removeprefix('/v1')}", Reply(chunks.status, ""))
                yield chunks

    @contextmanager
    def _counted(self, stream: object) -> Iterator[None]:
        waiting = _Waiting(self._clock(), stream)
        self._waiting.add(waiting)
        try:
            yield
        finally:
            self._waiting.discard(waiting)

    def look(self) -> None:
        """Tell of calls that have waited long, unless it was told just now that they do or that calls fail."""
        now = self._clock()
        streams = [now - call.since for call in self._waiting if call.stream is not None and call.nothing_yet]
        whole = [now - max(call.since, self._heard_at) for call in self._waiting if call.stream is None]
        told = _told_late(streams, "a first token", "first_token_timeout_s", self._settings.first_token_timeout_s)
        # A whole reply may take long for its length: it is late where no other one comes either.
        told += _told_late(whole, "a whole reply, and none comes", "timeout_s", self._settings.timeout_s)
        before = [at for at in (self._told_at, self._told_waiting_at) if at is not None]
        if told and (not before or now - max(before) >= TELL_EVERY_S):
            self._told_waiting_at = now
            self._tell(f"{self._settings.base_url}: {'; '.join(told)}")
        if not told and self._told_waiting_at is not None:
            self._told_waiting_at = None
            self._tell(f"{self._settings.base_url}: no call waits for over {PATIENCE_S:g} s any more")

    def tried(self, failure: Unreachable | None) -> None:
        """A call may go on for long: say so at the first try that fails, and when one is answered again."""
        if failure is not None:
            self._failed(_why(failure))
        elif self._silent:
            self._silent = False
            self._tell(f"{self._settings.base_url} answers again")

    def _failed(self, why: str) -> None:
        now = self._clock()
        if self._told_at is not None and now - self._told_at < TELL_EVERY_S:
            return
        self._told_at, self._silent = now, True
        settings = self._settings
        self._tell(
            f"{settings.base_url} does not answer: {why}; each call is tried for up to {settings.retry_for_s:g} s"
        )

    def _advise(self, what: str, reply: Reply) -> None:
        if reply.status not in _ADVICE or reply.status in self._advised:
            return
        if reply.status == 404 and self._probing and not what.endswith("GET /models"):
            self._unexplained = self._unexplained or (what, reply)
            return
        self._advised.add(reply.status)
        advice = self._of_missing() if reply.status == 404 else _ADVICE[reply.status]
        said = f" ({str(reply.body)[:200]})" if reply.body else ""
        self._tell(f"{what} answered {reply.status}{said}: {advice}")

    def _of_missing(self) -> str:
        """What a 404 comes from: no such path, unless the models could be asked for; no such model; no such route."""
        model = self._settings.model
        if not self._served:
            return _PATH
        if model not in self._served:
            return f"model is {model!r}, and GET /models lists {self._shown()}"
        return f"GET /models lists {model!r}, so base_url is right; dialect says which route is asked"

    def _shown(self) -> str:
        more = f" and {len(self._served) - SHOWN_MODELS} more" if len(self._served) > SHOWN_MODELS else ""
        return ", ".join(self._served[:SHOWN_MODELS]) + more


def _told_late(waits: list[float], what: str, limit: str, limit_s: float) -> list[str]:
    late = [seconds for seconds in waits if seconds > PATIENCE_S]
    if not late:
        return []
    calls = "1 call waits" if len(late) == 1 else f"{len(late)} calls wait"
    return [f"{calls} for {what}, the oldest for {max(late):.0f} s; one is given up after {limit_s:g} s ({limit})"]


def _names(body: Any) -> list[str]:
    models = body.get("data") if isinstance(body, Mapping) else None
    found = models if isinstance(models, list) else []
    return [str(model["id"]) for model in found if isinstance(model, Mapping) and "id" in model]


def _why(error: Exception) -> str:
    """What the client said, which is shorter than what was made of it."""
    return str(error.__cause__ or error) or repr(error.__cause__)
