"""Runs whose verifier asks a model of its own: a judge in flight at a kill, one that is not there, and the ledger."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from store import open_checkpoint, open_store
from tests.support.backend import RunningBackend, start_backend
from tests.support.waiting import until

from .harness import Run, Start, read_rows

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

PATIENCE_S = 90.0
EMBEDDED, ONE, TWO = "embedded", "1 worker", "2 workers"
FILLER, CUT = 60, 25
SCRIPT = f'<script>[{{"filler": {FILLER}, "text": "[[VERDICT]]"}}]</script>'
ROLES = ("environment.main", "agent.main", "model.main", "model.judge", "resources.judged")


@dataclass(slots=True)
class JudgedRun(Run):
    """One resources server, whose judge is another backend than the policy's."""

    judge: RunningBackend | None = None
    judge_settings: dict[str, Any] = field(default_factory=dict)
    verdict: str = "A=B"

    def tables(self) -> dict[str, dict[str, Any]]:
        """Those of the run with the judge's in the place of the counter's."""
        assert self.judge is not None
        tables = Run.tables(self)
        del tables["resources.counter"], tables["resources.counter.options"]
        options = {
            "judge": "model.judge",
            "check_twice_swap": True,
            "system_message": SCRIPT.replace("VERDICT", self.verdict),
        }
        server = "participants.verifiers.equivalence_llm_judge:EquivalenceLLMJudgeServer"
        return {
            **tables,
            "models.judge": {"base_url": self.judge.base_url, "model": self.judge.model, **self.judge_settings},
            "resources.judged": {"server": server},
            "resources.judged.options": options,
        }


def row(number: int) -> dict[str, Any]:
    """The policy says a word that is like no other; the judge has been told what to find of it."""
    said = {"role": "user", "content": f'<script>[{{"text": "word {number}"}}]</script>'}
    return {
        "responses_create_params": {"input": [said]},
        "question": f"Question {number}?",
        "expected_answer": f"the word {number}",
    }


@contextmanager
def judged_run(folder: Path, how: str) -> Iterator[JudgedRun]:
    """Four rows; two backends."""
    (folder / "judge").mkdir(parents=True)
    with start_backend(folder) as policy, start_backend(folder / "judge") as judge:
        rows = [row(number) for number in range(4)]
        run = JudgedRun(folder, policy, rows, checkpoint={"interval_s": 0}, judge=judge)
        if how != EMBEDDED:
            run.fleet = {"mode": "start", "workers": dict.fromkeys(ROLES, 2 if how == TWO else 1)}
        try:
            yield run
        finally:
            run.end_servers()


def judged(run: Run) -> list[dict[str, Any]]:
    """The rows of the output without what the clock or a life says."""
    rows = read_rows(run.folder / "out.jsonl")
    for each in rows:
        for evaluation in each["judge_evaluations"]:
            evaluation["response"].pop("created_at")
    return rows


def all_judged_in_part(run: JudgedRun, start: Start) -> None:
    """Until the judge's first call of each rollout is held after some tokens."""
    assert run.judge is not None
    control = run.judge.control
    until(lambda: start.events("started") or not start.lives(), PATIENCE_S, start.told)
    until(lambda: control.counts()["held"] == 4, PATIENCE_S, start.told)


async def cuts(url: str) -> dict[str, int]:
    """How many beginnings the head has at each model server."""
    async with open_store(url, "read") as store:
        checkpoint = await open_checkpoint(store)
        found: dict[str, int] = {}
        for process in checkpoint.processes:
            name = f"{process.name.kind}.{process.name.name}"
            async with checkpoint.records([process]) as records:
                async for record in records:
                    count = len(record.payload["state"].get("cuts", ()))
                    found[name] = found.get(name, 0) + count
        return {name: count for name, count in found.items() if name.startswith("model.")}


@pytest.mark.parametrize("how", [EMBEDDED, ONE, TWO])
def test_a_judge_in_flight_at_a_kill_goes_on_and_the_reward_is_that_of_an_uninterrupted_run(
    tmp_path: Path, how: str
) -> None:
    """No checkpoint waits for it; after the kill only its rest is generated, and every row is as if nothing was."""
    with judged_run(tmp_path / "alone", EMBEDDED) as alone:
        alone.finish()
        expected = judged(alone)
    assert [each["reward"] for each in expected] == [1.0] * 4
    with judged_run(tmp_path / "killed", how) as run:
        assert run.judge is not None
        run.judge.control.hold(after_tokens=CUT)
        with run.start() as start:
            all_judged_in_part(run, start)
            start.signal(signal.SIGUSR1)
            until(lambda: start.events("checkpoint"), PATIENCE_S, start.told)
            assert anyio.run(cuts, str(run.folder / "checkpoints")) == {"model.main": 0, "model.judge": 4}
            start.kill()
        run.end_servers()
        run.judge.control.release()
        run.judge.control.wait(live_at_most=0)
        summary = run.finish().summary
        assert (summary["continued"], summary["rows"], summary["failures"]) == (4, 4, 0)
        assert judged(run) == expected
        first = [call for call in run.judge.control.calls() if call.continued]
        assert [(call.continued, call.generated > 0) for call in first] == [(CUT, True)] * 4


@pytest.mark.parametrize("how", [EMBEDDED, ONE])
def test_a_judge_that_is_not_there_is_a_failure_and_never_a_reward(tmp_path: Path, how: str) -> None:
    """Both tries of each row are failures of its class; with the judge back the same rows are rewarded."""
    with judged_run(tmp_path / "run", how) as run:
        assert run.judge is not None
        port = run.judge.port
        run.judge.kill()
        run.judge_settings, run.run = {"retry_for_s": 0.2}, {"max_attempts": 2}
        start = run.finish(code=1)
        assert (start.summary["rows"], start.summary["failures"]) == (0, 8)
        lines = (run.folder / "out_failures.jsonl").read_text().splitlines()
        failures = [json.loads(line) for line in lines]
        assert {each["_ng_failure_class"] for each in failures} == {"judge_failed"}
        assert {each["_ng_failure_stage"] for each in failures} == {"verification"}
        assert all("reward" not in each for each in failures)
        assert (run.folder / "out.jsonl").read_text() == ""
        with start_backend(run.folder / "judge", port=port):
            summary = run.finish("--retry-failed").summary
        assert (summary["rows"], [each["reward"] for each in judged(run)]) == (4, [1.0] * 4)


@pytest.mark.parametrize("how", [EMBEDDED, ONE])
def test_what_a_judge_says_stands_in_no_lineage_of_the_policy(tmp_path: Path, how: str) -> None:
    """The ledger has the policy's calls alone, one a rollout, and the judge's backend has seen its own alone."""
    with judged_run(tmp_path / "run", how) as run:
        assert run.judge is not None
        run.capture, run.verdict = {"folder": "rows"}, "A!=B"
        run.finish()
        assert [each["reward"] for each in judged(run)] == [0.0] * 4
        files = list((run.folder / "rows").rglob("*.ledger.jsonl"))
        lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        rows = [line for line in lines if line["kind"] == "row"]
        assert [each["call"].split(":")[0] for each in rows] == ["agent.main"] * 4
        assert len([call for call in run.judge.control.calls() if call.life]) == 4


def test_a_judges_server_that_dies_is_started_again_and_costs_no_attempt(tmp_path: Path) -> None:
    """Its loss is one of the run's servers, and no failure of a judge: every rollout is restored, and is rewarded."""
    with judged_run(tmp_path / "run", ONE) as run:
        assert run.judge is not None
        run.judge.control.hold(after_tokens=CUT)
        with run.start() as start:
            all_judged_in_part(run, start)
            start.signal(signal.SIGUSR1)
            until(lambda: start.events("checkpoint"), PATIENCE_S, start.told)
            os.killpg(run.servers()["model.judge"], signal.SIGKILL)
            until(lambda: start.events("went_on"), PATIENCE_S, start.told)
            run.judge.control.release()
            start.wait(0)
        assert any(event["server"].startswith("model.judge") for event in start.events("server_lost"))
        assert (start.summary["rows"], start.summary["failures"]) == (4, 0)
        assert [each["reward"] for each in judged(run)] == [1.0] * 4
