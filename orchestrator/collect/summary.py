"""What a start of a run is told, and what it came to."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from store import CheckpointId

from .ending import EXIT_STOPPED
from .start import Wishes

EXIT_FINE, EXIT_FAILURES, EXIT_FENCED, EXIT_SERVERS_GONE, EXIT_NOTHING_WORKS = 0, 1, 76, 77, 78


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says beside the configuration."""

    fresh: bool = False
    base: CheckpointId | None = None
    """The checkpoint to continue from; None for the head."""
    take_over: bool = False
    accept: tuple[str, ...] = ()
    """Fingerprint fields that may differ."""
    retry_failed: bool = False
    """Try again what has failed for good."""
    console: Console | None = None
    """Where a live table is shown, if one is."""
    file: Path | None = None
    """That of the configuration, which the run must not replace."""

    @property
    def wishes(self) -> Wishes:
        """Those that concern what earlier starts left."""
        return Wishes(fresh=self.fresh, base=self.base, accept=self.accept, retry_failed=self.retry_failed)


@dataclass(slots=True)
class Summary:
    """What a start of a run came to."""

    exit_code: int = EXIT_STOPPED
    """As of a run that did not come to its end."""
    rollouts: int = 0
    done: int = 0
    """By this start and earlier ones."""
    failed_for_good: int = 0
    failures_file: str = ""
    """Where the failures stand, if some are for good."""
    mean_reward: float | None = None
    """Of all rows of the output; None before it is merged, and without rows."""
    found_done: int = 0
    """By earlier starts."""
    rows: int = 0
    """Written by this start, as everything below."""
    failures: int = 0
    continued: int = 0
    """Rollouts that went on from a checkpoint."""
    restarted: int = 0
    """Rollouts that started over although an earlier life of theirs was known."""
    dropped: int = 0
    """Rollouts of the checkpoint that the input does not have any more."""
    saved_calls: int = 0
    """Model calls that continued rollouts did not repeat."""
    saved_tokens: int = 0
    all_starts: dict[str, int] = field(default_factory=dict)
    """These four of every start so far, as far as a checkpoint or this start has counted them."""
    adopted: int = 0
    """Episodes that servers which outlived their controller, or the loss of another server, went on with."""
    servers_lost: int = 0
    """Servers, or workers of them, that were lost and are there again."""
    tokens: int = 0
    """Of the rows written."""
    checkpoints: int = 0
    failed_checkpoints: int = 0
    held_s: dict[str, float] = field(default_factory=dict)
    """For how long checkpoints kept work waiting: p50, p99 and the longest."""

    def as_facts(self) -> dict[str, Any]:
        """For an event."""
        return {name: getattr(self, name) for name in self.__slots__}
