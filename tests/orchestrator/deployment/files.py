"""Files of fleets for these tests, and what they make of them."""

from pathlib import Path
from typing import Any

from orchestrator.collect.config import Participants, load_participants

ROLES = ["model.main", "resources.counter", "agent.main", "environment.main"]
"""Of the file below, those that others call first."""

FILE = """
[model]
base_url = "{endpoint}"
model = "midflight-deterministic"

[resources.counter]
server = "participants.servers.counter:CounterServer"
options = {options}

[fleet]
start_s = {start_s}
shutdown_s = {shutdown_s}
{fleet}
"""


def write_file(
    folder: Path,
    *,
    fleet: str = "",
    options: str = "{}",
    endpoint: str = "http://127.0.0.1:9/v1",
    start_s: float = 40.0,
    shutdown_s: float = 10.0,
) -> Path:
    """A file for one counter and the three others; `fleet` is more of its last table, and of what follows."""
    path = folder / "run.toml"
    facts: dict[str, Any] = {"fleet": fleet, "options": options, "endpoint": endpoint}
    path.write_text(FILE.format(**facts, start_s=start_s, shutdown_s=shutdown_s), encoding="utf-8")
    return path


def load(folder: Path, **facts: Any) -> Participants:
    """The same, written and read."""
    return load_participants(write_file(folder, **facts))
