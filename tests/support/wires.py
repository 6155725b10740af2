"""The deterministic backend as other servers would show it: vLLM, SGLang, llama.cpp, and a strict OpenAI endpoint.

Each is a small ASGI app before the backend's own; it changes requests and answers to what that server sends: which
fields there are and which not, where ids stand, what an error looks like, which routes are missing. The sources are
those of `participants.backends.kinds`.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from participants.inference import Backend, Settings, serving

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
MODEL = "tiny"
CONTEXT = 4096
Document = dict[str, Any]


@dataclass
class Wire:
    """One kind of server."""

    app: ASGIApp
    requests: list[tuple[str, Document]] = field(default_factory=list)
    """Path and body of each, as they came."""
    change: Callable[[str, Document], Document] = lambda path, document: document
    """What a test has this server do besides, to each event and each whole reply."""

    owner: ClassVar[str] = "openai"
    missing: ClassVar[frozenset[str]] = frozenset()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        path, raw = request.url.path, await request.body()
        body = orjson.loads(raw) if raw else {}
        self.requests.append((path, body))
        if path == "/v1/models":
            await JSONResponse(self.models())(scope, receive, send)
        elif path in self.missing:
            await self._answer(self.error(404, "Not Found"), scope, receive, send)
        elif refusal := self.refusal(path, body):
            await self._answer(self.error(400, refusal), scope, receive, send)
        elif (own := self.own(path, body)) is not None:
            await JSONResponse(own)(scope, receive, send)
        else:
            await self._pass(scope, receive, send, path, body)

    async def _answer(self, answer: tuple[int, Document], scope: Scope, receive: Receive, send: Send) -> None:
        await JSONResponse(answer[1], answer[0])(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send, path: str, body: Document) -> None:
        pending: list[Message] = [{"type": "http.request", "body": orjson.dumps(self.asked(path, body))}]
        answer = Answer(self, path, body, send)

        async def next_message() -> Message:
            return pending.pop() if pending else await receive()

        await self.app(scope, next_message, answer.send)

    # What the kinds differ in

    def models(self) -> Document:
        card = {"id": MODEL, "object": "model", "created": 1, "owned_by": self.owner, "max_model_len": CONTEXT}
        return {"object": "list", "data": [card]}

    def error(self, status: int, message: str) -> tuple[int, Document]:
        kind = "invalid_request_error"
        return status, {"error": {"message": message, "type": kind, "param": None, "code": None}}

    def refusal(self, path: str, body: Document) -> str:
        return ""

    def own(self, path: str, body: Document) -> Document | None:
        """An answer without the backend."""
        return None

    def asked(self, path: str, body: Document) -> Document:
        """The request as the backend understands it."""
        return body

    def shown(self, path: str, body: Document, document: Document) -> Document:
        """An event, or a whole reply, as this server sends it."""
        return document


class Answer:
    """The backend's messages, changed on their way: a reason moves into the event of the last token."""

    def __init__(self, wire: Wire, path: str, body: Document, send: Send) -> None:
        self._wire, self._path, self._body, self._send = wire, path, body, send
        self._start: Message = {}
        self._held: Document | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            if self._streams:
                await self._send(message)
        elif self._streams:
            more = bool(message.get("more_body"))
            await self._send({**message, "body": b"".join(self._events(message["body"], last=not more))})
        else:
            await self._whole(message["body"])

    @property
    def _streams(self) -> bool:
        return bytes(dict(self._start["headers"]).get(b"content-type", b"")).startswith(b"text/event-stream")

    async def _whole(self, data: bytes) -> None:
        status, document = self._start["status"], orjson.loads(data)
        if status >= 400:
            status, document = self._wire.error(status, document["error"]["message"])
        else:
            document = self._wire.change(self._path, self._wire.shown(self._path, self._body, document))
        body = orjson.dumps(document)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    def _events(self, data: bytes, *, last: bool) -> list[bytes]:
        sent = []
        for event in data.split(b"\n\n"):
            head, _, text = event.rpartition(b"data: ")
            if not text or text == b"[DONE]":
                sent += [*self._release(), event + b"\n\n"] if text else []
                continue
            document = orjson.loads(text)
            if self._path == RESPONSES:
                sent.append(head + self._line(document))
            elif self._held is not None and _is_end(document):
                self._held["choices"][0]["finish_reason"] = document["choices"][0]["finish_reason"]
            else:
                sent += self._release()
                self._held = document
        return [*sent, *(self._release() if last else [])]

    def _release(self) -> list[bytes]:
        held, self._held = self._held, None
        return [self._line(held)] if held is not None else []

    def _line(self, document: Document) -> bytes:
        shown = self._wire.change(self._path, self._wire.shown(self._path, self._body, document))
        return b"data: " + orjson.dumps(shown) + b"\n\n"


def _is_end(document: Document) -> bool:
    choice = (document.get("choices") or [{}])[0]
    return bool(choice.get("finish_reason")) and not choice.get("text") and not choice.get("delta")


def _without_ids(document: Document) -> Document:
    """None of the fields that name ids."""
    kept = {key: value for key, value in document.items() if key not in {"token_ids", "prompt_token_ids"}}
    return {key: [_without_ids(each) for each in value] if key == "choices" else value for key, value in kept.items()}


class Vllm(Wire):
    """vLLM: ids in streams of chat and completions, `stop_reason`, errors with a numeric code."""

    owner = "vllm"

    def error(self, status: int, message: str) -> tuple[int, Document]:
        kind = "NotFoundError" if status == 404 else "BadRequestError"
        return status, {"error": {"message": message, "type": kind, "param": None, "code": status}}

    def asked(self, path: str, body: Document) -> Document:
        return {**body, "return_token_ids": False} if path == RESPONSES else body

    def shown(self, path: str, body: Document, document: Document) -> Document:
        for choice in document.get("choices", ()):
            choice.setdefault("stop_reason", None)
            choice.setdefault("token_ids", None)
            if path == COMPLETIONS:
                choice.setdefault("prompt_token_ids", None)
        return document


class Sglang(Wire):
    """SGLang: ids in streams of completions alone, the version of the weights in whole replies, flat errors."""

    owner = "sglang"

    def error(self, status: int, message: str) -> tuple[int, Document]:
        kind = "NotFound" if status == 404 else "BadRequest"
        return status, {"object": "error", "message": message, "type": kind, "param": None, "code": status}

    def refusal(self, path: str, body: Document) -> str:
        if path == CHAT and body.get("stream") and body.get("return_token_ids"):
            return "return_token_ids is not supported with streaming on /v1/chat/completions."
        return "prompt: field required" if path == "/tokenize" and "prompt" not in body else ""

    def asked(self, path: str, body: Document) -> Document:
        known = {**body, "model": MODEL} if "model" in body else body
        return {**known, "return_token_ids": False} if path == RESPONSES else known

    def shown(self, path: str, body: Document, document: Document) -> Document:
        if path == "/detokenize":
            return {"text": document["prompt"]}
        for choice in document.get("choices", ()):
            choice.setdefault("matched_stop", None)
        if path == CHAT and "prompt_token_ids" in document:
            document["choices"][0]["prompt_token_ids"] = document.pop("prompt_token_ids")
        return document if body.get("stream") else {**document, "metadata": {"weight_version": "default"}}


class LlamaCpp(Wire):
    """llama.cpp's server: ids in and none out, `content` to tokenize, log probabilities as in chat, no responses."""

    owner = "llamacpp"
    missing = frozenset({RESPONSES})

    def models(self) -> Document:
        card = {"id": MODEL, "object": "model", "created": 1, "owned_by": self.owner, "meta": {"n_ctx_train": 32768}}
        return {"object": "list", "data": [card]}

    def error(self, status: int, message: str) -> tuple[int, Document]:
        kind = "not_found_error" if status == 404 else "invalid_request_error"
        return status, {"error": {"code": status, "message": message, "type": kind}}

    def own(self, path: str, body: Document) -> Document | None:
        return {"default_generation_settings": {"n_ctx": CONTEXT}, "total_slots": 1} if path == "/props" else None

    def asked(self, path: str, body: Document) -> Document:
        known = {**body, "model": MODEL, "return_token_ids": False}
        return {**known, "prompt": body.get("content", "")} if path == "/tokenize" else known

    def shown(self, path: str, body: Document, document: Document) -> Document:
        if path == "/tokenize":
            return {"tokens": document["tokens"]}
        if path == "/detokenize":
            return {"content": document["prompt"]}
        for choice in document.get("choices", ()):
            scores = choice.get("logprobs")
            if scores and "token_logprobs" in scores:
                pairs = zip(scores["tokens"], scores["token_logprobs"], strict=True)
                choice["logprobs"] = {"content": [{"token": token, "logprob": score} for token, score in pairs]}
        return _without_ids(document)


class Strict(Wire):
    """A hosted endpoint: chat and responses, and no field that its reference does not name."""

    missing = frozenset({COMPLETIONS, "/tokenize", "/detokenize"})
    unknown = frozenset({"return_token_ids", "ignore_eos", "continue_final_message", "add_generation_prompt"})

    def refusal(self, path: str, body: Document) -> str:
        found = sorted(self.unknown & body.keys())
        return f"Unrecognized request argument supplied: {found[0]}" if found else ""


@asynccontextmanager
async def served(kind: Callable[..., Wire], **options: Any) -> AsyncIterator[tuple[str, Wire, Backend]]:
    """The base URL of such a server, the server, and the backend behind it."""
    backend = Backend(Settings(model=MODEL, control=True))
    wire = kind(backend.app, **options)
    backend.app = Starlette(routes=[Mount("/", wire)])
    async with serving(backend) as url:
        yield f"{url}/v1", wire, backend
    backend.close()


def drifting(path: str, document: Document) -> Document:
    """A server that is not bit-equal: its first token depends on more than the ids before it."""
    for choice in document.get("choices", ()):
        prompt = choice.get("prompt_token_ids")
        if prompt and isinstance(choice.get("token_ids"), list) and len(choice["token_ids"]) == 1:
            choice["token_ids"] = [choice["token_ids"][0] ^ len(prompt)]
    return document


def silent_on_ids(path: str, document: Mapping[str, Any]) -> Document:
    """An older version that knows nothing of `return_token_ids`."""
    return _without_ids(dict(document))
