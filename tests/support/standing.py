"""A controller of stand-ins as a process that can be killed: brings a fleet up, and prints its events as JSON.

Run it with the file of a fleet and `start` or `adopt`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import anyio

from orchestrator.collect.config import load_participants
from orchestrator.deployment import Deployment
from orchestrator.deployment.standing import stand

from .standin import COMMAND


def tell(event: str, facts: dict[str, Any]) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)  # noqa: T201 - that is what it is for


async def main(file: Path, mode: str) -> None:
    config = load_participants(file)
    assert config.fleet is not None
    async with Deployment(config, config.fleet, path=file.parent, tell=tell, command=COMMAND) as deployment:
        await stand(deployment, adopt=mode == "adopt", tell=tell)


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2])
