"""The actors: the real code of `store`, with numbered tokens instead of random ones, and a journal of what it hears."""

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from store import (
    Chain,
    CheckpointId,
    Controller,
    Draft,
    Entry,
    OutcomeUnknown,
    Retention,
    Segment,
    Store,
    StoreError,
    StoreUnavailable,
    claim,
    copy_checkpoint,
    prune,
)
from store.chain import Decide
from store.publish import Base
from tests.support.rounds import PATIENT
from tests.support.scheduler import Script, SteppedBackend

Result = TypeVar("Result")
FOREVER_S = 1e6
"""A deadline that never comes: giving up is a step of the schedule."""


class Told(NamedTuple):
    """What an actor learned about one thing that it wanted."""

    what: str
    """A token, or the digest of a checkpoint."""
    verdict: str
    """`begun`, `ok`, `refused` or `unknown`; the last one on a thing counts."""
    found: str = ""
    """Of an append that succeeded, the token that stands on the chain."""


class NumberedChain(Chain):
    """A chain whose tokens count up, so that the same replies lead to the same requests."""

    actor = 0
    number = ""
    journal: list[Any]

    async def append(self, epoch: int | None, decide: Decide, token: str | None = None) -> Entry:
        """Append, and note what came of it."""
        calls = sum(told.verdict == "begun" and told.what.startswith(prefix(self.actor)) for told in self.journal)
        self.number = f"{prefix(self.actor)}{calls + 1:024x}"
        self.journal.append(Told(self.number, "begun"))
        return await noting(self.journal, self.number, super().append(epoch, decide, token), lambda entry: entry.token)

    def _new_token(self) -> str:
        return self.number


def prefix(actor: int) -> str:
    """How the tokens of an actor begin; what was there before has none of these."""
    return f"aaaa{actor:04x}"


async def noting(
    journal: list[Any], what: str, job: Awaitable[Result], found: Callable[[Result], str] = lambda _: ""
) -> Result:
    """Await `job`, and note what it came to."""
    try:
        result = await job
    except OutcomeUnknown:
        journal.append(Told(what, "unknown"))
        raise
    except StoreError as error:
        journal.append(Told(what, "refused", type(error).__name__))
        raise
    journal.append(Told(what, "ok", found(result)))
    return result


@dataclass(frozen=True, slots=True)
class ActorStore(Store):
    """A store that hands out chains of one kind, which journal."""

    actor: int = 0
    journal: list[Any] | None = None
    kind: type[NumberedChain] = NumberedChain

    async def chain(self, read: Chain | None = None) -> Chain:
        """The chain as it stands now."""
        chain = read or self.kind(self.backend, self.run_id, self.limits)
        if isinstance(chain, NumberedChain):
            assert self.journal is not None
            chain.actor, chain.journal = self.actor, self.journal
        await chain.refresh()
        return chain


Play = Callable[[ActorStore, list[Any]], Coroutine[Any, Any, None]]
"""What an actor does, given its own view of the store."""


def script(play: Play, run_id: str, actor: int, kind: type[NumberedChain] = NumberedChain) -> Script:
    """The actor with this number, whose chains are of this kind."""

    async def run(backend: SteppedBackend, journal: list[Any]) -> None:
        store = ActorStore(backend, run_id, PATIENT, actor=actor, journal=journal, kind=kind)
        try:
            await play(store, journal)
        except StoreError as error:
            journal.append(Told("script", "raised", type(error).__name__))

    return run


def publishing(epoch: int, *drafts: Draft) -> Play:
    """A controller that claimed `epoch` before and publishes these drafts, each again until it is known."""

    async def play(store: ActorStore, journal: list[Any]) -> None:
        controller = Controller(store, await store.chain(), epoch)
        for draft in drafts:
            await publish(controller, draft, journal)

    return play


async def publish(controller: Controller, draft: Draft, journal: list[Any]) -> None:
    """Publish, and once more after an unknown outcome; what fails for now then does not say what came of the first."""
    name = str(draft.checkpoint)
    try:
        return await noting(journal, name, _publish(controller, draft))
    except OutcomeUnknown:
        pass
    try:
        await noting(journal, name, _publish(controller, draft))
    except StoreUnavailable:
        journal.append(Told(name, "unknown"))


async def _publish(controller: Controller, draft: Draft) -> None:
    await controller.publish(draft, timeout_s=FOREVER_S)


def claiming(base: Base = "head", *, then_publish: bool = False) -> Play:
    """A controller that takes over, and perhaps publishes a checkpoint of its own."""

    async def play(store: ActorStore, journal: list[Any]) -> None:
        async with claim(store, base, take_over=True) as controller:
            if then_publish:
                parent = controller.head.checkpoint if controller.head else None
                await publish(controller, bare_draft(controller.next_round(), parent), journal)

    return play


def sealing(epoch: int, length: int) -> Play:
    """A controller of `epoch` that seals the output of lower ones."""

    async def play(store: ActorStore, journal: list[Any]) -> None:
        await Controller(store, await store.chain(), epoch).seal([Segment(name="output", length=length)])

    return play


def pruning(policy: Retention) -> Play:
    """An operator that prunes."""

    async def play(store: ActorStore, journal: list[Any]) -> None:
        report = await prune(store, policy)
        journal.append(Told("prune", "failed" if report.failures else "ok"))

    return play


def importing(source: Store, checkpoint: CheckpointId) -> Play:
    """An operator that copies a checkpoint in from a store where nothing ever goes wrong."""

    async def play(store: ActorStore, journal: list[Any]) -> None:
        await copy_checkpoint(source, store, checkpoint)

    return play


def bare_draft(checkpoint: CheckpointId, parent: CheckpointId | None) -> Draft:
    """A checkpoint without participants."""
    return Draft(checkpoint=checkpoint, parent=parent, participants=(), scope=(), created_at="")
