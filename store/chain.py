"""The chain's shell: reads forward, appends by exclusive create, settles the unknown. Only this file writes entries.

To append, a writer reads forward to the first absent slot, decides on the state it finds there, and creates that slot
exclusively. A lost slot means read on and decide again. After an unknown outcome the same entry may be put again: the
slot holds it (recognised by its token), holds another's, or is free. Nothing is deleted on an unknown outcome, and an
entry that arrives late harms nothing, for what it names was complete before it was first sent.

    crash                         what the chain holds
    before the create             nothing of it
    after it, reply lost          the entry; whoever reads forward sees it

A listing is a hint where to start reading, never proof that an entry is missing.
"""

import secrets
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from typing import Self

from .again import damage_seen_twice
from .backends.base import Backend
from .entries import Action, Claim, Entry, Known, Ref, State, advance, next_epoch, refuse
from .errors import (
    AccessDenied,
    AlreadyExists,
    BackendError,
    CorruptChain,
    NotFound,
    ObjectTooLarge,
    OutcomeUnknown,
    UnsafeObject,
)
from .layout import CHAIN_PREFIX, entry_key, parse_entry_key
from .limits import DEFAULT_LIMITS, Limits
from .sealed import load_model, seal, seal_within
from .slots import refuse_folder
from .tasks import map_bounded

_READ_STEP = 1000
Decide = Callable[["Chain"], Action | Entry]
"""Chooses the action for the state at hand, or names the entry that already says it; raises to refuse."""


class Chain:
    """All entries up to the last read, and the way to append one. Not shared between tasks."""

    def __init__(self, backend: Backend, run_id: str, limits: Limits = DEFAULT_LIMITS) -> None:
        """Nothing is read before `refresh`."""
        self._backend = backend
        self._limits = limits
        self.run_id = run_id
        self.entries: list[Entry] = []
        """Entry n is at index n - 1."""
        self.known = Known()

    def __repr__(self) -> str:
        head = self.state.head
        return f"<Chain {len(self.entries)} entries, epoch {self.state.epoch}, head {head and head.checkpoint}>"

    @property
    def state(self) -> State:
        """What the last entry sums up."""
        return self.entries[-1].state if self.entries else State()

    def copy(self) -> Self:
        """Another one that has read as far, for another task."""
        made = copy(self)
        made.entries, made.known = [*self.entries], self.known.copy()
        return made

    async def refresh(self) -> None:
        """Read forward to the first absent slot. Raises CorruptChain."""
        hint = 0 if self.entries else await self._hint()
        if hint > 1:
            await self._read_known(hint)
        while True:
            try:
                entry = await self._read(len(self.entries) + 1)
            except NotFound:
                return
            self._add(entry)

    async def append(self, epoch: int | None, decide: Decide, token: str | None = None) -> Entry:
        """Append the action that `decide` chooses, as the controller of `epoch` or (None) as an operator.

        A claim takes the next epoch of the state that it finds.
        Raises what `decide` or the rules of `store.entries` refuse with, and OutcomeUnknown where the store did not
        answer in time: then `refresh` tells, or the same call again with the same `token`.
        """
        repeated = token is not None
        token = token or self._new_token()
        while True:
            await self.refresh()
            decided = (self._find_token(token) if repeated else None) or decide(self)
            if isinstance(decided, Entry):
                await self._make_durable(decided)
                return decided
            entry = self._next(epoch, decided, token)
            if await self._create(entry):
                return entry

    def _new_token(self) -> str:
        return secrets.token_hex(16)

    def _next(self, epoch: int | None, action: Action, token: str) -> Entry:
        state, n = self.state, len(self.entries) + 1
        if isinstance(action, Claim):
            epoch = next_epoch(state, action.base, self.known)
        elif epoch is None:
            epoch = state.epoch
        refusal = refuse(state, self.known, epoch, action)
        if refusal is not None:
            raise refusal
        after = advance(state, n, epoch, action)
        return Entry(run_id=self.run_id, n=n, token=token, epoch=epoch, action=action, state=after)

    async def _create(self, entry: Entry) -> bool:
        try:
            await self._backend.create(
                entry_key(entry.n), seal_within(self._limits.max_entry_bytes, entry.model_dump(mode="json"))
            )
        except AlreadyExists:
            # Perhaps our own, from a try whose reply was lost.
            found = await self._read_taken(entry.n)
            self._add(found)
            return found.token == entry.token
        self._add(entry)
        return True

    async def _read_taken(self, n: int) -> Entry:
        """What took a slot that we tried; where it cannot be read, nobody can say whether it is ours."""
        try:
            return await self._read(n)
        except BackendError as error:
            raise OutcomeUnknown("create", entry_key(n), f"the slot is taken and cannot be read: {error}") from error

    def _find_token(self, token: str) -> Entry | None:
        return next((entry for entry in reversed(self.entries) if entry.token == token), None)

    async def confirm(self) -> None:
        """Make durable what was read so far: its writer may have died, or failed, before it was."""
        if self.entries:
            await self._make_durable(self.entries[-1])

    async def _make_durable(self, entry: Entry) -> None:
        """Put an entry that was only read once more: a create that finds its slot taken makes sure of the slot."""
        with suppress(AlreadyExists):
            await self._backend.create(entry_key(entry.n), seal(entry.model_dump(mode="json")))

    async def _hint(self) -> int:
        try:
            listed = await self._backend.list(CHAIN_PREFIX)
        except AccessDenied:
            return 0  # Without permission to list, reading forward finds the same entries, only slower.
        return max((n for n in (parse_entry_key(info.key) for info in listed) if n), default=0)

    async def _read_known(self, last: int) -> None:
        """Read entries 1 to `last`, which a listing has shown, with many requests at a time."""

        async def read(n: int) -> Entry:
            try:
                return await self._read(n)
            except NotFound as error:
                raise CorruptChain(entry_key(n), f"it is missing, and entry {last} exists") from error

        # In steps, so that a stray object with a huge number costs no more than the first of them.
        for start in range(1, last + 1, _READ_STEP):
            numbers = range(start, min(start + _READ_STEP, last + 1))
            for entry in await map_bounded(read, numbers, self._limits.requests_in_flight):
                self._add(entry)

    @damage_seen_twice
    async def _read(self, n: int) -> Entry:
        key = entry_key(n)
        try:
            data = await self._backend.get(key, max_bytes=self._limits.max_entry_bytes)
        except NotFound:
            await refuse_folder(self._backend, key)
            raise
        except (ObjectTooLarge, UnsafeObject) as error:
            raise CorruptChain(key, error.message) from error
        entry = load_model(Entry, key, data, CorruptChain)
        if entry.n != n or entry.run_id != self.run_id:
            raise CorruptChain(key, f"it says that it is entry {entry.n} of run {entry.run_id}")
        return entry

    def _add(self, entry: Entry) -> None:
        expected = advance(self.state, entry.n, entry.epoch, entry.action)
        if entry.n != len(self.entries) + 1 or entry.state != expected:
            raise CorruptChain(entry_key(entry.n), "its state does not follow from the entry before it")
        self.entries.append(entry)
        self.known.add(entry)


def find_ref(chain: Chain, ref: Ref) -> Entry | None:
    """The entry that published or imported `ref`, where the chain has one."""
    for entry in reversed(chain.entries):
        if getattr(entry.action, "ref", None) == ref:
            return entry
    return None
