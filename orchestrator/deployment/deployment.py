"""The servers of one fleet as processes of this host: started, attached to, adopted, watched, started again, ended.

Rules:

1. One live controller a folder, by a lock that ends with its process.
2. All ports are decided, and kept, before the first server starts; then all start at once (see `ports`). So a server
   that is started again has the address that its callers know.
3. Nothing is started again by itself: `lost` says what died, and only `restart` starts.
4. Leaving the block ends everything that runs here, also what was adopted: the end of a controller is the end of its
   fleet. Where the controller is killed the fleet lives on, and the next `start` ends it, or `adopt` takes it over.
5. A server that is started is in the state file before it can be ready; one that a kill kept out of it is found by its
   mark (see `processes`).
6. What another controller was told about a server is checked before it is used again: the process, by pid and start
   time; that it is what the file says now, by a digest; and that it answers the token as what it should be.
7. The token goes to servers in their environment. It is in no command line, log or state file.
"""

import sys
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.to_thread

from participants.serving.addresses import join_address, split_address, url_at, worker_port
from participants.serving.settings import secret
from participants.serving.spec import ServerSpec

from .asking import At, problems_with
from .config import FleetTable
from .crew import Crew, RunningServer, Tell
from .failures import DeploymentError, FolderTaken, NoFleet, NotAnswering, NotOurs, writing
from .hosts import listens_on, spans_of, urls_from
from .lock import FolderLock
from .plan import TOKEN_ENV, Plan, addresses, elsewhere, make_plan, roles_of, same_programs
from .ports import Ports
from .processes import Process, hold, kill_marked
from .state import FleetState, boot_id, kept_token, make_token, read_state

if TYPE_CHECKING:
    from ..collect.config import Participants

COMMAND = (sys.executable, "-P", "-m", "midflight", "serve", "--spec")
"""What starts a server; the file of its spec follows. -P: modules beside the caller are none of ours."""

LOOK_S = 0.2
"""Between two looks for servers that somebody else runs."""


def _nobody(event: str, facts: dict[str, Any]) -> None:
    """Where nobody listens."""


class Deployment:
    """A fleet; leaving its block ends what runs here. One of `start`, `attach` and `adopt` is called, once."""

    def __init__(
        self,
        config: "Participants",
        table: FleetTable,
        *,
        path: Path | None = None,
        tell: Tell = _nobody,
        command: Sequence[str] = COMMAND,
        host: str | None = None,
    ) -> None:
        """`path` is the folder that servers of one's own are imported from; `tell` hears of each start and end.

        `host` is which one of `[fleet.hosts]` this machine is; whoever starts nothing need be none of them.
        """
        self._config, self._table, self._path, self._tell = config, table, path, tell
        self._host, self._spans = host, spans_of(table, roles_of(config))
        self.folder = Path(table.folder, host or "")
        self._lock, self._ports = FolderLock(self.folder), Ports(host=host)
        self._crew = Crew(self.folder, command, tell)
        self._plan = Plan((), {})
        self._token = ""
        self._attached: dict[str, list[RunningServer]] = {}
        self._watched: dict[str, Process] = {}
        self._killed: list[str] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def token(self) -> str:
        """The control token of the fleet."""
        return self._token

    @property
    def servers(self) -> list[RunningServer]:
        """Every server, those that others call first; of several hosts those that run here. Does not block."""
        found: list[RunningServer] = []
        for role in roles_of(self._config):
            own = self._crew.server(role)
            found += self._attached_servers(role) if own is None else [own]
        return found

    def lost(self) -> list[RunningServer]:
        """The servers of this host that have ended and were not started again. Does not block."""
        return [server for server in self.servers if server.ended is not None]

    def log_begin(self, role: str) -> int | None:
        """Where in its log the newest start of a server begins; None where it was not started here."""
        return self._crew.log_begin(role)

    async def unanswering(self, within_s: float = 0.0) -> dict[str, str]:
        """Server to what is wrong with it; those with a problem are asked again for so long."""
        servers = [At(server.role, server.url, server.host) for server in self.servers]
        return await problems_with(servers, self._token, within_s)

    # Beginnings

    async def start(self, patience_s: float = 0.0) -> list[RunningServer]:
        """End what an earlier controller left, and start every server.

        Another live controller of the folder is waited for as long as `patience_s`. Raises DeploymentError.
        """
        before = await self._take(patience_s)
        with anyio.CancelScope(shield=True):  # Half of a fleet is of no use to anybody.
            await self._end_left(await anyio.to_thread.run_sync(_survivors, before))
            await self._kill_left()
        await self._start_missing(
            listens_on(self._spans, self._host) if self._host else addresses(self._config, self._table, None)
        )
        return self.servers

    async def adopt(self, patience_s: float = 0.0) -> list[RunningServer]:
        """Take over the servers that an earlier controller left, and start those that are missing.

        Those that are something else by now, or do not answer, are ended first. Raises DeploymentError.
        """
        before = await self._take(patience_s)
        alive = await anyio.to_thread.run_sync(_survivors, before)
        await self._kill_left(but=alive)  # Workers without a supervisor hold its port.
        wanted = addresses(self._config, self._table, before)
        if before is not None:
            moved = {s.role for s in before.servers if wanted.get(s.role) != s.listen}
            await self._end_left({role: alive.pop(role) for role in moved & alive.keys()})
            listens = {role: at if role in alive else await self._ports.keep(role, at) for role, at in wanted.items()}
            await self._adopt_same(before, alive, listens)
            wanted = listens
        await self._start_missing(wanted)
        return self.servers

    async def _adopt_same(self, before: FleetState, alive: Mapping[str, Process], listens: Mapping[str, str]) -> None:
        """Take over those that are what they should be, and end the others."""
        same = same_programs(self._make_plan(listens), before) & alive.keys()
        states = {state.role: state for state in before.servers if state.role in same}
        wrong = await problems_with([At(role, state.url) for role, state in states.items()], self._token)
        await self._end_left({role: one for role, one in alive.items() if role not in same or role in wrong})
        for role, state in states.items():
            if role not in wrong:
                self._crew.adopt(state, alive[role])
        await self._kill_left(but=same - wrong.keys())

    async def attach(self) -> list[RunningServer]:
        """Use servers that somebody else runs, once all of them answer; start_s is how long they are waited for.

        Called again it looks for them anew, wherever they are now. Raises DeploymentError.
        """
        deadline, first = time.monotonic() + self._table.start_s, not self._attached
        while True:
            problem: DeploymentError
            try:
                await self._look_for_servers()
                wrong = await self.unanswering()
                if not wrong:
                    return self.servers
                problem = NotAnswering(wrong, hosts=bool(self._table.hosts))
            except NoFleet as error:
                problem = error
            if time.monotonic() >= deadline or (first and isinstance(problem, NoFleet)):
                raise problem
            await anyio.sleep(LOOK_S)

    async def _look_for_servers(self) -> None:
        """Where the file and the state say that they are. Raises NoFleet, BadState, ConfigError."""
        self._token = await anyio.to_thread.run_sync(self._find_token)
        state = None if self._table.hosts else await anyio.to_thread.run_sync(read_state, self.folder)
        self._close_watched()
        self._watched = await anyio.to_thread.run_sync(_survivors, await _of_this_boot(state))
        for role in roles_of(self._config):
            self._attached[role] = self._found(role, state)

    def _found(self, role: str, state: FleetState | None) -> list[RunningServer]:
        """The servers of a role; of several hosts all of them, whoever asks."""
        url, found = self._table.server(role).url, state.find(role) if state else None
        if url is not None:
            return [_elsewhere(role, url)]
        if (span := self._spans.get(role)) is not None:
            return [
                RunningServer(role, url_at(listen), None, span.workers, None, False, host=host)
                for host, listen in span.servers.items()
            ]
        if found is None:
            raise NoFleet(f"{role} has no url, and {self.folder} says of no server that runs as it")
        pid = found.pid if role in self._watched else None
        return [RunningServer(role, found.url, pid, found.workers, Path(found.log), False)]

    def _close_watched(self) -> None:
        for process in self._watched.values():
            process.close()
        self._watched = {}

    def _attached_servers(self, role: str) -> list[RunningServer]:
        watched = self._watched.get(role)
        ended = watched.ended() if watched else None
        return [replace(server, ended=ended) for server in self._attached.get(role, ())]

    async def _take(self, patience_s: float) -> FleetState | None:
        """The folder is ours: what it says of an earlier fleet of this boot."""
        given = secret(self._table.token_env)
        with writing(self.folder):
            await anyio.to_thread.run_sync(lambda: self.folder.mkdir(mode=0o700, parents=True, exist_ok=True))
            await self._lock.take(patience_s, partial(self._waits, patience_s))
            self._token = await anyio.to_thread.run_sync(make_token, self.folder) if given is None else given
        return await _of_this_boot(await anyio.to_thread.run_sync(read_state, self.folder))

    def _waits(self, patience_s: float, holder: str) -> None:
        message = f"{holder} has {self.folder}; it is waited for up to {patience_s:g} s"
        self._tell("waiting_for_folder", {"folder": str(self.folder), "message": message})

    def _find_token(self) -> str:
        token = secret(self._table.token_env) or kept_token(self.folder)
        if token is None:
            raise NoFleet(f"there is no control token: {self.folder} has none, and token_env names none")
        return token

    def _make_plan(self, listens: Mapping[str, str]) -> Plan:
        """`listens` is role to address of the servers that are to run here."""
        urls = {role: url_at(listen) for role, listen in listens.items()} | urls_from(self._spans, self._host)
        urls |= elsewhere(self._config, self._table)
        return make_plan(self._config, self._table, listens, urls, str(self._path) if self._path else None)

    async def _start_missing(self, wanted: Mapping[str, str]) -> None:
        """Start every server that is to run here and does not; what fails ends all of them. Raises DeploymentError."""
        there = self._crew.listens()
        listens = {role: there.get(role) or await self._ports.keep(role, at) for role, at in wanted.items()}
        self._plan = self._make_plan(listens)
        await self._keep_worker_ports(spec for spec in self._plan.specs if spec.role not in there)
        for role, url in self._plan.elsewhere.items():
            self._attached[role] = [_elsewhere(role, url)]
        try:
            await self._start([spec for spec in self._plan.specs if spec.role not in there])
            others = [At(role, url) for role, url in self._plan.elsewhere.items()]
            if wrong := await problems_with(others, self._token, self._table.start_s):
                raise NotAnswering(wrong)
        except BaseException:
            await self.stop()
            raise

    async def _start(self, specs: Sequence[ServerSpec]) -> None:
        await self._crew.start(specs, {self._table.token_env or TOKEN_ENV: self._token}, self._table.start_s)

    async def _keep_worker_ports(self, specs: Iterable[ServerSpec]) -> None:
        """Those that follow from the span of a role. Raises PortTaken."""
        for spec in specs:
            host, port = split_address(spec.listen)
            for k in range(spec.workers if spec.span else 0):
                await self._ports.keep(
                    f"{spec.role}/w{spec.first_worker + k}", join_address(host, worker_port(port, k))
                )

    async def restart(self, role: str) -> RunningServer:
        """Start a server that was lost, at the same address and with the same peers.

        What is left of the lost one is killed first. Raises DeploymentError.
        """
        if role not in self._crew:
            raise NotOurs(role)
        spec = self._plan.spec(role)
        await self._crew.clear(role)
        await self._ports.keep(role, spec.listen)
        try:
            await self._start([spec])
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._crew.clear(role)
            raise
        return next(server for server in self.servers if server.role == role)

    # Ends

    def hurry(self) -> None:
        """Let `stop`, which goes on or will come, wait for nothing: kill at once."""
        self._crew.hurry()

    def kill_at_once(self) -> None:
        """Kill everything that runs here, for a process that ends now; a signal handler may call it."""
        self._crew.kill_at_once()

    async def stop(self) -> list[str]:
        """End everything that runs here within shutdown_s, then kill; gives the roles that had to be killed.

        What was attached to is left alone. A second call says the same, and no cancellation keeps it from the end.
        """
        try:
            with anyio.CancelScope(shield=True):
                if self._crew:
                    self._killed += await self._crew.end(self._table.shutdown_s)
        finally:
            self._close_watched()
            self._ports.close()
            self._lock.release()
        return self._killed

    async def end_survivors(self) -> None:
        """End what an earlier controller left, and start nothing. Raises DeploymentError."""
        if await anyio.to_thread.run_sync(self.folder.is_dir):
            try:
                before = await self._take(0.0)
            except FolderTaken as error:
                raise FolderTaken(error.folder, error.holder, to_end=True) from error
            await self._end_left(await anyio.to_thread.run_sync(_survivors, before))
            await self._kill_left()
            await self._crew.end(0.0)

    async def _end_left(self, left: Mapping[str, Process]) -> None:
        """End what an earlier controller left."""
        late = await self._crew.end_left(left, self._table.shutdown_s)
        for role, process in left.items():
            self._tell("leftover_ended", {"role": role, "pid": process.pid, "killed": role in late})

    async def _kill_left(self, but: Collection[str] = ()) -> None:
        """Kill what no state says anything of."""
        killed = await anyio.to_thread.run_sync(lambda: kill_marked(self.folder, but=tuple(but)))
        for pid, role in killed.items():
            self._tell("leftover_ended", {"role": role, "pid": pid, "killed": True})


def _elsewhere(role: str, url: str) -> RunningServer:
    """One that somebody else runs."""
    return RunningServer(role, url, None, None, None, False)


async def _of_this_boot(state: FleetState | None) -> FleetState | None:
    """On another host, and before a reboot, pids meant other processes."""
    return state if state is not None and state.boot == await anyio.to_thread.run_sync(boot_id) else None


def _survivors(before: FleetState | None) -> dict[str, Process]:
    """The processes of a state that live, by role."""
    found = {server.role: hold(server.pid, server.started) for server in before.servers} if before else {}
    return {role: process for role, process in found.items() if process is not None}


@asynccontextmanager
async def deployed(
    config: "Participants", table: FleetTable, *, path: Path | None = None, tell: Tell = _nobody
) -> AsyncIterator[Deployment]:
    """The fleet as the mode of its table says, for the length of a block. Raises DeploymentError."""
    async with Deployment(config, table, path=path, tell=tell) as deployment:
        await {"start": deployment.start, "adopt": deployment.adopt, "attach": deployment.attach}[table.mode]()
        yield deployment
