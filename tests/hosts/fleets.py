"""A run whose file has several hosts: `midflight up --host` on each of them, and `midflight collect` on any."""

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.orchestrator.collect.harness import ROOT, Run, Start
from tests.orchestrator.deployment.programs import Program, running
from tests.scenarios.seen import Seen, seen_by
from tests.scenarios.tasks import Task
from tests.support.namespaces import Network
from tests.support.processes import program
from tests.support.waiting import until

from .places import CONTROLLER, HOSTS

TOKEN_ENV = "FLEET_TOKEN"
SERVED_BY = {"agent.main": ("b", "c"), "model.main": ("a", "c")}
"""The hosts of these servers; all others are on all hosts."""
PATIENCE_S = 120.0
CUT_AT = 6
"""Tokens of a call that is held."""


@dataclass(slots=True)
class HostRun(Run):
    """One run over hosts. Its folder is on all of them."""

    network: Network = field(kw_only=True)
    tasks: list[Task] = field(kw_only=True)
    hosts: tuple[str, ...] = HOSTS
    """Those that the file has; without any, each participant is in the process of the collect."""
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    def tables(self) -> dict[str, dict[str, Any]]:
        """With the hosts, if there are any."""
        if not self.hosts:
            return Run.tables(self)
        fleet = {"mode": "attach", "token_env": TOKEN_ENV, "base_port": 9100, "start_s": PATIENCE_S}
        addresses = {name: self.network.address(name) for name in self.hosts}
        servers = {
            f'fleet.servers."{role}"': {"hosts": [name for name in self.hosts if name in hosts]}
            for role, hosts in SERVED_BY.items()
        }
        return {**Run.tables(self), "fleet": fleet, "fleet.hosts": addresses, **servers}

    def environment_at(self, host: str) -> dict[str, str]:
        """Of a program there."""
        return {**self.environment, **self.network.hosts[host].environment, TOKEN_ENV: self.token}

    @contextmanager
    def up(self) -> Iterator[dict[str, Program]]:
        """The servers of the file's hosts, each host's with its clock; those that are left are told to end."""
        command = [str(program("midflight")), "up", str(self.write()), "--json", "--host"]
        shared = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}
        with ExitStack() as stack:
            programs = dict[str, Program]()
            for name in self.hosts:
                with self.network.at(name):
                    ours = {**shared, **self.environment_at(name)}
                    programs[name] = stack.enter_context(running([*command, name], ours))
            for each in programs.values():
                each.wait_for("up", PATIENCE_S)
            yield programs
            for name, each in programs.items():
                if self.network.hosts[name].up:
                    assert each.end() == 0, (name, each.events)

    @contextmanager
    def collect(self, host: str = CONTROLLER, *options: str) -> Iterator[Start]:
        """The run itself, on one of the hosts; leaving the block kills it."""
        before, self.environment = self.environment, self.environment_at(host)
        try:
            with self.network.at(host):
                start = self.start(*options)
        finally:
            self.environment = before
        with start:
            yield start

    def hold_at(self, call: int) -> None:
        """Hold each rollout's model calls from this one on, in the middle of a generation."""
        for task in self.tasks:
            self.backend.control.hold(after_tokens=CUT_AT, substring=task.prompt_of(call))

    def all_in_a_checkpoint(self, start: Start) -> None:
        """Until every rollout is held, and a checkpoint has them like that; one that fails is asked for again."""
        until(lambda: self.backend.control.counts()["held"] == len(self.tasks), PATIENCE_S, start.told)
        before, asked = len(start.events("checkpoint")), -1

        def taken() -> bool:
            nonlocal asked
            if (failed := len(start.events("checkpoint_failed"))) != asked:
                asked = failed
                start.signal(signal.SIGUSR1)
            return len(start.events("checkpoint")) > before

        until(taken, PATIENCE_S, start.told)

    def seen(self) -> Seen:
        """What the backend and the counter saw, by life."""
        return seen_by(self.backend.control.calls(), self.log)
