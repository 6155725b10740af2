"""The supervisor of a server: forks its workers, replaces each that dies, and stops them all when it is told to.

It has no event loop and no threads, so that it can fork at any time. Before the first fork it has imported what the
workers need and bound every socket; a replacement is forked from the same state, and finds the sockets of the one that
died with the connections that wait in them.

What happens is noticed in one place: a pipe that gets a byte for every signal (SIGTERM, SIGINT, SIGCHLD), and another
one into which workers write a line when they serve or cannot. What is done about a death is decided by `after_death`:

    stage       the worker                          then
    starting    never served, ended by itself       all are killed; the server does not start: its exit code says why
    starting    never served, killed by a signal    replaced after RETRY_S, START_TRIES times; then as above
    starting    served                              replaced at once
    serving     served                              replaced at once
    serving     never served                        replaced after RETRY_S: what ails it may last
    stopping    any                                 nothing

A worker is killed by the kernel when its supervisor dies, of whatever; so no worker outlives it. A second SIGTERM kills
the workers at once, and so does the end of `shutdown_s`.
"""

import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .addresses import join_address, split_address, worker_port, worker_urls
from .board import Board
from .ears import Ears
from .forked import BUG, FINE, REFUSED, be_worker
from .holders import check_spec
from .logs import start_logs, tell
from .settings import ConfigError
from .sockets import bind, url_of
from .spec import ServerSpec
from .worker import Seat

READY = "ready: "
"""The first line on stdout begins with this; the public URL follows."""
RETRY_S = 1.0
START_TRIES = 3
"""How often one that a signal has killed before it served is replaced, while the server starts."""


class Stage(Enum):
    """Where the server stands."""

    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"


class Then(Enum):
    """What is done about a death."""

    GIVE_UP = "give up"
    REPLACE = "replace"
    RETRY = "retry"
    LEAVE = "leave"


def after_death(stage: Stage, *, served: bool, killed: int = 0) -> Then:
    """What is done about the death of a worker; see the table above.

    `killed` is how often in a row a signal has ended it before it served, this time among them; 0 where it has ended
    by itself this time.
    """
    if stage is Stage.STOPPING:
        return Then.LEAVE
    if served:
        return Then.REPLACE
    return Then.RETRY if stage is Stage.SERVING or 0 < killed <= START_TRIES else Then.GIVE_UP


def fate_of(status: int) -> dict[str, int | str]:
    """How a process ended, of what waitpid says: its exit code, or the name of the signal that killed it."""
    if os.WIFSIGNALED(status):
        return {"signal": signal.Signals(os.WTERMSIG(status)).name}
    return {"exit_code": os.waitstatus_to_exitcode(status)}


@dataclass(slots=True)
class _Worker:
    """A seat and who is on it."""

    seat: Seat
    pid: int = 0
    """0 for nobody."""
    served: bool = False
    start_at: float | None = None
    """When it is started again, on the monotonic clock."""
    killed: int = 0
    """How often in a row a signal has ended it before it served."""
    told: str = ""
    """Why it cannot start, in its own words."""
    code: int = BUG


def serve(spec: ServerSpec) -> int:
    """Run the server until it is told to stop; the exit code."""
    start_logs({"kind": spec.kind, "name": spec.name, "process": "supervisor"})
    stdout = _keep_stdout()
    with contextlib.ExitStack() as stack:
        try:
            if spec.path is not None:
                sys.path.insert(0, spec.path)
            check_spec(spec)
            seats = _seats(spec, stack)
        except ConfigError as error:
            return cannot_start(error)
        if (threads := threading.active_count()) > 1:
            tell("threads", level=logging.WARNING, count=threads, message="workers lack the threads of imports")
        gc.collect()
        gc.freeze()  # No collection of a worker copies pages only to look at what all have in common.
        return _Supervisor(spec, seats, stack.enter_context(Ears()), stdout).run()


def cannot_start(error: ConfigError) -> int:
    """Say why in one line; the exit code."""
    tell("cannot_start", level=logging.ERROR, message=str(error))
    return REFUSED


def _keep_stdout() -> int:
    """Where the ready line goes; whatever else is printed, as by somebody's module, goes to stderr from now on."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    return stdout


def _seats(spec: ServerSpec, stack: contextlib.ExitStack) -> list[Seat]:
    """With the public socket, and a private one each at the same host. Raises ConfigError."""
    host, port = split_address(spec.listen)
    public = _listening(spec, host, port, stack)
    wanted = [worker_port(port, k) if spec.span else 0 for k in range(spec.workers)]
    privates = [_listening(spec, host, at, stack) for at in wanted]
    urls = worker_urls(spec.span, spec.workers) if spec.span else tuple(map(url_of, privates))
    return [Seat(spec.first_worker + k, urls, public, private) for k, private in enumerate(privates)]


def _listening(spec: ServerSpec, host: str, port: int, stack: contextlib.ExitStack) -> socket.socket:
    try:
        return stack.enter_context(bind(host, port))
    except OSError as error:
        where = join_address(host, port)
        raise ConfigError(f"{spec.role}: cannot listen on {where}: {error.strerror or error}") from error


class _Supervisor:
    def __init__(self, spec: ServerSpec, seats: list[Seat], ears: Ears, stdout: int) -> None:
        self._spec = spec
        self._stdout = stdout
        self._ears = ears
        self._workers = [_Worker(seat) for seat in seats]
        self._board = Board(len(seats), spec.first_worker)
        self._stage = Stage.STARTING
        self._kill_at: float | None = None
        self._code = FINE

    def run(self) -> int:
        for worker in self._workers:
            self._start(worker)
        while any(worker.pid for worker in self._workers) or self._stage is not Stage.STOPPING:
            self._listen(self._until_next())
            self._reap()
            self._start_due()
            self._obey()
        self._tell_end("stopped", exit_code=self._code)
        return self._code

    # Starting

    def _start(self, worker: _Worker) -> None:
        worker.served, worker.start_at = False, None
        worker.told, worker.code = "", BUG
        self._board.begin(worker.seat.number)
        parent = os.getpid()
        with self._ears.deaf():
            try:
                worker.pid = os.fork()
            except OSError as error:
                tell("fork_failed", level=logging.ERROR, process=worker.seat.process, message=str(error))
                worker.start_at = time.monotonic() + RETRY_S
                return
            if worker.pid == 0:
                others = [other.seat for other in self._workers if other is not worker]
                be_worker(self._spec, worker.seat, others, self._board, self._ears, parent)

    def _listen(self, timeout_s: float | None) -> None:
        """Wait until something happens, and take what workers have noted."""
        for note in self._ears.listen(timeout_s):
            for worker in self._workers:
                if worker.pid == note["pid"]:
                    self._take(worker, note)

    def _take(self, worker: _Worker, note: Mapping[str, Any]) -> None:
        if "incarnation" not in note:
            worker.told, worker.code = note["told"], note["code"]
            return
        worker.served, worker.killed = True, 0
        tell(
            "worker_started",
            process=worker.seat.process,
            pid=worker.pid,
            incarnation=note["incarnation"],
            url=worker.seat.urls[worker.seat.number],
            replaced=self._board.replaced,
        )
        if self._stage is Stage.STARTING and all(worker.served for worker in self._workers):
            self._stage = Stage.SERVING
            self._tell_ready()

    def _tell_ready(self) -> None:
        seat = self._workers[0].seat
        url = url_of(seat.public)
        own = [seat.urls[worker.seat.number] for worker in self._workers]
        tell("ready", url=url, workers=own)
        with contextlib.suppress(OSError):
            os.write(self._stdout, f"{READY}{url}\n".encode())

    # Deaths

    def _reap(self) -> None:
        found = [(worker, *os.waitpid(worker.pid, os.WNOHANG)) for worker in self._workers if worker.pid]
        dead = [(worker, status) for worker, pid, status in found if pid]
        if dead:
            self._listen(0.0)  # What they noted just before.
        for worker, status in dead:
            self._died(worker, status)

    def _died(self, worker: _Worker, status: int) -> None:
        worker.killed = worker.killed + 1 if os.WIFSIGNALED(status) and not worker.served else 0
        then = after_death(self._stage, served=worker.served, killed=worker.killed)
        facts: dict[str, Any] = {"process": worker.seat.process, "pid": worker.pid, **fate_of(status)}
        facts |= {"message": worker.told} if worker.told else {}
        worker.pid = 0
        if then is Then.LEAVE:
            self._tell_end("worker_stopped", **facts)
        elif then is Then.GIVE_UP:
            times = f", {worker.killed} times in a row" if worker.killed else ""
            facts.setdefault("message", f"{worker.seat.process} died before it served{times}")
            tell("cannot_start", level=logging.ERROR, **facts)
            self._code = worker.code
            self._stop_by(time.monotonic())
        else:
            tell("worker_died", level=logging.ERROR, **facts, then=then.value)
            worker.start_at = time.monotonic() + (RETRY_S if then is Then.RETRY else 0.0)

    def _start_due(self) -> None:
        for worker in self._workers:
            if worker.start_at is not None and worker.start_at <= time.monotonic():
                self._start(worker)

    # The end

    def _obey(self) -> None:
        """Stop when told so, kill when that takes too long or is said twice."""
        stops = self._ears.stops
        if stops and self._stage is not Stage.STOPPING:
            tell("stopping", signal=stops[0].name, within_s=self._spec.shutdown_s)
            self._stop_by(time.monotonic() + self._spec.shutdown_s)
            self._send(signal.SIGTERM)
        if self._kill_at is not None and (len(stops) > 1 or time.monotonic() >= self._kill_at):
            self._kill_at = None
            for worker in self._workers:
                if worker.pid:
                    self._tell_end("worker_killed", process=worker.seat.process, pid=worker.pid)
            self._send(signal.SIGKILL)

    def _tell_end(self, event: str, **facts: Any) -> None:
        """Of a server that could not start, the reason is all there is to say."""
        if self._code == FINE:
            tell(event, **facts)

    def _stop_by(self, kill_at: float) -> None:
        """Nothing is started any more, and no connection taken; who lives at that time is killed."""
        self._stage, self._kill_at = Stage.STOPPING, kill_at
        for worker in self._workers:
            worker.start_at = None
            worker.seat.public.close()  # Or whoever connects would wait for a worker that never comes.
            worker.seat.private.close()

    def _send(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.pid:
                os.kill(worker.pid, number)

    def _until_next(self) -> float | None:
        """Seconds until something is due; None for never."""
        due = [worker.start_at for worker in self._workers if worker.start_at is not None]
        due += [] if self._kill_at is None else [self._kill_at]
        return max(0.0, min(due) - time.monotonic()) if due else None
