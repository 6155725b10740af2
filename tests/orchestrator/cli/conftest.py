"""A store on local disk with checkpoints in it, and the command line as a function."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from typer.testing import CliRunner

from orchestrator.cli.commands import app
from store import DEFAULT_LIMITS, Limits, Segment, claim, open_store
from tests.support.checkpoints import AGENT, TOOLS, life, publish, records


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        parsed: dict[str, Any] = json.loads(self.out)
        return parsed


Run = Callable[..., Ran]


@pytest.fixture
def run() -> Run:
    """`midflight checkpoints` with these arguments, in this process."""

    def invoke(*arguments: object) -> Ran:
        result = CliRunner().invoke(app, ["checkpoints", *map(str, arguments)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return invoke


async def fill(root: Path, limits: Limits = DEFAULT_LIMITS) -> None:
    """Checkpoints 1.1 and 1.2: a few rollouts, one restart, one dropped, tags, output and a state."""
    async with open_store(root, "write", limits=limits) as store, claim(store) as controller:
        await publish(store, controller, {AGENT: records(3), TOOLS: records(1)}, tags=["nightly"], state={"row": 3})
        await publish(
            store,
            controller,
            {AGENT: records(2, start=1), TOOLS: [*records(1, start=2)]},
            restarts=[life("slow")],
            dropped={life("bad"): "it failed\x1b[31m three times"},
            output=[Segment(name="rows.jsonl", length=1234)],
            fingerprint={"dataset": "abc"},
            state={"row": 5},
        )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with two checkpoints."""
    anyio.run(partial(fill, tmp_path / "store"))
    return tmp_path / "store"
