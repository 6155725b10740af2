"""Running model-written programs contained: each below a keeper process that bounds it and leaves nothing of it behind.

Rules:
- What the program writes is read until the limit and then the program is ended; nothing waits for it to close.
- The order and the program's input are files in memory that are complete before the keeper starts: nobody is fed.
- A run that is cancelled hangs up on its keeper, and returns once the keeper has ended the program and itself.
- Whether bubblewrap works is found by running it, once a process.
"""

import ast
import contextlib
import dataclasses
import fcntl
import functools
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread

from ..errors import Code, ParticipantError
from ..workfolder import remove_tree
from .order import OTHER_IDS, Order, make_order, python_paths
from .program import Containment, Ended, Program, Ran, SandboxLimits

GRACE_S = 60.0
"""How much longer than the program a keeper may take before it is killed."""
PROBE_S = 60.0
"""For finding out whether bubblewrap works: a wrong no would weaken everything that follows."""
REPORT_BYTES = 1 << 16
_PACKAGE = Path(__file__).parent
_BOOT = """
import sys, types
for name, path in (("participants", sys.argv[1]), ("participants.sandbox", sys.argv[2])):
    sys.modules[name] = module = types.ModuleType(name)
    module.__path__ = [path]
from participants.sandbox.keeper import main
main(int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
"""
"""Starts the keeper without importing what the packages above it import."""
_CAUSES: Mapping[str, Ended] = {"time": "timed_out", "memory": "stopped", "files": "stopped", "told": "output_limit"}


class Sandbox:
    """Runs programs, so many at once."""

    def __init__(
        self,
        *,
        at_once: int | None = None,
        limits: SandboxLimits = SandboxLimits(),  # noqa: B008 - frozen
        require: Containment = "rlimits",
    ) -> None:
        """At most `at_once` runs at a time, by default as many as this process may use processors.

        With `require="bubblewrap"` a run fails where there is no bubblewrap that works.
        """
        self.limits = limits
        self._require = require
        self._turns = anyio.CapacityLimiter(at_once or len(os.sched_getaffinity(0)))

    @property
    def contained_by(self) -> Containment:
        """How programs are contained here; the first time in a process it tries, which blocks for some 50 ms."""
        return "bubblewrap" if self._bubblewrap() else "rlimits"

    def _bubblewrap(self) -> str:
        """Path of the bubblewrap to use, or nothing."""
        return working_bubblewrap()

    async def run(self, program: Program, limits: SandboxLimits | None = None) -> Ran:
        """Run a program to its end.

        Raises ParticipantError: EXECUTOR_FAILED where it could not be contained, INVALID_REQUEST for a command that no
        process can have. Whatever the program itself does is in the answer. Cancelled, it returns when all is gone.
        """
        limits = limits or self.limits
        async with self._turns:
            bubblewrap = await anyio.to_thread.run_sync(self._bubblewrap)
            if self._require == "bubblewrap" and not bubblewrap:
                raise ParticipantError(
                    Code.EXECUTOR_FAILED, "no bubblewrap that works on this host, and one is required"
                )
            order = await anyio.to_thread.run_sync(_order_for, program, limits, bubblewrap)
            launched = await anyio.to_thread.run_sync(_Launch.prepare, order, program.stdin)
            try:
                return await _Run(launched, order, limits.output_bytes).finish()
            finally:
                launched.close()


@functools.cache
def working_bubblewrap() -> str:
    """Path of a bubblewrap that can make namespaces here, found by running one; empty if there is none.

    Blocks. Raises ParticipantError EXECUTOR_FAILED, and tries again when asked again, where that cannot be found out.
    """
    path = shutil.which("bwrap", path="/usr/local/bin:/usr/bin:/bin")
    if path is None:
        return ""
    order = _order_for(Program(command=["true"]), SandboxLimits(wall_s=PROBE_S, cpu_s=PROBE_S), path)
    report = _report_of_probe(order)
    if report.get("cause") == "over" and report.get("status") == 0:
        return path
    if "failed" in report or report.get("cause") == "over":
        logging.getLogger("midflight.sandbox").warning("%s does not work here: %s", path, report)
        return ""
    raise ParticipantError(Code.EXECUTOR_FAILED, f"whether {path} works could not be found out: {report}")


def _report_of_probe(order: Order) -> dict[str, Any]:
    """What a keeper says of a run without input and output."""
    launched = _Launch.prepare(order, b"")
    null = subprocess.DEVNULL
    try:
        with subprocess.Popen(
            launched.command,
            pass_fds=launched.for_keeper,
            start_new_session=True,
            env={},
            cwd="/",
            stdin=null,
            stdout=null,
            stderr=null,
        ):
            launched.started()
            launched.control.settimeout(PROBE_S + GRACE_S)
            report: dict[str, Any] = _report(launched.control.recv(REPORT_BYTES))
            launched.close()
        return report
    except OSError as error:
        return {"error": str(error)}
    finally:
        launched.close()


def _report(said: bytes) -> dict[str, Any]:
    """What a keeper has written; nothing of it where it ended without a word."""
    report: dict[str, Any] = ast.literal_eval(said.decode() or "{}")
    return report


def _order_for(program: Program, limits: SandboxLimits, bubblewrap: str) -> Order:
    uid = OTHER_IDS + secrets.randbelow(OTHER_IDS) if os.getuid() == 0 else None
    fresh = str(Path(tempfile.gettempdir()) / f"midflight-{os.getpid()}-{secrets.token_hex(8)}")
    _, python = python_paths()
    return make_order(program, limits, bubblewrap=bubblewrap, uid=uid, fresh=fresh, python=python)


@dataclasses.dataclass(slots=True)
class _Launch:
    """The keeper's command line, and the descriptors that it begins with."""

    control: socket.socket
    theirs: socket.socket
    order: int
    stdin: int
    command: list[str]

    @classmethod
    def prepare(cls, order: Order, stdin: bytes) -> "_Launch":
        """Blocks for a moment: it writes the input to files in memory."""
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.setblocking(False)
        order_fd = _sealed(repr(dataclasses.asdict(order)).encode())
        where = [str(_PACKAGE.parent), str(_PACKAGE)]
        command = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            _BOOT,
            *where,
            str(theirs.fileno()),
            str(order_fd),
            str(os.getpid()),
        ]
        return cls(control, theirs, order_fd, _sealed(stdin), command)

    @property
    def for_keeper(self) -> tuple[int, int]:
        """Descriptors beside the standard ones."""
        return self.theirs.fileno(), self.order

    def started(self) -> None:
        """The keeper has its copies; the socket now tells of its end."""
        self.theirs.close()

    def close(self) -> None:
        """Hang up, and give all descriptors back."""
        self.control.close()
        self.theirs.close()
        for name in ("order", "stdin"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)


def _sealed(content: bytes) -> int:
    """A file in memory that nobody can change any more, at its beginning."""
    descriptor = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


class _Run:
    """One program on its way."""

    def __init__(self, launch: _Launch, order: Order, output_bytes: int) -> None:
        self._launch = launch
        self._order = order
        self._most = output_bytes
        self._flooded = False
        self._report: dict[str, Any] = {}
        self._texts: dict[str, bytes] = {}

    async def finish(self) -> Ran:
        """Start the keeper, read until it has reported, and say how the program ended."""
        launch = self._launch
        with anyio.CancelScope(shield=True):  # Cancelled half-way it would be killed, which it must not be.
            keeper = await anyio.open_process(
                launch.command, stdin=launch.stdin, pass_fds=launch.for_keeper, start_new_session=True, env={}, cwd="/"
            )
        launch.started()
        try:
            with anyio.move_on_after(self._order.wall_s + GRACE_S):
                async with anyio.create_task_group() as group:
                    group.start_soon(self._read, "stdout", keeper.stdout)
                    group.start_soon(self._read, "stderr", keeper.stderr)
                    group.start_soon(self._await_report)
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(keeper)
        return self._ran()

    async def _read(self, name: str, stream: anyio.abc.ByteReceiveStream | None) -> None:
        """Read one stream to its end, keeping as much as is allowed."""
        assert stream is not None
        kept = bytearray()
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                kept += await stream.receive()
                if len(kept) > self._most:
                    del kept[self._most :]
                    self._hang_up_for_output()
        self._texts[name] = bytes(kept)

    def _hang_up_for_output(self) -> None:
        """Hang up in this direction: the keeper ends the program, and can still report."""
        if not self._flooded:
            self._flooded = True
            with contextlib.suppress(OSError):
                self._launch.control.shutdown(socket.SHUT_WR)

    async def _await_report(self) -> None:
        await anyio.wait_readable(self._launch.control)
        with contextlib.suppress(OSError, ValueError):
            self._report = _report(self._launch.control.recv(REPORT_BYTES))

    async def _end(self, keeper: anyio.abc.Process) -> None:
        """Hang up, and wait until the keeper is gone; one that does not go is killed, with its program."""
        self._launch.control.close()
        with anyio.move_on_after(GRACE_S):
            await keeper.wait()
        if keeper.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # keeper.kill() would wait for one that has died by itself.
                os.kill(keeper.pid, signal.SIGKILL)
        await keeper.aclose()
        if self._order.fresh and self._order.folder is not None:
            with contextlib.suppress(OSError):  # Where a keeper was killed, so may some of its program be left.
                await anyio.to_thread.run_sync(remove_tree, Path(self._order.folder))

    def _ran(self) -> Ran:
        report, stdout, stderr = self._report, self._texts.get("stdout", b""), self._texts.get("stderr", b"")
        if "cause" not in report:
            why = report.get("failed") or stderr[-500:].decode(errors="replace") or "its keeper ended without a word"
            raise ParticipantError(Code.EXECUTOR_FAILED, f"a program could not be run contained: {why.strip()}")
        ended, exit_code, number = ending(report["cause"], report["status"], shell_codes=self._order.bubblewrap)
        if self._flooded:
            ended, exit_code, number = "output_limit", None, None
        return Ran(
            ended=ended,
            exit_code=exit_code,
            signal=number,
            stdout=stdout,
            stderr=stderr,
            wall_s=report["wall_s"],
            cpu_s=report["cpu_s"],
            peak_bytes=report["peak_bytes"],
        )


def ending(cause: str, status: int, *, shell_codes: bool) -> tuple[Ended, int | None, int | None]:
    """How a program ended, its exit code and its signal.

    `shell_codes`: bubblewrap, like a shell, exits with 128 and the number of the signal that ended the program.
    """
    if cause != "over":
        return _CAUSES[cause], None, None
    code = os.waitstatus_to_exitcode(status)
    if shell_codes and 128 < code <= 128 + signal.SIGSYS:
        code = 128 - code
    if code == -signal.SIGXCPU:
        return "timed_out", None, None
    return ("exited", code, None) if code >= 0 else ("signalled", None, -code)
