"""A trainer's loop whose rollouts, cursor, buffer and weights are in one checkpoint: it dies mid-flight, and goes on.

python examples/trainer.py [FOLDER]
"""

import hashlib
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio

from midflight import (
    ControlPlane,
    EnvironmentServer,
    Link,
    LocalLink,
    LocalPeer,
    ModelServer,
    OpenAIEndpoint,
    Retention,
    SimpleAgent,
    Store,
    TrainingRun,
    files_in_use,
    open_store,
    prune,
    training_run,
)
from participants.inference import Backend, Pace, Settings, serving
from participants.servers.counter import CounterServer

ROWS, BATCH, IN_FLIGHT = 12, 3, 4
TOOLS = [{"type": "function", "name": name} for name in ("increment_counter", "get_counter_value")]


def row_of(position: int) -> dict[str, Any]:
    """A row of the data set; some have more to do than others."""
    adds = position % 3
    asked = [{"role": "user", "content": "add 1 then " * adds + "get the count"}]
    parameters = {"model": "midflight-deterministic", "input": asked, "tools": TOOLS}
    return {"responses_create_params": parameters, "initial_count": position, "expected_count": position + adds}


def learn(weights: bytes, batch: list[str]) -> bytes:
    """Stands for an optimizer's step: what comes out depends on everything trained on, in its order."""
    return hashlib.sha256(weights + " ".join(batch).encode()).digest()


async def train(run: TrainingRun, folder: Path, steps: int) -> list[str]:
    """Up to a step; gives what was trained on."""
    trained, buffer, weights = list[str](), list[str](), b"untrained"
    if run.state is not None:
        trained, buffer = run.state["trained"], run.state["buffer"]
        weights = await anyio.Path(run.files["weights"]).read_bytes()
        print(f"goes on behind {len(trained)} rows, with {len(run.undelivered)} in flight")
    while len(trained) < steps * BATCH:
        while (cursor := run.cursor or 0) < ROWS and len(run.undelivered) < IN_FLIGHT:
            await run.dispatch({f"row-{cursor}": row_of(cursor)}, after=run.cursor, cursor=cursor + 1)
        buffer.append((await run.next()).rollout_id)
        if len(buffer) == BATCH:
            trained, weights, buffer = trained + buffer, learn(weights, buffer), []
            path = folder / f"weights-{len(trained)}"
            await anyio.Path(path).write_bytes(weights)
            async with run.checkpoint() as save:
                save.state = {"trained": trained, "buffer": buffer}
                save.file("weights", path)
    return trained


async def tidy(store: Store, folder: Path) -> None:
    """Keep the last two checkpoints, and of the trainer's own files those that they name."""
    await prune(store, Retention(keep_last=2))
    used = await files_in_use(store)
    async for path in anyio.Path(folder).glob("weights-*"):
        if Path(path) not in used:
            await path.unlink()


@asynccontextmanager
async def participants(store: Store, url: str) -> AsyncIterator[list[Link]]:
    """All four kinds in this process; over servers, each link is an `HttpLink` with the URL of one."""
    async with AsyncExitStack() as stack:
        model = ModelServer(await stack.enter_async_context(OpenAIEndpoint(url)))
        counter = CounterServer(name="counter")
        peers = {counter.role: LocalPeer(counter)}
        agent = SimpleAgent(LocalPeer(model), peers)
        environment = await stack.enter_async_context(EnvironmentServer(LocalPeer(agent), peers).run())
        holders: list[Any] = [environment, model, agent, counter]
        yield [LocalLink(await stack.enter_async_context(ControlPlane(holder, store).run())) for holder in holders]


async def main(folder: Path) -> None:
    """Two lives, over one store and one model that outlives the first."""
    backend = Backend(Settings(pace=Pace(latency_s=0.1)))
    async with serving(backend) as url, open_store(folder / "checkpoints", "write") as store:
        for steps in (2, ROWS // BATCH):
            async with participants(store, f"{url}/v1") as links, training_run(links, store) as run:
                trained = await train(run, folder, steps)
            await tidy(store, folder)
    assert sorted(trained) == sorted(f"row-{position}" for position in range(ROWS))
    print(f"{len(trained)} rows, each trained on once")


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        anyio.run(main, Path(sys.argv[1] if len(sys.argv) > 1 else scratch).resolve())
