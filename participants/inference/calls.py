"""Every call that the backend has seen: what it was, where it stands, and its line in the log.

A call is recorded exactly once, at arrival, before anything of it is done; and its end exactly once, before the last
byte of the reply is sent. Both go to the log at once, by one unbuffered append each, so that a killed backend leaves
the beginning of every call that it took and the end of every call that it finished; a call without an end was running
at the kill.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import anyio
import orjson

from .jobs import Job
from .refusals import IllegalCallEvent

KEPT_HEADERS = frozenset({"x-session-id", "x-request-id", "idempotency-key", "traceparent"})
"""Recorded beside every header that begins with x-midflight-; never anything that authorises."""
KEPT_PREFIX = "x-midflight-"


def is_of_interest(header: str) -> bool:
    """Whether a header is recorded."""
    return header in KEPT_HEADERS or header.startswith(KEPT_PREFIX)


class CallState(StrEnum):
    """Where a call stands."""

    RUNNING = "running"
    HELD = "held"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


class CallEvent(StrEnum):
    """What can happen to a call."""

    HOLD = "hold"
    RELEASE = "release"
    FINISH = "finish"
    ABORT = "abort"
    FAIL = "fail"


TRANSITIONS = {
    (CallState.RUNNING, CallEvent.HOLD): CallState.HELD,
    (CallState.HELD, CallEvent.RELEASE): CallState.RUNNING,
    (CallState.RUNNING, CallEvent.FINISH): CallState.FINISHED,
    (CallState.RUNNING, CallEvent.ABORT): CallState.ABORTED,
    (CallState.HELD, CallEvent.ABORT): CallState.ABORTED,
    (CallState.RUNNING, CallEvent.FAIL): CallState.FAILED,
}
LIVE = frozenset({CallState.RUNNING, CallState.HELD})


@dataclass(slots=True)
class CallRecord:
    """One call."""

    number: int
    """Counted from 1 since the start or the last reset."""
    boot: str
    """The process that took it."""
    dialect: str
    """completions, chat or responses."""
    model: str
    stream: bool
    headers: dict[str, str]
    """Those of interest, names in lower case."""
    prompt_sha256: str
    """Of the prompt's token ids, four bytes each, little-endian; without those of an output that is continued."""
    prompt_tokens: int
    """Without them too."""
    max_tokens: int
    continued: int = 0
    """Tokens of the output that its caller had already, and that were not generated here."""
    state: CallState = CallState.RUNNING
    generated: int = 0
    """Tokens generated so far; exact at the end."""
    finish_reason: str | None = None
    status: int = 200
    disconnected: bool = False
    """Whether the client went away before the end."""

    @property
    def id(self) -> str:
        """Unique over restarts and resets of the backend."""
        return f"{self.boot}-{self.number}"

    def advance(self, event: CallEvent) -> None:
        """Move to the next state, or raise and change nothing."""
        if (self.state, event) not in TRANSITIONS:
            raise IllegalCallEvent(self.number, self.state, event)
        self.state = TRANSITIONS[self.state, event]

    def document(self) -> dict[str, object]:
        """As the control routes and the log have it."""
        return {"id": self.id} | asdict(self)


class CallLog:
    """Appends lines to a file. Without a path it does nothing."""

    def __init__(self, path: Path | None) -> None:
        # O_NONBLOCK has no effect on a regular file; it says that this append is meant to happen in the event loop: a
        # thread would cost more than the write, and a queue could lose the last lines at a kill.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
        self._file = None if path is None else os.open(path, flags, 0o644)

    def write(self, event: str, record: CallRecord) -> None:
        """One line for an event of a call."""
        if self._file is not None:
            os.write(self._file, orjson.dumps({"event": event} | record.document()) + b"\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Calls:
    """All calls since the start or the last reset, and waiting for them to change."""

    def __init__(self, log: CallLog) -> None:
        self._log = log
        self._generations = 0
        self._start = os.urandom(4).hex()
        self._records: list[CallRecord] = []
        self._counts: dict[str, int] = {}
        self._changed = anyio.Event()
        self._waiting = 0
        self.clear()

    def begin(self, job: Job, headers: Mapping[str, str]) -> CallRecord:
        """Record an arrival."""
        prompt = job.prompt[: max(len(job.prompt) - job.begun, 0)]
        record = CallRecord(
            number=len(self._records) + 1,
            boot=self._start if not self._generations else f"{self._start}.{self._generations}",
            dialect=job.dialect,
            model=job.model,
            stream=job.stream,
            headers={name: value for name, value in headers.items() if is_of_interest(name)},
            prompt_sha256=hashlib.sha256(prompt.encode("utf-32-le")).hexdigest(),
            prompt_tokens=len(prompt),
            continued=len(job.prompt) - len(prompt),
            max_tokens=job.limits.max_tokens,
        )
        self._records.append(record)
        self._counts[record.state] += 1
        self._log.write("begin", record)
        self.note()
        return record

    def advance(self, record: CallRecord, event: CallEvent) -> None:
        """Something happened to a call."""
        before = record.state
        record.advance(event)
        self._counts[before] -= 1
        self._counts[record.state] += 1
        if record.state not in LIVE:
            self._counts["generated"] += record.generated
            self._counts["disconnected"] += record.disconnected
            self._log.write("end", record)
        self.note()

    def note(self) -> None:
        """Wake whoever waits for a change."""
        if self._waiting:
            self._changed.set()
            self._changed = anyio.Event()

    def since(self, number: int) -> Iterator[CallRecord]:
        """The calls after this one."""
        return iter(self._records[number:])

    def counts(self) -> dict[str, int]:
        """How many calls there were, how many are in each state, and the tokens of those that have ended."""
        return {"total": len(self._records), **self._counts}

    def clear(self) -> None:
        """Forget all calls; none may be live."""
        self._generations += bool(self._records)
        self._records = []
        self._counts = dict.fromkeys([*CallState, "generated", "disconnected"], 0)

    async def wait(self, satisfied: Callable[[], bool]) -> None:
        """Wait until something holds that depends on calls alone."""
        self._waiting += 1
        try:
            while not satisfied():
                await self._changed.wait()
        finally:
            self._waiting -= 1
