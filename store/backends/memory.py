"""A store in memory: a backend for tests and for runs that need no durability, and a fake that fails on request.

Backends of one name in one process share their objects, so that two of them act like two processes at one store.
Faults, calls and a stale listing belong to one backend: each client sees its own bad network.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from time import time
from typing import Literal

import anyio
import anyio.lowlevel

from ..errors import AlreadyExists, BackendError, NotFound, ObjectTooLarge
from .base import ObjectInfo, Traits
from .keys import check_key, check_prefix

Verb = Literal["create", "put", "get", "get_range", "stat", "list", "delete"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call that reached a MemoryBackend."""

    verb: Verb
    key: str
    """The key, the prefix of a list, or the keys of a delete joined by spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong, and when. Without an `error` the call hangs until it is cancelled."""

    nth: int = 1
    """Counted from 1, over the calls that match `verb` and `key_part`, from the moment of `inject`."""
    verb: Verb | None = None
    """Only calls of this verb count; None counts all."""
    key_part: str = ""
    """Only calls whose key contains this count."""
    after: bool = False
    """Fail after the call took effect, as when a reply is lost."""
    times: int = 1
    """How many matching calls in a row fail."""
    error: Callable[[Call], BackendError] | None = None
    """Makes the error; None hangs."""


@dataclass(slots=True)
class _Armed:
    fault: Fault
    seen: int = 0

    def fires(self, call: Call) -> bool:
        fault = self.fault
        if fault.verb not in (None, call.verb) or fault.key_part not in call.key:
            return False
        self.seen += 1
        return fault.nth <= self.seen < fault.nth + fault.times


@dataclass(frozen=True, slots=True)
class _Stored:
    data: bytes
    modified_s: float


@dataclass(slots=True)
class MemorySpace:
    """The objects that backends of one name share."""

    objects: dict[str, _Stored] = field(default_factory=dict)
    locked: set[str] = field(default_factory=set)


_SPACES: dict[str, MemorySpace] = {}


def forget_space(name: str) -> None:
    """Drop the objects of `memory://<name>`; backends that are open keep theirs."""
    _SPACES.pop(name, None)


class MemoryBackend:
    """Keeps objects in this process, shared by name; see `inject` for what it can do wrong."""

    def __init__(self, name: str = "", *, space: MemorySpace | None = None, clock: Callable[[], float] = time) -> None:
        """`clock` gives the store's time in seconds; a `space` of one's own is shared with nobody by name."""
        self._url = f"memory://{name}"
        self._space = space if space is not None else _SPACES.setdefault(name, MemorySpace())
        self._clock = clock
        self._armed: list[_Armed] = []
        self._stale: dict[str, _Stored] | None = None
        self.calls: list[Call] = []
        """Every call so far, oldest first."""

    def __repr__(self) -> str:
        return f"<MemoryBackend {self._url} {len(self._space.objects)} objects, {len(self.calls)} calls>"

    @property
    def url(self) -> str:
        """The root, for messages."""
        return self._url

    @property
    def traits(self) -> Traits:
        """What this backend can do."""
        return Traits(scheme="memory", host_lock=True)

    @property
    def space(self) -> MemorySpace:
        """The shared objects, to look at or to damage."""
        return self._space

    def inject(self, fault: Fault) -> None:
        """Arm a fault; its count starts now."""
        self._armed.append(_Armed(fault))

    def count(self, verb: Verb) -> int:
        """How many calls of a verb there were."""
        return sum(call.verb == verb for call in self.calls)

    def freeze_listing(self) -> None:
        """From now on `list` shows the objects as they are at this moment, whatever happens to them."""
        self._stale = dict(self._space.objects)

    def thaw_listing(self) -> None:
        """Let `list` tell the truth again."""
        self._stale = None

    async def create(self, key: str, data: bytes) -> None:
        """Write a new object unless the key is taken."""
        check_key(key)
        async with self._call("create", key):
            if key in self._space.objects:
                raise AlreadyExists("create", key)
            self._store(key, data)

    async def put(self, key: str, data: bytes) -> None:
        """Write an object in place of any other with this key."""
        check_key(key)
        async with self._call("put", key):
            self._store(key, data)

    async def get(self, key: str, *, max_bytes: int) -> bytes:
        """Read a whole object."""
        check_key(key)
        async with self._call("get", key):
            data = self._find("get", key).data
            if len(data) > max_bytes:
                raise ObjectTooLarge("get", key, f"{len(data)} bytes where at most {max_bytes} are allowed")
        return data

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read `length` bytes from offset `start`."""
        check_key(key)
        async with self._call("get_range", key):
            data = self._find("get_range", key).data
        return data[start : start + length]

    async def stat(self, key: str) -> ObjectInfo:
        """Look at one object without reading it."""
        check_key(key)
        async with self._call("stat", key):
            return _info(key, self._find("stat", key))

    async def list(self, prefix: str) -> list[ObjectInfo]:
        """All objects below a prefix, sorted; the frozen ones after `freeze_listing`."""
        check_prefix(prefix)
        async with self._call("list", prefix):
            shown = self._space.objects if self._stale is None else self._stale
            return [_info(key, shown[key]) for key in sorted(shown) if key.startswith(prefix)]

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; a missing one is no error."""
        for key in keys:
            check_key(key, temporary=True)
        async with self._call("delete", " ".join(keys)):
            for key in keys:
                self._space.objects.pop(key, None)

    def lock(self, key: str) -> AbstractAsyncContextManager[bool]:
        """Hold a lock among the backends that share these objects; yields whether it was free."""
        check_key(key)
        return self._hold(key)

    async def aclose(self) -> None:
        """Do nothing: the objects outlive the backend."""

    @asynccontextmanager
    async def _hold(self, key: str) -> AsyncIterator[bool]:
        free = key not in self._space.locked
        self._space.locked.add(key)
        try:
            yield free
        finally:
            if free:
                self._space.locked.discard(key)

    @asynccontextmanager
    async def _call(self, verb: Verb, key: str) -> AsyncIterator[None]:
        call = Call(verb, key)
        self.calls.append(call)
        struck = [armed.fault for armed in self._armed if armed.fires(call)]  # all of them count this call
        fault = struck[0] if struck else None
        await anyio.lowlevel.checkpoint()  # the one place to be cancelled or overtaken: what follows is atomic
        if fault is not None and not fault.after:
            await _go_wrong(fault, call)
        yield
        if fault is not None and fault.after:
            await _go_wrong(fault, call)

    def _store(self, key: str, data: bytes) -> None:
        self._space.objects[key] = _Stored(bytes(data), self._clock())

    def _find(self, operation: str, key: str) -> _Stored:
        try:
            return self._space.objects[key]
        except KeyError:
            raise NotFound(operation, key) from None


async def _go_wrong(fault: Fault, call: Call) -> None:
    if fault.error is not None:
        raise fault.error(call)
    await anyio.sleep_forever()


def _info(key: str, stored: _Stored) -> ObjectInfo:
    return ObjectInfo(key, len(stored.data), stored.modified_s)
