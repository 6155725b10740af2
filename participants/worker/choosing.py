"""Choosing a token from logits: a pure function of them, of the ids so far, and of what the request said.

Text is made of words and the end mark only, so that it is shown as it was generated: bytes and the other marks are
chosen where a script or a tool's call says so. Random numbers are a hash of the request's seed and of how many ids
there are: a prompt with a prefix of the output draws what the uncut generation drew.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..inference.sampling import Choosing, Scores
from ..inference.tokens import END, FIRST_WORD, VOCABULARY_SIZE

END_BIAS = 4.0
"""Added to the end mark's logit: with random weights, text then ends after some 64 tokens on average."""
GREEDY_BELOW = 1e-5
"""A temperature below this is 0."""
_WORDS = torch.full((VOCABULARY_SIZE,), -torch.inf)
_WORDS[FIRST_WORD:] = 0.0
_WORDS_OR_END = _WORDS.clone()
_WORDS_OR_END[ord(END)] = END_BIAS


@dataclass(frozen=True, slots=True)
class Wish:
    """What may come next."""

    token: str = ""
    """This one and no other; empty: any."""
    may_end: bool = True
    """Whether any includes the end mark."""


ANY = Wish()


@dataclass(frozen=True, slots=True)
class Drawn:
    """A chosen token."""

    token: str
    scores: Scores | None = None
    """If asked for."""
    weights: str = ""
    """The version that gave the logits."""


NOT_YET = Drawn("")


class Chooser:
    """Chooses the tokens of one generation."""

    def __init__(self, choosing: Choosing, ranks: int | None, begun: int) -> None:
        """`ranks`: entries of log probability a token; `begun`: ids at the end of the prompt that count as output."""
        self._choosing, self._ranks = choosing, ranks
        self._begun = begun
        said = os.urandom(8).hex() if choosing.seed is None else str(choosing.seed)
        self._key = hashlib.blake2b(said.encode(), digest_size=16).digest()

    def choose(self, logits: torch.Tensor, ids: str, prompt: int, wish: Wish) -> tuple[str, Scores | None]:
        """The token after `ids`, whose first `prompt` are the prompt, and its scores. `logits` is [vocabulary]."""
        token = wish.token or chr(self._pick(logits, ids, ids[max(prompt - self._begun, 0) :], may_end=wish.may_end))
        return token, None if self._ranks is None else scores_of(logits, token, self._ranks)

    def _pick(self, logits: torch.Tensor, ids: str, output: str, *, may_end: bool) -> int:
        how = self._choosing
        logits = penalised(logits + (_WORDS_OR_END if may_end else _WORDS), ids, output, how)
        if how.temperature < GREEDY_BELOW:
            return int(logits.argmax())
        shares = narrowed(torch.softmax(logits.double() / how.temperature, -1), how)
        total = shares.cumsum(-1)
        at = int(torch.searchsorted(total, total[-1] * self._fraction(len(ids)), right=True))
        return min(at, int(shares.nonzero()[-1]))

    def _fraction(self, position: int) -> float:
        """A random number from 0 up to but not 1, fixed for this seed and position."""
        digest = hashlib.blake2b(position.to_bytes(8, "big"), key=self._key, digest_size=8).digest()
        return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def penalised(logits: torch.Tensor, ids: str, output: str, how: Choosing) -> torch.Tensor:
    """After the penalties: repetition looks at prompt and output, presence and frequency at the output."""
    if how.repetition_penalty != 1.0 and ids:
        seen = _counts(ids) > 0
        factor = torch.where(logits > 0, 1 / how.repetition_penalty, how.repetition_penalty)
        logits = torch.where(seen, logits * factor, logits)
    if output and (how.presence_penalty or how.frequency_penalty):
        counts = _counts(output)
        logits = logits - how.frequency_penalty * counts - how.presence_penalty * (counts > 0)
    return logits


def narrowed(shares: torch.Tensor, how: Choosing) -> torch.Tensor:
    """Probabilities with those at 0 that top_k, top_p and min_p leave out; they need not sum to 1 any more."""
    if 0 < how.top_k < len(shares):
        shares = torch.where(shares < shares.topk(how.top_k).values[-1], 0.0, shares)
    if how.min_p:
        shares = torch.where(shares < how.min_p * shares.max(), 0.0, shares)
    if how.top_p < 1:
        ranked, order = shares.sort(descending=True, stable=True)
        before = ranked.cumsum(-1) - ranked
        shares = shares.index_fill(0, order[before >= how.top_p * ranked.sum()], 0.0)
    return shares


def scores_of(logits: torch.Tensor, token: str, ranks: int) -> Scores:
    """The log probability of the token among all, then those of the best others that may be said, `ranks` in all."""
    sure = torch.log_softmax(logits, -1)
    best: Sequence[int] = (sure + _WORDS_OR_END.clamp(max=0.0)).topk(ranks).indices.tolist()
    others = [number for number in best if number != ord(token)][: ranks - 1]
    return tuple((chr(number), float(sure[number])) for number in (ord(token), *others))


def _counts(ids: str) -> torch.Tensor:
    return torch.bincount(torch.tensor(list(map(ord, ids))), minlength=VOCABULARY_SIZE)
