"""What the simulation puts in place of chance, time and threads: the one place that says all of it.

Parameters are preferred: gates and control planes are given the clock of their process. What the code takes from the
interpreter itself has no parameter, and is substituted while a simulation runs, for the whole process:

    os.urandom, random's own reference to it    drawn from the seed: uuid4 and `secrets` read nothing else
    random (the module's generator)             seeded: the pauses of `tenacity`
    time.monotonic                              the virtual clock
    datetime in store.publish                   the virtual clock, as `created_at` of a manifest
    os.getpid, the host's identity in alive     constants
    anyio's worker threads                      the function is called in the loop, some virtual time later
    anyio's CancelScope                         one whose place in sets does not depend on its address

Strings are hashed by PYTHONHASHSEED, which `python -m tests.proof` sets to 0 before it begins.
"""

import gc
import logging
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from itertools import count
from typing import Any

import anyio
from anyio._backends import _asyncio

import store.alive
import store.publish

from .loop import SimLoop, elapse

EPOCH_S = 1.6e9
"""Wall-clock time at the beginning of every simulation."""
THREAD_S = 0.004
"""What a worker thread takes at most."""


class NumberedScope(_asyncio.CancelScope):
    """Sets of scopes are gone through when a cancellation is delivered."""

    __slots__ = ("number",)
    _numbers = count(1)

    def __init__(self, deadline: float = math.inf, shield: bool = False) -> None:
        self.number = next(self._numbers)
        super().__init__(deadline, shield)

    def __hash__(self) -> int:
        return self.number


@contextmanager
def simulated(loop: SimLoop, seed: int) -> Iterator[None]:
    """Everything above, for the loop that runs in the block."""
    NumberedScope._numbers = count(1)
    chance = random.Random(f"urandom {seed}")
    before = random.getstate()
    random.seed(f"module {seed}")
    threads = random.Random(f"threads {seed}")

    class Wall(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.fromtimestamp(EPOCH_S + loop.time(), UTC)

    async def run_sync(
        cls: Any, func: Callable[..., Any], args: Any, abandon_on_cancel: bool = False, limiter: Any = None
    ) -> Any:
        await anyio.lowlevel.checkpoint()
        with anyio.CancelScope(shield=not abandon_on_cancel):
            await elapse(threads.random() * THREAD_S)
        return func(*args)

    with ExitStack() as stack:
        stack.callback(random.setstate, before)

        def put(where: Any, name: str, value: Any) -> None:
            stack.callback(setattr, where, name, vars(where)[name])
            setattr(where, name, value)

        put(os, "urandom", chance.randbytes)
        put(random, "_urandom", chance.randbytes)
        put(time, "monotonic", loop.time)
        put(os, "getpid", lambda: 1)
        put(store.alive, "host_identity", lambda: "host/boot")
        put(store.publish, "datetime", Wall)
        put(_asyncio.AsyncIOBackend, "run_sync_in_worker_thread", classmethod(run_sync))
        put(_asyncio, "CancelScope", NumberedScope)
        put(sys, "unraisablehook", lambda _: None)
        logging.disable(logging.CRITICAL)
        stack.callback(logging.disable, logging.NOTSET)
        gc.disable()
        stack.callback(gc.enable)
        yield
