"""A trainer as a process that can be killed: it has real servers run, trains over them, and says what it does.

python -m tests.orchestrator.training.child <folder with run.toml> <number of rows>
"""

import sys
from pathlib import Path
from typing import Any

import anyio

import midflight
from midflight import CoordinationError, HttpLink, training_run
from orchestrator.collect.config import load_participants
from orchestrator.deployment import NotUp, deployed

from .trainer import Trainer

TOOLS = [{"type": "function", "name": name} for name in ("increment_counter", "get_counter_value")]
MOST_STARTS = 20


def say(what: str) -> None:
    """To whoever listens."""
    print(what, flush=True)  # noqa: T201 - that is what it is for


def counting(position: int) -> dict[str, Any]:
    """A row of one to four tool calls."""
    adds = position % 4
    asked = [{"role": "user", "content": "add 1 then " * adds + "get the count"}]
    parameters = {"input": asked, "tools": TOOLS}
    return {"responses_create_params": parameters, "initial_count": position, "expected_count": position + adds}


async def one_start(folder: Path, rows: int) -> None:
    """Until everything is trained on. Raises CoordinationError where servers are lost."""
    config = load_participants(folder / "run.toml")
    assert config.fleet is not None
    async with (
        deployed(config, config.fleet) as deployment,
        midflight.http_client(deployment.token) as client,
        midflight.open_store(folder / "checkpoints", "write") as store,
    ):
        links = [HttpLink(server.url, client) for server in deployment.servers]
        async with training_run(links, store, fingerprint={"rows": str(rows)}) as run:
            data = [counting(position) for position in range(rows)]
            trainer = Trainer(data, in_flight=5, folder=folder / "weights", tell=say)
            trainer.begin(run)
            say(f"began at {run.cursor} with {len(run.undelivered)}")
            await trainer.train(run)


async def main(folder: Path, rows: int) -> None:
    """Start after start: what is lost is started again."""
    for _ in range(MOST_STARTS):
        try:
            await one_start(folder, rows)
            say("done")
            return
        except (CoordinationError, NotUp) as error:  # Servers are killed while they are started, too.
            say(f"lost {type(error).__name__} {error}")


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), int(sys.argv[2]))
