"""Runs over environments that ship: games of blackjack, and tasks in an office. Writes rows and a run.toml for each.

    python examples/environments.py                                collects both, against a model that it starts itself
    python examples/environments.py --url http://127.0.0.1:8000    writes ./runs/blackjack and ./runs/workplace, no more

The rows have what the deterministic model is to say in them; a real one needs none of it.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from participants.servers import WorkplaceServer
from participants.servers.blackjack import INSTRUCTIONS
from participants.workplace import make_tasks

MIDFLIGHT = [sys.executable, "-m", "midflight"]
COMMON = """
[run]
input = "rows.jsonl"
output = "results.jsonl"

[model]
base_url = "{url}/v1"
model = "midflight-deterministic"

[checkpoint]
enabled = true
url = "checkpoints"
"""
BLACKJACK = """
[agent]
server = "participants.gymnasium_agent:GymnasiumAgent"
max_steps = 5

[resources.blackjack]
server = "participants.servers.blackjack:BlackjackServer"
"""
WORKPLACE = """
[resources.workplace]
server = "participants.servers.workplace:WorkplaceServer"
"""


def games(size: int) -> Iterator[dict[str, Any]]:
    """Games with the cards of their seeds; the model hits a number of times, and stands."""
    for seed in range(size):
        says = [*["<action>hit</action>"] * (seed % 3), "<action>stand</action>"]
        messages = [
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": f"Deal me in. {scripted({'text': text} for text in says)}"},
        ]
        yield {"responses_create_params": {"input": messages}, "seed": seed}


def tasks(size: int) -> Iterator[dict[str, Any]]:
    """Tasks with the calls that solve them, after those that look up what is not given; every third is not solved."""
    tools = [each.schema for each in WorkplaceServer().tools.values()]
    for number, task in enumerate(make_tasks(size, seed=0)):
        calls = [*task.looked, *(() if number % 3 == 2 else task.calls)]
        steps: list[Any] = [{"call": {"name": name, "arguments": given}} for name, given in calls]
        row = task.row(number, tools)
        row["responses_create_params"]["input"][-1]["content"] += scripted([*steps, {"text": "It is done."}])
        yield row


def scripted(steps: Any) -> str:
    """What the deterministic model says turn by turn."""
    return f" <script>{json.dumps(list(steps))}</script>"


def write(url: str) -> list[Path]:
    """A folder for each run; gives them."""
    runs = {"blackjack": (BLACKJACK, games(12)), "workplace": (WORKPLACE, tasks(18))}
    for name, (tables, rows) in runs.items():
        folder = Path("runs") / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "run.toml").write_text(COMMON.format(url=url) + tables)
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [Path("runs") / name for name in runs]


def collect(folder: Path) -> None:
    """Run it, and say what came of it."""
    subprocess.run([*MIDFLIGHT, "collect", str(folder / "run.toml")], check=True)
    rewards = [json.loads(line)["reward"] for line in (folder / "results.jsonl").read_text().splitlines()]
    print(f"{folder}: {len(rewards)} rows, rewards {rewards}")


def main() -> None:
    """Write the folders, and collect unless a model's address is given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="", help="of the model, without /v1")
    if url := parser.parse_args().url:
        write(url)
        return
    with subprocess.Popen([*MIDFLIGHT, "backend"], stdout=subprocess.PIPE, text=True) as backend:
        try:
            assert backend.stdout is not None
            for folder in write(backend.stdout.readline().removeprefix("ready: ").strip()):
                collect(folder)
        finally:
            backend.terminate()


if __name__ == "__main__":
    main()
