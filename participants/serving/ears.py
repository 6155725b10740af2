"""What a supervisor hears without an event loop: signals, and what its workers note."""

import contextlib
import os
import selectors
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self

import orjson

_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class Ears:
    """Signals and the workers' notes, as pipes that can be waited for."""

    def __init__(self) -> None:
        self._signals_out, signals_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._notes_out, self._notes_in = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._notes_out, False)
        self._signals_in = signals_in
        self._notes = b""
        self._selector = selectors.DefaultSelector()
        self.stops: list[signal.Signals] = []
        """Every SIGTERM and SIGINT so far."""

    def __enter__(self) -> Self:
        for number in _HEARD:
            signal.signal(number, self._hear)
        signal.set_wakeup_fd(self._signals_in, warn_on_full_buffer=False)
        for descriptor in (self._signals_out, self._notes_out):
            self._selector.register(descriptor, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        self._selector.close()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self.stops.append(signal.Signals(number))

    def listen(self, timeout_s: float | None) -> list[dict[str, Any]]:
        """Wait until something happens, for so long at most; the notes that have come."""
        self._selector.select(timeout_s)
        with contextlib.suppress(BlockingIOError):
            while os.read(self._signals_out, 4096):
                pass
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._notes_out, 65536):
                self._notes += chunk
        *lines, self._notes = self._notes.split(b"\n")
        return [orjson.loads(line) for line in lines]

    @contextlib.contextmanager
    def deaf(self) -> Iterator[None]:
        """Hold signals back, so that a fork is over before any is handled in either process."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)

    def forget(self) -> None:
        """In a worker: nothing of the supervisor's is heard. A Ctrl-C of a terminal is the supervisor's alone."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, lambda number, frame: None)  # Not SIG_IGN, which children would inherit.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)

    def note(self, **facts: Any) -> None:
        """In a worker: tell the supervisor, in one write to its pipe."""
        os.write(self._notes_in, orjson.dumps({"pid": os.getpid(), **facts}, option=orjson.OPT_APPEND_NEWLINE))
