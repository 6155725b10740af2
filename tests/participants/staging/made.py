"""Identities, prefixes, stores and helpers for the tests of staging."""

from collections.abc import Sequence
from pathlib import Path

from participants.staging import (
    ActiveBuffer,
    Cut,
    Entry,
    Identity,
    Key,
    PromptRef,
    Refused,
    Staged,
    Stager,
    StagingLimits,
    TokenStore,
    Wanted,
)
from participants.staging.packs import as_ids
from store import LocalBackend, MemoryBackend
from store.backends import FileOps, Handle, MemorySpace
from tests.support.checkpoints import life

RUN = "0" * 32
CALL = "agent.main:0.0"
PROMPT = PromptRef.of([1, 2, 3])
SMALL = StagingLimits(pack_bytes=3 * 5_000)
"""A few short prefixes fill a pack."""
CONTEXT = 10_000


def identity(n: int = 0, *, attempt: int = 0, call: str = CALL) -> Identity:
    """The caller of rollout `r<n>`."""
    return Identity(life(f"r{n}", attempt=attempt), call)


def some_ids(n: int, count: int = 8) -> list[int]:
    """Ids that differ for each n."""
    return [n * 1_000 + position * position for position in range(count)]


def entry(n: int = 0, count: int = 8) -> Entry:
    """What is staged of rollout `r<n>`."""
    return Entry(identity(n), PROMPT, as_ids(some_ids(n, count)))


def memory_tokens(space: MemorySpace | None = None, limits: StagingLimits = SMALL) -> TokenStore:
    """A token store in memory."""
    return TokenStore(MemoryBackend(space=space or MemorySpace()), limits)


def tokens_at(root: Path, ops: FileOps | None = None) -> TokenStore:
    """A token store in a folder that is there."""
    return TokenStore(LocalBackend(root, ops), SMALL)


def stager_of(store: TokenStore | None = None) -> Stager:
    """A helper with nothing in it."""
    return Stager(store or memory_tokens(), context_length=CONTEXT)


def opened(stager: Stager, count: int, tokens: int = 8) -> list[ActiveBuffer]:
    """So many calls in progress."""
    buffers = [stager.open(identity(n), PROMPT) for n in range(count)]
    for n, buffer in enumerate(buffers):
        buffer.append(some_ids(n, tokens))
    return buffers


def wanted(buffers: Sequence[ActiveBuffer], count: int | None = None) -> list[Wanted]:
    """All of these."""
    return [Wanted(buffer.identity, count) for buffer in buffers]


def all_staged(outcomes: Sequence[Staged | Refused]) -> list[Staged]:
    """They all are."""
    staged = [each for each in outcomes if isinstance(each, Staged)]
    assert len(staged) == len(outcomes), outcomes
    return staged


def keys_of(outcomes: Sequence[Staged | Refused]) -> list[Key]:
    """The keys of those that are staged."""
    return [Key.parse(each.key) for each in outcomes if isinstance(each, Staged)]


def cut_of_entry(made: Entry, key: str = "0" * 32 + ".0.1") -> Cut:
    """A cut that says the truth, of who generated and continues it himself."""
    return Cut(key=key, count=made.count, digest=made.digest, prompt=made.prompt, source=made.source, by=made.source)


class UnsyncedOps(FileOps):
    """Syncs nothing, for states that nobody will crash once more."""

    def fsync(self, handle: Handle) -> None:
        pass
