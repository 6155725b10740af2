"""What a checkpoint of a training run has beside the rollouts: the run's own part, and the trainer's. Pure.

Both stand in one state document of one manifest, so that cursor, rows and the trainer's state are of one moment.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from store import AggregateManifest, External, InvalidName, Life

from .errors import ForeignHead
from .ledger import Result, Row, TrainingLedger

FORMAT = "midflight.training"
VERSION = 1
NOT_CAPTURED = "no checkpoint could capture it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The head of a training run, read; all empty before the first checkpoint."""

    trainer: Any = None
    cursor: Any = None
    rows: Mapping[str, Row] = field(default_factory=dict)
    """Of each rollout that is dispatched and not delivered."""
    failed: tuple[Result, ...] = ()
    delivered: tuple[Life, ...] = ()
    """By this checkpoint, or before it without a word that participants were told."""
    files: Mapping[str, str] = field(default_factory=dict)
    """URL by name."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each of them, by URL."""
    scope: tuple[Life, ...] = ()
    restarts: tuple[Life, ...] = ()

    @property
    def wanted(self) -> frozenset[str]:
        """The rollouts that go on."""
        return frozenset(self.rows).difference(result.rollout_id for result in self.failed)


def state_of(ledger: TrainingLedger, delivered: Collection[Life], files: Mapping[str, str], trainer: Any) -> Any:
    """As it is written, where `delivered` are those that this checkpoint delivers."""
    gone = {life.rollout_id for life in delivered}
    return {
        "format": FORMAT,
        "version": VERSION,
        "cursor": ledger.cursor,
        "rows": {rollout_id: row for rollout_id, row in ledger.rows.items() if rollout_id not in gone},
        "failed": [[str(result.life), result.failure] for result in ledger.failed.values()],
        "delivered": [str(life) for life in (*ledger.unreleased, *delivered)],
        "files": dict(files),
        "trainer": trainer,
    }


def head_of(state: Any, manifest: AggregateManifest, url: str) -> Head:
    """As it is read again; a checkpoint is untrusted input. Raises ForeignHead."""
    name = str(manifest.checkpoint)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ForeignHead(url, name, "was made by another controller than a training run")
    if state.get("version") != VERSION:
        raise ForeignHead(
            url, name, f"has version {state.get('version')!r:.20} of a training run, and this is {VERSION}"
        )
    try:
        head = Head(
            trainer=state["trainer"],
            cursor=state["cursor"],
            rows={str(rollout_id): dict(row) for rollout_id, row in state["rows"].items()},
            failed=tuple(_failed(Life.parse(life), dict(failure)) for life, failure in state["failed"]),
            delivered=tuple(map(Life.parse, state["delivered"])),
            files={str(key): str(path) for key, path in state["files"].items()},
            digests=digests_of(manifest.externals),
            scope=manifest.scope,
            restarts=manifest.restarts,
        )
    except (InvalidName, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ForeignHead(url, name, f"is malformed as one of a training run ({error!r:.200})") from error
    if differing := _standing(head, manifest) ^ head.rows.keys():
        why = f"has rows and rollouts that do not belong together, such as {min(differing)}"
        raise ForeignHead(url, name, why)
    return head


def digests_of(externals: Iterable[External]) -> dict[str, str]:
    """By URL."""
    return {external.url: external.sha256 for external in externals}


def _failed(life: Life, failure: dict[str, Any]) -> Result:
    return Result(rollout_id=life.rollout_id, life=life, row=None, failure=failure)


def _standing(head: Head, manifest: AggregateManifest) -> set[str]:
    """Every rollout that the manifest has in one of its sets."""
    lives = (*head.scope, *head.restarts, *(dropped.life for dropped in manifest.dropped))
    return {life.rollout_id for life in lives}


def ledger_of(head: Head, epoch: int, going_on: Collection[Life]) -> TrainingLedger:
    """Where an epoch begins: what servers go on with, what the head has of the others, and what starts over."""
    ledger = TrainingLedger(epoch, head.cursor, dict(head.rows))
    ledger.open = {life.rollout_id: life for life in going_on}
    ledger.failed = {result.rollout_id: result for result in head.failed}
    ledger.restored = {life.rollout_id: life for life in head.scope if life.rollout_id not in ledger.open}
    ledger.unreleased = list(head.delivered)
    for life in head.restarts:
        if life.rollout_id not in ledger.open:
            ledger.start_over(life, NOT_CAPTURED)
    return ledger
