"""A controller of one's own over servers: it starts them, checkpoints their rollouts, kills them all, and goes on.

python examples/served_controller.py [FOLDER]
"""

import sys
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio

import midflight
from midflight import Controller, Fleet, Life, Member, Store
from orchestrator.collect.config import load_participants
from orchestrator.deployment import deployed
from participants.inference import Backend, Pace, Settings, serving
from participants.work import joined

SERVERS = """
model = {{ base_url = "{url}/v1", model = "midflight-deterministic" }}
resources.counter = {{ server = "participants.servers.counter:CounterServer" }}
checkpoint = {{ enabled = true, url = "checkpoints" }}
[fleet.servers]
"environment.main" = {{ workers = 2 }}
"""
TOOLS = [{"type": "function", "name": name} for name in ("increment_counter", "get_counter_value")]


def row_of(life: Life) -> dict[str, Any]:
    """The row of a rollout, always the same: those of a higher number have more to do."""
    steps = 1 + int(life.rollout_id.removeprefix("rollout-"))
    asked = [{"role": "user", "content": "add 1 then " * steps + "get the count"}]
    return {
        "responses_create_params": {"input": asked, "tools": TOOLS},
        "initial_count": 3,
        "expected_count": 3 + steps,
    }


async def ask(fleet: Fleet, kind: type[Any], answer: type[Any], **fields: Any) -> list[tuple[str, Any]]:
    """One operation of every member, all at once: the kind of each, and what it answered."""
    outcomes = await midflight.ask_all(fleet.members, lambda m: kind(**fleet.envelope(m), **fields), answer)
    if failures := midflight.failures_of(outcomes):
        raise midflight.ControlFailed(failures)
    return [(outcome.member.kind, outcome.answer) for outcome in outcomes]


async def submit(fleet: Fleet, lives: Sequence[Life]) -> None:
    """Give each worker of the environment the lives that are its own."""
    for member in fleet.of_kind("environment"):
        at = member.capabilities
        own = [life for life in lives if midflight.worker_of(life.rollout_id, at.workers) == at.worker]
        episodes = tuple(midflight.Dispatched(life=life, row=row_of(life)) for life in own)
        message = midflight.Submit(**fleet.envelope(member), episodes=episodes)
        answer = await member.link.send(message, midflight.Submitted)
        assert not answer.refused, answer.refused  # By life: each with a code, a message, and whether to try again.


async def deliver(fleet: Fleet, lives: Sequence[Life], least: int) -> list[Life]:
    """Wait for so many results, keep and release them; gives the lives that have none yet."""
    results: dict[Life, midflight.Finished] = {}

    async def read(member: Member) -> None:
        """Everything of one worker that is not released, from the first on, whoever has read it before."""
        async with aclosing(member.link.results(fleet.envelope(member), after=0)) as stream:
            async for finished in stream:
                results[finished.life] = finished
                if len(results) >= least:
                    readers.cancel_scope.cancel()

    async with anyio.create_task_group() as readers:
        for member in fleet.of_kind("environment"):
            readers.start_soon(read, member)
    for life, finished in results.items():  # This is where a trainer makes them durable.
        print(f"{life}: reward {(finished.row or {}).get('reward')}")
    await ask(fleet, midflight.Release, midflight.Done, lives=tuple(results))
    return [life for life in lives if life not in results]


async def first_life(fleet: Fleet, controller: Controller) -> None:
    """Six new rollouts: two results are delivered, and the other four are in a checkpoint."""
    lives = [Life(f"rollout-{n}", controller.epoch, 0, n) for n in range(6)]
    await submit(fleet, lives)
    left = await deliver(fleet, lives, least=2)
    async with midflight.checkpoint(fleet, controller, midflight.RoundLimits()) as standing:
        standing.take(scope=left, state={"step": 7})
    print(f"a checkpoint of {len(left)} rollouts; now every server is killed")


async def next_life(fleet: Fleet, controller: Controller, store: Store) -> None:
    """Restore what the checkpoint has, submit the next attempt of each, and deliver it."""
    assert controller.head is not None
    scope = (await midflight.open_checkpoint(store, controller.head)).manifest.scope
    round_id = controller.next_round()
    await midflight.restore(fleet, round_id, controller.head, scope, timeout_s=60)
    await midflight.resume(fleet, round_id)
    saved = joined(await ask(fleet, midflight.Work, midflight.Worked, rollouts=None))
    print(f"{sum(calls for calls, _ in saved.values())} model calls of {len(saved)} rollouts are not made again")
    lives = [Life(life.rollout_id, controller.epoch, life.attempt + 1, n) for n, life in enumerate(scope)]
    await submit(fleet, lives)
    assert not await deliver(fleet, lives, least=len(lives))


async def serve_and_control(file: Path, store: Store) -> None:
    """One start: fresh servers, found from one URL each, claimed and adopted before anything else."""
    config = load_participants(file)
    assert config.fleet is not None
    async with deployed(config, config.fleet) as deployment, midflight.http_client(deployment.token) as client:
        links = [midflight.HttpLink(server.url, client) for server in deployment.servers]
        async with midflight.claim(store) as controller:
            fleet, _ = await midflight.adopt(await midflight.discover(links, store.run_id), controller.epoch)
            if controller.head is None:
                await first_life(fleet, controller)
                deployment.kill_at_once()
            else:
                await next_life(fleet, controller, store)


async def main(folder: Path) -> None:
    """Both starts, over one store and one model that outlives the servers."""
    backend = Backend(Settings(pace=Pace(latency_s=0.1)))
    async with serving(backend) as url, midflight.open_store(folder / "checkpoints", "write") as store:
        (folder / "run.toml").write_text(SERVERS.format(url=url))
        await serve_and_control(folder / "run.toml", store)
        await serve_and_control(folder / "run.toml", store)


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        anyio.run(main, Path(sys.argv[1] if len(sys.argv) > 1 else scratch))
