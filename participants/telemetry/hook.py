"""The hook: what the code that measures calls, and where recorders are installed.

Rules:
1. With no recorder installed every call here returns at once and keeps nothing.
2. A recorder changes nothing: each is called by a thread of its own, which reads from a queue that is bounded; what it
   raises is logged once for each of its methods, and what finds the queue full is dropped, which is logged once. What
   it is given can only be read, since other recorders are given the same.
3. The current span is kept in a context variable, so tasks that are started inside a span are inside it too; over HTTP
   the header `traceparent` carries it.
"""

import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from .records import Attribute, Readings, Recorder, Span

HEADER = "traceparent"
"""The header that carries the current span to another process, as W3C Trace Context has it."""
MAX_QUEUED = 10_000
"""How many records wait for one recorder before further ones are dropped."""
DRAIN_TIMEOUT_S = 5.0
"""How long a recorder that is uninstalled may take for what is still queued."""
MAX_ERROR_LENGTH = 300

log = logging.getLogger("midflight.telemetry")

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")
"""All zeros is no id, and ff no version."""


class _Place(NamedTuple):
    """Where in which trace the code that runs now is."""

    trace_id: str
    span_id: str


_place: ContextVar[_Place | None] = ContextVar("midflight_telemetry_place", default=None)


_ids = random.Random()
"""Of spans: no secrets, and many. All zeros is no id."""


class _Pump:
    """One recorder, and the thread that calls it."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._queue: SimpleQueue[tuple[str, tuple[Any, ...]] | threading.Event] = SimpleQueue()
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="midflight-telemetry", daemon=True)
        self._thread.start()

    def put(self, method: str, *args: Any) -> None:
        """Queue one call, or drop it."""
        if self._queue.qsize() < MAX_QUEUED:
            self._queue.put((method, args))
        else:
            self._say_once("queue", "%r is too slow, and what comes while %d records wait is dropped", MAX_QUEUED)

    def drain(self, timeout_s: float) -> bool:
        """Wait until the recorder has had what is queued; whether it has."""
        reached = threading.Event()
        self._queue.put(reached)
        return reached.wait(timeout_s)

    def end(self) -> None:
        """Let the thread end after what is queued."""
        self._queue.put(("end", ()))

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            method, args = item
            if method == "end":
                return
            try:
                getattr(self.recorder, method)(*args)
            except BaseException:  # Also what would end this thread, as SystemExit.
                self._say_once(method, "%r failed at %s; further failures there are not logged", method, exc_info=True)

    def _say_once(self, kind: str, text: str, *args: object, exc_info: bool = False) -> None:
        if kind not in self._said:
            self._said.add(kind)
            log.warning(text, self.recorder, *args, exc_info=exc_info)


_pumps: tuple[_Pump, ...] = ()
_readers: dict[str, tuple[Callable[[], Readings], ...]] = {}
"""Who tells what a gauge stands at, by its name."""


def install(recorder: Recorder) -> None:
    """From here on this recorder is given everything, beside those that are installed already."""
    global _pumps  # noqa: PLW0603 - the one place where recorders are kept.
    pump = _Pump(recorder)
    for name in list(_readers):
        pump.put("gauge", name, _reader(name))
    _pumps = (*_pumps, pump)


def uninstall(recorder: Recorder, *, timeout_s: float = DRAIN_TIMEOUT_S) -> None:
    """Give the recorder nothing more, and wait until it has had what is queued; blocks for up to `timeout_s`."""
    global _pumps  # noqa: PLW0603 - as above.
    gone = [pump for pump in _pumps if pump.recorder is recorder]
    _pumps = tuple(pump for pump in _pumps if pump.recorder is not recorder)
    for pump in gone:
        pump.drain(timeout_s)
        pump.end()


def drain(*, timeout_s: float = DRAIN_TIMEOUT_S) -> bool:
    """Wait until every recorder has had what is queued; whether all have. Blocks for up to `timeout_s`."""
    ends = time.monotonic() + timeout_s
    late = [pump for pump in _pumps if not pump.drain(max(0.0, ends - time.monotonic()))]
    return not late


def active() -> bool:
    """Whether anyone records: code asks this first where already the arguments would cost something."""
    return bool(_pumps)


def add(name: str, value: float = 1, **labels: str) -> None:
    """Raise a counter."""
    for pump in _pumps:
        pump.put("add", name, value, MappingProxyType(labels))


def observe(name: str, value: float, **labels: str) -> None:
    """Give a histogram one more value."""
    for pump in _pumps:
        pump.put("observe", name, value, MappingProxyType(labels))


@contextmanager
def gauge(name: str, read: Callable[[], Readings]) -> Iterator[None]:
    """While the context is open, `read` tells what the gauge stands at.

    It is called from any thread, and returns at once. What several readers have for the same labels is added up.
    """
    first = name not in _readers
    _readers[name] = (*_readers.get(name, ()), read)
    if first:
        for pump in _pumps:
            pump.put("gauge", name, _reader(name))
    try:
        yield
    finally:
        _readers[name] = tuple(one for one in _readers[name] if one is not read)


def _reader(name: str) -> Callable[[], Readings]:
    def read() -> Readings:
        sums: dict[tuple[tuple[str, str], ...], float] = {}
        for one in _readers.get(name, ()):
            for labels, value in one():
                key = tuple(sorted(labels.items()))
                sums[key] = sums.get(key, 0) + value
        return [(dict(key), value) for key, value in sums.items()]

    return read


class OpenSpan:
    """A span that is not over yet."""

    __slots__ = ("_attributes", "_began", "_name", "_outer", "_place", "_start")

    def __init__(self, name: str, attributes: dict[str, Attribute]) -> None:
        """It begins when it is entered."""
        self._name, self._attributes = name, attributes

    def set(self, key: str, value: Attribute) -> None:
        """Say something that was not known at the beginning."""
        self._attributes[key] = value

    def __enter__(self) -> Self:
        self._outer = _place.get()
        trace = self._outer.trace_id if self._outer else f"{_ids.getrandbits(128) or 1:032x}"
        self._place = _Place(trace, f"{_ids.getrandbits(64) or 1:016x}")
        _place.set(self._place)
        self._start, self._began = time.time_ns(), time.perf_counter()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        # Not by the token, which another context would refuse: a generator may be closed in one.
        _place.set(self._outer)
        span = Span(
            name=self._name,
            trace_id=self._place.trace_id,
            span_id=self._place.span_id,
            parent_id=self._outer.span_id if self._outer else None,
            start_unix_ns=self._start,
            duration_s=time.perf_counter() - self._began,
            attributes=MappingProxyType(self._attributes),
            error=None if error is None else _one_line(error),
        )
        for pump in _pumps:
            pump.put("span", span)


class NoSpan:
    """What stands for a span while nobody records."""

    __slots__ = ()

    def set(self, key: str, value: Attribute) -> None:
        """Nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


NO_SPAN = NoSpan()


def span(name: str, **attributes: Attribute) -> OpenSpan | NoSpan:
    """A context manager round a piece of work, awaits and all; inside it, further spans are its children."""
    return OpenSpan(name, attributes) if _pumps else NO_SPAN


def traceparent() -> str | None:
    """What to send in the header of that name, so that another process continues the current span; None outside one."""
    place = _place.get()
    return None if place is None else f"00-{place.trace_id}-{place.span_id}-01"


@contextmanager
def continuing(header: str | None) -> Iterator[None]:
    """While the context is open, spans are children of the one that the caller's header names; a bad one is ignored."""
    found = _TRACEPARENT.fullmatch(header) if header and _pumps else None
    if found is None:
        yield
        return
    outer = _place.get()
    _place.set(_Place(found[1], found[2]))
    try:
        yield
    finally:
        _place.set(outer)


def _one_line(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= MAX_ERROR_LENGTH else text[: MAX_ERROR_LENGTH - 1] + "…"


def _forget() -> None:
    """In a forked child, where no thread of the parent runs, and no id of the parent's may come again."""
    global _pumps  # noqa: PLW0603 - as above.
    _pumps = ()
    _ids.seed()


os.register_at_fork(after_in_child=_forget)
