"""A black box: a program that knows an OpenAI-compatible endpoint and tools at URLs, and nothing of midflight."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any


def post(url: str, body: Any) -> Any:
    """One call, of the model or of a tool."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def main() -> None:
    """A loop over the Responses API: ask, call the tools that are asked for, ask again, and say the last word."""
    task = json.loads(Path("task.json").read_text())
    model, tools = os.environ["OPENAI_BASE_URL"], os.environ["MIDFLIGHT_TOOLS_URL"]
    items = task["input"]
    while True:
        said = post(f"{model}/responses", {"model": os.environ["OPENAI_MODEL"], "input": items, "tools": task["tools"]})
        calls = [item for item in said["output"] if item["type"] == "function_call"]
        items = [*items, *said["output"]]
        if not calls:
            break
        for call in calls:
            found = json.dumps(post(f"{tools}/{call['name']}", json.loads(call["arguments"])))
            items.append({"type": "function_call_output", "call_id": call["call_id"], "output": found})
    print(items[-1]["content"][0]["text"])


if __name__ == "__main__":
    if "OPENAI_BASE_URL" in os.environ:
        main()
    else:  # Over examples/black_box.toml: killed in the middle, and run again.
        killing = Path(__file__).with_name("collect_and_kill.py")
        subprocess.run([sys.executable, str(killing), "black_box.toml"], check=True)
