"""The servers of a fleet that run on this host: each with its process, its place in the state file, and its logs.

In the folder of the fleet a role has three files: `<role>.json`, what it is started from; `<role>.out`, what it prints,
of its newest start alone; `<role>.log`, its log, of every start. Nothing here decides what is to be started.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from participants.serving.addresses import url_at
from participants.serving.spec import ServerSpec

from .failures import CannotBe, NotUp, writing
from .plan import program_of
from .processes import Process, kill_marked, launch
from .state import ServerState, replace_file, write_state

READY = "ready: "
"""What begins the line that a server prints when it is ready; its URL follows."""
POLL_S = 0.02
_TAIL_LINES, _TAIL_CHARS = 12, 2_000
_REFUSED = 2
"""Exit code of a server that cannot be what it was started from."""
Tell = Callable[[str, dict[str, Any]], object]
"""Hears of an event by name, with its facts."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """One server of a fleet."""

    role: str
    url: str
    pid: int | None
    """Of its first process; None where it is none of this host."""
    workers: int | None
    """None where only the server itself knows."""
    log: Path | None
    started_by_us: bool
    ended: str | None = None
    """How it ended, in words; None while it runs."""
    host: str | None = None
    """Of several; None where there is one."""


class Crew:
    """The servers that run here, by role."""

    def __init__(self, folder: Path, command: Sequence[str], tell: Tell) -> None:
        """`command` starts a server; the file of its spec follows."""
        self._folder, self._command, self._tell = folder, command, tell
        self._states: dict[str, ServerState] = {}
        self._processes: dict[str, Process] = {}
        self._adopted: set[str] = set()
        self._hurried = False
        self._log_begins: dict[str, int] = {}

    def __contains__(self, role: object) -> bool:
        return role in self._states

    def __bool__(self) -> bool:
        return bool(self._states)

    def server(self, role: str) -> RunningServer | None:
        """One of them, as it is now. Does not block."""
        if (state := self._states.get(role)) is None:
            return None
        ended, ours = self._processes[role].ended(), role not in self._adopted
        return RunningServer(role, state.url, state.pid, state.workers, Path(state.log), ours, ended)

    def log_begin(self, role: str) -> int | None:
        """Where in its log the newest start begins; None for a server that was not started here."""
        return None if role in self._adopted else self._log_begins.get(role)

    def listens(self) -> dict[str, str]:
        """Role to address."""
        return {role: state.listen for role, state in self._states.items()}

    def adopt(self, state: ServerState, process: Process) -> None:
        """Count a server that somebody else has started as one of these."""
        self._states[state.role], self._processes[state.role] = state, process
        self._adopted.add(state.role)
        self._tell("server_adopted", {"role": state.role, "url": state.url, "pid": state.pid})

    # Starting

    async def start(self, specs: Sequence[ServerSpec], environment: Mapping[str, str], within_s: float) -> None:
        """Start servers, and return once all of them are ready. Raises NotUp for those that are not in time, or end.

        Raises NotWritten where the folder takes no files; what was started by then goes on.
        """
        with writing(self._folder):
            await anyio.to_thread.run_sync(self._launch, specs, environment)
        waiting, failures = [spec.role for spec in specs], dict[str, str]()
        deadline = time.monotonic() + within_s
        while waiting and not failures:
            for role in list(waiting):
                if (ready := await anyio.to_thread.run_sync(self._ready_url, role)) is not None:
                    waiting.remove(role)
                    self._welcome(role, ready, failures)
                elif (how := self._processes[role].ended()) is not None:
                    failures[role] = f"it {how}"
            if waiting and time.monotonic() > deadline:
                failures |= dict.fromkeys(waiting, f"it was not ready in {within_s:g} s")
            await anyio.sleep(POLL_S if waiting else 0)
        if failures:
            tails = {role: await anyio.to_thread.run_sync(self._tail, role) for role in failures}
            refused = any(self._processes[role].exit_code() == _REFUSED for role in failures)
            told = {role: f"{why}\n{tails[role]}" for role, why in failures.items()}
            raise CannotBe(told) if refused else NotUp(told)

    def _launch(self, specs: Sequence[ServerSpec], environment: Mapping[str, str]) -> None:
        """Each is written down as soon as it has a pid. Raises OSError."""
        self._write()
        for spec in specs:
            role = spec.role
            file, out, log = (self._folder / f"{role}.{ending}" for ending in ("json", "out", "log"))
            replace_file(file, spec.model_dump_json(indent=2).encode())
            self._log_begins[role] = log.stat().st_size if log.exists() else 0
            process = launch([*self._command, str(file)], f"{self._folder}:{role}", environment, out, log)
            self._processes[role] = process
            self._adopted.discard(role)
            self._states[role] = ServerState(
                role=role,
                url=url_at(spec.listen),
                listen=spec.listen,
                pid=process.pid,
                started=process.started,
                workers=spec.workers,
                log=str(log),
                program=program_of(spec),
            )
            self._write()

    def _write(self) -> None:
        write_state(self._folder, tuple(self._states.values()))

    def _ready_url(self, role: str) -> str | None:
        """What the server says on stdout; None until its line is whole."""
        for line in (self._folder / f"{role}.out").read_text(errors="replace").splitlines(keepends=True):
            if line.startswith(READY) and line.endswith("\n"):
                return line.removeprefix(READY).strip()
        return None

    def _welcome(self, role: str, ready: str, failures: dict[str, str]) -> None:
        """A server must be where its callers are told that it is."""
        state = self._states[role]
        if ready.rstrip("/").rpartition(":")[2] != state.url.rpartition(":")[2]:
            failures[role] = f"it says that it is at {ready}, and was to be at {state.url}"
        else:
            self._tell("server_started", {"role": role, "url": state.url, "pid": state.pid})

    def _tail(self, role: str) -> str:
        """The end of its log, of this start alone."""
        log = self._folder / f"{role}.log"
        with log.open("rb") as file:
            file.seek(self._log_begins[role])
            lines = file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
        told = "\n".join(f"    {line}" for line in lines)[-_TAIL_CHARS:]
        return f"{told}\n    (the end of {log})" if lines else f"    (nothing in {log})"

    # Ends

    async def clear(self, role: str) -> None:
        """Kill whatever is left of a role; it stays known, as one that has ended."""
        await anyio.to_thread.run_sync(self._processes[role].kill_group)
        others = [other for other in self._processes if other != role]
        await anyio.to_thread.run_sync(lambda: kill_marked(self._folder, but=others))

    def kill_at_once(self) -> None:
        """SIGKILL to all of them, for a process that ends now. Takes no lock, so also a signal handler may call it."""
        for process in self._processes.values():
            process.kill_at_once()

    def hurry(self) -> None:
        """Let an end, which goes on or will come, wait for nothing: kill at once."""
        self._hurried = True

    async def end(self, within_s: float) -> list[str]:
        """End all of them, as `end_left` does; gives the roles that had to be killed.

        A state file that cannot be written is told of and does no harm: the pids in it are of processes that have gone.
        """
        late = await self.end_left(self._processes, within_s)
        await anyio.to_thread.run_sync(lambda: kill_marked(self._folder))
        self._processes.clear()
        self._states.clear()
        try:
            await anyio.to_thread.run_sync(self._write)
        except OSError as error:
            told = f"every server has ended, and {self._folder} cannot be told so: {error}"
            self._tell("state_not_written", {"message": told})
        return late

    async def end_left(self, processes: Mapping[str, Process], within_s: float) -> list[str]:
        """Tell them to end, kill the groups of those that do not in time, and reap all; gives the roles of those."""
        alive = [role for role, process in processes.items() if process.ended() is None]
        deadline = time.monotonic() + within_s
        for role in alive:
            processes[role].tell_to_end()
        while alive and not self._hurried and time.monotonic() < deadline:
            await anyio.sleep(POLL_S)
            alive = [role for role in alive if processes[role].ended() is None]
        for process in processes.values():
            await anyio.to_thread.run_sync(process.kill_group)
            process.close()
        return alive
