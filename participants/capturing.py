"""Rows of the capture ledger for a model server's calls: each call that has ended, before its reply is released.

The ledger of a life begins with its first call here, with the rows that its record brought; that ends the ledger of the
life it continues, and clears those of lives that nothing continues. A server without a ledger captures nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from store import Life

from .data import Request
from .errors import ParticipantError
from .generating import Made
from .ledger import Entry, Ledger

_COUNTS = (("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens"))


@dataclass(slots=True)
class Captured:
    """What a life's ledger begins with."""

    carried: Sequence[Mapping[str, Any]] = ()
    source: Life | None = None
    begun: bool = False
    unnamed: int = 0
    """Calls without an id so far."""
    lock: anyio.Lock = field(default_factory=anyio.Lock)


class Capture:
    """Writes the rows of all lives of one server."""

    def __init__(self, ledger: Ledger | None) -> None:
        """None captures nothing."""
        self.ledger = ledger

    async def begin(self, life: Life, captured: Captured) -> None:
        """Begin the life's ledger, once. Raises what `Ledger.begin` does."""
        if self.ledger is None or captured.begun:
            return
        async with captured.lock:
            if not captured.begun:
                await self.ledger.begin(life, captured.carried, captured.source, clear=True)
                captured.begun, captured.carried = True, ()

    async def ended(self, life: Life, captured: Captured, request: Request, made: Made) -> None:
        """A call has come to its end."""
        if self.ledger is None:
            return
        whole, (prompt, generated) = made.whole, _usage(made.reply.body)
        exact = whole is not None and whole.prompt is not None and whole.ids is not None
        entry = Entry(
            call=_name(captured, request),
            route=request.route,
            request_digest=request.digest,
            outcome="completed" if made.reply.ok else f"status_{made.reply.status}",
            finish_reason=made.finish,
            prompt=whole.prompt if whole and exact else None,
            output=whole.ids if whole and exact else None,
            prompt_count=prompt,
            generated_count=generated,
            segments=whole.segments if whole and exact else (),
            continued=made.continued,
            masked=made.masked,
        )
        record = {"request": request.body, "response": made.reply.body, "status": made.reply.status}
        await self.ledger.append(life, entry, record)

    async def failed(self, life: Life, captured: Captured, request: Request, error: ParticipantError) -> None:
        """A call has failed."""
        if self.ledger is not None:
            entry = Entry(
                call=_name(captured, request),
                route=request.route,
                request_digest=request.digest,
                outcome=error.code.value,
            )
            await self.ledger.append(life, entry, {"request": request.body, "error": error.to_body()})

    async def retire(self, lives: Sequence[Life]) -> None:
        """They take no row any more."""
        if self.ledger is not None:
            await self.ledger.retire_all(lives)

    def leave(self, life: Life) -> None:
        """It makes no call any more."""
        if self.ledger is not None:
            self.ledger.leave(life)

    def rows(self, life: Life, captured: Captured) -> list[Mapping[str, Any]]:
        """The life's rows so far, for its record."""
        if self.ledger is None:
            return list(captured.carried)
        return list(self.ledger.export(life)) if captured.begun else list(captured.carried)


def _name(captured: Captured, request: Request) -> str:
    if request.call is not None:
        return str(request.call)
    captured.unnamed += 1
    return f"unnamed:{captured.unnamed - 1}"


def _usage(body: Any) -> tuple[int, int]:
    """Tokens of prompt and output as the reply counts them; 0 where it does not."""
    usage = (body.get("usage") if isinstance(body, Mapping) else None) or {}
    for prompt, output in _COUNTS:
        if usage.get(prompt) is not None:
            return int(usage[prompt]), int(usage.get(output) or 0)
    return 0, 0
