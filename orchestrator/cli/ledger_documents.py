"""What the commands about ledgers have to say.

Where there may be much, it is an iterator, read while it is printed: one ledger is in memory at a time, however many
there are. What stands below the iterator is known when it has come to its end; `exit` reads what is left of it.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .exits import Exit

ONLY_PEOPLE = "only people"
"""Metadata of a field that is no part of the JSON."""


@dataclass(slots=True, kw_only=True)
class Totals:
    """Of what was read so far."""

    ledgers: int = 0
    rows: int = 0
    """Carried ones counted."""
    records: int = 0
    bytes: int = 0
    """Of the ledger files as far as they are good, without those of the records."""
    damaged: int = 0
    """Ledgers that are."""
    unreadable: int = 0
    """Ledgers that could not be read."""

    @property
    def exit(self) -> Exit:
        """Damage before failure before emptiness."""
        if self.damaged:
            return Exit.DAMAGE
        if self.unreadable:
            return Exit.FAILED
        return Exit.FINE if self.ledgers else Exit.NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One ledger in a list; what only its file knows is None where that cannot be read."""

    key: str
    """The capture key of its attempt."""
    life: str
    newest: bool
    """Whether the key names this one."""
    rows: int | None = None
    carried: int | None = None
    records: int | None = None
    bytes: int | None = None
    frozen: tuple[str, ...] = ()
    """Versions."""
    ended: str | None = None
    """Why it takes no row any more; None while it does."""
    damage: str | None = None
    unreadable: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerList:
    """`ledger list`."""

    folder: str
    key_width: int = field(metadata={ONLY_PEOPLE: True})
    """Characters of the longest rollout id."""
    ledgers: Iterator[LedgerRow]
    """By rollout, oldest first."""
    totals: Totals = field(default_factory=Totals)

    @property
    def exit(self) -> Exit:
        """Of all ledgers, shown or not."""
        deque(self.ledgers, maxlen=0)
        return self.totals.exit


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerShown:
    """`ledger show`: the manifest."""

    folder: str
    key: str
    life: str
    source: str
    """The life that it continues; empty for none."""
    origins: tuple[str, ...]
    """Lives whose rows it carries."""
    rows: int
    carried: int
    records: int
    last: str
    """Chain of the last row."""
    size: int
    frozen: tuple[dict[str, Any], ...]
    """Receipts."""
    end: dict[str, Any] | None
    damage: str

    @property
    def exit(self) -> Exit:
        """Damage of this ledger."""
        return Exit.DAMAGE if self.damage else Exit.FINE


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRows:
    """`ledger show --rows`."""

    folder: str
    key: str
    life: str
    version: str
    rows: Iterator[dict[str, Any]]

    exit = Exit.FINE


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRecords:
    """`ledger show --records`."""

    folder: str
    key: str
    life: str
    version: str
    records: Iterator[dict[str, Any]]
    """`call` and `record`."""

    exit = Exit.FINE


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFinding:
    """One thing that is wrong with a ledger."""

    key: str
    life: str
    index: int | None
    """Of the row; the number of rows where it is about the end, None where it is about no row."""
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerCheck:
    """`ledger check`."""

    folder: str
    findings: Iterator[LedgerFinding]
    totals: Totals = field(default_factory=Totals)

    @property
    def exit(self) -> Exit:
        """Of all ledgers, shown or not."""
        deque(self.findings, maxlen=0)
        return self.totals.exit
