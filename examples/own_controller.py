"""A controller of one's own, as a trainer has: it checkpoints rollouts with its own state, dies, and goes on.

python examples/own_controller.py [FOLDER]
"""

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio

from midflight import (
    Controller,
    ControlPlane,
    EnvironmentServer,
    Fleet,
    Life,
    LocalLink,
    LocalPeer,
    ModelServer,
    OpenAIEndpoint,
    RoundLimits,
    SimpleAgent,
    Store,
    adopt,
    checkpoint,
    claim,
    discover,
    open_checkpoint,
    open_store,
    restore,
    resume,
)
from participants.inference import Backend, Pace, Settings, serving
from participants.servers.counter import CounterServer

ROW = {
    "responses_create_params": {
        "model": "midflight-deterministic",
        "input": [{"role": "user", "content": "add 1 then add 2 then get the count"}],
        "tools": [{"type": "function", "name": name} for name in ("increment_counter", "get_counter_value")],
    },
    "initial_count": 3,
    "expected_count": 6,
}


@asynccontextmanager
async def open_world(store: Store, url: str) -> AsyncIterator[tuple[EnvironmentServer, Fleet]]:
    """The four kinds of participant in this process, and the fleet through which they are controlled."""
    async with AsyncExitStack() as stack:
        model = ModelServer(await stack.enter_async_context(OpenAIEndpoint(url)))
        counter = CounterServer(name="counter")
        peers = {counter.role: LocalPeer(counter)}
        agent = SimpleAgent(LocalPeer(model), peers)
        environment = await stack.enter_async_context(EnvironmentServer(LocalPeer(agent), peers).run())
        holders: list[Any] = [environment, model, agent, counter]
        planes = [await stack.enter_async_context(ControlPlane(holder, store).run()) for holder in holders]
        yield environment, await discover([LocalLink(plane) for plane in planes], store.run_id)


async def first_life(store: Store, url: str) -> None:
    """Dispatch four rollouts, take a checkpoint while they are in flight, and die."""
    async with open_world(store, url) as (environment, fleet), claim(store) as controller:
        fleet, _ = await adopt(fleet, controller.epoch)
        lives = [Life(f"rollout-{n}", controller.epoch, 0, n) for n in range(4)]
        for life in lives:
            await environment.dispatch(life, ROW)
        await anyio.sleep(0.3)  # Some calls are made by now; how many does not matter.
        await save(fleet, controller, lives, {"step": 7, "optimizer": b"\x00\x01"})


async def save(fleet: Fleet, controller: Controller, lives: list[Life], state: dict[str, Any]) -> None:
    """One checkpoint: inside the block everything stands still, and both kinds of state are taken in one step."""
    async with checkpoint(fleet, controller, RoundLimits()) as standing:
        standing.take(scope=lives, state=state)
    assert standing.published is not None
    print(f"checkpoint {standing.published.checkpoint}: {len(lives)} rollouts and step {state['step']}")


async def second_life(store: Store, url: str) -> None:
    """Restore everything or nothing, dispatch the next attempt of each rollout, and collect the results."""
    async with open_world(store, url) as (environment, fleet), claim(store) as controller:
        fleet, _ = await adopt(fleet, controller.epoch)
        assert controller.head is not None
        head = await open_checkpoint(store, controller.head)
        await head.verify_own()
        state, scope = await head.state(), head.manifest.scope
        round_id = controller.next_round()
        await restore(fleet, round_id, controller.head, scope, timeout_s=60)
        await resume(fleet, round_id)
        for n, life in enumerate(scope):
            await environment.dispatch(Life(life.rollout_id, controller.epoch, life.attempt + 1, n), ROW)
        left = {life.rollout_id for life in scope}
        async for result in environment.results():
            environment.acknowledge(result.life)  # Only after the result is kept for good.
            left.remove(result.life.rollout_id)
            print(f"{result.life}: reward {(result.row or {}).get('reward')}")
            if not left:
                break
        print(f"the trainer goes on at step {state['step']}")


async def main(folder: str) -> None:
    """Both lives, over one store and one model that outlives the crash."""
    backend = Backend(Settings(pace=Pace(latency_s=0.1)))
    async with serving(backend) as url, open_store(Path(folder) / "checkpoints", "write") as store:
        await first_life(store, f"{url}/v1")
        await second_life(store, f"{url}/v1")


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else scratch)
