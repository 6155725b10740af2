"""Runs the evaluation of examples/collect from start to end, against a model that it starts itself.

    python examples/evaluate.py

Works in ./runs/evaluation, and does not need a network.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent / "collect"
FOLDER = Path("runs/evaluation")
MIDFLIGHT = [sys.executable, "-m", "midflight"]


def main() -> None:
    """Start the model, collect, and say what came out."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for name in ("run.toml", "rows.jsonl"):  # Beside them may lie what a run in that folder has left.
        shutil.copy(SOURCE / name, FOLDER)
    with subprocess.Popen([*MIDFLIGHT, "backend"], stdout=subprocess.PIPE, text=True) as backend:
        try:
            assert backend.stdout is not None
            url = backend.stdout.readline().removeprefix("ready: ").strip()
            config = FOLDER / "run.toml"
            config.write_text(re.sub('base_url = ".*"', f'base_url = "{url}/v1"', config.read_text()))
            subprocess.run([*MIDFLIGHT, "collect", str(config)], check=True)
        finally:
            backend.terminate()
    rewards = [json.loads(line)["reward"] for line in (FOLDER / "results.jsonl").read_text().splitlines()]
    print(f"{len(rewards)} rows in {FOLDER / 'results.jsonl'}, mean reward {sum(rewards) / len(rewards):.2f}")


if __name__ == "__main__":
    main()
