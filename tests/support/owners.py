"""Small real owners, their planes and whole fleets in this process, over a store in memory and a clock to push.

`Notebook` is a holder whose state is a list of notes. `Pause` holds what comes by until it is released. `PushedLoop` is
an event loop whose time a test moves on, so that leases and deadlines pass without anybody sleeping.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
from pydantic import BaseModel

from orchestrator.fleet import Fleet, Member, adopt, discover
from orchestrator.links import NAMES, Link, LocalLink
from participants import (
    Capabilities,
    Code,
    ControlPlane,
    Finished,
    Floor,
    Gate,
    Held,
    Holder,
    Message,
    ParticipantError,
    Status,
)
from participants.gate import StepMode
from store import CheckpointId, Life, MemoryBackend, RawRecord, Ref, Store
from store.backends import MemorySpace

from .checkpoints import memory_store

KINDS = ("environment", "model", "agent", "resources")
Answer = TypeVar("Answer", bound=BaseModel)


class PushedLoop(asyncio.SelectorEventLoop):
    """A loop whose clock a test can push forward."""

    pushed = 0.0

    def time(self) -> float:
        return super().time() + self.pushed


ON_PUSHED_LOOP = ("asyncio", {"loop_factory": PushedLoop})
"""For the fixture `anyio_backend`."""


async def push(seconds: float) -> None:
    """Let time pass, and let everybody who waited for it go on."""
    await settle()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, PushedLoop)
    loop.pushed += seconds
    await settle()


async def settle(turns: int = 50) -> None:
    """Give every other task many turns."""
    for _ in range(turns):
        await anyio.lowlevel.checkpoint()


LONGEST_SHIELD_S = 20.0
"""Of the clock on the wall: a test that failed must end, and ends only once its shielded work has."""


class Pause:
    """Holds whoever comes until `released`; `shielded` work does not listen to being cancelled, within a limit."""

    def __init__(self, *, shielded: bool = False, error: Exception | None = None) -> None:
        """Raises `error` once it is released."""
        self.reached = anyio.Event()
        self.released = anyio.Event()
        self._shielded = shielded
        self._error = error

    async def __call__(self) -> None:
        self.reached.set()
        if self._shielded:
            await self._wait_shielded()
        else:
            await self.released.wait()
        if self._error is not None:
            raise self._error

    async def _wait_shielded(self) -> None:
        ends = time.monotonic() + LONGEST_SHIELD_S
        while not self.released.is_set():
            if time.monotonic() > ends:
                raise AssertionError(f"nobody released a shielded pause within {LONGEST_SHIELD_S:g} s")
            with anyio.move_on_after(0.5, shield=True):  # Of a clock that may be pushed: it is looked at often.
                await self.released.wait()


def failing(error: Exception) -> Pause:
    """A pause that ends at once, with an error."""
    pause = Pause(error=error)
    pause.released.set()
    return pause


class PausedBackend(MemoryBackend):
    """A store in memory that pauses at writes of keys with a given part, before or after they take effect."""

    def __init__(self, *, space: MemorySpace | None = None) -> None:
        super().__init__(space=space or MemorySpace())
        self.before: dict[str, Pause] = {}
        self.after: dict[str, Pause] = {}

    async def create(self, key: str, data: bytes) -> None:
        await _pass(self.before, key)
        await super().create(key, data)
        await _pass(self.after, key)

    async def put(self, key: str, data: bytes) -> None:
        await _pass(self.before, key)
        await super().put(key, data)
        await _pass(self.after, key)


async def _pass(pauses: dict[str, Pause], key: str) -> None:
    for part, pause in list(pauses.items()):
        if part in key:
            await pause()


class Notebook(Holder[list[str]]):
    """Keeps a list of notes a life; `hooks` are awaited at `park` (the freeze of a prepare), `freeze` (that
    of a commit), `import`, `discard` and each `write`.
    """

    def __init__(self, kind: str = "agent", name: str = "main", *, gate: Gate | None = None) -> None:
        super().__init__(name, gate=gate)
        self.kind = kind
        self.hooks: dict[str, Pause] = {}
        self.freed: list[Life] = []
        self.own: Any = None
        """Its state beside the lives."""
        self.given: tuple[list[Any], set[Life], int] | None = None
        """The own states that a restore has brought, for which scope and epoch."""

    def new_state(self, life: Life) -> list[str]:
        return []

    def export_own(self, scope: Collection[Life]) -> Any:
        return self.own and {"own": self.own, "scope": sorted(map(str, scope))}

    def import_own(self, states: Sequence[Any], scope: Collection[Life], epoch: int) -> None:
        self.given = list(states), set(scope), epoch

    def export_state(self, held: Held[list[str]]) -> Any:
        return list(held.state)

    def import_state(self, payload: Any) -> list[str]:
        if not all(isinstance(note, str) for note in payload):
            raise TypeError(f"notes are {payload!r:.80}")
        return list(payload)

    def free_state(self, held: Held[list[str]]) -> None:
        self.freed.append(held.life)

    async def import_now(self, records: Sequence[RawRecord]) -> None:
        for record in records:
            await self._at("import")
            self.import_state(record.parse().payload["state"])

    async def freeze(self, scope: Collection[Life] | None = None) -> None:
        await self._at("park" if scope is None else "freeze")

    async def discard(self) -> None:
        await self._at("discard")
        await super().discard()

    def activate(self) -> None:
        if "activate" in self.hooks:
            raise RuntimeError("planted in activate")
        super().activate()

    async def write(
        self, life: Life, note: str, *, creates: bool = False, mode: StepMode = "wait", peer: str = ""
    ) -> list[str]:
        """One call: a note of a life, as a step. Counts a completed call with `peer`, where one is named."""
        held = await self.enter(life, creates=creates)
        async with self.gate.step(life, "write", mode, reason=f"it writes {note}"):
            with self.working(held):
                await self._at("write")
                held.state.append(note)
        if peer:
            held.count_wait(peer, "s")
        return held.state

    def notes(self, rollout_id: str) -> list[str] | None:
        """What the rollout's live life has noted."""
        return next((list(held.state) for held in self.held() if held.life.rollout_id == rollout_id), None)

    async def _at(self, what: str) -> None:
        if what in self.hooks:
            await self.hooks[what]()


class FaultyLink:
    """A link whose participant hangs, fails, or dies before or after it has carried an operation out."""

    def __init__(self, inner: Link) -> None:
        self.inner = inner
        self.dead = False
        self.faults: dict[str, str] = {}
        """Operation to `hangs`, `fails`, `dies`, `dies_after` or `loses_reply`."""
        self.sent: list[str] = []
        self.answered: list[str] = []

    def __repr__(self) -> str:
        return f"<FaultyLink {self.inner!r}>"

    async def capabilities(self) -> Capabilities:
        self._check_alive()
        return await self.inner.capabilities()

    async def status(self, blockers: int = 20) -> Status:
        self._check_alive()
        return await self.inner.status(blockers)

    async def results(self, envelope: Mapping[str, Any], after: int) -> AsyncGenerator[Finished]:
        self._check_alive()
        async with aclosing(self.inner.results(envelope, after)) as found:
            async for finished in found:
                yield finished

    def at(self, url: str) -> Link:
        return FaultyLink(self.inner.at(url))

    async def send(self, message: Message, answer: type[Answer]) -> Answer:
        name = NAMES[type(message)]
        self.sent.append(name)
        fault = self.faults.get(name, "")
        self.dead = self.dead or fault == "dies"
        self._check_alive()
        if fault == "hangs":
            await anyio.sleep_forever()
        if fault == "fails":
            raise ParticipantError(Code.INTERNAL, "planted")
        result = await self.inner.send(message, answer)
        self.answered.append(name)
        self.dead = fault == "dies_after"
        if self.dead or fault == "loses_reply":
            raise ConnectionError("the reply was lost")
        return result

    def _check_alive(self) -> None:
        if self.dead:
            raise ConnectionError("nobody listens")


@dataclass(slots=True)
class Server:
    """One participant process in this one."""

    owner: Notebook
    plane: ControlPlane
    link: FaultyLink

    @property
    def name(self) -> str:
        """As errors name it."""
        c = self.plane.capabilities()
        return f"{c.kind}.{c.name}/{c.process}"


def controlled(owner: Holder[Any], store: Store | None, worker: int = 0, workers: int = 1) -> ControlPlane:
    """A plane on the loop's own clock, of one worker of a server."""
    return ControlPlane(owner, store, process=f"w{worker}", worker=worker, workers=workers, clock=anyio.current_time)


def notebook(kind: str = "agent") -> Notebook:
    """A notebook whose gate is on the loop's own clock."""
    return Notebook(kind, gate=Gate(clock=anyio.current_time))


@dataclass(slots=True)
class Party:
    """A fleet of notebooks, and the store that they share."""

    store: Store
    servers: list[Server]
    stack: AsyncExitStack
    fleet: Fleet = field(init=False)

    def of(self, kind: str) -> Server:
        """The first server of a kind."""
        return next(server for server in self.servers if server.owner.kind == kind)

    async def adopt(self, epoch: int, floor: Floor | None = None) -> None:
        """Discover everybody and make an epoch known."""
        found = await discover([server.link for server in self.servers], self.store.run_id)
        self.fleet, _ = await adopt(found, epoch, floor)

    async def write(self, life: Life, note: str, *, creates: bool = False) -> None:
        """One note at every participant."""
        for server in self.servers:
            await server.owner.write(life, note, creates=creates)

    async def restart(self, server: Server) -> None:
        """The process dies and another one comes up in its place, with nothing in memory."""
        kind, c = server.owner.kind, server.plane.capabilities()
        server.owner = notebook(kind)
        server.plane = await self.stack.enter_async_context(
            controlled(server.owner, self.store, c.worker, c.workers).run()
        )
        server.link = FaultyLink(LocalLink(server.plane))

    def phases(self) -> set[str]:
        """The phases of all who live."""
        return {server.plane.status().phase for server in self.servers if not server.link.dead}

    def notes(self, rollout_id: str) -> list[list[str] | None]:
        """What each server's live life has noted."""
        return [server.owner.notes(rollout_id) for server in self.servers]

    def brought(self) -> list[int]:
        """How many restored records wait at each server."""
        return [server.owner.counts()["restored"] for server in self.servers]

    async def assert_open(self) -> None:
        """Everybody who lives admits work."""
        for server in self.servers:
            assert server.link.dead or not server.owner.gate.closed, server.owner

    def member(self, server: Server) -> Member:
        """The server as the fleet knows it."""
        return next(member for member in self.fleet.members if member.link is server.link)


@asynccontextmanager
async def party(
    store: Store | None = None, kinds: Sequence[str] = KINDS, *, epoch: int = 1, workers: int = 1
) -> AsyncIterator[Party]:
    """Servers of these kinds, adopted in an epoch; `workers` processes each."""
    shared = store or memory_store()
    async with AsyncExitStack() as stack:
        servers = []
        for kind in kinds:
            for number in range(workers):
                owner = notebook(kind)
                plane = await stack.enter_async_context(controlled(owner, shared, number, workers).run())
                servers.append(Server(owner, plane, FaultyLink(LocalLink(plane))))
        made = Party(shared, servers, stack)
        await made.adopt(epoch)
        yield made


def round_id(k: int = 1, epoch: int = 1) -> CheckpointId:
    """The id of a round."""
    return CheckpointId(epoch, k)


def lives(count: int, epoch: int = 1) -> list[Life]:
    """First attempts, dispatched in order."""
    return [Life(f"r{n}", epoch, 0, n) for n in range(count)]


def next_life(life: Life, epoch: int, n: int = 0) -> Life:
    """The life that continues this one."""
    return Life(life.rollout_id, epoch, life.attempt + 1, n)


NOWHERE = Ref(checkpoint=CheckpointId(1, 99), digest="0" * 64, run_id="0" * 32)
"""A checkpoint that does not exist."""
