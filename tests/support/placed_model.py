"""A model server before the deterministic backend in this process, cut in the middle of a call and restored."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread

from participants import ModelServer, OpenAIEndpoint, Reply, Request
from participants.backends import Capabilities, LazyCapabilities
from participants.cuts import Policy, always_continue, read
from participants.data import CallId
from participants.inference import Backend, Settings, serving
from participants.inference.control import HoldOrder
from participants.ledger import Ledger
from store import Life
from tests.participants.resources.harness import checkpoint, restore

LIFE = Life("r0", 1, 0, 0)
NEXT = Life("r0", 2, 1, 0)
CALL = CallId("agent.main", 1, 0)
TASK = "add 1 then get the count"
TOOLS = [{"type": "function", "function": {"name": "increment_counter", "parameters": {"type": "object"}}}]
FLAT_TOOLS = [{"type": "function", "name": "increment_counter", "parameters": {"type": "object"}}]
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "logprobs": True}),
    "chat with tools": ("/v1/chat/completions", {"messages": [{"role": "user", "content": TASK}], "tools": TOOLS}),
    "completions": ("/v1/completions", {"prompt": "hello", "max_tokens": 40, "logprobs": 2}),
    "responses": ("/v1/responses", {"input": "hello", "max_output_tokens": 30}),
    "responses with tools": ("/v1/responses", {"input": TASK, "tools": FLAT_TOOLS}),
}
"""By name: a route and what is asked of it."""


class Place:
    """A backend, and model servers before it, one after the other."""

    def __init__(self, backend: Backend, endpoint: OpenAIEndpoint, *, staging: bool, ledger: Ledger | None) -> None:
        self.backend = backend
        self.endpoint = endpoint
        self.known: Capabilities | None = None
        self.policy: Policy = always_continue
        self._staging = endpoint if staging else None
        self._ledger = ledger
        self.server = self.fresh()

    def fresh(self) -> ModelServer:
        """A server that knows nothing."""
        cuts = LazyCapabilities(self.endpoint, self.backend.settings.model, known=self.known)
        return ModelServer(self.endpoint, cuts=cuts, staging=self._staging, ledger=self._ledger, policy=self.policy)

    async def crash(self) -> None:
        """Another server restores what this one exports."""
        server: Any = self.server
        records = await checkpoint(server, {LIFE})
        self.server = self.fresh()
        await restore(self.server, records)  # type: ignore[arg-type]

    async def let_go(self) -> None:
        """End every order and every call."""
        self.backend.board.reset()
        await self.backend.calls.wait(lambda: not self.backend.board.live)

    def request(self, name: str, life: Life = LIFE, call: CallId | None = CALL, **more: Any) -> Request:
        route, body = BODIES[name]
        return Request(route=route, body={"model": self.backend.settings.model, **body, **more}, life=life, call=call)

    @property
    def generated(self) -> list[int]:
        """Tokens of each call since the probes."""
        return [record.generated for record in self.backend.calls.since(0)]


@asynccontextmanager
async def placed(tokens: Path | None = None, ledger: Ledger | None = None) -> AsyncIterator[Place]:
    """A place whose server has probed its backend; the backend's calls count from here.

    `tokens` is the folder of the worker's token store, if it is to stage.
    """
    backend = await anyio.to_thread.run_sync(Backend, Settings(control=True, token_store=tokens))
    async with serving(backend) as url, OpenAIEndpoint(f"{url}/v1", retry_for_s=0.0) as endpoint:
        place = Place(backend, endpoint, staging=tokens is not None, ledger=ledger)
        place.known = known = await place.server.generator.capabilities()
        assert known.bit_equal
        assert known.token_ids_in
        assert known.staging is (tokens is not None)
        place.server = place.fresh()
        backend.board.reset()
        backend.calls.clear()
        yield place
    backend.close()


async def text_of(reply: Reply) -> str:
    """The events of a streamed reply."""
    assert reply.stream is not None
    stream: Any = reply.stream
    try:
        return b"".join([chunk async for chunk in stream]).decode()
    finally:
        if hasattr(stream, "aclose"):
            with anyio.CancelScope(shield=True):
                await stream.aclose()


async def whole_of(route: str, reply: Reply) -> dict[str, Any]:
    """The body of a reply, put together where it was streamed, without what differs between any two calls."""
    body = reply.body
    if reply.stream is not None:
        body = read(route, [(await text_of(reply)).encode()]).reply
    found: dict[str, Any] = comparable(body)
    return found


def comparable(body: Any) -> Any:
    """Without ids and times of replies."""
    if isinstance(body, dict):
        return {key: comparable(value) for key, value in body.items() if key not in VARYING}
    return [comparable(each) for each in body] if isinstance(body, list) else body


CUTS = {"responses with tools": 24}
"""Tokens at which to cut, where not 3: the stream of Responses says nothing of a call before its name is whole."""
VARYING = {"id", "created", "created_at", "token_ids", "prompt_token_ids", "usage", "call_id", "system_fingerprint"}


async def cut_at(place: Place, request: Request, tokens: int) -> Any:
    """Make a call that stops after some tokens, and crash there; the call itself is given up."""
    place.backend.board.hold(HoldOrder(after_tokens=tokens))

    async def call() -> None:
        reply = await place.server.handle(request)
        if reply.stream is not None:
            await text_of(reply)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await place.backend.calls.wait(lambda: place.backend.calls.counts()["held"] == 1)
        await until_heard(place.server, tokens)
        before = place.server.counts()
        await place.crash()
        group.cancel_scope.cancel()
    await place.let_go()
    return before


async def until_heard(server: ModelServer, tokens: int) -> None:
    """Until the server has read as many tokens as the backend has sent."""
    with anyio.fail_after(10):
        while tokens and heard(server) < tokens:
            await anyio.lowlevel.checkpoint()


def heard(server: ModelServer) -> int:
    """Tokens of the one flight's stream."""
    [flight] = server._flights()
    reading = flight.reading()
    return len(reading.prefix.ids or ()) if reading else 0
