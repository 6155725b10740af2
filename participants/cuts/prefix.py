"""What has been generated of one call so far: the part that a checkpoint keeps and a continuation begins from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens in a row that were generated with one version of the weights."""

    start: int
    """The number of its first token in the output, from 0."""
    count: int
    weights: str
    """The version as the backend names it; empty where it names none."""


@dataclass(frozen=True, slots=True)
class StagedIds:
    """Where a worker keeps the ids of a prefix (`participants.staging`)."""

    key: str
    count: int
    digest: str
    """Of the ids, as `participants.staging.digest_of_ids` has it."""
    life: str
    """Whose generation it was, as text."""
    call: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """The exact beginning of one generation. Immutable."""

    prompt: tuple[int, ...] | None = None
    """The ids of the prompt, where the backend named them."""
    ids: tuple[int, ...] | None = None
    """The ids of the output so far, where the backend named them."""
    staged: StagedIds | None = None
    """Where the ids are, while they are not in `ids`."""
    text: str = ""
    """The output as its client was shown it: content alone, no calls, no reasoning."""
    logprobs: tuple[Mapping[str, Any], ...] = ()
    """One entry `{"token", "logprob", "bytes", "top_logprobs"}` a token, where asked for."""
    segments: tuple[Segment, ...] = ()
    """They cover `ids` without gaps."""
    calls: bool = False
    """Whether a call of a tool has begun in it."""
    reasoning: bool = False
    """Whether it has reasoning beside the content."""
    head: Mapping[str, Any] = field(default_factory=dict)
    """`id`, `created` and `model` of the reply, so that the joined reply has them too."""
    finish: str = ""
    """Why it ended, once the backend has said so: nothing is left to generate, and `text` is whole but for gaps."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """What else the backend said of the choice, such as `stop_reason`; only with a finish."""
    beside: bool = False
    """Whether it has something beside content, calls and reasoning, such as a refusal."""
    gaps: bool = False
    """Whether its text is of several streams, the first of which may have been behind its ids when it was cut."""

    @property
    def count(self) -> int:
        """How many tokens it has, wherever their ids are."""
        return len(self.ids or ()) or (self.staged.count if self.staged is not None else 0)
