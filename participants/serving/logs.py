"""What a server says: one JSON object a line on stderr, for people who search and programs that read.

    {"ts": "...", "level": "info", "event": "worker_started", "kind": "agent", "name": "main", "process": "w0", ...}

`event` is a stable name; what libraries log is the event `log`, with `logger` and `message`. Each line is one write,
so that those of several processes do not mix.

What a client can bring about as often as it likes is told MOST_ALIKE times a minute, and counted then: lines of the
event `log` from one place of ours or of the web server, for an error from the same place.
"""

import logging
import os
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

MOST_ALIKE = 5
WINDOW_S = 60.0
_COUNTED = frozenset({"midflight", "uvicorn", "asyncio", "websockets"})
"""First names of loggers; what authors log is theirs."""
_LOG = logging.getLogger("midflight.serving")


def tell(event: str, *, level: int = logging.INFO, **facts: Any) -> None:
    """Log an event with its facts, which are JSON values."""
    _LOG.log(level, event, extra={"event": event, "facts": facts})


def start_logs(identity: Mapping[str, Any]) -> None:
    """From now on everything that is logged in this process goes to stderr, with who it is; again to change that."""
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, JSONLines)]:
        root.removeHandler(old)
    root.addHandler(JSONLines(identity))
    root.setLevel(logging.WARNING)
    logging.getLogger("midflight").setLevel(logging.INFO)
    logging.captureWarnings(capture=True)


@dataclass(slots=True)
class _Alike:
    """Records of one place."""

    first: logging.LogRecord
    since: float
    count: int = 0


class Repeats:
    """Which records are worth a line."""

    def __init__(self) -> None:
        """None has come."""
        self._alike: dict[tuple[object, ...], _Alike] = {}
        self._looked = 0.0

    def __repr__(self) -> str:
        return f"<Repeats of {len(self._alike)} places>"

    def lines_for(self, record: logging.LogRecord, now: float) -> Iterator[logging.LogRecord]:
        """What to write now that this has come: how many were left out before, if a minute is over, and itself."""
        if now - self._looked >= WINDOW_S:
            self._looked = now
            for place, alike in list(self._alike.items()):
                if now - alike.since >= WINDOW_S:
                    del self._alike[place]
                    if alike.count > MOST_ALIKE:
                        yield _left_out(alike)
        if hasattr(record, "event") or str(record.name).split(".")[0] not in _COUNTED:
            yield record
            return
        alike = self._alike.setdefault(_place(record), _Alike(record, now))
        alike.count += 1
        if alike.count <= MOST_ALIKE:
            yield record


def _place(record: logging.LogRecord) -> tuple[object, ...]:
    """Where a record comes from; none is told from what it says."""
    error = record.exc_info[1] if record.exc_info else None
    frames = list(traceback.walk_tb(error.__traceback__)) if error is not None else []
    at = (frames[-1][0].f_code.co_filename, frames[-1][1]) if frames else None
    return record.name, record.levelno, record.pathname, record.lineno, type(error), at


def _left_out(alike: _Alike) -> logging.LogRecord:
    first, more = alike.first, alike.count - MOST_ALIKE
    said = f"{first.getMessage():.200} ... and {more} more like it within a minute"
    return logging.LogRecord(first.name, first.levelno, first.pathname, first.lineno, said, None, None)


class JSONLines(logging.Handler):
    """Writes records as lines to a descriptor."""

    def __init__(self, identity: Mapping[str, Any], descriptor: int = 2) -> None:
        """`identity` is in every line."""
        super().__init__()
        self._identity = dict(identity)
        self._descriptor = descriptor
        self._repeats = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it; where nobody can read it any more it is lost, and work goes on."""
        for each in self._repeats.lines_for(record, time.monotonic()):
            try:
                os.write(self._descriptor, self.line(each))
            except OSError:
                return

    def line(self, record: logging.LogRecord) -> bytes:
        """A record as a line."""
        document = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "log"),
            **self._identity,
            "pid": record.process,
            **(getattr(record, "facts", None) or {"logger": record.name, "message": record.getMessage()}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            document["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
        return orjson.dumps(document, default=str, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)
