"""What signals do before a command hears them itself, and after it.

Ctrl-C ends the program at once, but for the time of a command, which it interrupts. A collection run is told to end by
SIGTERM, too, and gets SIGUSR1 for a checkpoint: from the first statement on neither ends it but as it says,
up to the end of the interpreter, which gives every signal that has a handler its default back before it is gone.
"""

import atexit
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

INTERRUPTED = 130
LINE = b"midflight: interrupted\n"
STOPPED = 75
STOPPED_LINE = b"midflight: stopped before anything was begun\n"
OF_A_RUN = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def stop_at_interrupt() -> None:
    """From now on a SIGINT ends the program with one line; where the caller's shell ignores it, so do we."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, LINE)
    os._exit(INTERRUPTED)


def hold_for_a_run() -> None:
    """Until the run hears them itself: SIGTERM and SIGINT end the process with the run's code, SIGUSR1 does nothing.

    Nothing is begun, so there is nothing to save. What the caller ignores stays ignored.
    """
    atexit.register(_ignore_for_good)  # The first one that is registered runs last.
    for number in OF_A_RUN:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _pass if number is signal.SIGUSR1 else _stop_run)


def _stop_run(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, STOPPED_LINE)
    os._exit(STOPPED)


def _pass(number: int, frame: FrameType | None) -> None:
    """A handler and not SIG_IGN, which child processes would inherit."""


def _ignore_for_good() -> None:
    for number in OF_A_RUN:
        signal.signal(number, signal.SIG_IGN)  # The one thing that the end of the interpreter leaves as it is.


@contextmanager
def interruptible() -> Iterator[None]:
    """Let a SIGINT raise KeyboardInterrupt (which an event loop turns into a cancellation) while the block runs."""
    before = signal.getsignal(signal.SIGINT)
    if before is not _stop or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
