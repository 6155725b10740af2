"""What the dialects have in common: a request read into a job, and what is asked of a reply in each of them."""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..staging import StagedPrefix
from .refusals import RequestRefused
from .sampling import AS_USUAL, Choosing, Limits, Piece
from .tokens import Ids, decode, encode, from_numbers, to_bytes, to_numbers

MAX_TOP_LOGPROBS = 20
R = TypeVar("R", bound=BaseModel)


class Request(BaseModel):
    """Fields that all dialects know; what a dialect has beyond ours is accepted and has no effect."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str = ""
    stream: bool = False
    metadata: dict[str, Any] | None = None
    min_tokens: int = Field(0, ge=0)
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    return_token_ids: bool = False
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: int | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None


@dataclass(frozen=True, slots=True)
class Meta:
    """What every reply names."""

    number: str
    """Unique among the calls of this backend."""
    model: str
    created: int
    weights: str = ""
    """The version of the weights at its start; empty if there are no versions."""


class Encoder(Protocol):
    """Writes one reply in its dialect. Pure: bytes out, nothing sent."""

    def start(self, meta: Meta) -> list[bytes]:
        """The events before the first token."""

    def piece(self, piece: Piece) -> list[bytes]:
        """The events of one more piece; also kept for `body`."""

    def end(self, finish: str, generated: int) -> list[bytes]:
        """The events after the last token."""

    def body(self, finish: str, generated: int) -> dict[str, Any]:
        """The whole reply, for a request without a stream."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request that can be served."""

    dialect: str
    model: str
    stream: bool
    prompt: Ids
    limits: Limits
    logprobs: int | None
    """How many a token, the chosen one included; None for none at all."""
    encoder: Encoder
    choosing: Choosing = AS_USUAL
    begun: int = 0
    """Ids at the end of the prompt that this generation has made already: penalties count them as its own."""
    staged: StagedPrefix | None = None
    """The cut that it continues; `prompt` is then without it until the cut was checked (`staged.enter`)."""


def validate(kind: type[R], body: bytes) -> R:
    """A request read and checked; the first problem is named."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise RequestRefused(f"{where or 'body'}: {problem['msg']}", param=where or None) from error


def limits_of(request: Request, max_tokens: int | None, stop: str | Sequence[str] | None) -> Limits:
    """The limits of a request."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if any(not each for each in stops):
        raise RequestRefused("a stop string is empty", param="stop")
    most = {} if max_tokens is None else {"max_tokens": max_tokens}
    return Limits(
        **most,
        stop=stops,
        stop_ids=from_numbers(request.stop_token_ids),
        min_tokens=request.min_tokens,
        ignore_eos=request.ignore_eos,
    )


def choosing_of(request: Request) -> Choosing:
    """How a request wants tokens chosen; what it does not say is as OpenAI and vLLM have it."""
    said = {field.name: getattr(request, field.name) for field in dataclasses.fields(Choosing)}
    if said["top_k"] == -1:
        said["top_k"] = 0
    return Choosing(**{name: value for name, value in said.items() if value is not None})


def make_meta(number: str, model: str, weights: str = "") -> Meta:
    """Names for one reply."""
    return Meta(number, model, int(time.time()), weights)


def versioned(document: dict[str, Any], weights: str) -> dict[str, Any]:
    """A chunk or reply that names the version of its weights, if there is one."""
    return document | {"weight_version": weights} if weights else document


def sse(data: object, event: str = "") -> bytes:
    """One server-sent event."""
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + orjson.dumps(data) + b"\n\n"


SSE_DONE = b"data: [DONE]\n\n"


def logprob_entries(piece: Piece) -> list[dict[str, Any]]:
    """The log probabilities of a piece, as Chat and Responses have them."""
    entries = []
    for scores in piece.scores:
        top = [{"token": decode(token), "logprob": score, "bytes": list(to_bytes(token))} for token, score in scores]
        entries.append(top[0] | {"top_logprobs": top if len(scores) > 1 else []})
    return entries


def tokenized(ids: str, limit: int) -> dict[str, object]:
    """The reply of /tokenize."""
    return {"count": len(ids), "max_model_len": limit, "tokens": to_numbers(ids)}


def script_message(metadata: dict[str, Any] | None) -> str:
    """A script in the metadata as the text of a system message, or nothing."""
    script = (metadata or {}).get("script")
    if not script:
        return ""
    text = script if isinstance(script, str) else orjson.dumps(script).decode()
    return text if "<script>" in text else f"<script>{text}</script>"


def prompt_ids(prompt: str | list[Any]) -> Ids:
    """The prompt of a completion: a text, token ids, or a list of exactly one of these."""
    if isinstance(prompt, str):
        return encode(prompt, marks=True)
    if prompt and all(type(each) is int for each in prompt):
        return from_numbers(prompt)
    if len(prompt) == 1 and isinstance(prompt[0], str | list):
        return prompt_ids(prompt[0])
    raise RequestRefused("prompt must be one text or one list of token ids", param="prompt")
