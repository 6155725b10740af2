"""The agent of examples/own_agent.py over its own file: killed in the middle of generations, and continued exactly."""

import os
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from store import Life
from tests.support.backend import RunningBackend, start_backend
from tests.support.processes import program
from tests.support.waiting import until

from .harness import ROOT, Start, read_rows

pytestmark = pytest.mark.process

MOST_LINES = 60
ROWS = 4
CUT_AFTER = 22
"""Tokens: the name of the tool has been said, and its arguments have not; a name is streamed whole."""
LOGGED = 'server = "tests.support.logged_counter:LoggedCounter"\noptions = {{ log = "{}" }}'


class Example:
    """A copy of the example in a folder, whose counter writes down what it does."""

    def __init__(self, folder: Path, backend: RunningBackend) -> None:
        left = shutil.ignore_patterns("results*", "checkpoints", "runs", "__pycache__")
        self.folder = Path(shutil.copytree(ROOT / "examples", folder / "examples", ignore=left))
        self.log = folder / "counter.log"
        config = self.folder / "own_agent.toml"
        text = config.read_text()
        for old, new in (
            ("http://127.0.0.1:8000/v1", backend.base_url),
            ("repeats = 2", f"limit = {ROWS}"),
            ("interval_s = 1.0", "interval_s = 0"),
            ('server = "participants.servers.counter:CounterServer"', LOGGED.format(self.log)),
        ):
            assert text.count(old) == 1
            text = text.replace(old, new)
        config.write_text(text)
        self._starts = 0

    def start(self) -> Start:
        """`midflight collect own_agent.toml`."""
        self._starts += 1
        said, errors = (self.folder / f"{name}-{self._starts}" for name in ("events", "errors"))
        command = [str(program("midflight")), "collect", "own_agent.toml", "--json"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with said.open("wb") as stdout, errors.open("wb") as stderr:
            process = subprocess.Popen(
                command, stdout=stdout, stderr=stderr, cwd=self.folder, env=environment, start_new_session=True
            )
        return Start(process, said, errors)

    def tools(self) -> Counter[tuple[str, Any]]:
        """How often each tool call of each rollout was carried out."""
        told = [orjson.loads(line) for line in self.log.read_bytes().splitlines()]
        return Counter((Life.parse(one["life"]).rollout_id, one["what"]) for one in told if one["kind"] == "tool")

    def rows(self) -> list[dict[str, Any]]:
        """The output, without what no two runs have in common."""
        rows = read_rows(self.folder / "runs" / "own_agent" / "results.jsonl")
        for row in rows:
            for item in row["response"]["output"]:
                item.pop("id", None)
                item.pop("call_id", None)
        return rows


def generated(backend: RunningBackend) -> int:
    """Tokens that the backend has made, in calls that came to an end and in those that were cut."""
    return sum(call.generated for event, call in backend.logged() if event == "end" and call.life)


def test_the_example_of_an_agent_is_as_short_as_it_is_said_to_be() -> None:
    """Imports, docstrings and what runs it included."""
    assert len((ROOT / "examples" / "own_agent.py").read_text().splitlines()) < MOST_LINES


def test_an_agent_of_ones_own_goes_on_after_a_kill_without_a_token_or_a_tool_call_twice(tmp_path: Path) -> None:
    """Killed while each rollout is in the middle of its third call: calls, tokens and rows are those of no kill."""
    with start_backend(tmp_path) as backend:
        whole = Example(tmp_path / "whole", backend)
        with whole.start() as start:
            start.wait(0)
        tokens = generated(backend)
        assert set(whole.tools().values()) == {1, 2}  # `get` twice: the model asks, and then the agent itself.
    (tmp_path / "killed").mkdir()
    with start_backend(tmp_path / "killed") as backend:
        killed = Example(tmp_path / "killed", backend)
        backend.control.hold(substring="success", after_tokens=CUT_AFTER)
        with killed.start() as start:
            until(lambda: backend.control.counts()["held"] == ROWS, told=start.told)
            start.signal(signal.SIGUSR1)
            until(lambda: bool(start.events("checkpoint")), told=start.told)
            start.kill()
        backend.control.release()
        with killed.start() as start:
            start.wait(0)
        summary = start.summary
        assert (summary["continued"], summary["restarted"]) == (ROWS, 0)
        assert summary["saved_calls"] >= 2 * ROWS
        assert killed.rows() == whole.rows()
        assert killed.tools() == whole.tools()
        assert generated(backend) == tokens
