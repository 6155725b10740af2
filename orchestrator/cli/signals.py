"""What Ctrl-C does: ends the program at once, but for the time of a command, which it interrupts."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

INTERRUPTED = 130
LINE = b"midflight: interrupted\n"


def stop_at_interrupt() -> None:
    """From now on a SIGINT ends the program with one line; where the caller's shell ignores it, so do we."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, LINE)
    os._exit(INTERRUPTED)


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
