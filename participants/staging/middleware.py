"""The staging helper inside an inference server that knows nothing of it: a middleware of its ASGI application.

    MIDFLIGHT_TOKEN_STORE=/var/tokens vllm serve MODEL --middleware participants.staging.middleware.StagingMiddleware

It reads the token ids of each stream on its way out, answers the staging routes, and turns `staged` of a completion
into the ids of its prompt. It fits servers of one process whose streams name ids as vLLM's do.
"""

import os
from typing import Any

import orjson
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from store import StoreError

from ..cuts import sse
from ..errors import ParticipantError
from .helper import ActiveBuffer, Stager, identity_of
from .packs import Entry, Identity, PromptRef
from .refusals import StagingRefused
from .routes import cut_of, staging_routes
from .store import TokenStore
from .wire import STAGING_PREFIX, StagedPrefix

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


class StagingMiddleware:
    """In front of one server process."""

    def __init__(self, app: ASGIApp) -> None:
        """The folder, the length of the context and the bearer token come from the environment."""
        store = TokenStore.on_disk(os.environ["MIDFLIGHT_TOKEN_STORE"])
        self.stager = Stager(store, context_length=int(os.environ.get("MIDFLIGHT_CONTEXT_LENGTH", "4096")))
        self._app = app
        self._routes = Router(staging_routes(self.stager, os.environ.get("MIDFLIGHT_STAGING_TOKEN")))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Staging routes here, generations read along, all else as it is."""
        path = scope.get("path", "") if scope["type"] == "http" else ""
        if path.startswith(STAGING_PREFIX):
            await self._routes(scope, receive, send)
        elif path in (COMPLETIONS, CHAT):
            await self._generate(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        data = await request.body()
        identity = identity_of(dict(request.headers))
        entry = None
        if b'"staged"' in data:
            try:
                entry, data = await self._begin(orjson.loads(data), identity)
            except (StagingRefused, ParticipantError, StoreError, ValidationError) as refused:
                code = getattr(refused, "reason", None) or getattr(refused, "code", "invalid_request")
                error = {"message": str(refused), "type": "invalid_request_error", "param": "staged", "code": code}
                await JSONResponse({"error": error}, 422)(scope, receive, send)
                return
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        scope = {**scope, "headers": [*headers, (b"content-length", str(len(data)).encode())]}
        pending: list[Message] = [{"type": "http.request", "body": data}]

        async def again() -> Message:
            return pending.pop() if pending else await receive()

        if identity is None:
            await self._app(scope, again, send)
            return
        reading = _ReadAlong(self.stager, identity, entry, send)
        try:
            await self._app(scope, again, reading.send)
        finally:
            reading.close()

    async def _begin(self, body: dict[str, Any], by: Identity | None) -> tuple[Entry | None, bytes]:
        """The prefix that a completion continues, and its body with the ids of it."""
        if "staged" not in body:
            return None, orjson.dumps(body)
        staged = StagedPrefix.model_validate(body.pop("staged"))
        entry = await self.stager.begin(cut_of(staged, PromptRef.of(body["prompt"]), by))
        body["prompt"] = [*body["prompt"], *entry.ids]
        return entry, orjson.dumps(body)


class _ReadAlong:
    """The ids of one stream, into a buffer that can be staged."""

    def __init__(self, stager: Stager, identity: Identity, entry: Entry | None, send: Send) -> None:
        self._stager, self._identity, self._send = stager, identity, send
        self._parser = sse.Parser()
        self._buffer: ActiveBuffer | None = None
        if entry is not None:
            self._buffer = stager.open(identity, entry.prompt, entry.ids)

    async def send(self, message: Message) -> None:
        """Tokens are in the buffer before their event is sent."""
        if message["type"] == "http.response.body" and message.get("body"):
            for payload in self._parser.feed(message["body"]):
                if payload != sse.DONE:
                    self._take(orjson.loads(payload))
        await self._send(message)

    def _take(self, event: dict[str, Any]) -> None:
        for choice in event.get("choices") or ():
            prompt = event.get("prompt_token_ids") or choice.get("prompt_token_ids")
            if prompt and self._buffer is None:
                self._buffer = self._stager.open(self._identity, PromptRef.of(prompt))
            if self._buffer is not None and choice.get("token_ids"):
                self._buffer.append(choice["token_ids"])

    def close(self) -> None:
        """The call is over."""
        if self._buffer is not None:
            self._stager.close(self._buffer)
