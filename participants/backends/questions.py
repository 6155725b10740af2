"""What a probe asks: nine small requests, each made of what the answers before it said. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

Body = dict[str, Any]

PROMPT = "The quick brown fox jumps over the lazy dog"
TASK = "Say hello."
BEGUN = "ok"
"""The beginning of an answer; at most MAX_BEGUN_TOKENS in any vocabulary."""
MAX_BEGUN_TOKENS = 2
TOKENS, CUT = 8, 4
"""The uncut generation has TOKENS tokens and is cut after CUT."""
CHAT_TOKENS = 4
RESPONSE_TOKENS = 16
"""The least that OpenAI's own API takes."""

MODELS, PROPS = "/v1/models", "/props"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
STAGING = "/midflight/v1/staging/status"

REFUSABLE = (
    frozenset({"return_token_ids", "ignore_eos"}),
    frozenset({"return_token_ids", "ignore_eos", "logprobs", "stream_options", "store"}),
)
"""Fields that a server may refuse: those that are not OpenAI's, then all that are not needed."""

_STREAM: Body = {"stream": True, "stream_options": {"include_usage": True}}


def uncut(model: str, prompt: str | Sequence[int] = PROMPT, tokens: int = TOKENS) -> Body:
    """A greedy completion of exactly so many tokens."""
    asked = prompt if isinstance(prompt, str) else list(prompt)
    extra = {"logprobs": 1, "return_token_ids": True, "ignore_eos": True}
    return {"model": model, "prompt": asked, "max_tokens": tokens, "temperature": 0, **_STREAM, **extra}


def tokenize(model: str, text: str = PROMPT) -> Body:
    """The ids of a text, as vLLM and SGLang ask for them (`prompt`) and as llama.cpp does (`content`)."""
    return {"model": model, "prompt": text, "content": text, "add_special_tokens": True, "add_special": True}


def detokenize(model: str, ids: Sequence[int]) -> Body:
    """The text of ids."""
    return {"model": model, "tokens": list(ids)}


def chat(model: str) -> Body:
    """A short streamed turn."""
    messages = [{"role": "user", "content": TASK}]
    extra = {"return_token_ids": True, "ignore_eos": True}
    return {"model": model, "messages": messages, "max_tokens": CHAT_TOKENS, "temperature": 0, **_STREAM, **extra}


def continued_chat(model: str, *, ids: bool) -> Body:
    """The same turn with its beginning there already; `ids` asks for token ids."""
    messages = [{"role": "user", "content": TASK}, {"role": "assistant", "content": BEGUN}]
    body = {"model": model, "messages": messages, "max_tokens": 1, "temperature": 0}
    flags = {"continue_final_message": True, "add_generation_prompt": False}
    return {**body, **flags, **({"return_token_ids": True} if ids else {})}


def response(model: str) -> Body:
    """A short streamed response that is not stored."""
    extra = {"store": False, "return_token_ids": True}
    return {"model": model, "input": TASK, "max_output_tokens": RESPONSE_TOKENS, "stream": True, **extra}


def plainer(body: Mapping[str, Any]) -> list[Body]:
    """The same request with ever less of what may be refused."""
    return [{key: value for key, value in body.items() if key not in fields} for fields in REFUSABLE]
