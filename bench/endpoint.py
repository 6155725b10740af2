"""The deterministic backend as a process for benchmarks, and what its log says that it did."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.cli.backend import READY
from participants.servers.counter import CounterServer
from participants.tools import tools_of

TOOLS = [found.schema for found in tools_of(CounterServer).values()]
END_S = 10.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A backend that runs."""

    base_url: str
    log: Path

    def generated(self) -> tuple[int, int]:
        """Calls that it has begun, and tokens that it has generated, also for calls whose client went away."""
        calls = tokens = 0
        for line in self.log.read_text(encoding="utf-8").splitlines():
            document = json.loads(line)
            calls += document["event"] == "begin"
            tokens += document["generated"] if document["event"] == "end" else 0
        return calls, tokens


@contextmanager
def endpoint(folder: Path, *, control: bool = False, **options: float) -> Iterator[Endpoint]:
    """A backend for the length of a block; `options` as on its command line."""
    log = folder / "backend.jsonl"
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    flags += ["--control"] if control else []
    command = [sys.executable, "-m", "orchestrator.cli.backend", "--log", str(log), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line.startswith(READY):
                raise RuntimeError(f"the backend did not come up: {line!r}")
            yield Endpoint(line.removeprefix(READY).strip() + "/v1", log)
        finally:
            process.terminate()
            process.wait(END_S)


def row(number: int, turns: int, filler: int = 0) -> dict[str, Any]:
    """A task of the counter: `turns` tool calls, each after so many tokens of plain words, then an answer."""
    call = {"name": "increment_counter", "arguments": {"count": 1}}
    script = [*({"filler": filler, "call": call} for _ in range(turns)), {"filler": filler, "text": "done"}]
    content = f"Task {number}. <script>{json.dumps(script)}</script>"
    return {
        "responses_create_params": {"input": [{"role": "user", "content": content}], "tools": TOOLS},
        "initial_count": number,
        "expected_count": number + turns,
    }


def write_rows(path: Path, count: int, turns: int, filler: int = 0) -> Path:
    """So many different tasks, a line each."""
    path.write_text("".join(json.dumps(row(number, turns, filler)) + "\n" for number in range(count)))
    return path
