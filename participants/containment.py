"""What an author's hook raises stays the failure of its step, even what would end a task or the process.

A hook may end with a cancellation that nobody asked of us (`task.cancel(); await task`, also of its own task), with
SystemExit or with GeneratorExit. Left alone, these end the run of every rollout. A cancellation of ours, by a scope
around the hook or of the task itself, passes. KeyboardInterrupt passes where Python's own handler of SIGINT stands,
because it may be a person's there, anywhere in the code; whoever serves or collects has a handler that raises none, and
it is the hook's.

Who cancelled a task cannot be seen, only whether a scope did. So calls, episodes and the like run in `own_task`: in a
task that nobody but scopes of ours ends. Whatever else cancels it is of the outermost hook in it. Hooks further in let
it pass, because the outermost may have meant it for what it does, as with `asyncio.timeout` around a call.
"""

import asyncio
import logging
import math
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

import anyio

from .errors import Code, ParticipantError

log = logging.getLogger("midflight.hooks")

T = TypeVar("T")

_own: ContextVar[asyncio.Task[Any] | None] = ContextVar("own", default=None)
"""The task of `own_task`, where no hook runs in it."""


async def own_task(what: str, work: Callable[[], Awaitable[T]]) -> T:
    """Do the work of a task that was started for it and that nobody but scopes of ours cancels.

    Raises `internal`, naming `what`, where something else did; nothing of that is left in the task.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    _own.set(task)
    try:
        return await work()
    except asyncio.CancelledError as error:
        if _scope_ended():
            raise
        raise _of_its_own(what, error) from error
    finally:
        _own.set(None)
        if task.cancelling() > before and not _scope_ended():
            with suppress(asyncio.CancelledError):  # One that waits for the next await, which would be somebody else's.
                await asyncio.sleep(0)
            _take_back(task, before)


def is_foreign(error: BaseException, *, owned: bool = False) -> bool:
    """Whether an error that is no Exception is a hook's own, rather than the end of the work around it.

    `owned` says that nobody but the hook or a scope can have cancelled the task.
    """
    if isinstance(error, Exception):
        return False
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) is not signal.default_int_handler and not _ending(owned=owned)
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return not _ending(owned=owned)
    return True


def _ending(*, owned: bool) -> bool:
    """Whether a scope around us was cancelled, or this task was, or it is being closed with no loop running."""
    task = _current_task()
    return task is None or _scope_ended() or (task.cancelling() > 0 and not owned)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _scope_ended() -> bool:
    return anyio.current_effective_deadline() == -math.inf


def _take_back(task: asyncio.Task[Any], before: int) -> None:
    while task.cancelling() > before:
        task.uncancel()


def _of_its_own(what: str, error: BaseException) -> ParticipantError:
    log.error("%s ended with %r", what, error, exc_info=error)
    return ParticipantError(Code.INTERNAL, f"{what} ended with {error!r:.300}, which is its own")


@contextmanager
def contained(what: str) -> Iterator[None]:
    """Raise `internal`, naming `what`, for what is foreign; everything else passes."""
    task, around = _current_task(), _own.get()
    owned = task is not None and task is around
    before = task.cancelling() if task is not None else 0
    _own.set(None)
    try:
        yield
    except BaseException as error:
        if not is_foreign(error, owned=owned):
            raise
        if owned and task is not None:
            _take_back(task, before)
        raise _of_its_own(what, error) from error
    finally:
        _own.set(around)
