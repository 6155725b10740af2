"""The training example over real servers and the real worker: killed, it trains on what it would have trained on."""

from pathlib import Path

import orjson
import pytest

pytest.importorskip("torch", reason="the extra worker is not installed")

from examples.training.kills import Kill, Run, differences, figures

pytestmark = pytest.mark.real

STEPS = 3
SMALL = ("--steps", f"{STEPS}", "--groups", "2", "--save-s", "0.5")
KILLS = (
    Kill(0, 0.8, "servers", 0),
    Kill(1, 0.5, "everything", 0),
    Kill(2, 0.3, "worker", 0),
)


@pytest.mark.timeout(600)
def test_a_killed_training_run_trains_on_the_same(tmp_path: Path) -> None:
    """Groups, their order, their tokens and the last weights are those of a run that was left alone, bit for bit."""
    with Run(tmp_path / "whole", SMALL) as whole, Run(tmp_path / "killed", SMALL) as killed:
        killed.finish(KILLS)
        whole.finish()
    assert differences(tmp_path / "whole", tmp_path / "killed") == []
    found = figures(tmp_path / "killed")
    assert (found["kills"], found["steps"]) == (len(KILLS), STEPS)
    assert found["with rollouts in flight"] > 0
    history = orjson.loads((tmp_path / "killed" / "history.json").read_bytes())["history"]
    assert [step["weights"] for step in history] == [f"{step}" for step in range(STEPS)]
    rollouts = [f"group-{group:04}-{n}" for group in range(2 * STEPS) for n in range(8)]
    assert [rollout for step in history for rollout in step["rollouts"]] == rollouts
