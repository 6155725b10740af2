"""The benchmark of rollouts in flight at real servers runs, cleans up, and prints what it promises."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

ROLLOUTS = 5
TIMEOUT_S = 200
KEYS = [
    "rollouts",
    "workers",
    "other_workers",
    "in_flight",
    "prepare_s",
    "commit_s",
    "restore_s",
    "stages",
    "each",
    "exported",
    "dispositions",
    "bytes",
    "objects",
    "store_requests",
    "tokens_continued",
    "tokens_regenerated",
    "replacement_failures",
    "failures",
    "peak_rss_mb",
    "cpu_s",
]
STAGES = [
    "start",
    "fill",
    "prepare",
    "commit",
    "renew",
    "resume",
    "publish",
    "restart",
    "restore",
    "resume_restored",
    "dispatch_replacements",
    "replacements",
]
ROLES = {"environment.main", "agent.main", "model.main", "resources.counter"}


def test_the_bench_of_rollouts_at_servers_has_every_figure_and_leaves_nothing(tmp_path: Path) -> None:
    """The last line has exactly the promised keys; every rollout was cut, exported and completed; stages are told."""
    command = [sys.executable, "-m", "bench.scale", "--rollouts", str(ROLLOUTS), "--workers", "2", "--json"]
    environment = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    lines = done.stdout.splitlines()
    found = json.loads(lines[-1])
    assert list(found) == KEYS
    assert list(found["stages"]) == STAGES
    assert set(STAGES) <= {line.split()[0] for line in lines}
    assert all(set(found["each"][name]) == ROLES for name in ("prepare", "commit", "stage", "activate"))
    assert found["exported"] == dict.fromkeys(ROLES, ROLLOUTS)
    assert found["dispositions"] == {"kept": 0, "held": 0, "cut": ROLLOUTS, "anew": 0}
    assert (found["rollouts"], found["in_flight"], found["replacement_failures"]) == (ROLLOUTS, ROLLOUTS, 0)
    assert (found["tokens_continued"] > 0, found["tokens_regenerated"]) == (True, 0)
    assert set(found["store_requests"]) == ROLES | {"controller"}
    assert list(tmp_path.iterdir()) == []
