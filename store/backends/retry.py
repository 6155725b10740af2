"""Trying again: the one place where a transient store error is repeated, and where it ends in a typed error.

Rules.

1. Only `TransientError` is repeated, with exponential backoff and jitter; every other error is an answer.
2. The last try ends before the caller's own deadline or after `retry_for_s`, whichever is earlier, so that the caller
   sees a `BackendError` and not a bare cancellation. The last pause is made short enough for one more try, and no try
   is begun that would probably be cut off: that would turn a plain no into an unknown outcome. One that hangs is.
3. A write of which any try may have taken effect ends in `OutcomeUnknown`; otherwise nothing was changed and it ends in
   `StoreUnavailable`. A read always ends in `StoreUnavailable`.
4. A repeated `create` can meet its own earlier try as `AlreadyExists`. Only the caller knows what it wrote;
   `create_once` compares.
5. A `put` whose outcome is unknown may still take effect later. Whoever needs an order of writes uses `create`.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import TypeVar

import anyio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from ..errors import (
    AlreadyExists,
    BackendError,
    NotFound,
    ObjectConflict,
    ObjectTooLarge,
    OutcomeUnknown,
    StoreUnavailable,
    TransientError,
)
from ..limits import DEFAULT_LIMITS
from .base import Backend, ObjectInfo, Traits

T = TypeVar("T")
_log = logging.getLogger(__name__)

FIRST_WAIT_S = 0.05
"""Upper bound of the first random wait; it doubles with each try."""
LONGEST_WAIT_S = 5.0
"""Upper bound of any wait."""
DEADLINE_MARGIN = 0.05
"""Part of the time left to the caller that is kept back for its own clean-up."""
LONGEST_MARGIN_S = 0.5
"""Most that is kept back."""
SHORTEST_TRY_S = 0.01
"""What a try is expected to take at least."""
_CREATE_ROUNDS = 5


@dataclass(slots=True)
class _Effort:
    """What the tries of one call have taught so far."""

    operation: str
    key: str
    writes: bool
    tries: int = 0
    in_try: bool = False
    maybe_applied: bool = False
    last: TransientError | None = None
    began_s: float = 0.0
    longest_s: float = SHORTEST_TRY_S

    def begin(self) -> None:
        self.tries += 1
        self.in_try = True
        self.began_s = anyio.current_time()

    def room(self, deadline: float) -> float:
        """How long to pause at most so that another try fits before the deadline; negative where none does."""
        return deadline - anyio.current_time() - 2 * self.longest_s

    def is_late(self, deadline: float) -> bool:
        """Whether a pause took longer than it should, so that a try begun now would probably be cut off."""
        return deadline - anyio.current_time() < self.longest_s

    def note(self, error: TransientError) -> None:
        self.last = error
        self.in_try = False
        self.longest_s = max(self.longest_s, anyio.current_time() - self.began_s)
        self.maybe_applied = self.maybe_applied or error.applied is not False

    def verdict(self) -> BackendError:
        unknown = self.writes and (self.maybe_applied or self.in_try)
        detail = f"after {self.tries} tries" + (f", the last: {self.last}" if self.last else ", the last one hung")
        return (OutcomeUnknown if unknown else StoreUnavailable)(self.operation, self.key, detail)


class Retrying:
    """A backend that repeats what failed for now, within the caller's deadline; see the module for the rules."""

    def __init__(self, backend: Backend, retry_for_s: float = DEFAULT_LIMITS.retry_for_s) -> None:
        """Wrap `backend`; `retry_for_s` bounds each call where the caller's deadline is later."""
        self.inner = backend
        self._retry_for_s = retry_for_s

    def __repr__(self) -> str:
        return f"<Retrying {self._retry_for_s:g}s {self.inner!r}>"

    @property
    def url(self) -> str:
        """The root, for messages."""
        return self.inner.url

    @property
    def traits(self) -> Traits:
        """What the wrapped backend can do."""
        return self.inner.traits

    async def create(self, key: str, data: bytes) -> None:
        """Write a new object; AlreadyExists may be an earlier try of this call: compare, or use `create_once`."""
        await self._persist("create", key, lambda: self.inner.create(key, data), writes=True)

    async def put(self, key: str, data: bytes) -> None:
        """Write an object in place of any other."""
        await self._persist("put", key, lambda: self.inner.put(key, data), writes=True)

    async def get(self, key: str, *, max_bytes: int) -> bytes:
        """Read a whole object."""
        return await self._persist("get", key, lambda: self.inner.get(key, max_bytes=max_bytes))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read part of an object."""
        return await self._persist("get_range", key, lambda: self.inner.get_range(key, start, length))

    async def stat(self, key: str) -> ObjectInfo:
        """Look at one object."""
        return await self._persist("stat", key, lambda: self.inner.stat(key))

    async def list(self, prefix: str) -> list[ObjectInfo]:
        """All objects below a prefix."""
        return await self._persist("list", prefix, lambda: self.inner.list(prefix))

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects."""
        name = keys[0] if len(keys) == 1 else f"{len(keys)} objects"
        await self._persist("delete", name, lambda: self.inner.delete(keys), writes=True)

    def lock(self, key: str) -> AbstractAsyncContextManager[bool]:
        """Hold the wrapped backend's lock; never repeated."""
        return self.inner.lock(key)

    async def aclose(self) -> None:
        """Close the wrapped backend."""
        await self.inner.aclose()

    async def _persist(
        self, operation: str, key: str, attempt: Callable[[], Awaitable[T]], *, writes: bool = False
    ) -> T:
        effort = _Effort(operation, key, writes)
        deadline = self._deadline()

        async def once() -> T:
            if effort.last is not None and effort.is_late(deadline):
                raise effort.last
            effort.begin()
            try:
                return await attempt()
            except TransientError as error:
                effort.note(error)
                raise

        with anyio.CancelScope(deadline=deadline), suppress(TransientError):
            return await _repeat(effort, deadline)(once)
        raise effort.verdict() from effort.last

    def _deadline(self) -> float:
        now = anyio.current_time()
        theirs = anyio.current_effective_deadline()
        if theirs == -math.inf:  # already cancelled: let that show, rather than an error of ours
            return math.inf
        margin = min(LONGEST_MARGIN_S, DEADLINE_MARGIN * max(0.0, theirs - now))
        return min(now + self._retry_for_s, theirs - margin)


async def create_once(
    backend: Backend, key: str, data: bytes, *, max_bytes: int = DEFAULT_LIMITS.max_entry_bytes
) -> bool:
    """Create an object, or find that exactly these bytes stand there already.

    True: created by this call, as far as anyone can say. False: found with the same content, perhaps from an earlier
    try of this very call. Raises ObjectConflict, with what stands there, where the content differs; of that at most
    `max_bytes` (or as many as `data` has) are read.
    """
    for _ in range(_CREATE_ROUNDS):
        try:
            await backend.create(key, data)
        except AlreadyExists as error:
            existing = await _what_stands(backend, key, max(max_bytes, len(data)), error)
            if existing is not None:
                return _same_or_conflict(key, data, existing)
        else:
            return True
    raise StoreUnavailable("create", key, "the object came and went while it was looked at")


async def _what_stands(backend: Backend, key: str, max_bytes: int, cause: AlreadyExists) -> bytes | None:
    """The existing object, or None where it was deleted since: then the slot is free again."""
    try:
        return await backend.get(key, max_bytes=max_bytes)
    except NotFound:
        return None
    except ObjectTooLarge:
        raise ObjectConflict(key, None) from cause


def _same_or_conflict(key: str, data: bytes, existing: bytes) -> bool:
    if existing != data:
        raise ObjectConflict(key, existing)
    return False


def _repeat(effort: _Effort, deadline: float) -> AsyncRetrying:
    jitter = wait_random_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S)
    return AsyncRetrying(
        retry=retry_if_exception_type(TransientError),
        wait=lambda state: max(0.0, min(jitter(state), effort.room(deadline))),
        stop=lambda state: effort.room(deadline) <= 0,
        sleep=anyio.sleep,
        before_sleep=_log_try,
        reraise=True,
    )


def _log_try(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    _log.info("try %d failed, again in %.2f s: %s", state.attempt_number, state.upcoming_sleep, error)
