"""Exit codes: what a program may rely on, and which error ends in which."""

from enum import IntEnum

from store import (
    CheckpointConflict,
    CheckpointDeleted,
    ControllerAlive,
    CorruptChain,
    CorruptCheckpoint,
    Fenced,
    ForeignObject,
    InvalidInput,
    NoCheckpoint,
    NotAStore,
    NotFound,
    ObjectTooLarge,
    RootMissing,
    StoreError,
    UnsafeObject,
    UnsupportedStore,
    UnsupportedVersion,
)


class Exit(IntEnum):
    """How a command ends."""

    FINE = 0
    DAMAGE = 1
    """Damage was found, or what looks like a credential."""
    REFUSED = 2
    """Wrong usage, or a request that is refused."""
    NOTHING = 3
    """No store or ledger, or no such checkpoint or rollout."""
    FAILED = 4
    """The store could not be asked, or did not do what it was asked: unreachable, denied, full, or unknown."""
    BUG = 70
    """An error that midflight did not expect."""
    INTERRUPTED = 130
    """Ctrl-C."""


_TABLE: tuple[tuple[tuple[type[StoreError], ...], Exit], ...] = (
    ((NoCheckpoint, CheckpointDeleted, NotAStore, NotFound, RootMissing), Exit.NOTHING),
    ((CorruptCheckpoint, CorruptChain, ForeignObject, ObjectTooLarge, UnsafeObject), Exit.DAMAGE),
    (
        (InvalidInput, UnsupportedStore, UnsupportedVersion, CheckpointConflict, ControllerAlive, Fenced),
        Exit.REFUSED,
    ),
)


def exit_of(error: StoreError) -> Exit:
    """The exit code for an error; whatever the table does not name is a failure of the store."""
    return next((code for kinds, code in _TABLE if isinstance(error, kinds)), Exit.FAILED)
