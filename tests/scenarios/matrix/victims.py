"""The victims: who they are, how they are killed, and what comes in their place.

A server is started again at its address, as its operator would; a worker is replaced by its supervisor; an inference
backend and a store come back at their addresses with what they had written, the store while the operation goes on.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio.to_thread

from tests.support.backend import start_backend
from tests.support.seaweed import KillableSeaweed

from ..stage import RESOURCES, Workers
from .plot import Plot

ONE, TWO = Workers(), Workers(model=2, others=2)
WORKER = 1
"""Which of two workers dies; it has half of the rollouts."""


@dataclass(slots=True)
class Scene:
    """One cell's stage, and what beside servers can be killed there."""

    plot: Plot
    seaweed: KillableSeaweed | None = None


Deed = Callable[["Victim", Scene], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Victim:
    """One row."""

    name: str
    kill: Deed
    mend: Deed
    """Puts another one in its place, once the operation has ended."""
    role: str = ""
    workers: Workers = ONE
    s3: bool = False
    stays: bool = False
    """The controller goes on: it has lost nobody whom it controls."""
    is_controller: bool = False


async def kill_server(victim: Victim, scene: Scene) -> None:
    """Its whole process group."""
    await scene.plot.kill(victim.role)


async def start_server(victim: Victim, scene: Scene) -> None:
    """Empty, at its address."""
    await scene.plot.restart(victim.role)


async def kill_worker(victim: Victim, scene: Scene) -> None:
    """One worker; returns when its supervisor has forked another one."""
    await anyio.to_thread.run_sync(scene.plot.servers[victim.role].kill_worker, WORKER)


async def await_worker(victim: Victim, scene: Scene) -> None:
    """The supervisor has done it."""
    await anyio.to_thread.run_sync(scene.plot.servers[victim.role].await_ready)


async def kill_backend(victim: Victim, scene: Scene) -> None:
    """With every call that it has in progress."""
    plot = scene.plot
    plot.earlier += await anyio.to_thread.run_sync(plot.backend.control.calls)
    await anyio.to_thread.run_sync(plot.backend.kill)


async def start_backend_again(victim: Victim, scene: Scene) -> None:
    """At its address, with its token store; no call is held any more."""
    old = scene.plot.backend
    if old.process.poll() is None:
        return
    old.control.close()
    folder = old.log.parent
    scene.plot.backend = await anyio.to_thread.run_sync(
        lambda: start_backend(folder, "--token-store", str(folder / "tokens"), port=old.port)
    )


async def kill_store(victim: Victim, scene: Scene) -> None:
    """And begin to start it again: the operation goes on meanwhile."""
    assert scene.seaweed is not None
    await anyio.to_thread.run_sync(scene.seaweed.restart)


async def await_store(victim: Victim, scene: Scene) -> None:
    """It takes objects again."""
    assert scene.seaweed is not None
    await anyio.to_thread.run_sync(scene.seaweed.await_ready)


async def nobody(victim: Victim, scene: Scene) -> None:
    """A controller has killed itself, and another one comes in any case."""


SERVERS = {"environment": "environment.main", "agent": "agent.main", "model": "model.main", "resources": RESOURCES}
VICTIMS = (
    *(Victim(name, kill_server, start_server, role) for name, role in SERVERS.items()),
    *(Victim(f"one worker of {name}", kill_worker, await_worker, role, TWO) for name, role in SERVERS.items()),
    Victim("controller", nobody, nobody, is_controller=True),
    Victim("inference backend", kill_backend, start_backend_again, stays=True),
    Victim("store", kill_store, await_store, s3=True, stays=True),
)
