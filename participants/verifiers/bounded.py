"""Work that may never end, in child processes that are killed when they take too long.

A regular expression of a data set can backtrack for ever, and a computer algebra system can be asked for 9^9^9. Such
work is Python that holds the interpreter, so no thread can be told to stop: it runs in a child (`bounded_child`) that
serves one piece of work after the other, and that the kernel ends by a timer of processor time. A limit in processor
time gives the same result on a busy host as on an idle one, and so after a restore as before it.

    what happens to a child                             what comes of it
    it answers                                          it is kept for the next work
    SIGPROF, or SIGABRT, SIGSEGV or SIGBUS of           `UsedUp`; another child takes its place
    what the work has it do; no memory left
    no answer in wall time, another death,              `executor_failed`; another child takes its place
    no process left on this host
    the caller is cancelled                             it is killed before the cancellation goes on

Children are started when they are needed, at most `at_once`, with no shared descriptors. They end with their input, so
none outlives this process by more than the limit.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import orjson
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from ..errors import Code, ParticipantError

MEMORY_BYTES = 4 << 30
"""Of a child's address space; sympy with all its imports takes a tenth of it."""
MAX_REPLY_BYTES = 256 << 20
WALL_SHARE = 20.0
"""How many times its limit in processor time a work may take by the clock, on a host that does much else."""
START_S = 60.0
"""And how much longer it may take to start a child and to import a library."""
_OWN_DEATHS = frozenset({signal.SIGPROF, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS})
_NO_ANSWER = (TimeoutError, OSError, anyio.IncompleteRead, anyio.BrokenResourceError)
_EXTRAS = {"equal_by_library": "math", "score_by_gym": "tasks"}
"""That the libraries of works come with."""
_CHILD = Path(__file__).with_name("bounded_child.py")


class UsedUp(Exception):
    """A work has used up its time or its memory."""


class BoundedWork:
    """Children of one server. They belong to one event loop."""

    def __init__(self, at_once: int, memory_bytes: int = MEMORY_BYTES) -> None:
        """`at_once` is the number of children; more work waits, and its time does not count meanwhile."""
        self._at_once = anyio.Semaphore(at_once)
        self._memory_bytes = memory_bytes
        self._idle: list[_Child] = []
        self._closed = False
        self.started = 0
        """Children so far."""

    async def do(self, work: str, cpu_s: float, **arguments: Any) -> dict[str, Any]:
        """One work of `bounded_child`, within so many seconds of processor time. Raises UsedUp, `executor_failed`.

        Raises `invalid_request` where a library is missing, and `internal` where the work itself raised.
        """
        asked = orjson.dumps({"work": work, "cpu_s": cpu_s, "arguments": arguments})
        async with self._at_once:
            child = await self._child()
            try:
                with anyio.fail_after(cpu_s * WALL_SHARE + START_S):
                    reply = await child.ask(asked)
            except BaseException as error:
                with anyio.CancelScope(shield=True):
                    code = await child.end()
                if isinstance(error, _NO_ANSWER):
                    raise _death(work, code, error) from error
                raise
            self._idle.append(child)
            if self._closed:
                await self.aclose()
        return _answer(work, reply)

    @property
    def waiting(self) -> list[int]:
        """Pids of the children that live and wait for work."""
        return [child.process.pid for child in self._idle if child.process.returncode is None]

    async def _child(self) -> "_Child":
        while self._idle:
            child = self._idle.pop()
            if child.process.returncode is None:
                return child
            await child.end()
        self.started += 1
        return _Child(await _start(self._memory_bytes))

    async def aclose(self) -> None:
        """End the children; those at work end with it."""
        self._closed = True
        while self._idle:
            await self._idle.pop().end()


class _Child:
    """One process, and its replies."""

    def __init__(self, process: Process) -> None:
        assert process.stdout is not None
        self.process = process
        self._replies = BufferedByteReceiveStream(process.stdout)

    async def ask(self, line: bytes) -> dict[str, Any]:
        """One work. Raises IncompleteRead, BrokenResourceError or OSError where the child has ended."""
        assert self.process.stdin is not None
        await self.process.stdin.send(line + b"\n")
        found: dict[str, Any] = orjson.loads(await self._replies.receive_until(b"\n", MAX_REPLY_BYTES))
        return found

    async def end(self) -> int:
        """Kill it unless it has ended; its exit code, which is negative for a signal."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):  # Not by process.kill(), which waits for one that has died: then nobody
                os.kill(self.process.pid, signal.SIGKILL)  # else learns of what.
        await self.process.aclose()
        return self.process.returncode or 0


async def _start(memory_bytes: int) -> Process:
    """Without the script's folder on the path, where the modules of verifiers would hide others."""
    command = [sys.executable, "-P", str(_CHILD), str(memory_bytes)]
    started: Process | OSError = OSError()
    with anyio.CancelScope(shield=True):  # A cancelled start would leave a process that nobody knows.
        try:
            started = await anyio.open_process(command, stderr=subprocess.DEVNULL)
        except OSError as error:
            started = error
    if isinstance(started, OSError):
        raise ParticipantError(Code.EXECUTOR_FAILED, f"no child process could be started: {started}") from started
    return started


def _death(work: str, code: int, error: Exception) -> Exception:
    """What it means that no answer came."""
    if isinstance(error, TimeoutError):
        told = f"{work} had no answer by the clock, long after its limit of processor time: this host is too busy"
        return ParticipantError(Code.EXECUTOR_FAILED, told)
    if -code in _OWN_DEATHS:
        return UsedUp(f"{work} was ended by {signal.Signals(-code).name}")
    return ParticipantError(Code.EXECUTOR_FAILED, f"the child process of {work} ended with {code}")


def _answer(work: str, reply: dict[str, Any]) -> dict[str, Any]:
    if "done" in reply:
        done: dict[str, Any] = reply["done"]
        return done
    if "used_up" in reply:
        raise UsedUp(f"{work} ran out of memory")
    if "missing" in reply:
        extra = _EXTRAS.get(work, "")
        told = f"pip install 'midflight[{extra}]', or in a checkout pip install -e '.[{extra}]'"
        missing = f"{reply['missing']} is missing. Install the extra {extra}: {told}"
        raise ParticipantError(Code.INVALID_REQUEST, missing)
    raise ParticipantError(Code.INTERNAL, f"{work} raised {reply.get('error')}")
