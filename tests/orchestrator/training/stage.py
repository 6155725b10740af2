"""Embedded participants, and a trainer over them that is struck at its n-th call of the store or of a participant."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, TypeVar

import anyio
import anyio.lowlevel

from midflight import (
    Capabilities,
    ControlPlane,
    CoordinationError,
    EnvironmentServer,
    Finished,
    Link,
    LocalLink,
    MemoryBackend,
    Message,
    ObjectInfo,
    OutcomeUnknown,
    Reply,
    Request,
    Store,
    StoreError,
    StoreUnavailable,
    TrainingError,
    TrainingRun,
    training_run,
)
from orchestrator.rounds import RoundLimits
from participants import Status
from participants.data import MODE_HEADER
from store.backends import MemorySpace
from tests.support.checkpoints import memory_store
from tests.support.owners import Pause, settle

Value = TypeVar("Value")
Mode = Literal["dies", "dies after", "fails", "loses reply", "cancelled", "cancelled before"]
"""What happens at the n-th call; of the first two the trainer dies, before the call takes effect or after it."""
LIMITS = RoundLimits(prepare_timeout_s=5, more_time_s=0, commit_timeout_s=20, publish_timeout_s=5, lease_s=60)


@dataclass
class Strike:
    """Counts the calls of one life, and strikes at the n-th."""

    nth: int = 0
    """0 for never."""
    mode: Mode = "dies"
    calls: list[str] = field(default_factory=list)
    dead: bool = False
    life: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Of everything that dies."""
    loop: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Of what the trainer does at the moment."""

    begins: str = ""
    """Strikes at the next call that begins so, where this is set."""

    @property
    def struck(self) -> bool:
        return 0 < self.nth <= len(self.calls)

    def strikes_at(self, name: str) -> None:
        """Strike at the next call of this name."""
        self.begins = name

    async def around(
        self, name: str, call: Callable[[], Awaitable[Value]], fails: Exception, loses_reply: Exception | None = None
    ) -> Value:
        """Make one call, or strike."""
        if self.dead:
            raise fails  # What is cleaned up after a death has no effect.
        self.calls.append(name)
        if self.begins and name.startswith(self.begins):
            self.begins, self.nth = "", len(self.calls)
        if len(self.calls) != self.nth:
            return await call()
        match self.mode:
            case "dies":
                await self._die()
            case "dies after":
                await call()
                await self._die()
            case "fails":
                raise fails
            case "loses reply":
                await call()
                raise loses_reply or fails
            case "cancelled":
                self.loop.cancel()
            case "cancelled before":
                self.loop.cancel()
                await anyio.lowlevel.checkpoint()  # Nothing is called then, unless it is shielded.
        return await call()

    async def _die(self) -> NoReturn:
        self.dead = True
        self.life.cancel()
        await anyio.sleep_forever()
        raise AssertionError


class StruckBackend:
    """A store in memory."""

    def __init__(self, inner: MemoryBackend, strike: Strike) -> None:
        self.inner = inner
        self.strike = strike
        self.url, self.traits, self.lock, self.aclose = inner.url, inner.traits, inner.lock, inner.aclose

    async def _pass(self, verb: str, key: str, call: Callable[[], Awaitable[Value]]) -> Value:
        unknown = OutcomeUnknown(verb, key) if verb in ("create", "put", "delete") else None
        return await self.strike.around(f"{verb} {key}", call, StoreUnavailable(verb, key), unknown)

    async def create(self, key: str, data: bytes) -> None:
        await self._pass("create", key, lambda: self.inner.create(key, data))

    async def put(self, key: str, data: bytes) -> None:
        await self._pass("put", key, lambda: self.inner.put(key, data))

    async def get(self, key: str, *, max_bytes: int) -> bytes:
        return await self._pass("get", key, lambda: self.inner.get(key, max_bytes=max_bytes))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._pass("get_range", key, lambda: self.inner.get_range(key, start, length))

    async def stat(self, key: str) -> ObjectInfo:
        return await self._pass("stat", key, lambda: self.inner.stat(key))

    async def list(self, prefix: str) -> list[ObjectInfo]:
        return await self._pass("list", prefix, lambda: self.inner.list(prefix))

    async def delete(self, keys: Sequence[str]) -> None:
        await self._pass("delete", keys[0], lambda: self.inner.delete(keys))


class StruckLink:
    """A participant. Its capabilities, which are asked for all the time, count as no call."""

    def __init__(self, inner: LocalLink, strike: Strike) -> None:
        self.inner = inner
        self.strike = strike

    async def capabilities(self) -> Capabilities:
        if self.strike.dead:
            raise ConnectionError("it is dead")
        return await self.inner.capabilities()

    async def status(self, blockers: int = 20) -> Status:
        return await self.inner.status(blockers)

    async def results(self, envelope: Mapping[str, Any], after: int) -> AsyncGenerator[Finished]:
        await self.strike.around("results", anyio.lowlevel.checkpoint, ConnectionError("it broke"))
        async with aclosing(self.inner.results(envelope, after)) as lines:
            async for line in lines:
                yield line

    def at(self, url: str) -> Link:
        return self

    async def send(self, message: Message, answer: type[Any]) -> Any:
        name = f"{type(message).__name__} {self.inner!r}"
        return await self.strike.around(name, lambda: self.inner.send(message, answer), ConnectionError("it broke"))


@dataclass(frozen=True)
class Answers:
    """An agent, or a resources server, that answers everything: an activation after so many turns as its row asks."""

    role: str
    holds: Mapping[str, Pause] = field(default_factory=dict)
    """By rollout: holds its activation."""

    async def call(self, request: Request) -> Reply:
        if request.route == "/v1/responses" and request.life is not None:
            await settle(request.body["turns"])
            if (pause := self.holds.get(request.life.rollout_id)) is not None:
                await pause()
        return Reply(
            200, {"reward": 1.0} if request.route == "/verify" else {"output": []}, headers=self._headers(request)
        )

    def _headers(self, request: Request) -> dict[str, str]:
        begins = request.route == "/seed_session"
        return {MODE_HEADER: "restart"} if begins and request.body.get("restart") else {}


def row(turns: int = 0, **more: Any) -> dict[str, Any]:
    """A row whose rollout takes so many turns of the event loop; with `restart` no checkpoint captures it."""
    return {"responses_create_params": {"turns": turns}, **more}


@dataclass
class Stage:
    """What outlives every trainer: the objects of the store."""

    space: MemorySpace = field(default_factory=MemorySpace)
    holds: dict[str, Pause] = field(default_factory=dict)
    environments: list[EnvironmentServer] = field(default_factory=list)
    """Of each start of participants."""

    def store(self, strike: Strike | None = None, backend: MemoryBackend | None = None) -> Store:
        """The store, as somebody sees it who may be struck."""
        backend = backend or MemoryBackend(space=self.space)
        return memory_store(StruckBackend(backend, strike) if strike else backend, "f" * 32)

    @asynccontextmanager
    async def participants(self, store: Store | None = None) -> AsyncIterator[list[LocalLink]]:
        """An environment server until the context ends; whom it calls answers everything."""
        environment = EnvironmentServer(
            Answers("agent.main", self.holds), {"resources.main": Answers("resources.main")}
        )
        self.environments.append(environment)
        async with environment.run(), ControlPlane(environment, store or self.store()).run() as plane:
            yield [LocalLink(plane)]


Train = Callable[[TrainingRun], Awaitable[None]]


async def one_life(stage: Stage, strike: Strike, train: Train, links: Sequence[LocalLink] | None = None) -> bool:
    """A trainer with participants of its own, or with some that outlive it; whether it came to its end.

    Raises what it ends with.
    """
    store, ended, failure = stage.store(strike), False, None
    with strike.life:
        async with AsyncExitStack() as stack:
            own = links if links is not None else await stack.enter_async_context(stage.participants(store))
            try:
                async with training_run([StruckLink(link, strike) for link in own], store, limits=LIMITS) as run:
                    await train(run)
                    ended = True
            except (CoordinationError, StoreError, TrainingError) as error:
                failure = error  # Outside of the participants' task groups it is raised as itself.
    if failure is not None:
        raise failure
    return ended
