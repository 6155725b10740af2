"""What makes the tokens: the seam between serving calls and generating, and the deterministic side of it."""

from pathlib import Path
from typing import Protocol

from .jobs import Job
from .refusals import RequestRefused
from .sampling import MAX_GENERATED_TOKENS, Generation, Piece

WEIGHTS_REFUSED = "weights_refused"
"""The code where a folder of weights cannot be used."""


class Running(Protocol):
    """One generation in progress."""

    generated: int
    """Tokens so far, also those that no piece has shown yet."""
    finish: str | None
    """stop or length, once it has ended."""

    async def run(self, most: int) -> list[Piece]:
        """Generate at least one token and at most so many; what can be shown now.

        It is awaited by one task at a time. Cancelled, it has generated what `generated` says, and nothing that it did
        not give out counts there.
        """


class Engine(Protocol):
    """Makes generations."""

    weights: str
    """The version of the weights that the next token is made with; empty if there are no versions."""
    context: int
    """Tokens of prompt and output together."""

    def begin(self, job: Job) -> Running:
        """A generation for a job whose prompt is complete. RequestRefused where it cannot be served."""

    async def reweigh(self, weights: str, seed: int) -> None:
        """From the next token on use the weights of this seed, and call them so."""

    async def reload(self, weights: str, folder: Path) -> None:
        """From the next token on use the weights of this folder, and call them so.

        RequestRefused with the code `weights_refused` where they cannot be used; nothing has changed then.
        """


class DeterministicEngine:
    """Words by a hash. Calls in progress keep their seed and their version when weights change."""

    def __init__(self, seed: int, weights: str) -> None:
        self.weights = weights
        self.context = MAX_GENERATED_TOKENS
        self._seed = seed

    def begin(self, job: Job) -> Running:
        """A generation with what is set now."""
        return Generation(self._seed, job.prompt, job.limits, logprobs=job.logprobs, weights=self.weights)

    async def reweigh(self, weights: str, seed: int) -> None:
        """Take another seed and version for the calls that begin from now on."""
        self.weights, self._seed = weights, seed

    async def reload(self, weights: str, folder: Path) -> None:
        """Refused: a hash has no weights."""
        raise RequestRefused("these words come from a hash; only --real has weights", code=WEIGHTS_REFUSED)
