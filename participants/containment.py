"""What an author's hook raises stays the failure of its step, even what would end a task or the process.

A hook may end with a cancellation that nobody asked of us (`task.cancel(); await task`), with SystemExit or with
GeneratorExit. Left alone, these end the run of every rollout. A cancellation of ours, by a scope around the hook or of
the task itself, passes. KeyboardInterrupt passes where Python's own handler of SIGINT stands, because it may be a
person's there, anywhere in the code; whoever serves or collects has a handler that raises none, and it is the hook's.
"""

import asyncio
import logging
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from .errors import Code, ParticipantError

log = logging.getLogger("midflight.hooks")


def is_foreign(error: BaseException) -> bool:
    """Whether an error that is no Exception is a hook's own, rather than the end of the work around it."""
    if isinstance(error, Exception):
        return False
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) is not signal.default_int_handler and not _ending()
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return not _ending()
    return True


def _ending() -> bool:
    """Whether a scope around us was cancelled, or this task was, or it is being closed with no loop running."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return True
    return task is None or task.cancelling() > 0 or anyio.current_effective_deadline() == -math.inf


@contextmanager
def contained(what: str) -> Iterator[None]:
    """Raise `internal`, naming `what`, for what is foreign; everything else passes."""
    try:
        yield
    except BaseException as error:
        if not is_foreign(error):
            raise
        log.exception("%s ended with %r", what, error)
        raise ParticipantError(Code.INTERNAL, f"{what} ended with {error!r:.300}, which is its own") from error
