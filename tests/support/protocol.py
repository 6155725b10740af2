"""A fleet, its controllers and a model of what must be true of them, for the stateful machine over the protocol.

The model knows only what was asked and what the design promises: it never looks at books, gates or fences. `check`
compares it with what participants and store really hold.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskStatus
from anyio.streams.memory import MemoryObjectSendStream

from orchestrator.coordination import abort, commit, prepare, renew, restore, resume, retire
from orchestrator.errors import CoordinationError
from orchestrator.fleet import Fleet, adopt, discover
from orchestrator.links import LocalLink
from participants import Book, Code, Floor, Gate, ParticipantError
from participants.wire import Committed
from store import CheckpointId, Controller, Draft, Fenced, Life, Ref, Store, claim, open_checkpoint

from .checkpoints import memory_store
from .owners import FaultyLink, Notebook, Server, controlled, push

KINDS = ("agent", "resources")
LEASE_S, TIMEOUT_S = 60.0, 5.0
Notes = tuple[str, ...]


@dataclass(slots=True)
class OpenRound:
    """What the controller knows of the round that it has open."""

    id: CheckpointId
    snapshot: dict[Life, Notes]
    parent: Ref | None
    restores: bool = False
    answers: list[Committed] | None = None
    proven: bool = False
    """A renew has succeeded everywhere since the commit."""
    over: bool = False
    """Its lease ran out, or it was ended."""


@dataclass(slots=True)
class Entered:
    """A context that the host is asked to enter."""

    context: AbstractAsyncContextManager[Any]
    done: anyio.Event = field(default_factory=anyio.Event)
    value: Any = None


@dataclass(slots=True)
class World:
    """Participants, the store, the living controller and those that were taken over."""

    book: type[Book] = Book
    owner: type[Notebook] = Notebook
    store: Store = field(default_factory=memory_store)
    controller: Controller = field(init=False)
    fleet: Fleet = field(init=False)
    servers: list[Server] = field(default_factory=list)
    zombies: list[tuple[Controller, Fleet, CheckpointId]] = field(default_factory=list)
    live: dict[str, tuple[Life, Notes]] = field(default_factory=dict)
    waiting: dict[str, tuple[Life, Notes]] = field(default_factory=dict)
    """Restored and not yet dispatched."""
    dead: list[Life] = field(default_factory=list)
    published: dict[Ref, dict[Life, Notes]] = field(default_factory=dict)
    ended: list[tuple[CheckpointId, str]] = field(default_factory=list)
    """Rounds of the living controller that are over, and how they ended."""
    round: OpenRound | None = None
    tried: CheckpointId = field(init=False)
    """The round of the last prepare."""
    crashed: bool = False
    n: int = 0
    notes: int = 0
    _to_enter: MemoryObjectSendStream[Entered] = field(init=False)

    async def host(self, *, task_status: TaskStatus[None]) -> None:
        """Hold every context that the steps enter: a task group must be left by the task that entered it."""
        self._to_enter, receive = anyio.create_memory_object_stream[Entered](1)
        async with AsyncExitStack() as stack, receive:
            task_status.started()
            async for request in receive:
                request.value = await stack.enter_async_context(request.context)
                request.done.set()

    async def close(self) -> None:
        """Let the host leave everything."""
        await self._to_enter.aclose()

    async def _enter(self, context: AbstractAsyncContextManager[Any]) -> Any:
        request = Entered(context)
        await self._to_enter.send(request)
        await request.done.wait()
        return request.value

    async def start(self) -> None:
        """Everybody comes up, and a first controller adopts."""
        for kind in KINDS:
            self.servers.append(await self._boot(kind))
        await self._claim()
        await self._adopt(Floor(self.controller.epoch, 0))

    async def _boot(self, kind: str) -> Server:
        owner = self.owner(kind, gate=Gate(clock=anyio.current_time))
        plane = controlled(owner, self.store)
        plane.book = self.book(plane.book.incarnation, self.store.run_id)
        await self._enter(plane.run())
        return Server(owner, plane, FaultyLink(LocalLink(plane)))

    async def _claim(self) -> None:
        self.controller = await self._enter(claim(self.store, take_over=True))

    async def _adopt(self, floor: Floor) -> None:
        found = await discover([server.link for server in self.servers], self.store.run_id)
        self.fleet, _ = await adopt(found, self.controller.epoch, floor)
        self.n, self.round, self.ended, self.crashed = 0, None, [], False

    # What a controller does

    async def dispatch(self, rollout_id: str) -> None:
        """A new life: it continues what was restored, or starts over."""
        old = self.live.pop(rollout_id, None)
        restored = self.waiting.pop(rollout_id, None)
        attempt, notes = (restored[0].attempt + 1, restored[1]) if restored else (0, ())
        self.dead += [each[0] for each in (old, restored) if each]
        life = Life(rollout_id, self.controller.epoch, attempt, self.n)
        self.n += 1
        self.live[rollout_id] = (life, notes)
        await self.write(rollout_id, creates=True)

    async def write(self, rollout_id: str, *, creates: bool = False) -> None:
        """One note of a live life at every participant."""
        life, notes = self.live[rollout_id]
        self.notes += 1
        note = f"note {self.notes}"
        with anyio.fail_after(1):
            for server in self.servers:
                await server.owner.write(life, note, creates=creates)
        self.live[rollout_id] = (life, (*notes, note))

    async def prepare(self) -> bool:
        """Open a round, or prepare the open one again; True where everybody stands still."""
        self.tried = round_ = self.round.id if self.round else self.controller.next_round()
        found = await prepare(self.fleet, round_, timeout_s=TIMEOUT_S, lease_s=LEASE_S)
        if self.round is None:
            held = {**self.waiting, **self.live}
            self.round = OpenRound(round_, dict(held.values()), self.controller.head)
        return found.prepared

    async def commit(self) -> None:
        """The whole scope."""
        at = self._open()
        scope = sorted(at.snapshot)
        at.answers = await commit(self.fleet, at.id, scope, at.parent, timeout_s=TIMEOUT_S)
        at.proven = False

    async def renew(self) -> None:
        """Proof that all stood still together, where it follows a commit."""
        at = self._open()
        await renew(self.fleet, at.id, lease_s=LEASE_S)
        at.proven = at.answers is not None

    async def publish(self) -> None:
        """Only after that proof."""
        at = self._open()
        assert at.answers
        draft = Draft(
            checkpoint=at.id,
            parent=at.parent.checkpoint if at.parent else None,
            participants=[answer.manifest for answer in at.answers],
            scope=sorted(at.snapshot),
        )
        self.published[await self.controller.publish(draft, timeout_s=TIMEOUT_S)] = at.snapshot

    async def end(self, ending: str) -> None:
        """Resume or abort the open round."""
        at = self._open()
        await (resume if ending == "resumed" else abort)(self.fleet, at.id)
        self._over(ending)

    def _over(self, ending: str) -> None:
        at = self._open()
        if at.restores and ending == "resumed":
            self.waiting = {life.rollout_id: (life, notes) for life, notes in at.snapshot.items()}
        self.ended.append((at.id, ending))
        self.round = None

    def _open(self) -> OpenRound:
        assert self.round is not None
        return self.round

    async def retire(self, rollout_ids: Sequence[str]) -> None:
        """Whatever of these lives or waits."""
        gone = [self.live.pop(r, None) or self.waiting.pop(r, None) for r in rollout_ids]
        lives = [each[0] for each in gone if each]
        assert await retire(self.fleet, lives, timeout_s=TIMEOUT_S) == frozenset()
        self.dead += lives

    async def take_over(self, *, keep: bool) -> None:
        """Another controller claims and adopts; `keep` goes on with the lives that it finds."""
        self.zombies.append((self.controller, self.fleet, self.round.id if self.round else CheckpointId(1, 99)))
        floor = self.fleet.floor
        await self._claim()
        if not keep:
            self.dead += [life for life, _ in (*self.live.values(), *self.waiting.values())]
            self.live, self.waiting = {}, {}
            floor = Floor(self.controller.epoch, 0)
        await self._adopt(floor)

    async def restore(self, ref: Ref, fault: tuple[str, str, str] | None) -> None:
        """In an epoch claimed for it; a participant may fail at a step."""
        await self.take_over(keep=False)
        await self.retire(list(self.waiting))
        round_ = self.controller.next_round()
        if fault is not None:
            kind, step, how = fault
            self._of(kind).link.faults[step] = how
        try:
            await restore(self.fleet, round_, ref, list(self.published[ref]), timeout_s=TIMEOUT_S)
        except CoordinationError:
            assert fault is not None
            self.ended.append((round_, "aborted"))
        else:
            assert fault is None
            self.round = OpenRound(round_, self.published[ref], self.controller.head, restores=True)
        self._mend()

    async def fails(self, step: str, kind: str, how: str) -> None:
        """A participant fails in prepare, commit or renew; the controller aborts."""
        self._of(kind).link.faults[step] = how
        try:
            await {"prepare": self.prepare, "commit": self.commit, "renew": self.renew}[step]()
            named = {""}
        except CoordinationError as error:
            named = {name.partition(".")[0] for name in error.failures}
        assert named == {kind}, f"{step} failed at {named} where {kind} was to fail"
        self._mend()
        if self.round is None:
            assert step == "prepare"
            self.ended.append((self.tried, "aborted"))
        else:
            await self._abort_again()

    async def _abort_again(self) -> None:
        await abort(self.fleet, self._open().id)
        self._over("aborted")

    def _of(self, kind: str) -> Server:
        return next(server for server in self.servers if server.owner.kind == kind)

    def _mend(self) -> None:
        for server in self.servers:
            server.link.faults.clear()

    # What happens to it

    async def crash(self, kind: str) -> None:
        """A participant's process dies, and an empty one comes up."""
        server = self._of(kind)
        fresh = await self._boot(kind)
        server.owner, server.plane, server.link.inner = fresh.owner, fresh.plane, fresh.link.inner
        self.crashed = True

    async def let_lease_pass(self) -> None:
        """Nobody renews: everybody reopens by itself."""
        await push(LEASE_S + 1)
        if self.round is not None and not self.round.restores:
            self._over("lease_expired")

    # What must be refused

    async def late_write(self, life: Life, *, creates: bool) -> None:
        """Of a life that is over, at everybody."""
        for server in self.servers:
            refused = None
            try:
                with anyio.fail_after(1):
                    await server.owner.write(life, "late", creates=creates)
            except ParticipantError as error:
                refused = error.code
            assert refused is Code.STALE_LIFE, f"{life} is dead, and its write at {server.name} gave {refused}"

    async def zombie(self, step: str) -> None:
        """A controller that was taken over tries to go on."""
        controller, fleet, round_ = self.zombies[-1]
        lives = [life for life, _ in self.live.values()]
        asks: dict[str, Any] = {
            "prepare": lambda: prepare(fleet, round_, timeout_s=TIMEOUT_S, lease_s=LEASE_S),
            "commit": lambda: commit(fleet, round_, lives, None, timeout_s=TIMEOUT_S),
            "resume": lambda: resume(fleet, round_),
            "abort": lambda: abort(fleet, round_),
            "retire": lambda: retire(fleet, lives, timeout_s=TIMEOUT_S),
            "publish": lambda: controller.seal([]),
        }
        await _refused(asks[step](), step)

    async def late_round(self, step: str) -> None:
        """A message of a round that is over arrives late; only its own ending gets an answer."""
        round_, ending = self.ended[-1]
        lives = [life for life, _ in self.live.values()]
        asks: dict[str, Any] = {
            "prepared": lambda: prepare(self.fleet, round_, timeout_s=TIMEOUT_S, lease_s=LEASE_S),
            "committed": lambda: commit(self.fleet, round_, lives, None, timeout_s=TIMEOUT_S),
            "renewed": lambda: renew(self.fleet, round_, lease_s=LEASE_S),
            "resumed": lambda: resume(self.fleet, round_),
            "aborted": lambda: abort(self.fleet, round_),
        }
        if step == ending:
            await asks[step]()
        else:
            await _refused(asks[step](), step)

    # What must hold

    def check(self) -> None:
        """Every participant holds exactly what the model says, and is closed exactly while it may be (1, 6, 7)."""
        if self.crashed:
            return
        closed = self.round is not None and not self.round.restores
        waiting = self.waiting
        if self.round is not None and self.round.restores:
            waiting = {life.rollout_id: (life, notes) for life, notes in self.round.snapshot.items()}
        for server in self.servers:
            held = {h.life.rollout_id: (h.life, tuple(h.state)) for h in server.owner.held()}
            assert held == self.live, f"{server.name} holds {held}, and not {self.live}"
            assert server.owner.counts()["restored"] == len(waiting), f"{server.name}: {server.owner!r}, not {waiting}"
            assert server.owner.gate.closed == closed, f"{server.name} is {server.owner.gate!r}; round {self.round}"
            assert (server.plane.status().phase == "idle") == (self.round is None), server.plane

    async def check_store(self) -> None:
        """Every published checkpoint restores, with exactly what everybody had at its boundary (2, 5)."""
        chain = await self.store.chain()
        assert set(chain.known.refs.values()) == set(self.published)
        for ref, snapshot in self.published.items():
            found = await open_checkpoint(self.store, ref)
            await found.verify()
            for share in found.processes:
                async with found.records([share]) as records:
                    assert {r.life: tuple(r.payload["state"]) async for r in records} == snapshot

    async def finish(self) -> None:
        """Everything is retired: nothing is left of any life, and no fence above the floor (12)."""
        await self.check_store()
        await self.take_over(keep=False)
        await self.retire(list(self.waiting))
        await self._adopt(Floor(self.controller.epoch, 1))
        for server in self.servers:
            counts = server.owner.counts()
            assert (counts["lives"], counts["restored"], counts["kept_replies"]) == (0, 0, 0)
            assert (server.owner.fences.live, server.owner.fences.fenced) == ([], [])


async def _refused(asked: Any, what: str) -> None:
    try:
        await asked
    except (CoordinationError, Fenced):
        return
    raise AssertionError(f"{what} was accepted")
