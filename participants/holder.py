"""What every kind of participant shares: lives and their fences, kept replies, parked restores, retiring.

A holder keeps one state a life. A call passes `enter`, which parks it while its rollout is being restored, fences it,
stops the life that it supersedes, and takes up what a restore has brought: the life of attempt N + 1 continues the
record of attempt N. Until then the record stays as it is and is exported unchanged.

Work of a life runs inside `working`, so that retiring can cancel it and wait until it has stopped. A life that did not
stop in time stays fenced, and its state object is never used again.
"""

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

from store import CheckpointId, Life, RawRecord, ReadBlob, Record

from .data import CallId, Reply, Request
from .errors import Code, ParticipantError
from .fences import Fences, Floor, position
from .gate import Gate
from .held import BATCH, Brought, Held, in_turns, no_blobs
from .hooks import Hooks
from .owner import Export
from .replies import Kept, Replies, check_same
from .reports import Reports
from .routing import Place
from .siblings import Siblings
from .tally import Sums, pair_tally
from .telemetry import names, span
from .telemetry.operations import refused, refusing
from .undecided import Undecided
from .wire import Blocker, Modes, PairTally

__all__ = ["BATCH", "Brought", "Held", "Holder", "in_turns", "no_blobs"]

State = TypeVar("State")
Run = Callable[[], Awaitable[Reply]]

STOP_TIMEOUT_S = 10.0
"""How long a newer life waits for the work of the one that it supersedes."""


class Holder(Reports[State]):
    """Base of the four kinds; implements most of `participants.owner.Owner`."""

    kind: str = ""
    modes = Modes()
    pins = False
    """Whether a commit has to `pin` anything."""
    place = Place()
    """Which worker of its server this process is; what it gives an id for itself belongs to it."""
    siblings: Siblings | None = None
    """The workers of its server; None where it is the only one."""

    def __init__(self, name: str = "main", *, gate: Gate | None = None) -> None:
        """`name` is the participant's, a lower-case name."""
        self.name = name
        self.gate = gate or Gate()
        self.author_hooks = Hooks()
        self.fences = Fences()
        self.epoch = 0
        """That the control plane knows; 0 while this process takes part in no run."""
        self.needs_adoption = False
        """Of a server in a process of its own: before a run has adopted it, it answers for no life."""
        self.undecided = Undecided()
        self._held: dict[str, Held[State]] = {}
        self._stopping: dict[Life, Held[State]] = {}
        """Ended, with work that has not stopped yet: freed when it has, and never used again."""
        self._staged: dict[str, Brought] = {}
        self._brought: dict[str, Brought] = {}
        self._replaced: dict[str, Brought] = {}
        """What an earlier restore had brought where the open one has brought something else."""
        self._restoring: frozenset[str] = frozenset()
        self._settled = anyio.Event()
        self._read_blob: ReadBlob = no_blobs
        """Of the checkpoint that is being staged."""
        self.refused = 0
        """Calls of stale lives, counted and otherwise forgotten."""

    def __repr__(self) -> str:
        lives = f"{len(self._held)} lives, {len(self._brought)} restored"
        return f"<{type(self).__name__} {self.role}, {lives}, {self.gate!r}>"

    @property
    def role(self) -> str:
        """`<kind>.<name>`, as peers call it."""
        return f"{self.kind}.{self.name}"

    # What a kind says of its own state

    @abstractmethod
    def new_state(self, life: Life) -> State:
        """The state of a life that begins here."""

    @abstractmethod
    def export_state(self, held: Held[State]) -> Any:
        """JSON and bytes of a life's boundary; made without await, and immutable."""

    @abstractmethod
    def import_state(self, payload: Any) -> State:
        """The state again. Raises KeyError, TypeError, ValueError or ParticipantError where it is malformed."""

    async def import_now(self, records: Sequence[RawRecord]) -> None:
        """Called for all records while staging; a kind that must import before anything is active overrides it."""

    def free_state(self, held: Held[State]) -> None:
        """A life is over; release what its state holds."""

    def export_own(self, scope: Collection[Life]) -> Any:
        """JSON of what is of no single life and concerns the scope, which is that of all workers; None for nothing."""
        return None

    def import_own(self, states: Sequence[Any], scope: Collection[Life], epoch: int) -> None:
        """Stage what `export_own` gave in each old process, for `activate`, `settle` or `discard`."""

    # Calls

    async def enter(self, life: Life, *, creates: bool = False, dispatches: bool = False) -> Held[State]:
        """The life's state, after fencing. Raises `stale_life`, or for an epoch not adopted yet, touching nothing.

        A call that `dispatches` begins an episode, which only the newest epoch may. Raises `stale_epoch`.
        """
        self.check_adopted(life)
        if 0 < self.epoch < life.epoch:
            problem = f"{life} is of epoch {life.epoch}, and {self.role} knows {self.epoch}: adopt comes first"
            raise ParticipantError(Code.INVALID_REQUEST, problem, {"epoch": self.epoch})
        if creates:
            await self.undecided.wait(life, self.fences, self.role)
        while life.rollout_id in self._restoring:
            await self._settled.wait()
        held = self._held.get(life.rollout_id)
        if held is not None and held.life == life and not held.stopped:
            return held
        with refusing(self.role):
            try:
                if dispatches:
                    self.fences.check_newest(life, self.epoch)
                self.fences.admit(life, creates=creates or dispatches or self._continues(life))
            except ParticipantError:
                self.refused += 1
                raise
            while (old := self._held.get(life.rollout_id)) is not None and old.life != life:
                await self.stop(old.life)
            if self.fences.current(life.rollout_id) != life:
                raise ParticipantError(Code.STALE_LIFE, f"{life} was superseded meanwhile")
        return self._held.get(life.rollout_id) or self._take_up(life)

    def check_adopted(self, life: Life) -> None:
        """Refuse to answer for a process that was here before. Raises `lost_session`."""
        if self.needs_adoption and not self.epoch:
            problem = f"{self.role} was started after this run's last adopt and has nothing of {life}"
            with refusing(self.role):
                raise ParticipantError(Code.LOST_SESSION, problem)

    def _continues(self, life: Life) -> bool:
        brought = self._brought.get(life.rollout_id)
        return brought is not None and brought.record.life.attempt + 1 == life.attempt

    def _take_up(self, life: Life) -> Held[State]:
        brought = self._brought.pop(life.rollout_id, None)
        if brought is None or brought.record.life.attempt + 1 != life.attempt:
            held = Held(life, self.new_state(life))
        else:
            held = self._load(life, brought.record.parse().payload)
        self._held[life.rollout_id] = held
        return held

    def _load(self, life: Life, payload: Any) -> Held[State]:
        try:
            waited = {(peer, session): count for peer, session, count in payload["waited"]}
            replies = Replies.load(payload["replies"])
            return Held(life, self.import_state(payload["state"]), replies, waited, set(payload.get("touched", ())))
        except (KeyError, TypeError, ValueError) as error:
            raise ParticipantError(
                Code.CORRUPT_CHECKPOINT, f"the record of {life.rollout_id} at {self.role} is malformed: {error!r}"
            ) from error

    def dump(self, held: Held[State]) -> dict[str, Any]:
        """A life as the payload of its record."""
        return {
            "state": self.export_state(held),
            "replies": held.replies.export(),
            "waited": [[peer, session, count] for (peer, session), count in held.waited.items()],
            "touched": sorted(held.touched),
        }

    @contextmanager
    def working(self, held: Held[State]) -> Iterator[None]:
        """Run work of a life; cancelled, with `stale_life`, when the life is stopped."""
        if held.stopped:
            raise ParticipantError(Code.STALE_LIFE, f"{held.life} was stopped")
        scope = anyio.CancelScope()
        held.scopes.add(scope)
        try:
            with scope:
                yield
        finally:
            held.leave(scope)
            if held.life in self._stopping and not held.scopes:
                self._release(held)
        if held.stopped:  # Also where the work did not listen and came to its end: its result is dropped.
            raise ParticipantError(Code.STALE_LIFE, f"{held.life} was stopped")

    async def once(self, held: Held[State], request: Request, run: Run) -> Reply:
        """Carry a call out once per id: a repeat gets the kept reply or joins the one in flight."""
        call = request.call
        if call is None:
            return await run()
        while (kept := self._kept(held, call)) is not None:
            check_same(request, kept)
            if kept.reply is not None:
                return kept.reply
            await kept.done.wait()
        return await self._run_once(held, call, request.digest, run)

    def _kept(self, held: Held[State], call: CallId) -> Kept | None:
        """What is kept of a call. Raises `stale_call`."""
        try:
            return held.replies.find(call)
        except ParticipantError as error:
            refused(self.role, error)
            raise

    async def _run_once(self, held: Held[State], call: CallId, digest: str, run: Run) -> Reply:
        kept = held.replies.begin(call, digest)
        reply: Reply | None = None
        try:
            reply = await run()
            return reply
        finally:
            held.replies.finish(call, kept, reply)

    # Ends of a life

    def finish(self, life: Life) -> None:
        """A life's work is complete: free its state and fence it."""
        held = self._held.get(life.rollout_id)
        if held is not None and held.life == life:
            self._release(held)
        self._drop_brought(life)
        self.fences.fence(life)

    async def finish_all(self, lives: Sequence[Life]) -> None:
        """As `finish`, of many; work that nobody waits for any more is cancelled."""
        async for life in in_turns(lives):
            held = self._held.get(life.rollout_id)
            if held is not None and held.life == life and not (self.dispatches and self.is_episode(held.state)):
                held.stop()
            self.finish(life)

    def _drop_brought(self, life: Life) -> None:
        """What a restore has brought ends with the life that continues it, though that never came here for it."""
        brought = self._brought.get(life.rollout_id)
        if brought is not None and position(brought.record.life) <= position(life):
            self._forget_brought(life.rollout_id)

    def _forget_brought(self, rollout_id: str) -> None:
        del self._brought[rollout_id]

    async def stop(self, life: Life) -> None:
        """Cancel a life's work, wait until it has stopped, free its state; let it go where it does not listen."""
        held = self._held.get(life.rollout_id)
        if held is None or held.life != life:
            held = self._stopping.get(life)
        if held is not None:
            await self._stop_all([held], STOP_TIMEOUT_S)

    async def _stop_all(self, ending: Sequence[Held[State]], timeout_s: float) -> set[Life]:
        """Stop these, under one limit; gives those whose work did not listen. Nothing waits for such work any more."""
        async for held in in_turns(ending):
            held.stop()
            if not held.scopes:
                self._release(held)
        left = [held for held in ending if not held.freed]
        with anyio.move_on_after(timeout_s):
            for held in left:
                if held.scopes:
                    await held.idle.wait()
                self._release(held)
        deaf = {held.life for held in left if held.scopes}
        for held in left:
            self._let_go(held)
        if deaf:
            self.gate.forget(deaf)
        return deaf

    def _release(self, held: Held[State]) -> None:
        self._stopping.pop(held.life, None)
        if self._held.get(held.life.rollout_id) is held:
            del self._held[held.life.rollout_id]
        if not held.freed:
            held.freed = True
            self.free_state(held)

    def _let_go(self, held: Held[State]) -> None:
        """End a life without waiting for its work, which is cancelled; its state is freed when that has stopped."""
        held.stop()
        if self._held.get(held.life.rollout_id) is held:
            del self._held[held.life.rollout_id]
        if held.scopes:
            self._stopping[held.life] = held
        else:
            self._release(held)

    async def retire(self, lives: Sequence[Life], timeout_s: float) -> list[Life]:
        """Fence and stop these lives, free their state; those that did not stop in time stay fenced."""
        ending: dict[Life, Held[State]] = {}
        async for life in in_turns(lives):
            self.fences.fence(life)
            self._drop_brought(life)
            held = self._held.get(life.rollout_id)
            if held is None or position(held.life) > position(life):
                held = self._stopping.get(life)
            if held is not None:
                ending[life] = held
        self.decided()  # That it comes is the word; stopping may take long.
        deaf = await self._stop_all(list(ending.values()), timeout_s)
        return [life for life in lives if life in ending and ending[life].life in deaf]

    # What the control plane asks

    def blockers(self, limit: int) -> tuple[list[Blocker], int]:
        """The oldest `limit` of what a prepare waits for, and the number of all."""
        steps, count = self.gate.in_flight(limit)
        return [Blocker(life=s.life, participant=self.role, step=s.what, reason=s.reason) for s in steps], count

    def restarts(self) -> Collection[Life]:
        """Live lives that cannot be captured."""
        return [held.life for held in self._held.values()] if self.modes.checkpoint_mode == "restart" else []

    def live(self) -> Collection[Life]:
        """Every life that may act here."""
        return [held.life for held in self._held.values() if not held.stopped]

    def held(self) -> list[Held[State]]:
        """Every live life, for whoever reports on it."""
        return list(self._held.values())

    def brought(self, rollout_id: str) -> Any:
        """The payload that a restore has brought for a rollout whose next life is still to come; None without one."""
        brought = self._brought.get(rollout_id)
        return brought and brought.record.parse().payload

    def counts(self) -> dict[str, int]:
        """For the status."""
        return {
            "lives": len(self._held),
            "restored": len(self._brought),
            "parked": self.gate.parked,
            "kept_replies": sum([held.replies.count for held in self._held.values()]),
            "stopping": len(self._stopping),
            "refused": self.refused,
            "fenced": len(self.fences),
        }

    def adopted(self, epoch: int) -> None:
        """From here on this process takes part in a run, and lives of a higher epoch are nobody's."""
        if self.needs_adoption and not self.epoch:
            self.undecided.adopted(epoch)
        self.epoch = epoch

    def decided(self) -> None:
        """Every life goes on that was not ended."""
        self.undecided.decided()

    def raise_floor(self, floor: Floor) -> None:
        """End what is below the floor, and forget its fences.

        What a restore has brought ends with the epoch of the restore: it is for a life of that epoch.
        """
        if floor.epoch > self.fences.floor.epoch:
            for rollout_id in [key for key, brought in self._brought.items() if brought.epoch < floor.epoch]:
                self._forget_brought(rollout_id)
        for life in self.fences.raise_floor(floor):
            held = self._held.get(life.rollout_id)
            if held is not None and held.life == life:
                self._let_go(held)
        self.undecided.look_again()

    async def pin(self, run: str, checkpoint: CheckpointId) -> None:
        """Nothing is kept elsewhere by default."""

    async def release(self, run: str, standing: Collection[CheckpointId], now: CheckpointId) -> None:
        """Nothing to let go of by default."""

    async def unnamed(self, named: Collection[Life]) -> list[Life]:
        """What was dispatched here, whose result nobody has for good, and which is not among `named`.

        A restored record counts as named also by the life that is to continue it.
        """
        if not self.dispatches:
            return []
        live = [h.life async for h in in_turns(list(self._held.values())) if h.life not in named and self._owes(h)]
        following = {(life.rollout_id, life.attempt - 1) for life in named} if self._brought else set()
        left = [b.record async for b in in_turns(list(self._brought.values())) if b.record.life not in named]
        left = [record for record in left if (record.life.rollout_id, record.life.attempt) not in following]
        return live + [
            r.life async for r in in_turns(left) if self.is_episode(self.import_state(r.parse().payload["state"]))
        ]

    def _owes(self, held: Held[State]) -> bool:
        return not held.stopped and self.is_episode(held.state)

    def check_export(self) -> None:
        """Nothing to refuse by default."""

    async def freeze(self, scope: Collection[Life] | None = None) -> None:
        """Nothing to make ready by default."""

    def thaw(self) -> None:
        """Nothing was made ready by default."""

    async def export(self, scope: Collection[Life]) -> Export:
        """The scope's records and tallies; everything stands still."""
        held = [h async for h in in_turns(list(self._held.values())) if h.life in scope and not h.stopped]
        captured = held if self.modes.checkpoint_mode != "restart" else []
        waiting = self._waiting(scope)
        # Made as they are written, a batch at a time: everything stands still, so they cannot change meanwhile.
        payloads = (Record(h.life, self.dump(h)) for h in captured)
        raw = (r if r.life == life else Record(life, r.parse().payload) for life, r in waiting)
        return Export(chain(payloads, raw), await self._tallies(held, waiting), self.export_own(scope))

    def _waiting(self, scope: Collection[Life]) -> list[tuple[Life, RawRecord]]:
        """Restored records of the scope, each with its life there.

        A rollout that was dispatched again and has not called here yet is in the scope under its next life, and what
        that is to take up here must not be missing.
        """
        lives = {life.rollout_id: life for life in scope} if self._brought else {}
        found = ((lives.get(rollout_id), brought.record) for rollout_id, brought in self._brought.items())
        return [(life, r) for life, r in found if life and (life == r.life or life.attempt == r.life.attempt + 1)]

    async def _tallies(self, held: Sequence[Held[State]], waiting: Sequence[tuple[Life, RawRecord]]) -> list[PairTally]:
        sums = Sums()
        async for h in in_turns(held):
            sums.add(h.life, ((peer, session, count) for (peer, session), count in h.waited.items()))
        async for life, record in in_turns(waiting):
            sums.add(life, record.parse().payload["waited"])
        return [pair_tally(peer, total) for peer, total in sums.by_peer().items()]

    # A restore

    async def stage(
        self,
        scope: Collection[Life],
        records: AsyncIterator[RawRecord],
        *,
        epoch: int,
        read_blob: ReadBlob = no_blobs,
    ) -> int:
        """Keep the scope's records beside what is live; a kind may import them at once."""
        self._staged = {}
        self._restoring = frozenset(life.rollout_id for life in scope)
        self._settled = anyio.Event()
        async for record in records:
            if record.life not in scope:
                raise ParticipantError(Code.SCOPE_MISMATCH, f"{record.life} is not in the scope of the restore")
            self._staged[record.life.rollout_id] = Brought(record, epoch)
            if len(self._staged) % BATCH == 0:
                await anyio.lowlevel.checkpoint()
        self._read_blob = read_blob
        try:
            with span(names.IMPORT, participant=self.role):
                await self.import_now([staged.record for staged in self._staged.values()])
        finally:
            self._read_blob = no_blobs
        return len(self._staged)

    def activate(self) -> None:
        """Install what was staged: it stays parked until its rollout's next life is dispatched."""
        for rollout_id, staged in self._staged.items():
            if (held := self._held.get(rollout_id)) is not None:
                self._let_go(held)
                self.fences.fence(held.life)
            self.fences.fence(staged.record.life)
            if rollout_id in self._brought:
                self._replaced[rollout_id] = self._brought[rollout_id]
            self._brought[rollout_id] = staged

    def settle(self) -> None:
        """The restore succeeded everywhere."""
        self._end_restore()

    async def discard(self) -> None:
        """Drop what was staged or what the open restore has installed, and put back what that had replaced."""
        for rollout_id, staged in self._staged.items():
            if self._brought.get(rollout_id) is staged:
                del self._brought[rollout_id]
        self._brought.update(self._replaced)
        self._end_restore()

    def _end_restore(self) -> None:
        self._staged, self._replaced = {}, {}
        self._restoring = frozenset()
        self._settled.set()
