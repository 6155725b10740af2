"""One simulation, from its scenario to its history: starts the processes, does the faults, ends with the run."""

import gc
import random
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from store import StoreError, open_checkpoint, published
from store.backends.memory import MemoryBackend, forget_space

from .controllers import Controller
from .history import History
from .loop import SimLoop, StuckError, elapse
from .machine import Process, Site
from .network import Network
from .participants import ROLES, Grounds, open_store, start_process
from .scenario import BESIDE, Fault, Scenario
from .stores import Space, check_site
from .substitutes import simulated
from .weather import Skies

MAX_STEPS = 300_000
LOOK_S = 0.2
AGAIN_S = (0.1, 0.1, 1.0, 6.0)
"""How long nobody may notice that the run has stopped."""
SETTLED_S = 3.0
"""After the end, so long is waited for messages and requests that are on their way."""
DONE = frozenset({"0", "1"})


@dataclass
class Outcome:
    """One simulation, over."""

    scenario: Scenario
    history: History
    stuck: str = ""
    """Why it did not come to its end."""
    broken: list[str] = field(default_factory=list)
    """Defects: errors that nobody may end with."""
    output: bytes = b""
    virtual_s: float = 0.0
    steps: int = 0
    swaps: int = 0


class Simulation:
    """The driver: as a person with several terminals, and bad luck."""

    def __init__(self, scenario: Scenario, loop: SimLoop) -> None:
        self.scenario = scenario
        self.chance = random.Random(f"run {scenario.seed}")
        self.history = History()
        self.site = Site(loop, self.chance, self.history)
        self.skies = Skies(scenario, random.Random(f"weather {scenario.seed}"), self.history)
        self.space = Space("store", scenario.host_lock)
        self.output = Space("output", scenario.host_lock)
        check_site(self.site, [self.space, self.output])
        self.grounds = Grounds(scenario, Network(self.site, self.skies), self.skies, self.space, self.output)
        self.servers: dict[str, Process] = {}
        self.controllers: list[Process] = []
        self.done = False

    async def run(self) -> None:
        """Until the run is done and everything has settled."""
        for role in ROLES:
            for worker in range(self.scenario.workers[role]):
                self._start_server(role, worker)
        for fault in self.scenario.faults:
            if fault.moment:
                self.site.awaited.setdefault((fault.moment, fault.nth), []).append(partial(self._strike, fault))
            else:
                self.site.later(fault.at, self._strike, fault)
        await self._keep_controlled()
        self.done = True
        self._end_faults()
        for server in list(self.servers.values()):
            self.site.loop.go_on(server.lane)
        while any(one.lives for one in self.controllers):
            await elapse(LOOK_S)
        await elapse(SETTLED_S + self.scenario.lease_s)
        for server in self.servers.values():
            if server.lives and server.plane is not None:
                server.note("holds", role=server.holder.role, counts=server.holder.counts(),
                            phase=server.plane.book.phase.value, closed=server.holder.gate.closed)  # fmt: skip
        await self._audit()

    async def _keep_controlled(self) -> None:
        """Start the same command again whenever nobody runs it, until it says that it is done."""
        self._start_controller(take_over=False)
        while not any(one.how in DONE for one in self.controllers):
            await elapse(LOOK_S)
            if not any(one.lives or one.how in DONE for one in self.controllers):
                await elapse(self.chance.choice(AGAIN_S))
                self._start_controller(take_over=self.chance.random() < 0.5)

    def _start_controller(self, *, take_over: bool) -> None:
        controller = Process(self.site, f"controller-{len(self.controllers)}")
        self.controllers.append(controller)
        controller.start(Controller(self.grounds, take_over=take_over))

    def _start_server(self, role: str, worker: int) -> None:
        server = start_process(self.grounds, role, worker)
        self.servers[server.name] = server

    # Faults

    def _strike(self, fault: Fault) -> None:
        if self.done:
            return
        self.history.reached[f"fault: {fault.kind}"] += 1
        self.site.note("fault", kind=fault.kind, target=fault.target, for_s=fault.for_s)
        match fault.kind:
            case "kill":
                self._kill(fault.target, fault.for_s)
            case "kill_all":
                for name in list(self.servers):
                    self._kill(name, fault.for_s)
                self._kill_controllers()
            case "kill_controller":
                self._kill_controllers()
            case "rival":
                self._start_controller(take_over=fault.target != BESIDE)
            case "hang":
                self._hang(self.servers[fault.target], fault.for_s)
            case "hang_controller":
                for controller in self.controllers:
                    self._hang(controller, fault.for_s)
            case _:
                self.skies.begin(fault)
                self.site.later(fault.for_s, self._lift, fault)

    def _lift(self, fault: Fault) -> None:
        if fault in self.skies.lasting:
            self.skies.end(fault)

    def _end_faults(self) -> None:
        for fault in list(self.skies.lasting):
            self.skies.end(fault)

    def _kill(self, name: str, away_s: float) -> None:
        server = self.servers[name]
        if server.lives:
            role, _, worker = name.rpartition("-")
            server.crash()
            self.site.later(away_s, self._start_server, role, int(worker))

    def _kill_controllers(self) -> None:
        for controller in self.controllers:
            controller.crash()

    def _hang(self, process: Process, for_s: float) -> None:
        """As SIGSTOP does, and SIGCONT after a while."""
        if process.lives:
            self.site.loop.pause(process.lane)
            self.site.later(for_s, self.site.loop.go_on, process.lane)

    # The end

    async def _audit(self) -> None:
        """Open and read all that is published, as an operator would."""
        auditor = Process(self.site, "auditor")
        auditor.start(self._read_all)
        while auditor.lives:
            await elapse(LOOK_S)

    async def _read_all(self, process: Process) -> str:
        store = await open_store(self.grounds, process)
        for ref in published(await store.chain()):
            told = "ok"
            try:
                checkpoint = await open_checkpoint(store, ref)
                await checkpoint.verify()
                async with checkpoint.records() as records:
                    found = [(record.life, record.payload) async for record in records]
                process.note("audited", checkpoint=str(ref.checkpoint), records=len(found))
            except StoreError as error:
                told = f"{type(error).__name__}: {error}"
                process.note("audited", checkpoint=str(ref.checkpoint), damage=told)
        return "read"


def simulate(scenario: Scenario, planted: AbstractContextManager[object] | None = None) -> Outcome:
    """Run one scenario to its end; the same one gives the same history."""
    chance = random.Random(f"order {scenario.seed}")
    loop = SimLoop(chance, loose=scenario.loose, max_steps=MAX_STEPS, horizon_s=scenario.horizon_s)
    forget_space("proof")
    with planted or nullcontext(), simulated(loop, scenario.seed):
        simulation = Simulation(scenario, loop)
        outcome = Outcome(scenario, simulation.history)
        try:
            loop.run_until_complete(loop.own(simulation.run()))
        except StuckError as error:
            outcome.stuck = str(error)
        simulation.site.over = True
        outcome.broken = list(simulation.site.broken)
        outcome.virtual_s, outcome.steps, outcome.swaps = loop.time(), loop.steps, loop.swaps
        outcome.output = _output()
        loop.dispose()
    gc.collect()  # Before the next one begins: what is taken apart must not do so in the middle of it.
    return outcome


def _output() -> bytes:
    """The rows that people get."""
    found = MemoryBackend("proof").space.objects.get("rows.jsonl")
    return found.data if found is not None else b""


__all__ = ["Outcome", "Simulation", "simulate"]
