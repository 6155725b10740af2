"""The model endpoint of a run, which says when it does not answer, and what is likely to be wrong.

Calls are tried again for `retry_for_s`, so a dead endpoint would otherwise be silent for minutes. One line is told at
the first call that fails and at most one every `TELL_EVERY_S` after it, however many calls wait.
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio

from participants import Chunks, OpenAIEndpoint, ParticipantError, Reply
from participants.backends.breaks import Unreachable
from participants.data import CallId
from store import Life

from .config import ModelTable, secret

TELL_EVERY_S = 30.0
PROBE_TIMEOUT_S = 10.0
SHOWN_MODELS = 5
Tell = Callable[[str], None]
_ADVICE = {
    401: "api_key_env names the environment variable with the key",
    403: "api_key_env names the environment variable with the key",
    404: "base_url is what stands before /chat/completions, and usually ends in /v1",
}


class Endpoint(OpenAIEndpoint):
    """Tells people what they would otherwise wait for in vain."""

    def __init__(self, table: ModelTable, tell: Tell, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError where the variable with the key is not set."""
        super().__init__(table.base_url, api_key=secret(table.api_key_env), retry_for_s=table.retry_for_s)
        self._table = table
        self._tell = tell
        self._clock = clock
        self._told_at: float | None = None
        self._silent = False
        self._advised: set[int] = set()

    async def probe(self) -> None:
        """Ask for the models once, before somebody wonders why nothing happens."""
        url = f"{self._table.base_url}: GET /models"
        with anyio.move_on_after(PROBE_TIMEOUT_S) as limit:
            try:
                reply = await self.models()
            except ParticipantError as error:
                self._failed(_why(error))
                return
            self._advise(url, reply)
            served = _names(reply.body) if reply.ok else []
            if served and self._table.model not in served:
                more = f" and {len(served) - SHOWN_MODELS} more" if len(served) > SHOWN_MODELS else ""
                shown = ", ".join(served[:SHOWN_MODELS])
                self._tell(f"{self._table.base_url} serves {shown}{more}, and not {self._table.model!r}")
        if limit.cancelled_caught:
            self._failed(f"GET /models took over {PROBE_TIMEOUT_S:g} s")

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        """As any endpoint; a refusal that a wrong configuration would explain is told with that, once."""
        reply = await super().complete(route, body, life)
        self._advise(f"{self._table.base_url}: POST {route.removeprefix('/v1')}", reply)
        return reply

    @asynccontextmanager
    async def stream(
        self, route: str, body: Mapping[str, Any], life: Life | None = None, *, call: CallId | None = None
    ) -> AsyncIterator[Chunks]:
        """As `complete`."""
        async with super().stream(route, body, life, call=call) as chunks:
            self._advise(f"{self._table.base_url}: POST {route.removeprefix('/v1')}", Reply(chunks.status, ""))
            yield chunks

    def tried(self, failure: Unreachable | None) -> None:
        """A call may go on for long: say so at the first try that fails, and when one is answered again."""
        if failure is not None:
            self._failed(_why(failure))
        elif self._silent:
            self._silent = False
            self._tell(f"{self._table.base_url} answers again")

    def _failed(self, why: str) -> None:
        now = self._clock()
        if self._told_at is not None and now - self._told_at < TELL_EVERY_S:
            return
        self._told_at, self._silent = now, True
        table = self._table
        self._tell(f"{table.base_url} does not answer: {why}; each call is tried for up to {table.retry_for_s:g} s")

    def _advise(self, what: str, reply: Reply) -> None:
        if reply.status in _ADVICE and reply.status not in self._advised:
            self._advised.add(reply.status)
            self._tell(f"{what} answered {reply.status} ({str(reply.body)[:200]}): {_ADVICE[reply.status]}")


def _names(body: Any) -> list[str]:
    models = body.get("data") if isinstance(body, Mapping) else None
    found = models if isinstance(models, list) else []
    return [str(model["id"]) for model in found if isinstance(model, Mapping) and "id" in model]


def _why(error: Exception) -> str:
    """What the client said, which is shorter than what was made of it."""
    return str(error.__cause__ or error) or repr(error.__cause__)
