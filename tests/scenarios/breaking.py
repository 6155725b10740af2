"""What the scenarios of failures need beside the stage: links that act at exact points, late calls, and what stands."""

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import orjson

from orchestrator.links import HttpLink, Link
from participants import Message, Status
from participants.data import LIFE_HEADER
from participants.peer import ERROR_HEADER
from store import Life
from tests.support.fleet import Server
from tests.support.gated_counter import Gates
from tests.support.owners import Answer, FaultyLink
from tests.support.waiting import until_asked

from .controller import RESULT_S, Controller
from .stage import Stage
from .tasks import Task

Act = Callable[[], Awaitable[None]]
DOOMED_S = 60.0
NOT_WORK = ("refused", "fenced", "ledger_rows", "tokens_continued", "tokens_regenerated")
"""Counts that say what was, and what is remembered, not what goes on."""


async def nothing() -> None:
    """The default of what a link does."""


class ActingLink(FaultyLink):
    """A link that lets something happen right before and right after messages of one kind."""

    def __init__(self, inner: Link, kind: type[Message], *, before: Act = nothing, after: Act = nothing) -> None:
        super().__init__(inner)
        self.kind, self.before, self.after = kind, before, after

    async def send(self, message: Message, answer: type[Answer]) -> Answer:
        if not isinstance(message, self.kind):
            return await super().send(message, answer)
        await self.before()
        found = await super().send(message, answer)
        await self.after()
        return found


def acting(
    controller: Controller, kind: type[Message], *, before: Mapping[str, Act] = {}, after: Mapping[str, Act] = {}
) -> None:
    """From here on the controller's messages of a kind to these members, by name, let these things happen."""

    def link(name: str, inner: Link) -> Link:
        return ActingLink(inner, kind, before=before.get(name, nothing), after=after.get(name, nothing))

    members = tuple(replace(member, link=link(member.name, member.link)) for member in controller.fleet.members)
    controller.fleet = replace(controller.fleet, members=members)


def gated(stage: Stage) -> Gates:
    """Let the stage's counter be held by files."""
    gates = Gates(stage.folder / "gates")
    stage.resources = "tests.support.gated_counter:GatedCounter"
    stage.counter = {"gates": str(gates.folder)}
    return gates


# Late calls


def late_calls(stage: Stage, life: Life, task: Task) -> dict[tuple[str, str], Any]:
    """One data call of every kind in a life's name: the body by role and route."""
    session = {"resources_session_id": life.rollout_id}
    messages = [{"role": "user", "content": task.prompt_of(1)}]
    return {
        ("environment.main", "/run"): task.row,
        ("agent.main", "/run"): task.row,
        ("agent.main", "/v1/agent_sessions"): {"agent_session_id": "late"},
        ("agent.main", "/v1/responses"): task.row["responses_create_params"],
        ("model.main", "/v1/chat/completions"): {"model": stage.backend.model, "messages": messages},
        ("model.main", "/v1/responses"): {"model": stage.backend.model, **task.row["responses_create_params"]},
        ("resources.counter", "/seed_session"): task.row,
        ("resources.counter", "/increment_counter"): {"count": 5},
        ("resources.counter", "/verify"): {**session, **task.row, "response": {"output": []}},
        ("resources.counter", "/close_session"): session,
    }


async def said_to(
    stage: Stage, controller: Controller, life: Life, task: Task, only: str = ""
) -> dict[tuple[str, str], tuple[int, str]]:
    """How each of the late calls of a life is answered, or those on one route: status and code."""
    answers = {}
    for (role, route), body in late_calls(stage, life, task).items():
        if only in ("", route):
            url = f"{stage.servers[role].url}{route}"
            answer = await controller.http.post(url, json=body, headers={LIFE_HEADER: str(life)}, timeout=RESULT_S)
            answers[role, route] = answer.status_code, answer.headers.get(ERROR_HEADER, "")
    return answers


# What stands


async def standing(stage: Stage, *roles: str) -> dict[str, Status]:
    """Where the servers of these roles, or all, stand, one worker of each: also where there is no controller."""
    async with stage.http() as http:
        return {role: await HttpLink(stage.servers[role].url, http).status() for role in roles or stage.servers}


async def phases(controller: Controller, *but: str) -> set[str]:
    """The phases of all members whose kind is none of these."""
    members = [member for member in controller.fleet.members if member.kind not in but]
    return {(await member.link.status()).phase for member in members}


async def until_phase(controller: Controller, phase: str, *but: str) -> None:
    """Until all members but those of these kinds are in a phase."""

    async def there() -> bool:
        return await phases(controller, *but) == {phase}

    await until_asked(there, RESULT_S)


async def going_on(controller: Controller) -> dict[str, dict[str, int]]:
    """What each member still has of any life, where that is anything."""
    left = {
        name: {k: v for k, v in each.items() if k not in NOT_WORK} for name, each in (await controller.left()).items()
    }
    return {name: each for name, each in left.items() if each}


async def total(controller: Controller, name: str) -> int:
    """One of the counts, over all members."""
    return sum([status.counts.get(name, 0) for status in (await controller.statuses()).values()])


# Signals


def suspend(server: Server) -> None:
    """SIGSTOP its workers: they hang, with all their connections open."""
    _signal(server, signal.SIGSTOP)


def wake(server: Server) -> None:
    """Let them go on."""
    _signal(server, signal.SIGCONT)


def _signal(server: Server, number: signal.Signals) -> None:
    for worker in range(server.spec["workers"]):
        os.kill(server.worker(worker), number)


# A controller in a process of its own


async def doom(stage: Stage, point: str) -> None:
    """Let a controller in a process of its own take over, and die by SIGKILL at a point of `doomed.py`."""
    order = {
        "folder": str(stage.folder),
        "token": stage.token,
        "backend": stage.backend.url,
        "ports": {role: server.port for role, server in stage.servers.items()},
        "point": point,
    }
    command = [sys.executable, "-m", "tests.scenarios.doomed", orjson.dumps(order).decode()]

    def run() -> subprocess.CompletedProcess[str]:
        root = Path(__file__).parents[2]
        return subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=DOOMED_S, check=False)

    ended = await anyio.to_thread.run_sync(run)
    assert ended.returncode == -signal.SIGKILL, f"it ended with {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
