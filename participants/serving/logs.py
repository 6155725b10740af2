"""What a server says: one JSON object a line on stderr, for people who search and programs that read.

    {"ts": "...", "level": "info", "event": "worker_started", "kind": "agent", "name": "main", "process": "w0", ...}

`event` is a stable name; what libraries log is the event `log`, with `logger` and `message`. Each line is one write,
so that those of several processes do not mix.
"""

import logging
import os
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

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


class JSONLines(logging.Handler):
    """Writes records as lines to a descriptor."""

    def __init__(self, identity: Mapping[str, Any], descriptor: int = 2) -> None:
        """`identity` is in every line."""
        super().__init__()
        self._identity = dict(identity)
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; where nobody can read it any more it is lost, and work goes on."""
        try:
            os.write(self._descriptor, self.line(record))
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
