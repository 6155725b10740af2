"""The capture ledger: what each life's model calls were, append-only, and durable before their replies are released.

A life's ledger begins with the rows that it carries over from the life it continues, gets one row a model call, and
ends when it is retired; it stays readable until it is deleted. Everything that changes it runs in worker threads, a
batch at a time, and its outcome is known when the call returns: cancellation waits. `participants.ledger.writing` has
the commit rules, `rows` the digests, `lines` what the files hold.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import orjson

from store import Life

from ..errors import Code, ParticipantError
from .files import Disk, Layout
from .keys import CaptureKey
from .lanes import Lane
from .lines import Receipt, parse_row, record_json, row_json
from .reading import Manifest, Reader
from .rows import Entry, Row
from .writing import Append, Writer, make_root

LANES = 8
"""Worker threads that write."""
READERS = 4
MAX_BATCH = 128
"""Rows that share one batch; a batch has at most twice as many files open."""
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Task:
    """Anything but an append; its result is set by the thread."""

    run: Callable[[], None]


Work = Append | Task


class Ledger:
    """The ledgers of all lives below one root. Several processes may use one root; within one, one event loop."""

    def __init__(self, root: str, *, disk: Disk | None = None, lanes: int = LANES) -> None:
        """`root` is a folder, made at the first use; `disk` are the system calls, for tests to replace."""
        disk = disk or Disk()
        self._layout = Layout(root, disk)
        self._writer = Writer(self._layout, disk)
        self._reader = Reader(self._layout, disk)
        self._threads, self._readers = anyio.CapacityLimiter(lanes), anyio.CapacityLimiter(READERS)
        self._lanes = [Lane(self._carry_out, self._threads, MAX_BATCH) for _ in range(lanes)]
        self._made = False
        self._appending: dict[Life, list[Append]] = {}
        self._counts: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Ledger {len(self._writer.ledgers)} open, {dict(self._counts)}>"

    # What changes a ledger

    async def begin(
        self,
        life: Life,
        carried: Sequence[Mapping[str, Any]] = (),
        source: Life | None = None,
        *,
        clear: bool = False,
    ) -> list[Receipt]:
        """Begin the ledger of a life, before its first call; again is fine.

        `carried` is what `export` gave of the life `source`, up to the boundary continued from. Ends the ledger of
        every older life of the rollout, and returns the receipts; with `clear` those that are neither the source nor
        in the carried rows are deleted. Raises `stale_life` where the life has ended or a newer one has begun,
        `corrupt_checkpoint` where the rows are no chain, `checkpoint_conflict` where it has begun with others.
        """
        return await self._run(life.rollout_id, lambda: self._writer.begin(life, carried, source, clear=clear))

    async def append(self, life: Life, entry: Entry, record: Any = None) -> Row:
        """Append the row of a call that has ended, and its complete record (a JSON value); both are durable then.

        An export has the row from the moment on that this returns, with no other task in between. Raises `stale_life`,
        and counts the row as discarded, where the ledger has ended or was never begun, `invalid_request` for what is
        no row, `store_failed` where the disk failed: nothing is appended then, and it can be tried again.
        """
        await self._make()
        item = Append(life, entry, record)
        self._appending.setdefault(life, []).append(item)
        try:
            await self._lane(life.rollout_id).run(item)
        finally:
            self._leave(item)
        if item.row is None:
            error = item.error or ParticipantError(Code.INTERNAL, f"a row of {life} was not appended")
            if isinstance(error, ParticipantError) and error.code is Code.STALE_LIFE:
                self._counts["discarded"] += 1
            raise error
        self._counts["rows"] += 1
        return item.row

    def _leave(self, item: Append) -> None:
        items = self._appending[item.life]
        items.remove(item)
        if not items:
            del self._appending[item.life]

    async def freeze(self, key: str, version: str) -> Receipt:
        """Note where the ledger of a key stands, under a version; `rows` can be asked for it. Repeats answer the same.

        Raises `invalid_request` where there is no such ledger, `stale_life` where it has ended.
        """
        if not version:
            raise ParticipantError(Code.INVALID_REQUEST, "a freeze needs a version")
        life = await self.resolve(key)
        return await self._run(life.rollout_id, lambda: self._writer.freeze(life, version))

    async def retire(self, life: Life) -> Receipt:
        """End a ledger: it takes no row any more, and stays readable. Repeats answer the same."""
        return await self._run(life.rollout_id, lambda: self._writer.retire(life))

    async def retire_all(self, lives: Sequence[Life]) -> list[Receipt]:
        """The same for many, in as many threads as there are lanes; the receipts in the order of the lives."""
        by_lane: dict[int, list[Life]] = {}
        for life in lives:
            by_lane.setdefault(self._layout.lock_of(life.rollout_id) % len(self._lanes), []).append(life)
        receipts: dict[Life, Receipt] = {}
        errors: list[ParticipantError] = []

        async def retire(own: list[Life]) -> None:
            try:
                for start in range(0, len(own), MAX_BATCH):  # Between them others have a turn.
                    part = own[start : start + MAX_BATCH]
                    found = await self._run(own[0].rollout_id, partial(self._writer.retire_all, part))
                    receipts.update(zip(part, found, strict=True))
            except ParticipantError as error:
                errors.append(error)

        await self._make()
        async with anyio.create_task_group() as group:
            for own in by_lane.values():
                group.start_soon(retire, own)
        if errors:
            raise errors[0]
        return [receipts[life] for life in lives]

    async def delete(self, life: Life) -> Receipt:
        """Retire a ledger, and remove it and its records. A repeat finds nothing."""
        return await self._run(life.rollout_id, lambda: self._writer.delete(life))

    def leave(self, life: Life) -> None:
        """Keep nothing of a ledger in memory: its life makes no call any more. It stays readable, and is not ended."""
        self._writer.ledgers.pop(life, None)

    # What reads one

    def export(self, life: Life) -> list[dict[str, Any]]:
        """The rows of an open ledger so far, as JSON for `begin`; none where it is not open here. No I/O."""
        ledger = self._writer.ledgers.get(life)
        if ledger is None:
            return []
        pending = [item.row.index for item in self._appending.get(life, ()) if item.row is not None]
        return [row_json(line) for line in ledger.rows[: min(pending, default=None)]]

    async def lives(self, key: str) -> list[Life]:
        """Every life with a ledger of the attempt that a capture key names, the newest last."""
        wanted = CaptureKey.parse(key)
        return await self._read(lambda: self._reader.lives(wanted))

    async def resolve(self, key: str) -> Life:
        """The newest life of the attempt that a capture key names. Raises `invalid_request` where it has no ledger."""
        lives = await self.lives(key)
        if not lives:
            instead = await self._read(lambda: self._reader.instead(CaptureKey.parse(key)))
            told = f"no ledger has the key {key!r:.80}"
            raise ParticipantError(Code.INVALID_REQUEST, f"{told}: {instead}" if instead else told)
        return lives[-1]

    async def manifest(self, key: str) -> Manifest:
        """What the ledger of a key holds. Raises as `resolve`."""
        life = await self.resolve(key)
        return await self._read(lambda: self._reader.manifest(life))

    async def rows(self, key: str, version: str = "") -> list[Row]:
        """The rows of a key, carried ones first; up to a freeze where a version is named.

        Raises as `resolve`, also for an unknown version; `corrupt_checkpoint` where they cannot be trusted.
        """
        life = await self.resolve(key)
        return await self._read(lambda: [parse_row(line) for line in self._reader.row_lines(life, version)])

    async def row_lines(self, key: str, version: str = "") -> list[bytes]:
        """The same as lines of JSON."""
        life = await self.resolve(key)
        return await self._read(
            lambda: [orjson.dumps(row_json(each)) for each in self._reader.row_lines(life, version)]
        )

    async def records(self, key: str) -> list[Any]:
        """The complete records of a key's own calls, as they were appended. Raises as `rows`."""
        life = await self.resolve(key)
        return await self._read(lambda: [record_json(line) for line in self._reader.record_lines(life)])

    async def record_lines(self, key: str) -> list[bytes]:
        """The same as lines of JSON: `{"call", "record"}`."""
        life = await self.resolve(key)
        return await self._read(lambda: self._reader.record_lines(life))

    def counts(self) -> dict[str, int]:
        """For the status: open ledgers, rows appended and discarded since the process began, rows in memory."""
        ledgers = self._writer.ledgers.values()
        return {
            "ledgers": len(ledgers),
            "ledger_rows": self._counts["rows"],
            "ledger_rows_discarded": self._counts["discarded"],
        }

    # Threads

    def _lane(self, rollout_id: str) -> Lane[Work]:
        return self._lanes[self._layout.lock_of(rollout_id) % len(self._lanes)]

    def _carry_out(self, works: Sequence[Work]) -> None:
        """One batch: rows that come in a row share their steps."""
        rows: list[Append] = []
        for work in works:
            if isinstance(work, Append):
                rows.append(work)
                continue
            self._append(rows)
            rows = []
            work.run()
        self._append(rows)

    def _append(self, items: Sequence[Append]) -> None:
        if not items:
            return
        try:
            self._writer.append_all(items)
        except Exception as error:
            for item in items:
                item.row, item.error = None, item.error or error

    async def _run(self, rollout_id: str, work: Callable[[], T]) -> T:
        await self._make()
        results: list[T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                results.append(work())
            except Exception as error:
                errors.append(error)

        await self._lane(rollout_id).run(Task(run))
        if errors:
            raise errors[0]
        return results[0]

    async def _read(self, work: Callable[[], T]) -> T:
        await self._make()
        return await anyio.to_thread.run_sync(work, limiter=self._readers)

    async def _make(self) -> None:
        if not self._made:
            await anyio.to_thread.run_sync(make_root, self._layout, limiter=self._threads)
            self._made = True
