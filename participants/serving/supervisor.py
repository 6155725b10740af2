"""The supervisor of a server: forks its workers, replaces each that dies, and stops them all when it is told to.

It has no event loop and no threads, so that it can fork at any time. Before the first fork it has imported what the
workers need and bound every socket; a replacement is forked from the same state, and finds the sockets of the one that
died with the connections that wait in them.

What happens is noticed in one place: a pipe that gets a byte for every signal (SIGTERM, SIGINT, SIGCHLD), and another
one into which workers write a line when they serve or cannot. What is done about a death is decided by `after_death`:

    stage       the worker     then
    starting    never served   all are killed; the server does not start, and its exit code says why
    starting    served         replaced at once
    serving     served         replaced at once
    serving     never served   replaced after RETRY_S: what ails it may last
    stopping    any            nothing

A worker is killed by the kernel when its supervisor dies, of whatever; so no worker outlives it. A second SIGTERM kills
the workers at once, and so does the end of `shutdown_s`.
"""

import contextlib
import ctypes
import gc
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import FrameType
from typing import Any, NoReturn

import orjson

from store import StoreError

from .board import Board
from .holders import check_spec
from .logs import start_logs, tell
from .settings import ConfigError
from .sockets import bind, url_of
from .spec import ServerSpec, split_address
from .worker import Seat, work

READY = "ready: "
"""The first line on stdout begins with this; the public URL follows."""
RETRY_S = 1.0
FINE, REFUSED, STORE_FAILED, BUG = 0, 2, 4, 70
_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
_PR_SET_PDEATHSIG = 1
_MAX_TOLD = 2000
"""Characters of an error in a note, which must fit into one write to a pipe."""


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


def after_death(stage: Stage, *, served: bool) -> Then:
    """What is done about the death of a worker; see the table above."""
    if stage is Stage.STOPPING:
        return Then.LEAVE
    if served:
        return Then.REPLACE
    return Then.GIVE_UP if stage is Stage.STARTING else Then.RETRY


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
    told: str = ""
    """Why it cannot start, in its own words."""
    code: int = BUG


def serve(spec: ServerSpec) -> int:
    """Run the server until it is told to stop; the exit code."""
    start_logs({"kind": spec.kind, "name": spec.name, "process": "supervisor"})
    try:
        if spec.path is not None:
            sys.path.insert(0, spec.path)
        check_spec(spec)
        public, privates = _bind_all(spec)
    except ConfigError as error:
        tell("cannot_start", level=logging.ERROR, message=str(error))
        return REFUSED
    urls = tuple(url_of(private) for private in privates)
    seats = [Seat(number, urls, public, private) for number, private in enumerate(privates)]
    gc.collect()
    gc.freeze()  # No collection of a worker copies pages only to look at what all have in common.
    with _Ears() as ears:
        return _Supervisor(spec, seats, ears).run()


def _bind_all(spec: ServerSpec) -> tuple[socket.socket, list[socket.socket]]:
    """The public socket and one for each worker, at the same host. Raises ConfigError."""
    host, port = split_address(spec.listen)
    try:
        return bind(host, port), [bind(host, 0) for _ in range(spec.workers)]
    except OSError as error:
        raise ConfigError(f"{spec.role}: cannot listen on {spec.listen}: {error.strerror or error}") from error


class _Ears:
    """Signals and the workers' notes, as pipes that can be waited for."""

    def __init__(self) -> None:
        self._signals_out, signals_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._notes_out, self.notes_in = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._notes_out, False)
        self._signals_in = signals_in
        self._notes = b""
        self._selector = selectors.DefaultSelector()
        self.stops: list[signal.Signals] = []
        """Every SIGTERM and SIGINT so far."""

    def __enter__(self) -> "_Ears":
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

    def listen(self, timeout_s: float | None) -> list[dict[str, object]]:
        """Wait until something happens; the notes that have come."""
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


class _Supervisor:
    def __init__(self, spec: ServerSpec, seats: list[Seat], ears: _Ears) -> None:
        self._spec = spec
        self._ears = ears
        self._workers = [_Worker(seat) for seat in seats]
        self._board = Board(len(seats))
        self._stage = Stage.STARTING
        self._kill_at: float | None = None
        self._code = FINE

    def run(self) -> int:
        for worker in self._workers:
            self._start(worker)
        while any(worker.pid for worker in self._workers) or self._stage is not Stage.STOPPING:
            for note in self._ears.listen(self._until_next()):
                self._take(note)
            self._reap()
            self._start_due()
            self._obey()
        tell("stopped", exit_code=self._code)
        return self._code

    # Starting

    def _start(self, worker: _Worker) -> None:
        worker.served, worker.start_at = False, None
        worker.told, worker.code = "", BUG
        self._board.begin(worker.seat.number)
        parent = os.getpid()
        with self._ears.deaf():
            pid = os.fork()
            if pid == 0:
                self._be(worker.seat, parent)
        worker.pid = pid

    def _be(self, seat: Seat, parent: int) -> NoReturn:
        """Everything that happens in the new process."""
        code = BUG
        try:
            _die_with(parent)
            self._ears.forget()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
            for other in self._workers:
                if other.seat is not seat:
                    other.seat.private.close()
            code = _worked(self._spec, seat, self._board, self._note)
        finally:
            os._exit(code)

    def _note(self, note: dict[str, object]) -> None:
        os.write(self._ears.notes_in, orjson.dumps({"pid": os.getpid(), **note}) + b"\n")

    def _take(self, note: dict[str, object]) -> None:
        worker = next((worker for worker in self._workers if worker.pid == note["pid"]), None)
        if worker is None:
            return
        if "incarnation" not in note:
            worker.told, worker.code = str(note["told"]), int(str(note["code"]))
            return
        worker.served = True
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
        tell("ready", url=url, workers=seat.urls)
        with contextlib.suppress(OSError):
            sys.stdout.write(f"{READY}{url}\n")
            sys.stdout.flush()

    # Deaths

    def _reap(self) -> None:
        for worker in self._workers:
            if worker.pid:
                pid, status = os.waitpid(worker.pid, os.WNOHANG)
                if pid:
                    self._died(worker, status)

    def _died(self, worker: _Worker, status: int) -> None:
        then = after_death(self._stage, served=worker.served)
        facts: dict[str, Any] = {"process": worker.seat.process, "pid": worker.pid, **fate_of(status)}
        if then is Then.LEAVE:
            tell("worker_stopped", **facts)
        else:
            tell("worker_died", level=logging.ERROR, **facts, then=then.value)
        worker.pid = 0
        if then is Then.GIVE_UP:
            why = worker.told or f"{worker.seat.process} died before it served: {fate_of(status)}"
            tell("cannot_start", level=logging.ERROR, message=why)
            self._code = worker.code
            self._stop_by(time.monotonic())
        elif then is not Then.LEAVE:
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
                    tell("worker_killed", level=logging.WARNING, process=worker.seat.process, pid=worker.pid)
            self._send(signal.SIGKILL)

    def _stop_by(self, kill_at: float) -> None:
        self._stage, self._kill_at = Stage.STOPPING, kill_at
        for worker in self._workers:
            worker.start_at = None

    def _send(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.pid:
                os.kill(worker.pid, number)

    def _until_next(self) -> float | None:
        """Seconds until something is due; None for never."""
        due = [worker.start_at for worker in self._workers if worker.start_at is not None]
        due += [] if self._kill_at is None else [self._kill_at]
        return max(0.0, min(due) - time.monotonic()) if due else None


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:  # It died before it was said.
        os._exit(BUG)


def _worked(spec: ServerSpec, seat: Seat, board: Board, note: Callable[[dict[str, object]], None]) -> int:
    """Do a worker's work; the exit code. What goes wrong is noted for the supervisor and logged."""
    try:
        work(spec, seat, board, lambda incarnation: note({"incarnation": incarnation}))
    except BaseException as error:
        bare = _bare(error)
        code = next((code for kind, code in _CODES if isinstance(bare, kind)), BUG)
        told = str(bare) if code != BUG else f"{type(bare).__name__}: {bare}"
        note({"told": told[:_MAX_TOLD], "code": code})
        if code == BUG:
            logging.getLogger("midflight.serving").error("a worker failed", exc_info=error)
        return code
    return FINE


_CODES: tuple[tuple[type[BaseException], int], ...] = ((ConfigError, REFUSED), (StoreError, STORE_FAILED))


def _bare(error: BaseException) -> BaseException:
    """The first error inside groups of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
