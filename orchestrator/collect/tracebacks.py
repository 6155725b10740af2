"""The tracebacks of hooks, where people look for them: each distinct one once on stderr, and then how often it came.

Ten thousand episodes that fail at the same line would otherwise bury what else is said. Two errors are the same where
their types and the lines that they went through are, whatever they say.
"""

import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

LOGGER = "midflight"
"""Above the loggers of everything that runs hooks."""
MOST_DISTINCT = 100
LONGEST = 20_000
"""Characters of one traceback; the middle of a longer one is left out."""
_TOLD_AT = frozenset(10**n for n in range(1, 10))
"""Occurrences at which a repeated error is told of again."""
Key = tuple[object, ...]


class Tracebacks(logging.Handler):
    """Writes what is logged as an error; never raises."""

    def __init__(self, write: Callable[[str], object]) -> None:
        """`write` gets text of one or more lines, without the last line end."""
        super().__init__(logging.ERROR)
        self._write = write
        self._counts: dict[Key, int] = {}
        self._numbers: dict[Key, tuple[int, str]] = {}
        self._counting = threading.Lock()
        self._unshown = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write it, or count it where it was written before."""
        try:
            told = self._told(record)
            if told:
                self._write(told)
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its name in the base class
        """The run is worth more than its log."""

    def _told(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        key: Key = (record.name, record.msg) if error is None else (record.name, *_route(error, set()))
        with self._counting:
            if key not in self._counts and len(self._counts) >= MOST_DISTINCT:
                self._unshown += 1
                return (
                    "" if self._unshown > 1 else f"errors of more than {MOST_DISTINCT} kinds: others are only counted"
                )
            count = self._counts[key] = self._counts.get(key, 0) + 1
            if count == 1:
                name = type(error).__name__ if error else record.getMessage()[:100]
                self._numbers[key] = len(self._numbers) + 1, name
            number, name = self._numbers[key]
        if count == 1:
            return _shortened(f"error {number}: {record.getMessage()}" + _formatted(error))
        return f"error {number} ({name}) came {count} times by now" if count in _TOLD_AT else ""

    def sum_up(self) -> None:
        """Say how often each of those came that came more than once."""
        lines = [
            f"error {self._numbers[key][0]} ({self._numbers[key][1]}) came {count} times in all"
            for key, count in self._counts.items()
            if count > 1
        ]
        if self._unshown:
            lines.append(f"errors of other kinds came {self._unshown} times in all")
        with suppress(Exception):
            if lines:
                self._write("\n".join(lines))


@contextmanager
def tracebacks_shown(write: Callable[[str], object]) -> Iterator[None]:
    """What `midflight.*` logs as an error is written while the block runs; counts come at its end."""
    logger, handler = logging.getLogger(LOGGER), Tracebacks(write)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.sum_up()


def _route(error: BaseException, seen: set[int]) -> Iterator[object]:
    """Types and lines of an error and of those behind it, each line once: a recursion is as deep as its data."""
    if id(error) in seen:
        return
    seen.add(id(error))
    yield type(error)
    yield frozenset(_lines(error.__traceback__))
    for behind in (error.__cause__, None if error.__suppress_context__ else error.__context__):
        if behind is not None:
            yield from _route(behind, seen)
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _route(inner, seen)


def _lines(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next


def _formatted(error: BaseException | None) -> str:
    return "" if error is None else "\n" + "".join(traceback.format_exception(error)).rstrip()


def _shortened(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    left_out = len(text) - LONGEST
    return f"{text[: LONGEST // 2]}\n[... {left_out} characters ...]\n{text[-LONGEST // 2 :]}"
