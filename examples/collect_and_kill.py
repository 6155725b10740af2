"""Runs an evaluation, kills it with SIGKILL in the middle, and continues it; that of examples/collect if none is named.

    python examples/collect_and_kill.py [run.toml]

Works in ./runs/killed.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

EXAMPLES = Path(__file__).parent
FOLDER = Path("runs/killed")
MIDFLIGHT = [sys.executable, "-m", "midflight"]
LEFT = ("results*", "checkpoints", "runs", "__pycache__")
"""What a run in the folder of the example has left: nothing of it is taken over."""


def prepare_folder(source: Path, url: str) -> Path:
    """A fresh copy of the example, for a model at this address."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    shutil.copytree(source.parent, FOLDER, ignore=shutil.ignore_patterns(*LEFT))
    config = FOLDER / source.name
    config.write_text(re.sub('base_url = ".*"', f'base_url = "{url}/v1"', config.read_text()))
    return config


def kill_after_checkpoints(config: Path, count: int) -> None:
    """Start the run, and kill it, and all that belongs to it, once it has taken so many checkpoints."""
    command = [*MIDFLIGHT, "collect", str(config), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as run:
        for line in run.stdout or ():
            count -= json.loads(line)["event"] == "checkpoint"
            if not count:
                os.killpg(run.pid, signal.SIGKILL)
                break
    killed = run.returncode == -signal.SIGKILL
    print("killed with SIGKILL after a checkpoint" if killed else "it ended before it could be killed")


def main(example: str = "collect/run.toml") -> None:
    """Show it."""
    with subprocess.Popen([*MIDFLIGHT, "backend", "--latency-s", "0.3"], stdout=subprocess.PIPE, text=True) as backend:
        try:
            assert backend.stdout is not None
            url = backend.stdout.readline().removeprefix("ready: ").strip()
            config = prepare_folder(EXAMPLES / example, url)
            kill_after_checkpoints(config, 2)
            found = subprocess.run([*MIDFLIGHT, "collect", str(config), "--json"], stdout=subprocess.PIPE, check=True)
        finally:
            backend.terminate()
    summary = json.loads(found.stdout.splitlines()[-1])
    print(f"the same command again: {summary['continued']} rollouts went on from the checkpoint,")
    print(f"which saved {summary['saved_calls']} model calls and {summary['saved_tokens']} tokens;")
    print(f"{summary['restarted']} started over")
    results = FOLDER / tomllib.loads(config.read_text())["run"]["output"]
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    once = set(Counter(row["_ng_rollout_id"] for row in rows).values()) == {1}
    print(f"{len(rows)} rows, each rollout once: {once}; rewards: {dict(Counter(row['reward'] for row in rows))}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
