"""The simulated store: objects of one place, and the backend through which one process uses them.

A request is on its way, is carried out in one moment, and its reply is on its way back. What was sent is carried out
also where its sender has died or given up since, unless it is lost with it. Creates are atomic always: a store that
breaks that is refused by the probe of `store.backends`. A put of a process that dies may be left torn.
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import anyio

from store import AccessDenied, AlreadyExists, IOFailed, NoSpace, NotFound, ObjectInfo, Traits, TransientError
from store.errors import ObjectTooLarge

from .machine import Process, Site

WRITES = frozenset({"create", "put", "delete"})
Infos = list[ObjectInfo]


@dataclass(frozen=True, slots=True)
class Stored:
    """One object."""

    data: bytes
    at: float


@dataclass
class Space:
    """All objects of one store."""

    name: str
    host_lock: bool
    objects: dict[str, Stored] = field(default_factory=dict)
    before: list[tuple[float, str, Stored | None]] = field(default_factory=list)
    """What changes have replaced, oldest first: a listing may still show it."""
    locks: dict[str, Process] = field(default_factory=dict)


class Climate(Protocol):
    """How the store behaves now."""

    def store_delay(self, verb: str) -> float:
        """Of one way, in seconds."""

    def store_fate(self, verb: str, key: str) -> str:
        """`fine`, `unsent`, `reply_lost`, `full`, `denied`, `broken` or `cut`."""

    def listing_age(self) -> float:
        """How old a listing is, in seconds."""

    def after_death(self, verb: str) -> str:
        """What becomes of a request whose sender has died: `done`, `lost` or, of a put, `torn`."""


class SimBackend:
    """One process's way to a space."""

    def __init__(self, space: Space, process: Process, climate: Climate) -> None:
        self._space = space
        self._process = process
        self._climate = climate

    @property
    def url(self) -> str:
        return f"memory://{self._space.name}"

    @property
    def traits(self) -> Traits:
        return Traits(scheme="memory", host_lock=self._space.host_lock)

    async def create(self, key: str, data: bytes) -> None:
        def apply() -> None:
            if key in self._space.objects:
                raise AlreadyExists("create", key)
            self._write("create", key, data)

        await self._ask("create", key, apply)

    async def put(self, key: str, data: bytes) -> None:
        await self._ask("put", key, lambda: self._write("put", key, data), torn=lambda: self._tear(key, data))

    async def get(self, key: str, *, max_bytes: int) -> bytes:
        def apply() -> bytes:
            data = self._find("get", key).data
            if len(data) > max_bytes:
                raise ObjectTooLarge("get", key, f"{len(data)} bytes")
            return data

        data: bytes = await self._ask("get", key, apply)
        return data

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        data: bytes = await self._ask("get_range", key, lambda: self._find("get_range", key).data)
        return data[start : start + length]

    async def stat(self, key: str) -> ObjectInfo:
        info: ObjectInfo = await self._ask("stat", key, lambda: _info(key, self._find("stat", key)))
        return info

    async def list(self, prefix: str) -> Infos:
        found: Infos = await self._ask("list", prefix, lambda: self._listing(prefix))
        return found

    async def delete(self, keys: Sequence[str]) -> None:
        """One object after the other, as a crash in between shows."""
        for key in keys:
            await self._ask("delete", key, partial(self._remove, key))

    def lock(self, key: str) -> AbstractAsyncContextManager[bool]:
        return self._hold(key)

    async def aclose(self) -> None:
        """Nothing is held."""

    @asynccontextmanager
    async def _hold(self, key: str) -> AsyncIterator[bool]:
        locks = self._space.locks
        free = not self._space.host_lock or key not in locks
        if free:
            locks[key] = self._process
        try:
            yield free
        finally:
            if free and locks.get(key) is self._process:
                del locks[key]

    # One request

    async def _ask(self, verb: str, key: str, apply: Callable[[], Any], torn: Callable[[], Any] | None = None) -> Any:
        site, climate, process = self._process.site, self._climate, self._process
        fate = climate.store_fate(verb, key)
        if fate != "fine":
            site.history.reached[f"store: {fate} {verb}"] += 1
        errors = {"full": NoSpace, "denied": AccessDenied, "broken": IOFailed}
        if fate == "unsent" or fate in errors:
            await anyio.lowlevel.checkpoint()
            raise errors[fate](verb, key) if fate in errors else TransientError(verb, key, "503", applied=False)
        done: Any = site.loop.create_future()

        def arrive() -> None:
            outcome: Any = None
            end = climate.after_death(verb) if process.ended and verb in WRITES else "done"
            if end != "done":
                site.history.reached[f"store: {verb} {end} with its sender"] += 1
            if end == "lost" or (end == "torn" and torn is None):
                return
            try:
                outcome = torn() if end == "torn" and torn is not None else apply()
            except Exception as error:
                outcome = error
            if fate == "cut" and isinstance(outcome, bytes) and len(outcome) > 1:
                outcome = outcome[: len(outcome) // 2]
            if fate == "reply_lost":
                outcome = TransientError(verb, key, "the reply was lost", applied=None)
            site.later(climate.store_delay(verb), _deliver, done, outcome)

        site.later(climate.store_delay(verb), arrive)
        outcome = await done
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    # The objects

    def _find(self, verb: str, key: str) -> Stored:
        try:
            return self._space.objects[key]
        except KeyError:
            raise NotFound(verb, key) from None

    def _write(self, verb: str, key: str, data: bytes) -> None:
        self._remember(key)
        self._space.objects[key] = Stored(data, self._process.site.loop.time())
        self._note(verb, key, data)

    def _tear(self, key: str, data: bytes) -> None:
        if key not in self._space.objects:
            self._write("put", key, data[: len(data) // 2])

    def _remove(self, key: str) -> None:
        if key in self._space.objects:
            self._remember(key)
            del self._space.objects[key]
            self._note("delete", key, b"")

    def _remember(self, key: str) -> None:
        self._space.before.append((self._process.site.loop.time(), key, self._space.objects.get(key)))

    def _note(self, verb: str, key: str, data: bytes) -> None:
        if key.startswith("alive/"):
            return
        digest = hashlib.sha256(data).hexdigest()
        if not key.startswith("blobs/"):
            self._process.site.history.objects[digest] = data
        facts = {"space": self._space.name, "verb": verb, "key": key, "digest": digest}
        self._process.site.note("object", process=self._process.name, **facts)

    def _listing(self, prefix: str) -> Infos:
        shown = {key: stored for key, stored in self._space.objects.items() if key.startswith(prefix)}
        since = self._process.site.loop.time() - self._climate.listing_age()
        for at, key, was in reversed(self._space.before):
            if at < since:
                break
            if key.startswith(prefix):
                shown.pop(key, None)
                if was is not None:
                    shown[key] = was
        return [_info(key, shown[key]) for key in sorted(shown)]


def free_locks(space: Space, process: Process) -> None:
    """The operating system does, when a process ends."""
    for key in [key for key, owner in space.locks.items() if owner is process]:
        del space.locks[key]


def _deliver(done: Any, outcome: Any) -> None:
    if not done.done():
        done.set_result(outcome)


def _info(key: str, stored: Stored) -> ObjectInfo:
    return ObjectInfo(key, len(stored.data), stored.at)


def check_site(site: Site, spaces: Sequence[Space]) -> None:
    """Have locks end with their processes."""
    for space in spaces:
        site.on_end.append(partial(free_locks, space))
