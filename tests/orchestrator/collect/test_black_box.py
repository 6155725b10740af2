"""Runs whose agent is a black box: embedded and at servers, with OpenAI's own client, and what it fails with."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest

from participants.sandbox import python_paths
from tests.support import black_box, client_program
from tests.support.backend import start_backend
from tests.support.marks import MARK, marked
from tests.support.waiting import until

from .harness import Run, counter_row, read_rows

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@dataclass(slots=True)
class ProgramRun(Run):
    """A run with a program for an agent."""

    command: list[str] = field(default_factory=lambda: [python_paths()[0], "black_box.py"])
    program: str = black_box.__file__
    agent: dict[str, Any] = field(default_factory=dict)
    """More of its options."""
    variables: dict[str, str] = field(default_factory=dict)
    """More of its environment."""

    def tables(self) -> dict[str, dict[str, Any]]:
        """With its agent."""
        return {
            **Run.tables(self),
            "agent": {"server": "participants.harness_agent:HarnessAgent"},
            "agent.options": {"command": self.command, "files": [self.program], **self.agent},
            "agent.options.environment": {MARK: self.mark, **self.variables},
        }

    @property
    def mark(self) -> str:
        """Of its processes."""
        return str(self.folder)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ProgramRun]:
    """Four rows, and checkpoints when asked for."""
    with start_backend(tmp_path) as backend:
        run = ProgramRun(tmp_path, backend, [counter_row(number) for number in range(4)], checkpoint={"interval_s": 0})
        yield run
        run.end_servers()


def row_to_do(*acts: Any) -> dict[str, Any]:
    """A row whose program does this."""
    prompt = f"do: {json.dumps(acts)}"
    return {"responses_create_params": {"input": prompt}, "initial_count": 0, "expected_count": 0}


@pytest.mark.parametrize("servers", [False, True], ids=["embedded", "servers"])
def test_a_killed_run_of_programs_starts_over_what_was_in_flight_and_leaves_none(
    run: ProgramRun, servers: bool
) -> None:
    """Killed while each of four is in its second call: all are listed as restarts, and every row comes once."""
    run.fleet = {} if servers else None
    run.backend.control.hold(substring="success")
    with run.start() as start:
        until(lambda: run.backend.control.counts()["held"] == 4 or not start.lives(), 90.0, start.told)
        start.signal(signal.SIGUSR1)
        until(lambda: bool(start.events("checkpoint")), told=start.told)
        assert start.events("checkpoint")[0]["rollouts"] in (0, 4)
        assert len(marked(run.mark)) >= 4
        start.kill()
    run.end_servers()
    until(lambda: not marked(run.mark))
    run.backend.control.release()
    start = run.finish()
    assert (start.summary["continued"], start.summary["restarted"], start.summary["rows"]) == (0, 4, 4)
    assert [row["reward"] for row in read_rows(run.folder / "out.jsonl")] == [1.0] * 4
    assert marked(run.mark) == []


def test_the_official_client_works_streamed_and_whole(run: ProgramRun) -> None:
    """Chat and Responses say the same in both ways, models are listed, and what the model does not serve is refused."""
    packages = str(Path(openai.__file__).parents[1])
    run.rows = [row_to_do()]
    run.command, run.program = [os.path.realpath(sys.executable), "client_program.py"], client_program.__file__
    run.agent = {"read_only": [packages, os.path.realpath(sys.base_prefix)]}
    run.variables = {"PYTHONPATH": packages}
    start = run.finish()
    [row] = read_rows(run.folder / "out.jsonl")
    found = json.loads(row["response"]["output"][0]["content"][0]["text"])
    assert len(found["said"]) == 1, start.told()
    assert found["said"][0].endswith("and done")
    assert found["pieces"] > 4
    assert found["events"] > 4
    assert found["refused"] == 422
    assert row["response"]["metadata"]["midflight_steps"] == "4"


def test_a_program_that_fails_is_a_failure_row_and_no_reward(run: ProgramRun) -> None:
    """Its class says that the agent failed, each attempt is told, and other rows have theirs."""
    run.rows = [row_to_do(["exit", 3]), row_to_do(["say", "fine"])]
    run.run = {"max_attempts": 2}
    with run.start() as start:
        start.wait(1)
    assert [row["reward"] for row in read_rows(run.folder / "out.jsonl")] == [1.0]
    failures = [json.loads(line) for line in (run.folder / "out_failures.jsonl").read_text().splitlines()]
    assert [failure["_ng_failure_class"] for failure in failures] == ["agent_failed"] * 2
    assert "exited with code 3; it said last: this went wrong" in failures[0]["_ng_failure_message"]
