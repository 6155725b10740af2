"""Generating tokens as a pure function of the ids so far, and the limits that end a generation.

The chain: a keyed hash over all ids, prompt and output alike, fed in order. Its state after n ids does not depend on
where the prompt ended, so a prompt with a prefix of the output continues exactly what was cut. From the state come the
next word, whether the turn ends here (once in END_ONE_IN on average), and the log probabilities.

That is one engine; another may take its words from elsewhere (`engines.py`). What ends an output and how it leaves is
the same for all: `Output`. Tokens leave in pieces. A token is kept back while the text ends inside a character, or with
what may be the start of a stop string. So a stream that is cut is never cut inside a stop string, and continuing it
finds the same stop.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from .policy import Turn, decide
from .template import read, turn_ids
from .tokens import END, FIRST_WORD, FIRST_WORD_ID, WORDS, Ids, decode_shown, is_cut_inside_character

END_ONE_IN = 64
MAX_GENERATED_TOKENS = 131_072
"""Without a limit in the request this one holds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a generation before its own end."""

    max_tokens: int = MAX_GENERATED_TOKENS
    stop: tuple[str, ...] = ()
    stop_ids: str = ""
    min_tokens: int = 0
    """No end by itself before that many."""
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choosing:
    """How a token is chosen among those that a model thinks possible. The deterministic engine does not look at it."""

    temperature: float = 1.0
    """0 takes the likeliest."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is no limit."""
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0


AS_USUAL = Choosing()
"""What a request that says nothing gets."""

Scores = tuple[tuple[str, float], ...]
"""An id with its log probability, the chosen one first, then alternatives."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some tokens that can be shown."""

    ids: str
    text: str
    """Shown text: see tokens.decode_shown. Shorter than what the ids say where a stop string was found."""
    scores: tuple[Scores, ...] = ()
    """One for each id, if asked for."""
    weights: str = ""
    """The version of the weights that gave its last id; empty if there are no versions."""


class Chain:
    """The hash over all ids so far."""

    def __init__(self, seed: int, ids: str) -> None:
        self._hash = hashlib.blake2b(key=seed.to_bytes(8, "big", signed=True), digest_size=16)
        self.feed(ids)

    def feed(self, ids: str) -> None:
        """Go on by these ids."""
        self._hash.update(ids.encode("utf-16-le"))
        self._digest = self._hash.digest()

    def word(self, rank: int = 0) -> str:
        """The likeliest word, or the one at a rank below it."""
        start = int.from_bytes(self._digest[:4], "big")
        return chr(FIRST_WORD + (start + rank * 7) % len(WORDS))

    def ends(self) -> bool:
        """Whether a free text ends here."""
        return int.from_bytes(self._digest[4:6], "big") % END_ONE_IN == 0

    def logprob(self, rank: int = 0) -> float:
        """The log probability of the token that comes next, or of the alternative at a rank."""
        return round(-0.001 - self._digest[6] / 256 - rank, 6)


@dataclass(frozen=True, slots=True)
class Outline:
    """The turn that a rendered prompt calls for, as far as it is still to come."""

    filler: int = 0
    """That many words first, whichever they are."""
    tail: str = ""
    """Then exactly these ids. Without filler and tail any text will do."""


def outline(prompt: Ids) -> Outline:
    """What a script, a rule or a demanded call wants of this turn; nothing if the turn has left the plan."""
    opened = read(prompt)
    turn = opened and decide(opened.conversation)
    if not opened or not turn:
        return Outline()
    tail = _after_filler(turn)
    words, rest = opened.prefix[: turn.filler], opened.prefix[turn.filler :]
    if any(word < FIRST_WORD_ID for word in words) or not tail.startswith(rest):
        return Outline()
    return Outline(turn.filler - len(words), tail[len(rest) :])


def planned_ids(seed: int, prompt: Ids) -> str:
    """What is left of the turn that a rendered prompt calls for; empty if any text will do, or it has left the plan."""
    opened = read(prompt)
    turn = opened and decide(opened.conversation)
    if not opened or not turn:
        return ""
    chain, words = Chain(seed, opened.before), []
    for _ in range(turn.filler):
        words.append(chain.word())
        chain.feed(words[-1])
    plan = "".join(words) + _after_filler(turn)
    return plan[len(opened.prefix) :] if plan.startswith(opened.prefix) else ""


def _after_filler(turn: Turn) -> str:
    between = "\n" if turn.filler and turn.text else ""
    return turn_ids(between + turn.text, turn.refusal, turn.calls) + END


class Output:
    """The tokens of one generation on their way out: in pieces, until a limit, a stop or its end. Pure."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._pending = ""
        self._scores: list[Scores] = []
        self.generated = 0
        self.finish: str | None = "length" if limits.max_tokens == 0 else None
        """stop or length, once it has ended."""

    @property
    def must_go_on(self) -> bool:
        """Whether it must not end by itself now."""
        return self.limits.ignore_eos or self.generated < self.limits.min_tokens

    def take(self, token: str, scores: Scores | None = None, weights: str = "") -> Piece | None:
        """One more token, `scores` if they were asked for; what can be shown now, if anything."""
        self.generated += 1
        self._pending += token
        if scores is not None:
            self._scores.append(scores)
        text = decode_shown(self._pending)
        cut = _find_stop(text, self.limits.stop)
        if cut is not None:
            self.finish, text = "stop", text[:cut]
        elif token == END or token in self.limits.stop_ids:
            self.finish = "stop"
        elif self.generated >= self.limits.max_tokens:
            self.finish = "length"
        elif is_cut_inside_character(self._pending) or _may_become_stop(text, self.limits.stop):
            return None
        piece = Piece(self._pending, text, tuple(self._scores), weights)
        self._pending, self._scores = "", []
        return piece


class Generation(Output):
    """One generation, token by token. Pure: the same prompt, limits and seed give the same pieces."""

    def __init__(
        self, seed: int, prompt: Ids, limits: Limits, *, logprobs: int | None = None, weights: str = ""
    ) -> None:
        super().__init__(limits)
        self._plan = planned_ids(seed, prompt)
        self._chain = Chain(seed, prompt)
        self._ranks = logprobs
        self._weights = weights

    def step(self) -> Piece | None:
        """Draw one token; what can be shown now, if anything."""
        token = self._draw()
        scores = None if self._ranks is None else self._score(token, self._ranks)
        self._chain.feed(token)
        return self.take(token, scores, self._weights)

    async def run(self, most: int) -> list[Piece]:
        """Draw at most so many tokens, at once; their pieces."""
        pieces = []
        for _ in range(most):
            if self.finish:
                break
            if piece := self.step():
                pieces.append(piece)
        return pieces

    def _draw(self) -> str:
        if self.generated < len(self._plan):
            token = self._plan[self.generated]
            if token != END or not self.must_go_on:
                return token
            self._plan = ""
        return END if self._chain.ends() and not self.must_go_on else self._chain.word()

    def _score(self, token: str, ranks: int) -> Scores:
        others = [other for rank in range(1, ranks + 1) if (other := self._chain.word(rank)) != token]
        ranked = enumerate((token, *others[: ranks - 1]))
        return tuple((each, self._chain.logprob(rank)) for rank, each in ranked)


def _find_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the first stop string starts."""
    return min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)


def _may_become_stop(text: str, stops: Sequence[str]) -> bool:
    """Whether the text ends with a start of a stop string."""
    return any(text.endswith(stop[:n]) for stop in stops for n in range(1, len(stop)))
