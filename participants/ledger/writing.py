"""What worker threads do to ledgers: the commit rules of appending, beginning, freezing, retiring and deleting.

1. A record is durable before its row is written, and a row (with the names of its files) before anybody is told of it.
   A crash before that leaves a record or a row that nobody was told of: the next writer of the file cuts it off, or
   keeps it where it is whole.
2. A ledger that carries rows comes to be whole or not at all (a new file, renamed), and before its source is retired.
3. Retiring is one line at the end. Whoever appends holds the lock and looks at the length first: a file that is not as
   long as it was left is read again, and one that has ended, or is gone, takes no row, from any process.
4. Deleting retires first, then removes the records, then the ledger. A crash between leaves a retired ledger.
5. Of a rollout only the newest life's ledger is open: to begin a life retires every older one.

After a write that failed, the file is cut back to what was acknowledged before anything else is appended to it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from store import Life

from ..errors import Code, ParticipantError
from .files import Disk, Layout, Place, translated
from .lines import (
    END,
    FREEZE,
    Found,
    Receipt,
    check_carried,
    digest_of_line,
    good_records,
    head_line,
    parse_row,
    record_line,
    row_line,
    scan,
)
from .rows import Entry, Row, Tail, row_after


@dataclass(slots=True, eq=False)
class Open:
    """An open ledger, as its file was left."""

    life: Life
    place: Place
    size: int
    tail: Tail
    rows: list[bytes]
    """Lines."""
    records: int = 0
    """Bytes of complete records."""
    frozen: dict[str, Receipt] = field(default_factory=dict)
    named: bool = False
    """Whether the names of its files are durable for certain."""
    written: int | None = None
    """While a write is not acknowledged, or after one that failed: how long the file may be of our making."""


@dataclass(slots=True, eq=False)
class Append:
    """One row to be appended, and what became of it."""

    life: Life
    entry: Entry
    record: Any = None
    row: Row | None = None
    """Set before it is in any file."""
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class Group:
    """The rows of one life in a batch."""

    ledger: Open
    items: list[Append]
    ledger_fd: int
    records_fd: int = -1
    rows: list[bytes] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    tail: Tail = field(default_factory=Tail)

    @property
    def lives(self) -> bool:
        """Whether anything of it is still to be done, or done."""
        return any(item.row for item in self.items)


class Writer:
    """Carries out what callers ask for, in worker threads. One life is only ever touched by one thread at a time."""

    def __init__(self, layout: Layout, disk: Disk) -> None:
        """No ledger is open."""
        self.layout = layout
        self._disk = disk
        self.ledgers: dict[Life, Open] = {}

    # Begin

    def begin(
        self, life: Life, carried: Sequence[Mapping[str, Any]], source: Life | None, *, clear: bool
    ) -> list[Receipt]:
        """Begin a ledger, or find it begun, and end those of older lives. Returns the receipts of these."""
        rows, tail = check_carried(life, source, carried)
        with self.layout.locked([self.layout.lock_of(life.rollout_id)]), translated(life):
            place = self.layout.place(life)
            lives = [] if self.layout.make_folders(place) else self.layout.lives(life.rollout_id)
            newer = [each for each in lives if each != life and (each.epoch, each.n) >= (life.epoch, life.n)]
            if newer:
                raise _stale(life, f"was superseded by {newer[-1]}")
            data = self._disk.read(place.ledger) if life in lives else None
            if data is not None and scan(data).life is not None:
                self._begun_already(life, tail)
            else:
                self._begin_new(life, place, rows, source, whole=bool(rows or source) or data is not None)
            kept = {source, *(row.life for row in rows)}
            return [
                self._delete(each) if clear and each not in kept else self._retire(each, _why(life, each, source))
                for each in lives
                if each != life
            ]

    def _begun_already(self, life: Life, carried: Tail) -> None:
        ledger = self._load(life)
        if carried.count and (ledger.tail.count < carried.count or _chain_at(ledger, carried.count) != carried.chain):
            raise ParticipantError(Code.CHECKPOINT_CONFLICT, f"{life} has begun with other rows")

    def _begin_new(self, life: Life, place: Place, rows: Sequence[Row], source: Life | None, *, whole: bool) -> None:
        lines = [row_line(row) for row in rows]
        data = b"".join([head_line(life, source, rows), *lines])
        (self.layout.write_whole if whole else self.layout.write_first)(place, data)
        tail = Tail()
        for row in rows:
            tail = tail.with_row(row)
        self.ledgers[life] = Open(life, place, len(data), tail, [line[:-1] for line in lines], named=whole)

    # Load

    def _load(self, life: Life) -> Open:
        """Read an open ledger from its file, cut off what a crash has torn, and keep it. Raises `stale_life`."""
        self._settle(life)
        place = self.layout.place(life)
        found, data, records = self._read(place)
        if data is None or found.life is None:
            self.ledgers.pop(life, None)
            raise _stale(life, "has no ledger")
        if found.end is not None:
            self.ledgers.pop(life, None)
            raise _stale(life, f"has ended: {found.end.reason}")
        if found.life != life and not found.damage:
            found.damage = f"the file is of {found.life}"
        if found.damage:
            raise ParticipantError(Code.CORRUPT_CHECKPOINT, f"the ledger of {life} is damaged: {found.damage}")
        self._cut(place.ledger, len(data), found.good)
        ledger = Open(life, place, found.good, found.tail, found.rows, frozen=found.frozen)
        ledger.records = self._cut_records(place, found, records)
        self.ledgers[life] = ledger
        return ledger

    def _settle(self, life: Life) -> None:
        """After a write of ours that failed, cut off what nobody was told of, unless another process has gone on."""
        ledger = self.ledgers.get(life)
        if ledger is None or ledger.written is None:
            return
        fd = self._open(ledger)
        try:
            if ledger.size < self._disk.size(fd) <= ledger.written:
                self._disk.truncate(fd, ledger.place.ledger, ledger.size)
        finally:
            self._disk.close(fd)
        ledger.written = None

    def _read(self, place: Place) -> tuple[Found, bytes | None, bytes]:
        data = self._disk.read(place.ledger)
        return self._checked(place, scan(data or b""), data)

    def _checked(self, place: Place, found: Found, data: bytes | None) -> tuple[Found, bytes | None, bytes]:
        """What was found, checked against the complete records, and these."""
        records = self._disk.read(place.records) or b""
        if len(good_records(records, found.own_records)) < len(found.own_records) and not found.damage:
            found.damage = "complete records are missing"
        return found, data, records

    def _cut_records(self, place: Place, found: Found, records: bytes) -> int:
        size = sum(len(line) + 1 for line in good_records(records, found.own_records))
        self._cut(place.records, len(records), size)
        return size

    def _cut(self, path: str, size: int, good: int) -> None:
        if size > good:
            fd = self._disk.open(path)
            try:
                self._disk.truncate(fd, path, good)
            finally:
                self._disk.close(fd)

    # Append

    def append_all(self, items: Sequence[Append]) -> None:
        """Append rows of several lives; each item gets its row or its error."""
        lives: dict[Life, list[Append]] = {}
        for item in items:
            lives.setdefault(item.life, []).append(item)
        with self.layout.locked({self.layout.lock_of(life.rollout_id) for life in lives}):
            groups: list[Group] = []
            try:
                for own in lives.values():
                    self._each(own, self._group, own, groups)
                self._write(groups)
            finally:
                for group in groups:
                    for fd in (group.ledger_fd, group.records_fd):
                        if fd >= 0:
                            self._disk.close(fd)

    def _each(self, items: Sequence[Append], work: Callable[..., None], *args: Any) -> None:
        """Do a part of the work for one life; where it fails, that life alone has failed."""
        try:
            with translated(items[0].life):
                work(*args)
        except Exception as error:
            for item in items:
                item.row, item.error = None, item.error or error

    def _group(self, items: list[Append], groups: list[Group]) -> None:
        """Open the file of a life, see that it is as it was left, and make the rows."""
        life = items[0].life
        ledger = self.ledgers.get(life) or self._load(life)
        self._settle(life)
        group = Group(ledger, items, self._open(ledger))
        groups.append(group)
        if self._disk.size(group.ledger_fd) != ledger.size:
            group.ledger = self._load(life)
        group.tail = group.ledger.tail
        for item in items:
            try:
                _make_row(group, item)
            except ParticipantError as error:
                item.error = error

    def _open(self, ledger: Open) -> int:
        try:
            return self._disk.open(ledger.place.ledger)
        except FileNotFoundError:
            self.ledgers.pop(ledger.life, None)
            raise _stale(ledger.life, "was deleted") from None

    def _write(self, groups: Sequence[Group]) -> None:
        """Step by step, each for all lives before the next."""
        for step in (self._write_records, self._sync_records, self._write_rows, self._sync_rows):
            for group in groups:
                if group.lives:
                    self._each(group.items, step, group)
        self._sync_names([group for group in groups if group.lives and not group.ledger.named])
        for group in groups:
            if group.lives:
                _acknowledge(group)
            elif group.ledger.written is not None:
                # Where it cannot be done now, it is done before anything else is.
                with suppress(OSError, ParticipantError):
                    self._settle(group.ledger.life)

    def _write_records(self, group: Group) -> None:
        if not group.records:
            return
        path, ledger = group.ledger.place.records, group.ledger
        ledger.named = ledger.named and ledger.records > 0
        group.records_fd = self._disk.open(path, create=ledger.records == 0)
        size = self._disk.size(group.records_fd)
        if size < ledger.records:
            raise ParticipantError(Code.CORRUPT_CHECKPOINT, f"the records of {ledger.life} have lost their end")
        if size > ledger.records:
            self._disk.truncate(group.records_fd, path, ledger.records)
        self._disk.write(group.records_fd, path, b"".join(group.records))

    def _sync_records(self, group: Group) -> None:
        if group.records:
            self._disk.sync(group.records_fd, group.ledger.place.records)

    def _write_rows(self, group: Group) -> None:
        data = b"".join(group.rows)
        group.ledger.written = group.ledger.size + len(data)
        self._disk.write(group.ledger_fd, group.ledger.place.ledger, data)

    def _sync_rows(self, group: Group) -> None:
        self._disk.sync(group.ledger_fd, group.ledger.place.ledger)

    def _sync_names(self, groups: Sequence[Group]) -> None:
        """Make the names of new files durable, each folder once."""
        done: set[str] = set()
        for group in groups:
            place = group.ledger.place
            for folder in self.layout.folders_to_sync(place):
                if folder not in done and group.lives:
                    self._each(group.items, self._disk.sync_folder, folder)
                    if group.lives:
                        done.add(folder)
            group.ledger.named = group.lives
            if group.lives:
                self.layout.are_durable(place)

    # Ends

    def freeze(self, life: Life, version: str) -> Receipt:
        """Note where a ledger stands under a version; the same again for the same version."""
        with self.layout.locked([self.layout.lock_of(life.rollout_id)]), translated(life):
            ledger = self._load(life)
            known = ledger.frozen.get(version)
            if known is not None:
                return known
            found, data, _ = self._read(ledger.place)
            receipt = found.receipt(FREEZE, (data or b"")[: found.good], version=version)
            self._add_line(ledger.place, receipt.line())
            ledger.size, ledger.named = ledger.size + len(receipt.line()), True
            ledger.frozen[version] = receipt
            return receipt

    def retire(self, life: Life) -> Receipt:
        """End a ledger: no process appends to it any more."""
        with self.layout.locked([self.layout.lock_of(life.rollout_id)]), translated(life):
            return self._retire(life, "retired")

    def retire_all(self, lives: Sequence[Life]) -> list[Receipt]:
        """The same for many."""
        return [self.retire(life) for life in lives]

    def _retire(self, life: Life, reason: str) -> Receipt:
        with suppress(ParticipantError):
            self._settle(life)
        ledger = self.ledgers.pop(life, None)
        place = self.layout.place(life)
        data = self._disk.read(place.ledger)
        if data is None:
            return Receipt(str(life), END, found=False)
        found = scan(data)
        if found.end is not None:
            return found.end
        if found.life is None and not found.damage:  # Begun, and not even its first line is whole.
            self.layout.write_whole(place, head_line(life, None, ()))
            return self._retire(life, reason)
        found.life = found.life or life
        as_left = ledger is not None and ledger.size == len(data) == found.good and not found.damage
        records = b"" if as_left else self._checked(place, found, data)[2]
        if found.damage:  # Then nothing is cut: it may be all that is left.
            receipt = found.receipt(END, data, reason=reason)
            self._add_line(place, (b"" if data.endswith(b"\n") else b"\n") + receipt.line())
            return receipt
        if not as_left:
            self._cut_records(place, found, records)
            self._cut(place.ledger, len(data), found.good)
        receipt = found.receipt(END, data[: found.good], reason=reason)
        self._add_line(place, receipt.line(), named=ledger is not None and ledger.named)
        return receipt

    def _add_line(self, place: Place, line: bytes, *, named: bool = False) -> None:
        fd = self._disk.open(place.ledger)
        try:
            self._disk.write(fd, place.ledger, line)
            self._disk.sync(fd, place.ledger)
        finally:
            self._disk.close(fd)
        if not named:
            self.layout.sync_names(place)

    def delete(self, life: Life) -> Receipt:
        """Remove what there is of a life, after retiring it."""
        with self.layout.locked([self.layout.lock_of(life.rollout_id)]), translated(life):
            return self._delete(life)

    def _delete(self, life: Life) -> Receipt:
        receipt = self._retire(life, "deleted")
        self.layout.remove(self.layout.place(life))
        return replace(receipt, what="deleted")


def _make_row(group: Group, item: Append) -> None:
    record = None if item.record is None else record_line(item.entry.call, item.record)
    row = row_after(group.tail, item.life, item.entry, digest_of_line(record) if record else "")
    group.rows.append(row_line(row))
    if record:
        group.records.append(record)
    group.tail = group.tail.with_row(row)
    item.row = row


def _acknowledge(group: Group) -> None:
    """It is durable: the ledger is so long now."""
    ledger = group.ledger
    ledger.size += sum(map(len, group.rows))
    ledger.records += sum(map(len, group.records))
    ledger.tail, ledger.written = group.tail, None
    ledger.rows.extend(line[:-1] for line in group.rows)


def _chain_at(ledger: Open, count: int) -> str:
    return parse_row(ledger.rows[count - 1]).chain


def _why(life: Life, older: Life, source: Life | None) -> str:
    return f"continued by {life}" if older == source else f"superseded by {life}"


def _stale(life: Life, why: str) -> ParticipantError:
    return ParticipantError(Code.STALE_LIFE, f"{life} {why}: nothing is appended")


def make_root(layout: Layout) -> None:
    """Make the folders of a root. Raises `store_failed`."""
    with translated("the ledgers"):
        layout.make_root()
