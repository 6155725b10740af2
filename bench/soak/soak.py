"""Runs a soak: starts everything, kills, looks, and at the end compares what came of it with an undisturbed run."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from participants.inference import DEFAULT_MODEL
from store import StoreError

from . import looking, places
from .backend import Backend
from .fleets import CONFIG, VICTIMS, Fleet, Settings, environment, midflight
from .journal import Journal
from .rows import Shape, faults, read_output, write_rows
from .strikes import BACKEND, Strike, strikes

SHAPE = Shape(5, 24, 16.0)
TICK_S = 0.1
PRUNE_EVERY_S = 60.0
"""By the operator, one fleet's store at a time."""
ROWS_A_SECOND_AT_THE_END = 4.0
LEAST_END_S = 180.0
REFERENCE_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a soak does."""

    minutes: float
    seed: int = 1
    url: str = ""
    """Below which the stores are; empty for the folder of the soak."""
    fleets: tuple[str, ...] = tuple(VICTIMS)
    kill_every_s: float = 8.0
    """On average, over all fleets."""
    look_every_s: float = 10.0
    concurrency: int = 4
    interval_s: float = 2.0
    workers: int = 2
    shape: Shape = SHAPE

    def rollouts(self) -> int:
        """Of each fleet: so many that they cannot be through before the time is."""
        return max(self.concurrency, int(self.minutes * 60 * self.concurrency / self.shape.shortest_s()))


class Soak:
    """One of them, in a folder that is empty."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        """Nothing runs yet. Raises FileExistsError where the folder has a journal."""
        self.plan, self.folder = plan, folder
        self.journal = Journal(folder)
        self._began = time.monotonic()
        self._backend: Backend
        self._fleets: list[Fleet] = []
        self._operator = ThreadPoolExecutor(1)
        """Prunes beside the runs, and holds up nothing here."""
        self._pruning: Future[str] | None = None

    def run(self) -> None:
        """All of it; what was wrong stands in the journal. Whatever happens, nothing lives on."""
        plan = self.plan
        with ExitStack() as stack:
            stack.callback(self.journal.close)
            stack.callback(self._operator.shutdown)
            self._note("plan", **asdict(plan), rollouts=plan.rollouts(), pid=os.getpid())
            write_rows(self.folder / "rows.jsonl", plan.rollouts(), plan.shape)
            self._backend = Backend(self.folder, plan.shape.tokens_per_s)
            stack.callback(self._backend.kill)
            for name in plan.fleets:
                fleet = Fleet(name, self.folder / name, self._settings(), self._store(name), self._note)
                self._fleets.append(fleet)
                stack.callback(fleet.kill)
                fleet.begin()
            self._strike_and_look(plan.minutes * 60)
            self._note("drain", rows={fleet.name: fleet.rows for fleet in self._fleets})
            self._backend.kill()
            self._backend.start(None)
            self._wait_for_the_end()
            self._check()
            self._note("end")

    def _settings(self) -> Settings:
        plan = self.plan
        return Settings(
            base_url=f"{self._backend.url}/v1",
            model=DEFAULT_MODEL,
            concurrency=plan.concurrency,
            interval_s=plan.interval_s,
            workers=plan.workers,
        )

    def _store(self, name: str) -> str:
        return f"{self.plan.url.rstrip('/')}/{name}" if self.plan.url else str(self.folder.resolve() / name / "store")

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _note(self, kind: str, **facts: Any) -> None:
        self.journal.write(self._now(), kind, **facts)

    # The time with kills

    def _strike_and_look(self, until_s: float) -> None:
        victims = {fleet.name: VICTIMS[fleet.name] for fleet in self._fleets}
        coming = strikes(self.plan.seed, self.plan.kill_every_s, victims)
        strike = next(coming)
        strike_at, look_at, prune_at = self._now() + strike.after_s, 0.0, PRUNE_EVERY_S
        pruned = self._in_turn()
        while (now := self._now()) < until_s:
            self._tick(now)
            if now >= strike_at:
                self._strike(strike)
                strike = next(coming)
                strike_at = now + strike.after_s
            if now >= look_at:
                self._look()
                look_at = now + self.plan.look_every_s
            if now >= prune_at and (self._pruning is None or self._pruning.done()):
                self._prune(next(pruned))
                prune_at = now + PRUNE_EVERY_S
            time.sleep(TICK_S)
        if self._pruning is not None:
            self._pruning.result()

    def _in_turn(self) -> Iterator[Fleet]:
        while True:
            yield from self._fleets

    def _tick(self, now: float) -> None:
        for fleet in self._fleets:
            fleet.tick(now)

    def _strike(self, strike: Strike) -> None:
        if strike.victim == BACKEND:
            self._backend.kill()
            self._backend.start(self.plan.shape.tokens_per_s)
            hit = True
        else:
            [fleet] = [fleet for fleet in self._fleets if fleet.name == strike.fleet]
            hit = fleet.strike(strike.victim, strike.draw)
        self._note("strike", fleet=strike.fleet, victim=strike.victim, hit=hit)

    def _prune(self, fleet: Fleet) -> None:
        """Begin; what went wrong the last time is told."""
        if self._pruning is not None and (wrong := self._pruning.result()):
            self._note("told", fleet="", event="prune_failed", facts=wrong)
        self._pruning = self._operator.submit(places.prune_old, fleet.store)

    def _look(self) -> None:
        mine = [("backend", self._backend.process.pid), ("soak", os.getpid())]
        seen = [found for role, pid in mine if (found := looking.see(role, pid)) is not None]
        load = os.getloadavg()[0]
        self._note("look", load=load, processes=[list(asdict(one).values()) for one in seen])
        for fleet in self._fleets:
            self._look_at(fleet)

    def _look_at(self, fleet: Fleet) -> None:
        pids = looking.fleet_pids(fleet.servers)
        for role, process in (("collect", fleet.controller), ("up", fleet.up)):
            if process is not None:
                pids.append((role, process.pid))
        seen = [found for role, pid in pids if (found := looking.see(role, pid)) is not None]
        facts: dict[str, Any] = {"rows": fleet.rows, "processes": [list(asdict(one).values()) for one in seen]}
        try:
            facts["store"] = asdict(places.contents(fleet.store))
        except StoreError as error:
            facts["store_unread"] = str(error)
        output = looking.files(fleet.folder / "out.jsonl.segments")
        logs = sum(path.stat().st_size for path in fleet.servers.glob("*.log"))
        work = looking.files(fleet.servers)
        facts |= {"output": asdict(output), "work_files": work.count, "work_bytes": work.size - logs, "log_bytes": logs}
        self._note("fleet", fleet=fleet.name, **facts)

    # The end

    def _wait_for_the_end(self) -> None:
        """Nobody is killed any more, and the backend answers at once."""
        left = sum(self.plan.rollouts() - fleet.rows for fleet in self._fleets)
        until = self._now() + max(LEAST_END_S, left / ROWS_A_SECOND_AT_THE_END)
        while not all(fleet.done or fleet.given_up for fleet in self._fleets):
            if self._now() > until:
                waited = [fleet.name for fleet in self._fleets if not fleet.done]
                self._note("violation", fleet="", what=f"not through in time: {waited}")
                return
            self._tick(self._now())
            time.sleep(TICK_S)

    def _check(self) -> None:
        wanted = self._undisturbed()
        for fleet in self._fleets:
            fleet.end_servers()
            if not fleet.done:
                continue
            for fault in faults(read_output(fleet.folder / "out.jsonl"), wanted, self.plan.shape):
                self._note("violation", fleet=fleet.name, what=fault)
            for fault in places.unsound(fleet.store):
                self._note("violation", fleet=fleet.name, what=fault)
            self._note("compared", fleet=fleet.name, rows=len(wanted))

    def _undisturbed(self) -> list[dict[str, Any]]:
        """The output of the same rows by one process without checkpoints, servers and kills."""
        folder = self.folder / "undisturbed"
        folder.mkdir()
        values = asdict(replace(self._settings(), concurrency=32))
        config = CONFIG.format(store="none", mode="start", **values).partition("[checkpoint]")[0]
        (folder / "run.toml").write_text(config)
        with (folder / "err").open("wb") as errors:
            command = midflight("collect", "run.toml", "--json")
            subprocess.run(
                command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=errors, check=True,
                timeout=REFERENCE_S, start_new_session=True,
            )  # fmt: skip
        found = read_output(folder / "out.jsonl")
        shutil.rmtree(folder)
        return found
