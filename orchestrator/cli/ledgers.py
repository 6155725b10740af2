"""What `midflight ledger` reads: ledger files below a folder, one at a time, without a lock and without a change.

A folder may be in use: a ledger that is deleted meanwhile is left out, and what is appended meanwhile belongs to the
next look. Only this module of the command line imports the ledger, and only a command that reads one imports it.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson

from participants import Code, ParticipantError
from participants.ledger import CaptureKey, Manifest, check
from participants.ledger.files import Disk, Layout
from participants.ledger.lines import Found, Receipt, row_json
from participants.ledger.reading import Reader
from store import CorruptCheckpoint, InvalidInput, Life, NoCheckpoint, NotAStore, StoreError

from .ledger_documents import (
    LedgerCheck,
    LedgerFinding,
    LedgerList,
    LedgerRecords,
    LedgerRow,
    LedgerRows,
    LedgerShown,
    Totals,
)

_LIST = "`midflight ledger list` shows what is there"


class NoLedgerFolder(NotAStore):
    """There is no such folder."""

    def __init__(self, folder: str) -> None:
        StoreError.__init__(
            self, f"{folder} is no folder", hint="Give the folder of [capture], or that of a Ledger; reading makes none"
        )


class NoLedger(NoCheckpoint):
    """No ledger has this key."""

    def __init__(self, folder: str, key: str, instead: str = "") -> None:
        """`instead` says where its rows are."""
        told = f"{folder} has no ledger with the key {key}"
        StoreError.__init__(self, f"{told}: {instead}" if instead else told, hint=_LIST)


class NoVersion(NoCheckpoint):
    """The ledger was never frozen under this version."""

    def __init__(self, life: Life, version: str) -> None:
        hint = "`midflight ledger show` without an option names the versions that it was frozen at"
        StoreError.__init__(self, f"the ledger of {life} has no version {version:.80}", hint=hint)


class DamagedLedger(CorruptCheckpoint):
    """Rows or records of a ledger cannot be trusted."""

    def __init__(self, life: Life, reason: str) -> None:
        hint = "`midflight ledger check` names all of it. It can still be retired and deleted"
        StoreError.__init__(self, f"the ledger of {life} is damaged: {reason}", hint=hint)


class LedgerUnreadable(StoreError):
    """The disk did not give a file."""

    hint = "Nothing was changed. Look at the disk and at the permissions"


@contextmanager
def _translated(folder: str, key: str = "") -> Iterator[None]:
    """What the ledger raises, as errors with an exit code."""
    try:
        yield
    except ParticipantError as error:
        if error.code is Code.INVALID_REQUEST:  # Deleted since its name was seen.
            raise NoLedger(folder, key) from error
        raise LedgerUnreadable(error.message) from error


def open_folder(folder: str) -> Reader:
    """Look at a folder, which is never made. Raises InvalidInput, NoLedgerFolder."""
    if "://" in folder:
        raise InvalidInput(f"{folder} is a URL", hint="Ledgers are in a folder on a local disk")
    if not os.path.isdir(folder):
        raise NoLedgerFolder(folder)
    disk = Disk()
    return Reader(Layout(folder, disk), disk)


def find(reader: Reader, folder: str, key: str) -> Life:
    """The life that a key names. Raises InvalidInput, NoLedger."""
    try:
        wanted = CaptureKey.parse(key)
    except ParticipantError as error:
        raise InvalidInput(error.message, hint=_LIST) from error
    with _translated(folder, key):
        lives = reader.lives(wanted)
        instead = "" if lives else reader.instead(wanted)
    if not lives:
        raise NoLedger(folder, key, instead)
    return lives[-1]


# list


def list_ledgers(folder: str) -> LedgerList:
    """Every ledger below a folder."""
    reader = open_folder(folder)
    with _translated(folder):
        rollouts = reader.rollouts()
    totals, width = Totals(), max(map(len, rollouts), default=0)
    return LedgerList(folder=folder, key_width=width, ledgers=_rows(reader, rollouts, totals), totals=totals)


def _rows(reader: Reader, rollouts: Iterable[str], totals: Totals) -> Iterator[LedgerRow]:
    for rollout in rollouts:
        try:
            lives = reader.lives_of(rollout)
        except ParticipantError as error:
            totals.ledgers, totals.unreadable = totals.ledgers + 1, totals.unreadable + 1
            yield LedgerRow(key=rollout, life=rollout, newest=False, unreadable=error.message)
            continue
        newest = {life.attempt: life for life in lives}
        for life in lives:
            row = _row(reader, life, newest[life.attempt] == life, totals)
            if row is not None:
                yield row


def _row(reader: Reader, life: Life, newest: bool, totals: Totals) -> LedgerRow | None:
    key = str(CaptureKey.of(life))
    try:
        manifest = reader.manifest(life)
    except ParticipantError as error:
        if error.code is Code.INVALID_REQUEST:
            return None  # Deleted meanwhile.
        totals.ledgers, totals.unreadable = totals.ledgers + 1, totals.unreadable + 1
        return LedgerRow(key=key, life=str(life), newest=newest, unreadable=error.message)
    _count(totals, manifest)
    totals.damaged += bool(manifest.damage)
    return LedgerRow(
        key=key,
        life=str(life),
        newest=newest,
        rows=manifest.rows,
        carried=manifest.carried,
        records=manifest.records,
        bytes=manifest.size,
        frozen=tuple(receipt.version for receipt in manifest.frozen),
        ended=manifest.end.reason if manifest.end else None,
        damage=manifest.damage or None,
    )


def _count(totals: Totals, manifest: Manifest) -> None:
    totals.ledgers += 1
    totals.rows += manifest.rows
    totals.records += manifest.records
    totals.bytes += manifest.size


# show


def show_ledger(folder: str, key: str) -> LedgerShown:
    """What the ledger of a key holds."""
    reader = open_folder(folder)
    life = find(reader, folder, key)
    with _translated(folder, key):
        manifest = reader.manifest(life)
    return LedgerShown(
        folder=folder,
        key=manifest.key,
        life=manifest.life,
        source=manifest.source,
        origins=manifest.origins,
        rows=manifest.rows,
        carried=manifest.carried,
        records=manifest.records,
        last=manifest.last,
        size=manifest.size,
        frozen=tuple(receipt.to_json() for receipt in manifest.frozen),
        end=manifest.end.to_json() if manifest.end else None,
        damage=manifest.damage,
    )


def show_rows(folder: str, key: str, version: str) -> LedgerRows:
    """The rows of a key, up to a freeze where a version is named."""
    reader = open_folder(folder)
    life, found = _trusted(reader, folder, key)
    lines = found.rows[: _frozen(life, found, version).rows] if version else found.rows
    return LedgerRows(folder=folder, key=key, life=str(life), version=version, rows=map(row_json, lines))


def show_records(folder: str, key: str, version: str) -> LedgerRecords:
    """The complete records of a key's own calls, up to a freeze where a version is named."""
    reader = open_folder(folder)
    life, found = _trusted(reader, folder, key)
    lines = _record_lines(reader, folder, key, life)
    lines = lines[: _frozen(life, found, version).records] if version else lines
    return LedgerRecords(folder=folder, key=key, life=str(life), version=version, records=map(orjson.loads, lines))


def _trusted(reader: Reader, folder: str, key: str) -> tuple[Life, Found]:
    life = find(reader, folder, key)
    with _translated(folder, key):
        _, found = reader.whole(life)
    if found.damage:
        raise DamagedLedger(life, found.damage)
    return life, found


def _record_lines(reader: Reader, folder: str, key: str, life: Life) -> list[bytes]:
    try:
        with _translated(folder, key):
            return reader.record_lines(life)
    except LedgerUnreadable as error:
        cause = error.__cause__
        if isinstance(cause, ParticipantError) and cause.code is Code.CORRUPT_CHECKPOINT:
            raise DamagedLedger(life, cause.message) from error
        raise


def _frozen(life: Life, found: Found, version: str) -> Receipt:
    if version not in found.frozen:
        raise NoVersion(life, version)
    return found.frozen[version]


# check


def check_ledgers(folder: str, keys: Sequence[str]) -> LedgerCheck:
    """Check the ledgers that these keys name, or without a key all that any key names."""
    reader = open_folder(folder)
    totals = Totals()
    if keys:
        named = [find(reader, folder, key) for key in dict.fromkeys(keys)]
        return LedgerCheck(folder=folder, findings=_findings(reader, named, totals), totals=totals)
    with _translated(folder):
        rollouts = reader.rollouts()
    return LedgerCheck(folder=folder, findings=_all_findings(reader, rollouts, totals), totals=totals)


def _all_findings(reader: Reader, rollouts: Iterable[str], totals: Totals) -> Iterator[LedgerFinding]:
    for rollout in rollouts:
        try:
            lives = reader.lives_of(rollout)
        except ParticipantError as error:
            totals.ledgers, totals.unreadable = totals.ledgers + 1, totals.unreadable + 1
            yield LedgerFinding(key=rollout, life=rollout, index=None, code="unreadable", message=error.message)
            continue
        yield from _findings(reader, {life.attempt: life for life in lives}.values(), totals)


def _findings(reader: Reader, lives: Iterable[Life], totals: Totals) -> Iterator[LedgerFinding]:
    for life in lives:
        try:
            data, found = reader.whole(life)
            wrong = _wrong(reader, life, data, found)
        except ParticipantError as error:
            if error.code is Code.INVALID_REQUEST:
                continue  # Deleted meanwhile.
            totals.ledgers, totals.unreadable = totals.ledgers + 1, totals.unreadable + 1
            wrong = [(None, "unreadable", error.message)]
        else:
            _count(totals, Manifest.of(life, found))
            totals.damaged += bool(wrong)
        for index, code, message in wrong:
            yield LedgerFinding(key=str(CaptureKey.of(life)), life=str(life), index=index, code=code, message=message)


def _wrong(reader: Reader, life: Life, data: bytes, found: Found) -> list[tuple[int | None, str, str]]:
    """Everything that is wrong with one ledger: index of the row, code and message."""
    wrong: list[tuple[int | None, str, str]] = []
    if found.damage:
        wrong.append((None, "damage", found.damage))
    manifest = Manifest.of(life, found)
    says = found.end or manifest  # The end was written by whoever ended it; an open ledger has no such witness.
    rows: Iterable[dict[str, Any]] = map(row_json, found.rows)
    lives = list(dict.fromkeys([*manifest.origins, str(life)]))
    wrong += [
        (finding.index, finding.code, finding.message)
        for finding in check(rows, lives=lives, count=says.rows, last=says.last)
    ]
    for receipt in (*found.frozen.values(), *([found.end] if found.end else [])):
        if hashlib.sha256(data[: receipt.size]).hexdigest() != receipt.sha256:
            name = f"freeze {receipt.version:.80}" if receipt.version else "end"
            wrong.append((None, "receipt", f"the file up to its {name} is not what its receipt says"))
    try:
        reader.record_lines(life)
    except ParticipantError as error:
        if error.code is not Code.CORRUPT_CHECKPOINT:
            raise
        wrong.append((None, "records", error.message))
    return wrong
