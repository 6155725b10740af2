"""The engine of the real worker: many generations share tiles of one model, and none can tell.

1. One tile is computed at a time, in a worker thread; the event loop never waits for the model.
2. Nobody owns the model: whoever wants a token and finds it idle computes a tile for all that wait. A caller that is
   cancelled leaves the queue; the tile in progress is finished first.
3. Each that waits gets a row in turn, and rows that are left over go to prompts. A long prompt slows others by the time
   of its tiles, and never stops them.
4. A cache grows only when a tile is complete; so a failed or abandoned tile leaves every sequence as it was.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from ..inference.engines import WEIGHTS_REFUSED
from ..inference.jobs import Job
from ..inference.refusals import RequestRefused
from ..inference.sampling import Outline, Output, Piece, outline
from ..inference.tokens import END
from .choosing import ANY, NOT_YET, Chooser, Drawn, Wish
from .llama import Cache, Llama, Run
from .prefixes import Prefixes
from .refusals import WeightsRefused
from .weights import Weights, load, make

DEFAULT_VERSION = "0"
KEPT_TOKENS = 32_768
"""Computed for calls that have ended, and kept for prompts that begin alike: 2 KiB each in the model that ships."""


@dataclass(slots=True, eq=False)
class Asking:
    """A sequence, and what is wanted next of it."""

    ids: str
    """All so far."""
    prompt: int
    """How many of them are the prompt."""
    chooser: Chooser
    cache: Cache = field(default_factory=Cache)
    wish: Wish = ANY
    drawn: Drawn = NOT_YET
    made: int = 0
    """Which of the weights that the engine has had it began with."""

    @property
    def pending(self) -> int:
        """Positions that are still to be computed before a token can be drawn."""
        return len(self.ids) - self.cache.length


class LlamaEngine:
    """Makes generations with a Llama."""

    def __init__(self, weights: Weights, version: str = DEFAULT_VERSION, *, kept_tokens: int = KEPT_TOKENS) -> None:
        """`kept_tokens`: how much is kept for later prompts; 0 keeps nothing."""
        self.weights = version
        self.context = weights.shape.context
        self._llama = Llama(weights)
        self._prefixes = Prefixes(kept_tokens)
        self._made = 0
        self._waiting: list[Asking] = []
        self._idle = anyio.Lock()

    @property
    def shares_tiles(self) -> bool:
        """Whether sequences share tiles; if not, rows are not independent here and each token is computed alone."""
        return self._llama.tile > 1

    def begin(self, job: Job) -> "LlamaGeneration":
        """A generation with its own cache. RequestRefused where the prompt is empty or fills the context."""
        if not job.prompt:
            raise RequestRefused("the prompt is empty; the model needs a token to begin with", param="prompt")
        if len(job.prompt) >= self.context:
            problem = f"the prompt has {len(job.prompt)} tokens; the model's context has {self.context}"
            raise RequestRefused(problem, param="prompt", code="context_length_exceeded")
        return LlamaGeneration(self, job)

    async def reweigh(self, weights: str, seed: int) -> None:
        """Take random weights. Calls in progress go on with them, on what they have computed with the old ones."""
        await self._take(weights, await anyio.to_thread.run_sync(make, seed, self._llama.shape))

    async def reload(self, weights: str, folder: Path) -> None:
        """Take the weights of a folder, as `reweigh` does; calls go on while it is read.

        RequestRefused where they cannot be read, or are of another shape: what calls have computed would not fit.
        """
        try:
            made = await anyio.to_thread.run_sync(load, folder)
        except WeightsRefused as error:
            raise RequestRefused(str(error), param="model_path", code=WEIGHTS_REFUSED) from error
        if made.shape != self._llama.shape:
            problem = f"the weights in {folder} are a {made.shape}; this worker runs a {self._llama.shape}"
            raise RequestRefused(problem, param="model_path", code=WEIGHTS_REFUSED)
        await self._take(weights, made)

    async def _take(self, weights: str, made: Weights) -> None:
        """Between two tiles."""
        async with self._idle:
            self._llama.weights = made
            self._prefixes.clear()
            self._made += 1
            self.weights = weights

    def ask(self, job: Job) -> Asking:
        """A sequence that begins with what is known already about its prompt."""
        chooser = Chooser(job.choosing, job.logprobs, job.begun)
        return Asking(job.prompt, len(job.prompt), chooser, self._prefixes.find(job.prompt), made=self._made)

    def keep(self, asking: Asking) -> None:
        """A generation has ended: what it computed may serve another."""
        if asking.made == self._made:
            self._prefixes.add(asking.ids[: asking.cache.length], asking.cache)

    async def draw(self, asking: Asking) -> Drawn:
        """The token that is wished for; the asking's ids do not have it yet."""
        asking.drawn = NOT_YET
        self._waiting.append(asking)
        try:
            while not asking.drawn.token:
                async with self._idle:
                    if not asking.drawn.token:
                        await self._compute_tile()
        finally:
            if asking in self._waiting:
                self._waiting.remove(asking)
        return asking.drawn

    async def _compute_tile(self) -> None:
        rows = share([asking.pending for asking in self._waiting], self._llama.tile)
        served = [(asking, count) for asking, count in zip(self._waiting, rows, strict=True) if count]
        await anyio.to_thread.run_sync(partial(_serve, self._llama, self.weights, served))
        ahead = {id(asking) for asking, _ in served}
        again = [asking for asking, _ in served if not asking.drawn.token and asking in self._waiting]
        self._waiting = [asking for asking in self._waiting if id(asking) not in ahead] + again


def share(pending: Sequence[int], tile: int) -> list[int]:
    """The rows of a tile that each gets who waits in this order: one first, then as many as are left and needed."""
    rows = [int(n < tile) for n in range(len(pending))]
    left = tile - sum(rows)
    for n, wanted in enumerate(pending):
        more = min(left, wanted - rows[n]) if rows[n] else 0
        rows[n] += more
        left -= more
    return rows


def _serve(llama: Llama, version: str, served: Sequence[tuple[Asking, int]]) -> None:
    """In a worker thread: compute one tile and draw for those whose sequence is complete with it."""
    runs = [Run(each.cache, each.ids[each.cache.length : each.cache.length + count]) for each, count in served]
    complete = [count == each.pending for each, count in served]
    logits = llama.compute(runs)
    for n, (asking, _) in enumerate(served):
        if complete[n]:
            token, scores = asking.chooser.choose(logits[n], asking.ids, asking.prompt, asking.wish)
            asking.drawn = Drawn(token, scores, version)


class LlamaGeneration(Output):
    """One generation. Words come from the model; where a script, a rule or a demanded call says what, it says that."""

    def __init__(self, engine: LlamaEngine, job: Job) -> None:
        most = min(job.limits.max_tokens, engine.context - len(job.prompt))
        super().__init__(dataclasses.replace(job.limits, max_tokens=most))
        self._engine = engine
        self._outline = outline(job.prompt)
        self._logprobs = job.logprobs is not None
        self._asking = engine.ask(job)

    @property
    def cache(self) -> Cache:
        """What is computed of it."""
        return self._asking.cache

    async def run(self, most: int) -> list[Piece]:
        """One token of the model, or as many as are fixed without it; what can be shown now."""
        pieces: list[Piece | None] = []
        while len(pieces) < most and not self.finish:
            wish = self._wish()
            if not wish.token or self._logprobs:
                if pieces:
                    break
                self._asking.wish = wish
                pieces.append(self._accept(await self._engine.draw(self._asking)))
                break
            pieces.append(self._accept(Drawn(wish.token, weights=self._engine.weights)))
        if self.finish:
            self._engine.keep(self._asking)
        return [piece for piece in pieces if piece]

    def _accept(self, drawn: Drawn) -> Piece | None:
        self._asking.ids += drawn.token
        return self.take(drawn.token, drawn.scores, drawn.weights)

    def _wish(self) -> Wish:
        filler, tail = self._outline.filler, self._outline.tail
        if self.generated < filler:
            return Wish(may_end=False)
        due = tail[self.generated - filler :][:1]
        if due == END and self.must_go_on:
            self._outline = Outline()
            due = ""
        return Wish(due, may_end=not self.must_go_on)
