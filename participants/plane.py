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
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

from store import (
    Agreement,
    CheckpointId,
    Life,
    Parent,
    ParticipantCommit,
    ProcessName,
    Store,
    StoreError,
    Tally,
    load_parent,
    open_checkpoint,
    published,
)

from .book import Book, Ending
from .errors import Code, ParticipantError, from_store
from .owner import Owner
from .phases import CHECKPOINT_PHASES, RESTORE_PHASES, Event, Phase
from .results import lines_of
from .routing import worker_of
from .running import Parking, Running, ended_meanwhile
from .scopes import check_complete, check_once, named
from .telemetry import names
from .telemetry.meter import Meter
from .wire import (
    Abort,
    Activate,
    Adopt,
    Adopted,
    Beat,
    Began,
    Capabilities,
    Commit,
    Committed,
    ControlCall,
    Done,
    Finished,
    PairTally,
    Prepare,
    Prepared,
    Release,
    Renew,
    Renewed,
    Results,
    Resume,
    Retire,
    Retired,
    RoundCall,
    Stage,
    Status,
    Submit,
    Submitted,
    Work,
    Worked,
)

MAX_REPORTED_BLOCKERS = 20
MAX_KEPT_ERRORS = 10
STOP_TIMEOUT_S = 5.0
"""How long an abort waits for work that does not listen, such as a thread that hangs in a file system."""

log = logging.getLogger("midflight.control")


class ControlPlane:
    """All control operations of one process; `run` must be open while it is used."""

    def __init__(
        self,
        owner: Owner,
        store: Store | None,
        *,
        process: str = "w0",
        worker: int = 0,
        workers: int = 1,
        urls: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`store` is None for a participant that is never asked to commit or restore.

        This is worker `worker` of `workers`, each of which can be reached at its own one of `urls`.
        """
        self._worker, self._workers, self._urls = worker, workers, tuple(urls)
        self._owner = owner
        self._store: Store | None = None
        self._requests: Mapping[str, int] = {}
        if store is not None:
            self._store, self._requests = store.counted()
        self._clock = clock
        self._process = ProcessName(owner.kind, owner.name, process)
        self.meter = Meter(self._process, self._requests)
        self._one_at_a_time = anyio.Lock()
        self._group: TaskGroup | None = None
        self._work: Running | None = None
        self._parking = Parking()
        self._lease_changed = anyio.Event()
        self._errors: deque[str] = deque(maxlen=MAX_KEPT_ERRORS)
        self.book = Book(secrets.token_hex(16), store.run_id if store else None)

    def __repr__(self) -> str:
        return f"<ControlPlane {self._process} {self.book!r} {self._owner.gate!r}>"

    @asynccontextmanager
    async def run(self) -> AsyncIterator["ControlPlane"]:
        """Watch the lease, and own the tasks of hooks, while the context is open."""
        async with anyio.create_task_group() as group, self._owner.author_hooks.open():
            self._group = group
            group.start_soon(self._watch_lease)
            with self.meter.watching(self._owner.gate):
                yield self
            self._group = None
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
            worker=self._worker,
            workers=self._workers,
            urls=self._urls,
        )

    def status(self, blockers: int = MAX_REPORTED_BLOCKERS) -> Status:
        """Where this participant stands, with the oldest so many blockers."""
        oldest, count = self._owner.blockers(blockers)
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
            blockers=tuple(oldest),
            blocker_count=count,
            last_errors=tuple(self._errors),
            store_requests=dict(self._requests),
        )

    async def adopt(self, call: Adopt) -> Adopted:
        """Take a higher epoch, and end what lower ones have open."""
        lower_is_open = self.book.adopt(call)
        self._owner.adopted(self.book.epoch)
        if lower_is_open:
            await self._abort_round()
        self._take_floor(call)
        found = self._owner.adoption()
        return Adopted(
            incarnation=self.book.incarnation,
            lives=tuple(found.lives),
            dispatched=tuple(found.dispatched),
            needs={role: tuple(lives) for role, lives in found.needs.items()},
            brought=tuple(found.brought),
            lost=tuple(found.lost),
        )

    async def retire(self, call: Retire) -> Retired:
        """Stop lives, wait, free. Refused while a checkpoint or restore is open."""
        self.book.check_call(call)
        self.book.check_idle()
        self._take_floor(call)
        return Retired(not_stopped=tuple(await self._owner.retire(call.lives, call.timeout_s)))

    # Episodes

    async def submit(self, call: Submit) -> Submitted:
        """Begin episodes, or continue what a restore brought of them. Refused while a restore is open."""
        self.book.check_call(call)
        if self.book.phase in RESTORE_PHASES:
            self.book.check_idle()
        self._take_floor(call)
        return Submitted(refused=tuple(await self._owner.submit(call.episodes, call.epoch)))

    async def release(self, call: Release) -> Done:
        """Their results are durable elsewhere: free and fence lives, in every phase."""
        self.book.check_call(call)
        self._take_floor(call)
        await self._owner.finish_all(call.lives)
        return Done(phase=self.book.phase, count=len(call.lives))

    async def work(self, call: Work) -> Worked:
        """What lives need not do again."""
        self.book.check_call(call)
        self._take_floor(call)
        return await self._owner.work(call.rollouts)

    def results(self, call: Results) -> AsyncGenerator[Began | Finished | Beat]:
        """Finished episodes as they come, until a higher epoch is adopted. Refuses at once, not in the stream."""
        self.book.check_call(call)
        self._owner.check_after(call.after)
        self._take_floor(call)
        return lines_of(self._owner, call)

    # A checkpoint

    async def prepare(self, call: Prepare) -> Prepared:
        """Close admission and wait until the work is parked and frozen, or say what is in the way."""
        if self.book.prepare(call, self._clock()):
            self._owner.gate.close()
            self._owner.decided()
            self._begin_parking()
        self._take_floor(call)
        self._lease_changed.set()
        with anyio.move_on_after(call.timeout_s):
            await self._parking.done.wait()
            await self._owner.gate.wait_quiet()
        self._check_still(call.round, CHECKPOINT_PHASES)
        if self._parking.error is not None:
            raise self._parking.error
        blockers, count = self._owner.blockers(MAX_REPORTED_BLOCKERS)
        if count or not self._parking.done.is_set():
            return Prepared(prepared=False, blockers=tuple(blockers), blocker_count=count)
        restarts = tuple(self._owner.restarts())
        self.book.parked(frozenset(restarts))
        return Prepared(prepared=True, restarts=restarts)

    def _begin_parking(self) -> None:
        """One task a round, which every repeat of its prepare waits for."""
        if self._group is None:
            raise RuntimeError("the control plane is used outside its run()")
        self._parking = Parking(self._clock())
        self._group.start_soon(self._park, self._parking)

    async def _park(self, parking: Parking) -> None:
        try:
            with self.meter.span(names.PARK):
                await self._interruptible(self._freeze_all)
        except ParticipantError as error:
            parking.error = error
        else:
            self.meter.observe(names.BARRIER_WAIT, self._clock() - parking.began)
        finally:
            parking.done.set()

    async def _freeze_all(self) -> None:
        await self._owner.gate.wait_quiet()
        await self._owner.freeze()

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

    async def _check_sets(self, call: Commit, scope: frozenset[Life]) -> None:
        """Every life that was dispatched here and is not acknowledged is in exactly one of scope and left out."""
        check_once(scope, call)
        if unnamed := await self._owner.unnamed(scope.union(call.left_out)):
            message = (
                f"{len(unnamed)} lives are dispatched and not acknowledged at {self._process}, and stand in none of "
                f"scope, restarts and dropped, such as {min(unnamed)}"
            )
            raise ParticipantError(Code.SCOPE_MISMATCH, message, named(unnamed))

    async def _write(self, call: Commit) -> Committed:
        scope = frozenset(call.scope)
        await self._check_sets(call, scope)
        with self.meter.span(names.FREEZE):
            await self._owner.freeze(scope)  # Once more: a call inside a waited-for step may have changed something.
        self._check_restarts(scope)
        with self.meter.span(names.EXPORT):
            export = await self._owner.export(scope)
        self._owner.check_export()
        store = self._need_store()
        parent = await load_parent(store, call.parent, self._owner.kind, self._owner.name) if call.parent else None
        if self._owner.pins:
            with self.meter.span(names.PIN):
                await self._owner.pin(store.run_id, call.round)
        receipt = await self._commit(store, call.round, parent).run(
            export.records, state=export.state, agreements=[_agreement(tally) for tally in export.tallies]
        )
        if self._owner.pins:
            standing = {ref.checkpoint for ref in published(await store.chain())}
            await self._owner.release(store.run_id, standing, call.round)
        written = receipt.manifest.size + receipt.manifest.blob_bytes
        self.meter.add(names.RECORDS, receipt.ref.records, way="written")  # A repeated commit writes nothing.
        self.meter.add(names.SIZE, written, way="written")
        return Committed(manifest=receipt.ref, bytes_written=written, tallies=tuple(export.tallies))

    def _check_restarts(self, scope: frozenset[Life]) -> None:
        if late := [str(life) for life in self._owner.restarts() if life in scope]:
            message = f"{len(late)} lives of the scope have become restarts since the prepare at {self._process}"
            raise ParticipantError(Code.RESTART_IN_SCOPE, message, {"lives": late[:20]})

    def _commit(self, store: Store, round_: CheckpointId, parent: Parent | None) -> ParticipantCommit:
        def guard() -> None:
            self._check_still(round_, CHECKPOINT_PHASES)
            self.book.check_lease(self._clock())

        return ParticipantCommit(store, round_, self._process, parent=parent, guard=guard, stage=self.meter.stage)

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
                await self._restoring(call, partial(self._read, call), Event.ALL_STAGED)
            return Done(phase=self.book.phase, count=len(call.scope))

    async def _read(self, call: Stage) -> None:
        with self.meter.span(names.OPEN):
            checkpoint = await open_checkpoint(self._need_store(), call.checkpoint)
        check_complete(checkpoint, call)
        if missing := set(call.scope).difference(checkpoint.manifest.scope):
            raise ParticipantError(Code.SCOPE_MISMATCH, f"{min(missing)} is not in the scope of {checkpoint!r}")
        shares = checkpoint.shares(self._owner.kind, self._owner.name)
        number, workers = call.shard
        # Each participant its own, and of several workers each a part: unless all succeed, nothing is activated.
        checked = shares[number::workers]
        size = sum(share.manifest.size for share in checked)
        with self.meter.span(names.VERIFY, shares=len(checked), bytes=size):
            await checkpoint.verify_shares(checked)
        with self.meter.span(names.READ) as reading:
            state = [await checkpoint.process_state(share) for share in shares]
            own = frozenset(life for life in call.scope if worker_of(life.rollout_id, workers) == number)
            async with checkpoint.raw_records(shares, rollouts={life.rollout_id for life in own}) as records:
                read_blob = checkpoint.blob_reader(shares)
                count = await self._owner.stage(own, records, epoch=call.epoch, read_blob=read_blob)
            self._owner.import_own([one for one in state if one is not None], frozenset(call.scope), call.epoch)
            reading.set("records", count)
        self.meter.add(names.RECORDS, count, way="restored")
        self.meter.add(names.SIZE, size, way="restored")

    async def activate(self, call: Activate) -> Done:
        """Install what was staged; calls of the scope's rollouts are held until resume, other lives go on."""
        async with self._one_at_a_time:
            if self.book.activate(call):
                await self._restoring(call, self._install, Event.ACTIVATED)
            return Done(phase=self.book.phase)

    async def _install(self) -> None:
        self._owner.activate()

    async def _restoring(self, call: RoundCall, work: Callable[[], Any], then: Event) -> None:
        try:
            await self._interruptible(work)
        except BaseException:
            self.book.restore_moved(call, Event.FAIL)
            raise
        self.book.restore_moved(call, then)

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
            self._work.scope.cancel()
            with anyio.move_on_after(STOP_TIMEOUT_S):
                await self._work.done.wait()
        if self.book.round == round_ and self.book.phase in RESTORE_PHASES:
            await self._owner.discard()
        if self.book.round == round_ and round_ is not None:
            self._reopen("aborted")

    def _reopen(self, ending: Ending) -> None:
        if self._owner.gate.closed:
            self.meter.observe(names.PARTICIPANT_HOLD, self._clock() - self._parking.began)
        self._leave_work()
        self.book.ended(ending)
        self._owner.thaw()
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
        """Reopen at once."""
        self._errors.append(f"the lease of round {self.book.round} ran out; reopened")
        self.meter.add(names.LEASE_EXPIRIES)
        self._reopen("lease_expired")

    def _leave_work(self) -> None:
        """Wait no more. A commit may hang where it cannot be cancelled: its guard keeps it from ever being sealed."""
        if self._work is not None:
            self._work.scope.cancel()
            self._work, self._one_at_a_time = None, anyio.Lock()

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
        running = self._work = Running()
        try:
            with running.scope:
                return await work()
            raise ended_meanwhile()
        except ParticipantError as error:
            if running.scope.cancel_called:  # What the work ran into then is no reason to be told.
                raise ended_meanwhile() from error
            raise
        except StoreError as error:
            self._errors.append(str(error))
            raise from_store(error) from error
        except Exception as error:
            log.exception("%s: a hook raised", self._process)
            self._errors.append(repr(error))
            raise ParticipantError(Code.INTERNAL, f"{self._process} raised {error!r:.300}") from error
        finally:
            if self._work is running:
                self._work = None
            running.done.set()


def _agreement(tally: PairTally) -> Agreement:
    return Agreement(kind=tally.kind, name=tally.name, tally=Tally(count=tally.count, digest=tally.digest))
