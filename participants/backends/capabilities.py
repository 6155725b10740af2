"""What an inference backend can do: declared for its kind, and kept only where a probe at start has seen it.

A request feature is one whose meaning a cut could change. A generation is continued only if every feature of its
request is among the backend's `declared` ones, or its caller accepts `resampled`.
"""

from dataclasses import dataclass
from enum import StrEnum


class Feature(StrEnum):
    """What a request asks for that a cut must not change."""

    GREEDY = "greedy"
    """Temperature 0."""
    SAMPLED = "sampled"
    """Drawn without a seed: the rest is drawn from the same distribution, given the prefix."""
    SEED = "seed"
    """Drawn with a seed: the rest would have to be drawn with the same random numbers."""
    PENALTIES = "penalties"
    """Presence, frequency or repetition penalties: they count generated tokens and prompt tokens differently."""
    MIN_TOKENS = "min_tokens"
    STOP = "stop"
    """Stop strings: one may begin in the prefix and end after it."""
    GRAMMAR = "grammar"
    """A response format, a schema, a regular expression: its state would have to begin in the middle."""
    LOGPROBS = "logprobs"
    TOOLS = "tools"
    """Tools that may be called: the joined text must be read as calls."""
    REASONING = "reasoning"
    """Reasoning beside the content, which only the backend can tell apart."""
    OTHER = "other"
    """Several choices, echo, suffixes, images and whatever else cannot be continued; never declared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What one backend can do."""

    kind: str = "openai"
    """`vllm`, `sglang`, `llama.cpp`, `midflight`, or `openai` for any other compatible endpoint."""
    streams: bool = True
    """Whether it streams. Without it a generation has no prefix and is generated anew after a crash."""
    routes: frozenset[str] = frozenset()
    """The generating routes that it serves."""
    token_ids_out: bool = False
    """Its streams can name the ids of prompt and output (`return_token_ids`), on chat and completions alike."""
    ids_routes: frozenset[str] = frozenset()
    """The routes whose streams do so. On another route the request field may be refused: do not send it there."""
    token_ids_in: bool = False
    """`/v1/completions` takes a prompt of token ids."""
    logprobs: bool = False
    tokenize: bool = False
    """`POST /tokenize` gives the ids of a prompt or of messages."""
    detokenize: bool = False
    """`POST /detokenize` gives the text of ids."""
    continue_final_message: bool = False
    """Chat can continue the text of a last message of the assistant."""
    abort_on_disconnect: bool = False
    tool_calls: bool = False
    tool_format: str = ""
    """How calls stand in the text that it generates, a name of `participants.cuts.toolformats`; empty if unknown."""
    bit_equal: bool = False
    """Greedy output after a cut equals the uncut output token for token; without it only the prefix is exact."""
    declared: frozenset[Feature] = frozenset()
    """Request features whose meaning survives a cut."""
    staging: bool = False
    """The worker stages prefixes in its own token store (`participants.staging`)."""
    says_stop_reason: bool = False
    """Its choices say which stop string or id ended them (`stop_reason`), or null."""
    context_length: int | None = None
    """Tokens of prompt and output together."""
    end_ids: frozenset[int] = frozenset()
    """Ids that end a generation by themselves, for a backend that says the end in a later event than that token."""


NOTHING = Capabilities(streams=False)
"""Of a backend that nobody has probed."""
