"""A run over a server of one's own: writes rows for `own_server.TodoServer` and a run.toml, and collects them.

    python examples/own_rows.py

Works in ./runs/todos, against a model that it starts itself.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from own_server import TodoServer  # type: ignore[import-not-found]  # It lies beside this file.

FOLDER = Path("runs/todos")
MIDFLIGHT = [sys.executable, "-m", "midflight"]
RUN = """
[run]
input = "rows.jsonl"
output = "results.jsonl"

[model]
base_url = "{url}/v1"
model = "midflight-deterministic"

[resources.todo]
server = "own_server:TodoServer"

[checkpoint]
enabled = true
url = "checkpoints"
"""


def rows(server: TodoServer) -> Iterator[dict[str, Any]]:
    """What the model is asked, with the schemas of the tools; beside it the fields that `seed` and `verify` get."""
    tools = [each.schema for each in server.tools.values()]
    for todo in ("sweep", "mop", "dust"):
        asked = [{"role": "user", "content": f"Tick off: {todo}. {scripted(todo)}"}]
        yield {"responses_create_params": {"input": asked, "tools": tools}, "todos": [todo]}


def scripted(todo: str) -> str:
    """What the deterministic model says to that; a real one needs none of it."""
    steps = [{"call": {"name": "tick_off", "arguments": {"todo": todo}}}, {"text": "Done."}]
    return f"<script>{json.dumps(steps)}</script>"


def main() -> None:
    """Write the folder, and run it."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    shutil.copy(Path(__file__).parent / "own_server.py", FOLDER)
    with open(FOLDER / "rows.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows(TodoServer()))
    with subprocess.Popen([*MIDFLIGHT, "backend"], stdout=subprocess.PIPE, text=True) as backend:
        try:
            assert backend.stdout is not None
            url = backend.stdout.readline().removeprefix("ready: ").strip()
            (FOLDER / "run.toml").write_text(RUN.format(url=url))
            subprocess.run([*MIDFLIGHT, "collect", str(FOLDER / "run.toml")], check=True)
        finally:
            backend.terminate()
    results = [json.loads(line) for line in (FOLDER / "results.jsonl").read_text().splitlines()]
    print(f"{len(results)} rows, rewards {[row['reward'] for row in results]}")


if __name__ == "__main__":
    main()
