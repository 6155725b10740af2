"""A fleet in the foreground: up until it is told to end, watched meanwhile, and never mended.

    signal                          what happens
    SIGTERM, SIGINT, SIGHUP         every server is told to end, and killed when shutdown_s is over
    one more of them                every server is killed at once
    the last server has ended       the end, too: there is nothing left to watch

A signal that the caller ignores stays ignored.
"""

import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import orjson

from .crew import RunningServer, Tell
from .deployment import Deployment

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WATCH_S = 0.1
"""Between two looks at the processes and their logs."""
_RELAYED = ("worker_died", "worker_started", "endpoint")
"""What a server tells in its log of its own workers, and of the endpoint that a model server calls."""
_KEPT = ("event", "process", "pid", "exit_code", "signal", "incarnation", "replaced", "base_url", "message")
_MOST = 1_000_000
"""Bytes of a log that are read in one look."""


@dataclass(slots=True)
class Stood:
    """What became of a fleet."""

    died: list[str] = field(default_factory=list)
    """Roles of the servers that ended by themselves."""
    killed: list[str] = field(default_factory=list)
    """Roles of those that had to be killed at the end."""


async def stand(deployment: Deployment, *, adopt: bool, tell: Tell) -> Stood:
    """Bring a fleet up, and return when it has ended. Raises DeploymentError, where nothing is left either."""
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    stood, failure = Stood(), None
    with anyio.open_signal_receiver(*heard) as signals:
        async with anyio.create_task_group() as group:
            work = anyio.CancelScope()
            group.start_soon(_listen, signals, work, deployment, tell)
            try:
                with work:
                    servers = await (deployment.adopt() if adopt else deployment.start())
                    tell("up", {"servers": [facts_of(server) for server in servers]})
                    await _watch(deployment, stood, tell)
            except Exception as error:  # Raised outside of the group, which would wrap it.
                failure = error
            stood.killed = await deployment.stop()
            group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    tell("ended", {"died": stood.died, "killed": stood.killed})
    return stood


async def _listen(
    signals: AsyncIterator[signal.Signals], work: anyio.CancelScope, deployment: Deployment, tell: Tell
) -> None:
    async for number in signals:
        if work.cancel_called:
            deployment.hurry()
        tell("stopping", {"signal": number.name, "at_once": work.cancel_called})
        work.cancel()


async def _watch(deployment: Deployment, stood: Stood, tell: Tell) -> None:
    """Tell of each server that ends, and of what servers tell of their workers; return when none is left."""
    logs = {s.role: LogReader(s.log, deployment.log_begin(s.role)) for s in deployment.servers if s.log}
    while len(stood.died) < len(logs):
        for lost in deployment.lost():
            if lost.role not in stood.died:
                stood.died.append(lost.role)
                tell("server_lost", {**facts_of(lost), "how": lost.ended, "left": len(logs) - len(stood.died)})
        for role, log in logs.items():
            for line in await anyio.to_thread.run_sync(log.new_lines):
                if (found := told_of(line)) is not None:
                    tell(found["event"], {"role": role, **found})
        await anyio.sleep(WATCH_S)


class LogReader:
    """What is new in a log."""

    def __init__(self, path: Path, begin: int | None = None) -> None:
        """From byte `begin` on; None for what comes from now on."""
        self._path = path
        self._at = begin if begin is not None else path.stat().st_size if path.exists() else 0
        self._begun = b""

    def new_lines(self) -> list[bytes]:
        """Whole lines; the last one may have to wait for its end."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                new = file.read(_MOST)
        except FileNotFoundError:
            return []
        self._at += len(new)
        *lines, self._begun = (self._begun + new).split(b"\n")
        return lines


def told_of(line: bytes) -> dict[str, Any] | None:
    """What a line of a server's log tells of its workers or endpoint; None for everything else, whatever it is."""
    if not any(event.encode() in line for event in _RELAYED):
        return None
    try:
        found = orjson.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get("event") not in _RELAYED:
        return None
    if found["event"] == "worker_started" and not found.get("replaced"):
        return None  # The first one of its place.
    return {name: found[name] for name in _KEPT if name in found}


def facts_of(server: RunningServer) -> dict[str, Any]:
    """A server as an event has it."""
    return {
        "role": server.role,
        "kind": server.role.partition(".")[0],
        "workers": server.workers,
        "url": server.url,
        "pid": server.pid,
        "log": str(server.log) if server.log else None,
    }
