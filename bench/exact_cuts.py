"""A server by itself: completions cut at every token and continued from ids, against the uncut run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from participants import OpenAIEndpoint
from participants.cuts import Prefix, read
from participants.cuts.plan import STREAMED

from .comparing import TOLERANCE

COMPLETIONS = "/v1/completions"


@dataclass(slots=True)
class Figures:
    """Counts of one way to cut and continue."""

    total: int = 0
    equal: int = 0
    """Continuations whose whole is what the uncut run said, log probabilities within the tolerance."""
    kept: int = 0
    """Wholes that begin with exactly the tokens that were there at the cut."""
    continued: int = 0
    """Cuts from which the server was asked for the rest alone."""
    logprob_difference: float = 0.0
    """The largest one, where tokens are the same."""
    differences: tuple[str, ...] = ()
    """The first few."""

    def take(self, where: str, differences: Sequence[str], *, largest: float, kept: bool, continued: bool) -> None:
        """One more continuation."""
        self.total += 1
        self.equal += not differences
        self.kept += kept
        self.continued += continued
        self.logprob_difference = max(self.logprob_difference, largest)
        self.differences = (*self.differences, *(f"{where}: {each}" for each in differences[:3]))[:SHOWN]


SHOWN = 12


def cuts_of(tokens: int, most: int) -> list[int]:
    """Where to cut so many tokens: after the first and before the last, at `most` places (0: everywhere)."""
    every = list(range(1, tokens))
    if not most or len(every) <= most:
        return every
    return sorted({every[n * (len(every) - 1) // max(most - 1, 1)] for n in range(most)})


async def generated(endpoint: OpenAIEndpoint, model: str, prompt: str | Sequence[int], tokens: int) -> Prefix:
    """A greedy completion with its ids and log probabilities."""
    asked = prompt if isinstance(prompt, str) else list(prompt)
    body = {"model": model, "prompt": asked, "max_tokens": tokens, "temperature": 0, "logprobs": 1, **STREAMED}
    async with endpoint.stream(COMPLETIONS, body) as chunks:
        reading = read(COMPLETIONS, [chunk async for chunk in chunks])
    if not reading.ended or reading.prefix.ids is None or reading.prefix.prompt is None:
        raise RuntimeError(f"no whole generation with ids: {reading.failure or reading!r:.300}")
    return reading.prefix


async def cut_everywhere(
    endpoint: OpenAIEndpoint, model: str, uncut: Sequence[Prefix], tokens: int, *, most: int, at_once: int
) -> Figures:
    """Cut each run at `most` places and continue it, `at_once` at the same time."""
    figures, limiter = Figures(), anyio.CapacityLimiter(at_once)

    async def one(number: int, whole: Prefix, k: int) -> None:
        async with limiter:
            prompt, ids = whole.prompt or (), whole.ids or ()
            rest = await generated(endpoint, model, (*prompt, *ids[:k]), tokens - k)
            differences, largest = _differences(whole, rest, k)
            figures.take(f"prompt {number} at {k}", differences, largest=largest, kept=True, continued=True)

    async with anyio.create_task_group() as group:
        for number, whole in enumerate(uncut):
            for k in cuts_of(len(whole.ids or ()), most):
                group.start_soon(one, number, whole, k)
    return figures


def _differences(whole: Prefix, rest: Prefix, k: int) -> tuple[list[str], float]:
    expected, found = (whole.ids or ())[k:], rest.ids or ()
    if rest.prompt != (*(whole.prompt or ()), *(whole.ids or ())[:k]):
        return ["the server read another prompt than these ids"], 0.0
    if expected != found:
        first = next((n for n, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1]), None)
        at = min(len(expected), len(found)) if first is None else first
        return [f"token {k + at} differs: {expected[at : at + 4]} and {found[at : at + 4]}"], 0.0
    pairs = zip(whole.logprobs[k:], rest.logprobs, strict=False)
    off = max((abs(_score(one) - _score(two)) for one, two in pairs), default=0.0)
    missing = len(whole.logprobs) - k - len(rest.logprobs)
    problems = [f"log probabilities differ by {off}"] if off > TOLERANCE else []
    return [*problems, *([f"{missing} log probabilities too few"] if missing else [])], off


def _score(entry: Any) -> float:
    return float(entry["logprob"])
