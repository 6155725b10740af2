"""A training run: a trainer's loop over rollouts that outlive its crashes, with a checkpoint of both in one step.

Rules that this file alone enforces:
1. Cursor and rollouts change in one step (`TrainingLedger.dispatch`), before anything is sent.
2. While everything stands still, from before the prepare until the renew has succeeded, nothing is submitted, given or
   retired. What the block itself asks for raises; what other tasks ask for waits.
3. What next() has given is released only after a checkpoint is published whose state was taken after it was given.
4. Whether a checkpoint was published is decided by the chain: where a publication ended without an answer, the next one
   first finds out, by publishing the same again.

    the trainer dies                then the next start has
    before the publication          the head before: its state, cursor and rollouts; what was given since comes again
    in the publication              this or the one before, as the chain says
    after it, before the release    this one; what it has delivered is released, and not given again
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

from participants import Result as Finished
from store import (
    Controller,
    Draft,
    Fenced,
    Life,
    OutcomeUnknown,
    Ref,
    StoreError,
    StoreUnavailable,
)

from ..collect.served import ServedWorld
from ..coordination import resume
from ..errors import CoordinationError
from ..rounds import Blocked, Round, RoundLimits, checkpoint
from .errors import NothingDispatched
from .ledger import Result, TrainingLedger
from .save import Save, externals_of, refuse_inside
from .saved import Head, digests_of, state_of
from .values import copy_of, copy_of_row, text

Answer = TypeVar("Answer")

SUBMIT_BATCH = 64
"""Rollouts in one call of each worker."""
END_TIMEOUT_S = 20.0
NOTICE_S = 5.0
"""How long a failed step waits to find out whether a server was lost."""
RETIRED = "retired"
"""The class of the failure that a retired rollout is given with."""


class TrainingRun:
    """A training run in one epoch; made by `training_run`.

    Its methods may be called from several tasks. They raise ServersLost once a server is lost, and Fenced once another
    controller has claimed the run; nothing can be done then but to leave, and to enter `training_run` again.
    """

    def __init__(
        self, controller: Controller, world: ServedWorld, limits: RoundLimits, fingerprint: Mapping[str, str]
    ) -> None:
        """`world` has adopted the controller's epoch."""
        self._controller = controller
        self._world = world
        self._limits = limits
        self._fingerprint = dict(fingerprint)
        self._head = Head()
        self._ledger = TrainingLedger(controller.epoch)
        self._digests: Mapping[str, str] = {}
        """Of the files of the last checkpoint that is known to be published, by URL."""
        self._still = anyio.Lock()
        """Held by whoever submits or retires, and while everything stands still."""
        self._standing = False
        self._one_checkpoint = anyio.Lock()
        self._unsettled: tuple[Draft, list[Life]] | None = None
        """What was to be published, of which nobody knows whether it was, and what it delivers."""
        self._news = anyio.Event()
        self._ended: Exception | None = None
        self._scopes: set[anyio.CancelScope] = set()

    def __repr__(self) -> str:
        return f"<TrainingRun {self._ledger!r}>"

    def begin(self, head: Head, ledger: TrainingLedger) -> None:
        """What the head has, and what becomes of it in this epoch."""
        self._head, self._ledger, self._digests = head, ledger, head.digests

    # What the trainer finds

    @property
    def state(self) -> Any:
        """What the trainer saved with the head; None at a fresh start."""
        return self._head.trainer

    @property
    def cursor(self) -> Any:
        """A copy of what was given with the last dispatch; at the start, with the last that the head knows, or None."""
        return copy_of(self._ledger.cursor, "cursor")

    @property
    def files(self) -> dict[str, Path]:
        """The files of the head by their names; they were as the checkpoint has them when the run began."""
        return {name: Path(path) for name, path in self._head.files.items()}

    @property
    def undelivered(self) -> tuple[str, ...]:
        """The ids that are dispatched and not given by next(), in the order of their dispatch."""
        return self._ledger.undelivered

    @property
    def started_over(self) -> dict[str, str]:
        """Rollouts that began anew from their rows since the run was entered, and why."""
        return dict(self._ledger.started_over)

    @property
    def head(self) -> Ref | None:
        """The last checkpoint that is known to be published."""
        return self._controller.head

    # What the trainer does

    async def dispatch(self, rows: Mapping[str, Mapping[str, Any]], *, after: Any, cursor: Any) -> None:
        """Begin rollouts, and say where reading goes on behind them: one checkpoint has both, or neither.

        `after` is the cursor that these rows were read from. Where that is not where the run stands, as with a position
        of the trainer's own that is ahead of the work, CursorDiffers is raised. Cancelled, it has done all or nothing:
        `cursor` tells. Raises UnknownRollout, UnusableState and InvalidName, and has then done nothing.
        """
        refuse_inside("dispatch()")
        copied = {rollout_id: copy_of_row(rollout_id, row) for rollout_id, row in rows.items()}
        before, behind = copy_of(after, "after"), copy_of(cursor, "cursor")
        async with self._moving():
            self._ledger.dispatch(copied, after=before, cursor=behind)
            await self._begin()

    async def next(self) -> Result:
        """The next rollout that has finished, failed or was dropped; each once, as it comes.

        It is delivered by the next checkpoint: after a crash before that it comes again, with the older state. Waits
        for as long as it takes. Raises NothingDispatched where `undelivered` is empty.
        """
        refuse_inside("next()")
        await anyio.lowlevel.checkpoint()
        while True:
            self._raise_ended()
            news = self._news
            if not self._standing:
                if (result := self._ledger.give()) is not None:
                    return result
                if not self._ledger.undelivered:
                    raise NothingDispatched
                if self._ledger.waits_to_begin:
                    async with self._moving():
                        await self._begin()
                    continue
            await news.wait()

    async def retire(self, rollout_ids: Iterable[str], reason: str = "the trainer needs it no more") -> None:
        """Stop rollouts everywhere; next() gives each that has no result yet as a failed one with this reason.

        Raises UnknownRollout for what is not dispatched, or delivered already, and UnusableState for a reason that is
        no text, and has then done nothing. Cancelled, or where a server fails, it has failed them all or none; servers
        are told with whatever is asked next.
        """
        refuse_inside("retire()")
        async with self._moving():
            self._ledger.retire(rollout_ids, _failure(RETIRED, text(reason, "the reason")))
            await self._submit()

    def checkpoint(self) -> AbstractAsyncContextManager[Save]:
        """Everything stands still in the block: put into `save` what the trainer needs to go on.

        Leaving it commits, lets work go on, publishes, and releases what next() had given before. An exception in the
        block, and NoState, UnusableState or UnusableFile for what was put in, leave the head as it is, and work goes
        on; so do Blocked, other CoordinationErrors and StoreErrors. After OutcomeUnknown the next one finds out.
        """
        return self._checkpoint()

    # Moving on

    @asynccontextmanager
    async def _moving(self) -> AsyncIterator[None]:
        """Nothing stands still meanwhile, and nobody else moves; next() goes on with what is left undone."""
        async with self._still:
            self._raise_ended()
            try:
                yield
            finally:
                self._tell()

    async def _begin(self) -> None:
        """Submit everything that waits: what a restore brought, what starts over, what was dispatched."""
        self._ledger.begin_all()
        await self._submit()

    async def _submit(self) -> None:
        """What was interrupted is submitted, and ended, again: participants take and end each life once."""
        await self._end()
        while batch := self._ledger.to_submit(SUBMIT_BATCH):
            refused = await self.unless_lost(partial(self._world.dispatch, batch))
            self._ledger.submitted(batch, refused)
            await self._end()
            if refused and not self._ledger.unsubmitted:
                self._ledger.begin_all()

    async def _end(self) -> None:
        if lives := list(self._ledger.ending):
            await self.unless_lost(partial(self._world.end, lives, END_TIMEOUT_S))
            self._ledger.ended(lives)

    def arrived(self, finished: Finished) -> None:
        """A participant has sent a result."""
        row, failure = finished.row, finished.failure
        result = Result(
            rollout_id=finished.life.rollout_id,
            life=finished.life,
            row=dict(row) if row is not None else None,
            failure=dict(failure) if failure is not None else None,
            active_s=finished.active_s,
        )
        self._ledger.arrived(result)
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    # The end of it

    def end(self, error: Exception) -> None:
        """Nothing can be done any more: whoever waits, and whoever asks for something, gets this."""
        if self._ended is None:
            self._ended = error
            self._tell()
            for scope in self._scopes:
                scope.cancel()

    def _raise_ended(self) -> None:
        if self._ended is not None:
            raise self._ended

    async def unless_lost(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """What participants answer; they wait for ever where one of them is lost, until that is noticed."""
        self._raise_ended()
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                return await ask()
            finally:
                self._scopes.discard(scope)
        self._raise_ended()
        raise AssertionError("only the end of the run cancels this")

    @asynccontextmanager
    async def _named_if_lost(self) -> AsyncIterator[None]:
        """A step that failed for the want of a server raises what names the server."""
        try:
            yield
        except CoordinationError as error:
            if not isinstance(error, Blocked):
                with anyio.move_on_after(NOTICE_S):
                    await self.unless_lost(self._world.certain)
                if self._ended is not None:
                    raise self._ended from error
            raise

    # A checkpoint

    @asynccontextmanager
    async def _checkpoint(self) -> AsyncIterator[Save]:
        refuse_inside("another checkpoint()")
        async with self._one_checkpoint:
            self._raise_ended()
            await self._settle()
            async with self._standstill() as opened:
                save = Save(opened.standstill.restarts)
                token = save.enter()
                try:
                    yield save
                finally:
                    save.leave(token)
                await self._take(opened, save)
            save.published, save.held_s = opened.published, opened.held_s
            await self._release()

    @asynccontextmanager
    async def _standstill(self) -> AsyncIterator[Round]:
        """A round, in which everybody else waits until its renew."""
        fleet = self._world.fleet
        assert fleet is not None
        await self._still.acquire()
        holding, opened = True, None

        def let_go() -> None:
            nonlocal holding
            if holding:
                holding = self._standing = False
                self._still.release()
                self._tell()

        try:
            await self._submit()
            self._standing = True
            async with (
                self._named_if_lost(),
                checkpoint(fleet, self._controller, self._limits, resumed=let_go) as opened,
            ):
                yield opened
        finally:
            let_go()
            if opened is not None:
                if opened.drafted is not None and opened.published is None:
                    self._unsettled = opened.drafted, list(opened.delivered)
                elif opened.drafted is not None:
                    self._published(opened.drafted, opened.delivered)
                await self._resume_again(opened)

    async def _resume_again(self, opened: Round) -> None:
        """Who did not hear the resume would stand still until its lease runs out."""
        if opened.not_resumed is not None and self._world.fleet is not None:
            with suppress(CoordinationError):
                await resume(self._world.fleet, opened.id)

    async def _take(self, opened: Round, save: Save) -> None:
        """Everything of the controller, as of now; nothing moves meanwhile."""
        state = save.taken_state()
        files = await save.taken_files()
        sets = self._ledger.sets(save.restarts)
        opened.take(
            scope=sets.scope,
            restarts=sets.restarts,
            dropped=sets.dropped,
            delivered=sets.delivered,
            state=state_of(self._ledger, sets.delivered, files, state),
            externals=partial(externals_of, files, self._digests),
            fingerprint=self._fingerprint,
        )

    async def _settle(self) -> None:
        """Find out whether the last publication took effect. Raises OutcomeUnknown where nobody can tell yet."""
        if self._unsettled is None:
            return
        draft, delivered = self._unsettled
        await self._controller.refresh()
        if self.head is None or self.head.checkpoint != draft.checkpoint:
            try:
                await self._controller.publish(draft, timeout_s=self._limits.publish_timeout_s)
            except (Fenced, OutcomeUnknown, StoreUnavailable):
                raise
            except StoreError:  # It does not exist, and must not: as with a file that is gone since.
                self._unsettled = None
                return
        self._unsettled = None
        self._published(draft, delivered)
        await self._release()

    def _published(self, draft: Draft, delivered: Iterable[Life]) -> None:
        self._ledger.delivered(delivered)
        self._digests = digests_of(draft.externals)

    async def _release(self) -> None:
        """Tell participants what the trainer has for good, now or, where one is lost, at the next start."""
        lives = list(self._ledger.unreleased)
        try:
            await self.unless_lost(partial(self._world.release, lives))
        except (CoordinationError, Fenced):
            return  # The checkpoint exists all the same; what comes next says what is wrong.
        self._ledger.released(lives)
        self._world.raise_floor(self._ledger.floor)


def _failure(name: str, message: str) -> dict[str, Any]:
    return {"class": name, "message": message, "stage": "dispatch", "terminal": True}
