"""Reading the chain for an operator: every entry that can be read is used, everything wrong is collected.

Nothing is ever decided on what this gives: `store.chain` alone does that, and refuses a chain with any damage in it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from .backends.base import ObjectInfo
from .entries import Entry, Known, State, advance
from .errors import (
    CorruptChain,
    CorruptCheckpoint,
    ForeignObject,
    InvalidName,
    IOFailed,
    NotFound,
    ObjectTooLarge,
    StoreError,
    UnsafeObject,
    UnsupportedVersion,
)
from .layout import entry_key, parse_entry_key
from .root import Store
from .sealed import load_model
from .slots import refuse_folder
from .tasks import map_bounded

DAMAGE = (
    CorruptChain,
    CorruptCheckpoint,
    ForeignObject,
    InvalidName,
    IOFailed,
    NotFound,
    ObjectTooLarge,
    UnsafeObject,
    UnsupportedVersion,
)
"""What says something about the object that was read, and not about the store or our right to read it."""

Note = Callable[[str, str], None]
"""Takes the object and what is wrong with it."""


class noting:  # noqa: N801 - read as a verb where it is used
    """Note damage that is met inside, and go on after it."""

    def __init__(self, note: Note, where: str) -> None:
        """`where` is named where the error names nothing itself."""
        self._note = note
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, DAMAGE):
            return False
        self._note(getattr(error, "name", self._where), getattr(error, "reason", error.message))
        return True


@dataclass(slots=True)
class ChainAudit:
    """What the readable entries say."""

    length: int = 0
    """Number of the last entry."""
    state: State = field(default_factory=State)
    known: Known = field(default_factory=Known)
    follows: bool = True
    """Whether `state` is that of the last entry, and not of one before damage."""


async def audit_chain(store: Store, listed: Iterable[ObjectInfo], note: Note) -> ChainAudit:
    """Read all entries that a listing shows, and on from the last one, since a listing may be behind."""
    numbers = sorted(n for info in listed if (n := parse_entry_key(info.key)))
    found = list(zip(numbers, await _read_all(store, numbers), strict=True))
    audit = ChainAudit()
    while True:
        for n, entry in found:
            _take(audit, n, entry, note)
        read = await _read(store, audit.length + 1)
        if isinstance(read, NotFound):
            break
        found = [(audit.length + 1, read)]
    head = audit.state.head
    if head is not None and head.checkpoint not in audit.known.deleted:
        audit.known.refs.setdefault(head.checkpoint, head)  # Its own entry may be one of the damaged ones.
    return audit


async def _read_all(store: Store, numbers: Sequence[int]) -> list[Entry | StoreError]:
    async def read(n: int) -> Entry | StoreError:
        return await _read(store, n)

    return await map_bounded(read, numbers, store.limits.requests_in_flight)


async def _read(store: Store, n: int) -> Entry | StoreError:
    key = entry_key(n)
    try:
        data = await _get(store, key)
        entry = load_model(Entry, key, data, CorruptChain)
    except DAMAGE as error:
        return error
    if entry.n != n or entry.run_id != store.run_id:
        return CorruptChain(key, f"it says that it is entry {entry.n} of run {entry.run_id}")
    return entry


async def _get(store: Store, key: str) -> bytes:
    try:
        return await store.backend.get(key, max_bytes=store.limits.max_entry_bytes)
    except NotFound:
        await refuse_folder(store.backend, key)
        raise


def _take(audit: ChainAudit, n: int, entry: Entry | StoreError, note: Note) -> None:
    """Put one entry behind those before it; after damage the next entry's own summary is all there is."""
    is_next = n == audit.length + 1
    if not is_next:
        missing = entry_key(audit.length + 1)
        note(missing, f"{n - audit.length - 1} entries from here on are missing, and entry {n} exists")
    audit.length = n
    if isinstance(entry, StoreError):
        note(entry_key(n), getattr(entry, "reason", entry.message))
        audit.follows = False
        return
    if is_next and audit.follows and entry.state != advance(audit.state, n, entry.epoch, entry.action):
        note(entry_key(n), "its state does not follow from the entry before it")
    audit.state, audit.follows = entry.state, True
    audit.known.add(entry)
