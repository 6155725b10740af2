"""What the commands have to say: frozen documents, each with the exit code that it means.

`--json` prints them field by field (docs/commands.md), `orchestrator.cli.render` prints them for people.
"""

from dataclasses import dataclass
from typing import Any

from store import CheckpointId, Difference, Finding

from .conformance_documents import Conformed, RuleList
from .exits import Exit
from .ledger_documents import LedgerCheck, LedgerList, LedgerRecords, LedgerRows, LedgerShown


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One checkpoint in a list; what only its manifest knows is None where that is damaged."""

    checkpoint: CheckpointId
    head: bool
    imported: bool
    entry: int
    """The chain entry that made it exist."""
    rollouts: int | None = None
    """Those that a restore would continue."""
    restarts: int | None = None
    dropped: int | None = None
    records: int | None = None
    bytes: int | None = None
    """Of its parts."""
    tags: tuple[str, ...] = ()
    created_at: str = ""
    """The controller's clock, for people."""
    damage: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One deletion."""

    entry: int
    checkpoints: tuple[CheckpointId, ...]
    finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """`list`."""

    store: str
    run_id: str
    epoch: int
    entries: int
    """Of the chain."""
    head: CheckpointId | None
    checkpoints: tuple[Row, ...]
    """Oldest first."""
    deletions: tuple[Plan, ...]
    warnings: tuple[str, ...]

    @property
    def exit(self) -> Exit:
        """Damage before emptiness."""
        if any(row.damage for row in self.checkpoints):
            return Exit.DAMAGE
        return Exit.FINE if self.checkpoints else Exit.NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One process of one participant."""

    participant: str
    records: int
    bytes: int
    blobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedRollout:
    """A rollout that a restore leaves out."""

    life: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """One output segment."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file outside the store."""

    url: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """`show`: what a restore of this checkpoint would do, and what it holds."""

    store: str
    checkpoint: CheckpointId
    head: bool
    imported: bool
    entry: int
    run_id: str
    epoch: int
    parent: CheckpointId | None
    created_at: str
    tags: tuple[str, ...]
    scope: tuple[str, ...]
    """Lives that continue."""
    restarts: tuple[str, ...]
    """Lives that start over from their input."""
    dropped: tuple[DroppedRollout, ...]
    participants: tuple[Share, ...]
    records: int
    bytes: int
    blobs: int
    blob_bytes: int
    has_state: bool
    externals: tuple[File, ...]
    output: tuple[Length, ...]
    fingerprint: dict[str, str]
    software: dict[str, str]

    exit = Exit.FINE


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRecord:
    """One participant's record of a rollout."""

    participant: str
    life: str
    record: Any
    """The parsed line, with its escapes as they are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRollout:
    """`show --rollout`."""

    store: str
    checkpoint: CheckpointId
    rollout: str
    becomes: str
    """`continues`, `restarts` or `dropped`."""
    life: str
    reason: str
    """Why it was dropped."""
    records: tuple[ShownRecord, ...]

    exit = Exit.FINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """`verify`."""

    store: str
    sound: bool
    deep: bool
    entries: int
    checkpoints: tuple[CheckpointId, ...]
    records: int
    parts: int
    blobs: int
    bytes: int
    findings: tuple[Finding, ...]

    @property
    def exit(self) -> Exit:
        """Damage before emptiness."""
        if not self.sound:
            return Exit.DAMAGE
        return Exit.FINE if self.checkpoints else Exit.NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """`diff`."""

    store: str
    difference: Difference

    exit = Exit.FINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What becomes of one checkpoint."""

    checkpoint: CheckpointId
    keep: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """`prune`."""

    store: str
    dry_run: bool
    checkpoints: tuple[Decided, ...]
    leftovers: tuple[CheckpointId, ...]
    """Ids of no checkpoint that own old objects."""
    objects: int
    """To be deleted."""
    bytes: int
    deleted: int
    """Objects that were."""
    resumed: tuple[int, ...]
    """Entries of earlier plans that this prune completed."""
    failures: tuple[str, ...]

    @property
    def exit(self) -> Exit:
        """A deletion that failed stays planned, and the next prune tries again."""
        return Exit.FAILED if self.failures else Exit.FINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """`copy`."""

    source: str
    destination: str
    checkpoint: CheckpointId
    run_id: str
    """Of the source."""
    digest: str
    """Of the aggregate manifest."""

    exit = Exit.FINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Any command that ended in an error."""

    error: str
    """Its type."""
    message: str
    hint: str
    exit: Exit


Streamed = LedgerList | LedgerRows | LedgerRecords | LedgerCheck
"""One of its fields is read while it is printed."""
Tried = Conformed | RuleList
Document = (
    Listing | Shown | ShownRollout | Verified | Compared | Pruned | Copied | LedgerShown | Streamed | Tried | Failure
)
