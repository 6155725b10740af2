"""The backend as an ASGI app: requests become jobs, jobs become generations, and clients that leave end theirs.

Order of a call: read and check the request; record it; fail it if so ordered; wait where it is held at its start; wait
for a place and for the latency; generate in small batches, each sent before the next, stopping where a hold says;
record the end; send the last bytes. Beside it one task watches the connection, and cancels the call when the client is
gone.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import orjson
from anyio.lowlevel import checkpoint
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..staging import ActiveBuffer, staging_routes
from . import chat, completions, responses
from .calls import LIVE, CallEvent, CallLog, Calls
from .control import Board, LiveCall, Pace, stops, tokens_until_stop
from .engines import DeterministicEngine, Engine, Running
from .jobs import Job, make_meta, prompt_ids, tokenized, validate
from .refusals import RequestRefused
from .staged import enter, make_stager
from .tokens import decode, from_numbers, to_numbers
from .weights_route import weights_route

BATCH_TOKENS = 32
"""Generated between two looks at the event loop, where no rate is set."""
DEFAULT_MODEL, REAL_MODEL = "midflight-deterministic", "midflight-llama"
Parse = Callable[[bytes, str], Job]
SSE_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
JSON_HEADERS = [(b"content-type", b"application/json")]
UNKEPT_PROMISE = [*JSON_HEADERS, (b"content-length", b"1")]
"""A reply that starts and then breaks off."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a backend is started."""

    model: str = DEFAULT_MODEL
    seed: int = 0
    """Another seed gives other words."""
    weights: str = ""
    """The version of the weights, which chunks and replies name; empty: they name none."""
    pace: Pace = field(default_factory=Pace)
    control: bool = False
    """Whether the control routes exist."""
    log: Path | None = None
    """Where calls are recorded as lines of JSON."""
    weights_root: Path | None = None
    """Where other weights may be loaded from while it runs; the route for that exists with it."""
    token_store: Path | None = None
    """A folder where prefixes are staged; the staging routes exist with it."""


class Backend:
    """The state of one backend and its ASGI app."""

    def __init__(self, settings: Settings, engine: Engine | None = None) -> None:
        """Without an engine, words come from a hash."""
        from .control_routes import control_routes

        self.settings = settings
        self.engine = engine or DeterministicEngine(settings.seed, settings.weights)
        self._log = CallLog(settings.log)
        self.calls = Calls(self._log)
        self.board = Board(settings.pace)
        self.stager = make_stager(settings.token_store, self.engine.context)
        routes = [
            Route("/health", _health),
            Route("/v1/models", self._models),
            Route("/tokenize", _guarded(self._tokenize), methods=["POST"]),
            Route("/detokenize", _guarded(self._detokenize), methods=["POST"]),
            *(Route(path, _guarded(self._endpoint(parse)), methods=["POST"]) for path, parse in DIALECTS.items()),
            *(control_routes(self) if settings.control else []),
            *([weights_route(self.engine, settings.weights_root)] if settings.weights_root else []),
            *(staging_routes(self.stager) if self.stager else []),
        ]
        self.app = Starlette(routes=routes)

    def leave(self, buffer: ActiveBuffer | None) -> None:
        """A call that could be staged has ended."""
        if self.stager is not None and buffer is not None:
            self.stager.close(buffer)

    def close(self) -> None:
        """Close the log; calls that end later are not in it."""
        self._log.close()

    async def _models(self, _request: Request) -> Response:
        model = {"id": self.settings.model, "object": "model", "created": 0, "owned_by": "midflight"}
        return JSONResponse({"object": "list", "data": [model | {"max_model_len": self.engine.context}]})

    async def _tokenize(self, request: Request) -> Response:
        body = await request.body()
        asked = _object(body)
        if "messages" in asked:
            ids = chat.prompt_of(validate(chat.ChatRequest, body))
        else:
            ids = prompt_ids(str(asked.get("prompt", "")))
        return JSONResponse(tokenized(ids, self.engine.context))

    async def _detokenize(self, request: Request) -> Response:
        tokens = _object(await request.body()).get("tokens")
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise RequestRefused("tokens must be a list of integers", param="tokens")
        return JSONResponse({"prompt": decode(from_numbers(tokens))})

    def _endpoint(self, parse: Parse) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            job = parse(await request.body(), self.settings.model)
            if job.model != self.settings.model:
                problem = f"the model {job.model} does not exist; {self.settings.model} does"
                raise RequestRefused(problem, status=404, param="model", code="model_not_found")
            headers = dict(request.headers)
            job, buffer = await enter(self.stager, job, headers)
            try:
                generation = self.engine.begin(job)
            except RequestRefused:
                self.leave(buffer)
                raise
            return CallReply(self, job, generation, headers, buffer)

        return endpoint


class CallReply(Response):
    """Carries out one call while it answers it."""

    def __init__(
        self,
        backend: Backend,
        job: Job,
        generation: Running,
        headers: dict[str, str],
        buffer: ActiveBuffer | None = None,
    ) -> None:
        """`buffer`: where its tokens can be staged from."""
        self._backend, self._job, self._generation, self._buffer = backend, job, generation, buffer
        record = backend.calls.begin(job, headers)
        self._call = LiveCall(record, decode(job.prompt) if backend.settings.control else "")
        backend.board.enter(self._call)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run until the end, or until the client is gone."""
        record = self._call.record
        try:
            async with anyio.create_task_group() as tasks:
                self._call.scope = tasks.cancel_scope
                tasks.start_soon(self._watch, receive)
                await self._answer(send)
                tasks.cancel_scope.cancel()
        finally:
            self._backend.board.leave(self._call)
            self._backend.leave(self._buffer)
            if record.state in LIVE:
                self._backend.calls.advance(record, CallEvent.ABORT)
            self._backend.calls.note()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if self._call.record.state in LIVE:
            self._call.record.disconnected = True
        self._call.scope.cancel()

    async def _answer(self, send: Send) -> None:
        failure = self._call.failure
        if failure and failure.after_tokens is None:
            refused = RequestRefused("failed as ordered", status=failure.status)
            self._call.record.status = failure.status
            self._backend.calls.advance(self._call.record, CallEvent.FAIL)
            await _send_whole(send, failure.status, refused.body())
            return
        await self._stop_if_held()
        await self._backend.board.places.take()
        try:
            await anyio.sleep(self._backend.board.pace.latency_s)
            await self._generate(send)
        finally:
            self._backend.board.places.give_back()

    async def _generate(self, send: Send) -> None:
        encoder, record = self._job.encoder, self._call.record
        events = encoder.start(make_meta(record.id, self._job.model, self._backend.engine.weights))
        if self._job.stream:
            await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        pacer = Pacer(self._backend.board)
        while not self._generation.finish:
            await self._flush(send, events)
            if self._breaks_off():
                if not self._job.stream:
                    await send({"type": "http.response.start", "status": 200, "headers": UNKEPT_PROMISE})
                return
            await self._stop_if_held()
            events = await self._batch(tokens_until_stop(self._call, await pacer.due()))
        await self._end(send, events)

    async def _batch(self, most: int) -> list[bytes]:
        """Generate at most so many tokens; their events."""
        events = []
        try:
            pieces = await self._generation.run(most)
        finally:
            self._call.record.generated = self._generation.generated
        for piece in pieces:
            if self._buffer is not None:
                self._buffer.append(to_numbers(piece.ids))
            events += self._job.encoder.piece(piece)
        self._backend.calls.note()
        return events

    def _breaks_off(self) -> bool:
        failure, record = self._call.failure, self._call.record
        if not failure or failure.after_tokens is None or record.generated < failure.after_tokens:
            return False
        self._backend.calls.advance(record, CallEvent.FAIL)
        return True

    async def _end(self, send: Send, events: list[bytes]) -> None:
        record, encoder = self._call.record, self._job.encoder
        finish = record.finish_reason = self._generation.finish or "stop"
        if stops(self._call):
            await self._flush(send, events)
            events = []
            await self._stop_if_held()
        self._backend.calls.advance(record, CallEvent.FINISH)
        if self._job.stream:
            last = b"".join([*events, *encoder.end(finish, record.generated)])
            await send({"type": "http.response.body", "body": last, "more_body": False})
        else:
            await _send_whole(send, 200, encoder.body(finish, record.generated))

    async def _flush(self, send: Send, events: list[bytes]) -> None:
        if self._job.stream and events:
            await send({"type": "http.response.body", "body": b"".join(events), "more_body": True})

    async def _stop_if_held(self) -> None:
        while stops(self._call):
            self._call.gate = anyio.Event()
            self._backend.calls.advance(self._call.record, CallEvent.HOLD)
            await self._call.gate.wait()
            self._call.gate = None
            self._backend.calls.advance(self._call.record, CallEvent.RELEASE)


class Pacer:
    """Says how many tokens are due, at the rate that is set now."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._owed, self._last = 0.0, anyio.current_time()

    async def due(self) -> int:
        """Wait for the next token to be due; how many are."""
        rate = self._board.pace.tokens_per_s
        if rate is None:
            await checkpoint()
            return BATCH_TOKENS
        await anyio.sleep(max((1 - self._owed) / rate, 0))
        now = anyio.current_time()
        self._owed = min(self._owed + (now - self._last) * rate, BATCH_TOKENS)
        self._last = now
        count = max(int(self._owed), 1)
        self._owed -= count
        return count


DIALECTS: dict[str, Parse] = {
    "/v1/completions": completions.parse,
    "/v1/chat/completions": chat.parse,
    "/v1/responses": responses.parse,
}


def _guarded(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Answer a refusal as OpenAI's API does."""

    async def guarded(request: Request) -> Response:
        try:
            return await endpoint(request)
        except RequestRefused as refused:
            return JSONResponse(refused.body(), refused.status)

    return guarded


async def _health(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except ValueError as error:
        raise RequestRefused("the body is not JSON") from error
    if not isinstance(found, dict):
        raise RequestRefused("the body is not an object")
    return found


async def _send_whole(send: Send, status: int, body: dict[str, Any]) -> None:
    text = orjson.dumps(body)
    headers = [*JSON_HEADERS, (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text, "more_body": False})
