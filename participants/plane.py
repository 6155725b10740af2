"""The control plane of one participant process: carries out what the book decides, with the owner's hooks.

One operation of a round runs at a time; renew and status go beside it, and abort cancels it and answers when it has
stopped. The lease is watched by a task of its own, so that a participant whose controller died reopens by itself.

Crash points: this process holds nothing durable of its own. A commit that died left no participant manifest, or a whole
one that counts only if the controller publishes it.
"""

import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio

from store import (
    Agreement,
    CheckpointId,
    Parent,
    ParticipantCommit,
    ProcessName,
    Shard,
    Store,
    StoreError,
    Tally,
    load_parent,
    open_checkpoint,
)

from .book import Book, Ending
from .errors import Code, ParticipantError, from_store
from .owner import Owner
from .phases import CHECKPOINT_PHASES, RESTORE_PHASES, Event, Phase
from .wire import (
    Abort,
    Activate,
    Adopt,
    Adopted,
    Capabilities,
    Commit,
    Committed,
    ControlCall,
    Done,
    PairTally,
    Prepare,
    Prepared,
    Renew,
    Renewed,
    Resume,
    Retire,
    Retired,
    Stage,
    Status,
)

MAX_REPORTED_BLOCKERS = 20
MAX_KEPT_ERRORS = 10

log = logging.getLogger("midflight.control")


class ControlPlane:
    """All control operations of one process; `run` must be open while it is used."""

    def __init__(
        self,
        owner: Owner,
        store: Store | None,
        *,
        process: str = "w0",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`store` is None for a participant that is never asked to commit or restore."""
        self._owner = owner
        self._store = store
        self._clock = clock
        self._process = ProcessName(owner.kind, owner.name, process)
        self._one_at_a_time = anyio.Lock()
        self._work: anyio.CancelScope | None = None
        self._stopped = anyio.Event()
        self._lease_changed = anyio.Event()
        self._errors: deque[str] = deque(maxlen=MAX_KEPT_ERRORS)
        self.book = Book(secrets.token_hex(16), store.run_id if store else None)

    def __repr__(self) -> str:
        return f"<ControlPlane {self._process} {self.book!r} {self._owner.gate!r}>"

    @asynccontextmanager
    async def run(self) -> AsyncIterator["ControlPlane"]:
        """Watch the lease while the context is open."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch_lease)
            yield self
            group.cancel_scope.cancel()

    # What is asked of any phase

    def capabilities(self) -> Capabilities:
        """What this participant is."""
        return Capabilities(
            kind=self._owner.kind,
            name=self._owner.name,
            process=self._process.process,
            incarnation=self.book.incarnation,
            run=self.book.run,
            epoch=self.book.epoch,
            modes=self._owner.modes,
            software={},
        )

    def status(self) -> Status:
        """Where this participant stands."""
        blockers, count = self._owner.blockers(MAX_REPORTED_BLOCKERS)
        book = self.book
        return Status(
            kind=self._owner.kind,
            name=self._owner.name,
            process=self._process.process,
            incarnation=book.incarnation,
            phase=book.phase,
            epoch=book.epoch,
            round=book.round,
            lease_left_s=None if book.lease_until is None else max(0.0, book.lease_until - self._clock()),
            counts=self._owner.counts(),
            blockers=tuple(blockers),
            blocker_count=count,
            last_errors=tuple(self._errors),
        )

    async def adopt(self, call: Adopt) -> Adopted:
        """Take a higher epoch, and end what lower ones have open."""
        if self.book.adopt(call):
            await self._abort_round()
        self._take_floor(call)
        return Adopted(incarnation=self.book.incarnation, lives=tuple(self._owner.live()))

    async def retire(self, call: Retire) -> Retired:
        """Stop lives, wait, free. Refused while a checkpoint or restore is open."""
        self.book.check_call(call)
        self.book.check_idle()
        self._take_floor(call)
        return Retired(not_stopped=tuple(await self._owner.retire(call.lives, call.timeout_s)))

    # A checkpoint

    async def prepare(self, call: Prepare) -> Prepared:
        """Close admission and wait until the work is parked, or say what is in the way."""
        if self.book.prepare(call, self._clock()):
            self._owner.gate.close()
        self._take_floor(call)
        self._lease_changed.set()
        with anyio.move_on_after(call.timeout_s):
            await self._owner.gate.wait_quiet()
        self._check_still(call.round, CHECKPOINT_PHASES)
        blockers, count = self._owner.blockers(MAX_REPORTED_BLOCKERS)
        if count:
            return Prepared(prepared=False, blockers=tuple(blockers), blocker_count=count)
        restarts = tuple(self._owner.restarts())
        self.book.parked(frozenset(restarts))
        return Prepared(prepared=True, restarts=restarts)

    async def commit(self, call: Commit) -> Committed:
        """Write the scope's records and this process's manifest."""
        async with self._one_at_a_time:
            answer = self.book.commit(call, self._clock())
            if answer is None:
                try:
                    answer = await self._interruptible(partial(self._write, call))
                finally:
                    self.book.commit_ended(call, answer)
            return answer

    async def _write(self, call: Commit) -> Committed:
        await self._owner.freeze(frozenset(call.scope))
        self._owner.check_export()
        export = self._owner.export(frozenset(call.scope))
        store = self._need_store()
        parent = await load_parent(store, call.parent, self._owner.kind, self._owner.name) if call.parent else None
        receipt = await self._commit(store, call.round, parent).run(
            export.records, state=export.state, agreements=[_agreement(tally) for tally in export.tallies]
        )
        written = receipt.manifest.size + receipt.manifest.blob_bytes
        return Committed(manifest=receipt.ref, bytes_written=written, tallies=tuple(export.tallies))

    def _commit(self, store: Store, round_: CheckpointId, parent: Parent | None) -> ParticipantCommit:
        def guard() -> None:
            self._check_still(round_, CHECKPOINT_PHASES)
            self.book.check_lease(self._clock())

        return ParticipantCommit(store, round_, self._process, parent=parent, guard=guard)

    async def renew(self, call: Renew) -> Renewed:
        """Extend the lease."""
        if self.book.lease_ran_out(self._clock()):
            self._expire()
        self.book.renew(call, self._clock())
        self._take_floor(call)
        self._lease_changed.set()
        return Renewed(lease_s=call.lease_s)

    # A restore

    async def stage(self, call: Stage) -> Done:
        """Read, check and import this process's share of a checkpoint; nothing becomes active."""
        async with self._one_at_a_time:
            if self.book.stage(call):
                self._take_floor(call)
                await self._restoring(partial(self._read, call), Event.ALL_STAGED)
            return Done(phase=self.book.phase, count=len(call.scope))

    async def _read(self, call: Stage) -> None:
        checkpoint = await open_checkpoint(self._need_store(), call.checkpoint)
        if missing := set(call.scope).difference(checkpoint.manifest.scope):
            raise ParticipantError(Code.SCOPE_MISMATCH, f"{min(missing)} is not in the scope of {checkpoint!r}")
        shares = checkpoint.shares(self._owner.kind, self._owner.name)
        await checkpoint.verify_shares(shares)  # Each participant its own; the controller what is the controller's.
        state = [await checkpoint.process_state(share) for share in shares]
        rollouts = {life.rollout_id for life in call.scope}
        async with checkpoint.raw_records(shares, shard=Shard(*call.shard), rollouts=rollouts) as records:
            await self._owner.stage(frozenset(call.scope), records, state)

    async def activate(self, call: Activate) -> Done:
        """Install what was staged; calls of the scope's rollouts are held until resume, other lives go on."""
        async with self._one_at_a_time:
            if self.book.activate(call):
                await self._restoring(self._install, Event.ACTIVATED)
            return Done(phase=self.book.phase)

    async def _install(self) -> None:
        self._owner.activate()

    async def _restoring(self, work: Callable[[], Any], then: Event) -> None:
        try:
            await self._interruptible(work)
        except BaseException:
            self.book.restore_moved(Event.FAIL)
            raise
        self.book.restore_moved(then)

    # Endings

    async def resume(self, call: Resume) -> Done:
        """Reopen admission; held responses are delivered and parked work goes on."""
        answer = self.book.resume(call)
        if answer is None:
            if self.book.phase in RESTORE_PHASES:
                self._owner.settle()
            self._take_floor(call)
            self._reopen("resumed")
            answer = Done(phase=self.book.phase)
        return answer

    async def abort(self, call: Abort) -> Done:
        """Cancel the round's work and answer when it has stopped."""
        answer = self.book.abort(call)
        if answer is None:
            await self._abort_round()
            answer = Done(phase=self.book.phase)
        return answer

    async def _abort_round(self) -> None:
        """End the open round once its work has stopped; a repeat of the abort may have done so meanwhile."""
        round_ = self.book.round
        if self._work is not None:
            self._work.cancel()
            await self._stopped.wait()
        if self.book.round == round_ and self.book.phase in RESTORE_PHASES:
            await self._owner.discard()
        if self.book.round == round_ and round_ is not None:
            self._reopen("aborted")

    def _reopen(self, ending: Ending) -> None:
        self.book.ended(ending)
        self._owner.gate.reopen()
        self._lease_changed.set()

    async def _watch_lease(self) -> None:
        while True:
            self._lease_changed = anyio.Event()
            until = self.book.lease_until
            with anyio.move_on_after(None if until is None else max(0.0, until - self._clock())):
                await self._lease_changed.wait()
            if self.book.lease_ran_out(self._clock()):
                self._expire()

    def _expire(self) -> None:
        """Reopen at once. A commit may hang where it cannot be cancelled: its guard keeps it from ever being sealed."""
        self._errors.append(f"the lease of round {self.book.round} ran out; reopened")
        if self._work is not None:
            self._work.cancel()
            self._work = None
        self._reopen("lease_expired")

    # How work is run

    def _take_floor(self, call: ControlCall | Adopt) -> None:
        """Of a call that nothing refused."""
        self.book.take_floor(call)
        self._owner.raise_floor(self.book.floor)

    def _check_still(self, round_: CheckpointId, phases: frozenset[Phase]) -> None:
        if self.book.round != round_ or self.book.phase not in phases:
            raise ParticipantError(Code.STALE_ROUND, f"round {round_} ended meanwhile")

    def _need_store(self) -> Store:
        if self._store is None:
            raise ParticipantError(Code.INVALID_REQUEST, f"{self._process} was started without a store")
        return self._store

    async def _interruptible(self, work: Callable[[], Any]) -> Any:
        """Run one operation so that abort and lease can cancel it. Foreign errors get their wire form here."""
        done = anyio.Event()
        self._stopped = done
        try:
            with anyio.CancelScope() as self._work:
                return await work()
            raise ParticipantError(Code.STALE_ROUND, "the round was aborted, or its lease ran out, meanwhile")
        except StoreError as error:
            self._errors.append(str(error))
            raise from_store(error) from error
        except ParticipantError:
            raise
        except Exception as error:
            log.exception("%s: a hook raised", self._process)
            self._errors.append(repr(error))
            raise ParticipantError(Code.INTERNAL, f"{self._process} raised {error!r:.300}") from error
        finally:
            self._work = None
            done.set()


def _agreement(tally: PairTally) -> Agreement:
    return Agreement(kind=tally.kind, name=tally.name, tally=Tally(count=tally.count, digest=tally.digest))
