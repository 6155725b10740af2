"""How a run ends when it is told to, whatever the code of its participants does.

    the first SIGTERM or SIGINT    what the run has said that it does then, within a limit
    one more of them               the process ends at once
    the limit passes               the process ends, too: all that counts is durable, and locks end with their process

Signals come to a handler of Python, and a thread keeps the limit: an event loop that a hook blocks serves neither.
"""

import asyncio
import os
import queue
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from types import FrameType

import anyio

EXIT_STOPPED = 75
LONGEST_CLOSE_S = 60.0
"""How long a run that ended by itself may take to close its sessions."""
BLOCKED_S = 5.0
"""An event loop that does not turn for so long will not."""
TICK_S = 0.5
_LAST_WORDS = b"midflight: stopped at once\n"
_SHOW_CURSOR = b"\x1b[?25h"
Act = Callable[[], object]


def _nothing() -> None:
    """What is done where nobody has said."""


class Ending:
    """The end of one run. Without `install` no signal is heard and no limit holds."""

    def __init__(self) -> None:
        """Nobody has told the run to end."""
        self.code = EXIT_STOPPED
        """With which the process ends, if it ends here."""
        self.told: signal.Signals | None = None
        """The signal that told the run to end."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: tuple[Act, float] = (_nothing, 0.0)
        self._checkpoint: Act = _nothing
        self.dying: Act = _nothing
        """What the end of the process in the middle of everything takes with it; it waits for nothing."""
        self._limits: queue.SimpleQueue[float] = queue.SimpleQueue()  # Its put is reentrant, as a signal needs it.

    def install(self) -> None:
        """Hear signals from now to the end of the process. A SIGINT that the caller's shell ignores stays ignored."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._hear)
        threading.Thread(target=self._watch, name="midflight-ending", daemon=True).start()

    def attach(self) -> None:
        """What is done at a signal is done in the event loop that runs now."""
        self._loop = asyncio.get_running_loop()

    @contextmanager
    def stopping_by(self, act: Act, within_s: float) -> Iterator[None]:
        """What the first signal does while the block runs, and how long that may take."""
        before, self._stop = self._stop, (act, within_s)
        try:
            yield
        finally:
            self._stop = before

    @contextmanager
    def checkpointing_by(self, act: Act) -> Iterator[None]:
        """What SIGUSR1 does while the block runs; at other times it does nothing."""
        before, self._checkpoint = self._checkpoint, act
        try:
            yield
        finally:
            self._checkpoint = before

    def limit(self, seconds: float) -> None:
        """The process ends in so long, unless another limit is set."""
        self._limits.put(time.monotonic() + seconds)

    @asynccontextmanager
    async def prolonged(self, at_least_s: float) -> AsyncIterator[None]:
        """No limit holds while the block runs and the event loop turns; one that is blocked has `at_least_s`."""
        earliest = time.monotonic() + at_least_s

        async def tick() -> None:
            while True:
                self.limit(max(BLOCKED_S, earliest - time.monotonic()))
                await anyio.sleep(TICK_S)

        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            yield
            group.cancel_scope.cancel()

    def leave(self) -> None:
        """End the process now."""
        with suppress(Exception):
            self.dying()
        with suppress(OSError):
            os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + _LAST_WORDS)
        os._exit(self.code)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        """Runs in the main thread between any two of its instructions, so it takes no lock."""
        act = self._checkpoint
        if number != signal.SIGUSR1:
            if self.told is not None or self._loop is None:
                self.leave()
            self.told = signal.Signals(number)
            act, within_s = self._stop
            self.limit(within_s)
        if self._loop is not None:
            with suppress(RuntimeError):  # The loop is closed: only the end of the process is to come.
                self._loop.call_soon_threadsafe(act)

    def _watch(self) -> None:
        ends: float | None = None
        while True:
            try:
                ends = self._limits.get(timeout=None if ends is None else max(0.0, ends - time.monotonic()))
            except queue.Empty:
                self.leave()
