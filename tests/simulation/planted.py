"""Wrong versions of the chain and of its users, each with one mistake that the schedules must find."""

from contextlib import suppress
from typing import Any

from store import (
    Action,
    AlreadyExists,
    Backend,
    Claim,
    DeletionEnd,
    Entry,
    Limits,
    OutcomeUnknown,
    Publication,
    Ref,
    Retention,
    State,
    survey,
)
from store.chain import Decide
from store.entries import Known, advance, next_epoch
from store.layout import aggregate_key, entry_key
from store.prune import PruneReport, _delete, _end, _plan
from store.sealed import seal

from .actors import ActorStore, NumberedChain, Play


def encoded(entry: Entry) -> bytes:
    """The bytes of an entry."""
    return seal(entry.model_dump(mode="json"))


class PutsEntries(NumberedChain):
    """Writes an entry in place of whatever is there."""

    async def _create(self, entry: Entry) -> bool:
        await self._backend.put(entry_key(entry.n), encoded(entry))
        self._add(entry)
        return True


class KeepsItsDecision(NumberedChain):
    """Takes the next slot after a lost one without looking at what took it."""

    first: Entry | None = None

    async def append(self, epoch: int | None, decide: Decide, token: str | None = None) -> Entry:
        self.first = None
        return await super().append(epoch, decide, token)

    def _next(self, epoch: int | None, action: Action, token: str) -> Entry:
        if self.first is None:
            self.first = super()._next(epoch, action, token)
        return self.first.model_copy(update={"n": len(self.entries) + 1})


class IgnoresEpochs(NumberedChain):
    """Appends as if its own epoch were still the highest."""

    def _next(self, epoch: int | None, action: Action, token: str) -> Entry:
        state, n = self.state, len(self.entries) + 1
        if isinstance(action, Claim):
            epoch = next_epoch(state, action.base, self.known)
        epoch = state.epoch if epoch is None else epoch
        after = advance(state, n, epoch, action)
        return Entry(run_id=self.run_id, n=n, token=token, epoch=epoch, action=action, state=after)


class TakesEachSlotForItsOwn(NumberedChain):
    """Does not compare tokens: a taken slot counts as its own entry."""

    async def _create(self, entry: Entry) -> bool:
        with suppress(AlreadyExists):
            await self._backend.create(entry_key(entry.n), encoded(entry))
        self._add(entry)
        return True


class KnowsNoToken(NumberedChain):
    """Does not compare tokens: a taken slot counts as another's entry."""

    async def _create(self, entry: Entry) -> bool:
        try:
            await self._backend.create(entry_key(entry.n), encoded(entry))
        except AlreadyExists:
            self._add(await self._read_taken(entry.n))
            return False
        self._add(entry)
        return True


class TidiesUp(NumberedChain):
    """Deletes the manifest of what it meant to publish when the outcome is unknown."""

    async def _create(self, entry: Entry) -> bool:
        try:
            return await super()._create(entry)
        except OutcomeUnknown:
            if isinstance(entry.action, Publication):
                await self._backend.delete([aggregate_key(entry.action.ref.checkpoint)])
            raise


class TakesUnreadForAnothers(NumberedChain):
    """Tells as a plain failure that it could not read what took its slot."""

    async def _read_taken(self, n: int) -> Entry:
        return await self._read(n)


class HeadIgnoresClaims(NumberedChain):
    """Takes the last publication for the head, whatever was claimed since."""

    @property
    def state(self) -> State:
        published = [entry.action.ref for entry in self.entries if isinstance(entry.action, Publication)]
        last: Ref | None = published[-1] if published else None
        return super().state.model_copy(update={"head": last})


class ForgetfulKnown(Known):
    """Knows of a deletion only until its end."""

    def add(self, entry: Entry) -> None:
        super().add(entry)
        if isinstance(entry.action, DeletionEnd):
            self.deleted = {name: n for name, n in self.deleted.items() if n != entry.action.plan}


class ForgetsEndedPlans(NumberedChain):
    """Lets an import need what an ended plan has named."""

    def __init__(self, backend: Backend, run_id: str, limits: Limits) -> None:
        super().__init__(backend, run_id, limits)
        self.known = ForgetfulKnown()


def hasty_pruning(policy: Retention) -> Play:
    """Deletes first and plans afterwards."""

    async def play(store: ActorStore, journal: list[Any]) -> None:
        chain = await store.chain()
        found = await survey(store, policy, chain)
        await _delete(store, found.doomed, PruneReport(found), None)
        await _plan(chain, found)
        for plan in chain.state.plans:
            await chain.append(None, _end(plan.n))

    return play


def stubborn_pruning(policy: Retention) -> Play:
    """Goes on with its look although the chain has moved, so that its plan was not made."""

    async def play(store: ActorStore, journal: list[Any]) -> None:
        chain = await store.chain()
        found = await survey(store, policy, chain)
        await _plan(chain, found)
        await _delete(store, found.doomed, PruneReport(found), None)

    return play
