"""POST /v1/completions: plain text or token ids in, text out."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from ..staging import StagedPrefix
from .jobs import (
    MAX_TOP_LOGPROBS,
    SSE_DONE,
    Job,
    Meta,
    Request,
    choosing_of,
    limits_of,
    prompt_ids,
    sse,
    validate,
    versioned,
)
from .refusals import RequestRefused
from .sampling import Piece
from .tokens import Ids, decode, name_marks, to_numbers

DEFAULT_MAX_TOKENS = 16


class StreamOptions(BaseModel):
    """What a stream is to end with."""

    include_usage: bool = False


class CompletionRequest(Request):
    """The body."""

    prompt: str | list[Any]
    max_tokens: Annotated[int, Field(ge=0)] | None = DEFAULT_MAX_TOKENS
    stop: str | list[str] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool = False
    n: int = 1
    suffix: str | None = None
    stream_options: StreamOptions | None = None
    continued_tokens: Annotated[int, Field(ge=0)] = 0
    """So many ids at the end of the prompt were generated: penalties count them as output."""
    staged: StagedPrefix | None = None
    """Beside `prompt`, the prompt alone: continue this prefix from the token store."""


def parse(body: bytes, seed_model: str) -> Job:
    """A request as a job; `seed_model` is the model where none is named."""
    asked = validate(CompletionRequest, body)
    for wrong, name in ((asked.echo, "echo"), (asked.n != 1, "n"), (bool(asked.suffix), "suffix")):
        if wrong:
            raise RequestRefused(f"{name} is not supported", param=name)
    prompt = prompt_ids(asked.prompt)
    encoder = CompletionEncoder(asked, prompt)
    limits = limits_of(asked, asked.max_tokens, asked.stop)
    ranks = None if asked.logprobs is None else max(asked.logprobs, 1)
    return Job(
        dialect="completions",
        model=asked.model or seed_model,
        stream=asked.stream,
        prompt=prompt,
        limits=limits,
        logprobs=ranks,
        encoder=encoder,
        choosing=choosing_of(asked),
        begun=asked.continued_tokens,
        staged=asked.staged,
    )


def usage(prompt: str, generated: int) -> dict[str, int]:
    """Token counts as Chat and Completions have them."""
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": generated,
        "total_tokens": len(prompt) + generated,
    }


class CompletionEncoder:
    """Writes a completion."""

    def __init__(self, asked: CompletionRequest, prompt: Ids) -> None:
        self._asked, self._prompt = asked, prompt
        self._pieces: list[Piece] = []
        self._meta = Meta("", "", 0)
        self._offset = 0

    def start(self, meta: Meta) -> list[bytes]:
        """Nothing is sent before the first token."""
        self._meta = meta
        return []

    def piece(self, piece: Piece) -> list[bytes]:
        """One chunk."""
        self._pieces.append(piece)
        if not self._asked.stream:
            return []
        first = len(self._pieces) == 1
        return [sse(self._chunk(self._choice([piece], None, with_prompt=first)))]

    def end(self, finish: str, generated: int) -> list[bytes]:
        """The reason, the usage if asked for, and the end."""
        last = self._chunk({"index": 0, "text": "", "logprobs": None, "finish_reason": finish})
        events = [sse(last)]
        if self._asked.stream_options and self._asked.stream_options.include_usage:
            events.append(sse(self._chunk(None) | {"usage": usage(self._prompt, generated)}))
        return [*events, SSE_DONE]

    def body(self, finish: str, generated: int) -> dict[str, Any]:
        """The whole."""
        choice = self._choice(self._pieces, finish, with_prompt=True)
        return self._chunk(choice) | {"usage": usage(self._prompt, generated)}

    def _chunk(self, choice: dict[str, Any] | None) -> dict[str, Any]:
        chunk = {
            "id": f"cmpl-{self._meta.number}",
            "object": "text_completion",
            "created": self._meta.created,
            "model": self._meta.model,
            "choices": [choice] if choice else [],
        }
        return versioned(chunk, self._pieces[-1].weights if self._pieces else self._meta.weights)

    def _choice(self, pieces: list[Piece], finish: str | None, *, with_prompt: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            "text": "".join(name_marks(piece.text) for piece in pieces),
            "logprobs": self._logprobs(pieces) if self._asked.logprobs is not None else None,
            "finish_reason": finish,
        }
        if self._asked.return_token_ids:
            choice["token_ids"] = to_numbers("".join(piece.ids for piece in pieces))
            choice["prompt_token_ids"] = to_numbers(self._prompt) if with_prompt else None
        return choice

    def _logprobs(self, pieces: list[Piece]) -> dict[str, Any]:
        tokens, chosen, tops, offsets = [], [], [], []
        for piece in pieces:
            for scores in piece.scores:
                tokens.append(decode(scores[0][0]))
                chosen.append(scores[0][1])
                tops.append({decode(token): score for token, score in scores})
                offsets.append(self._offset)
                self._offset += len(tokens[-1])
        return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": tops, "text_offset": offsets}
