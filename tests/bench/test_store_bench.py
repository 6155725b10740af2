"""The store's benchmark runs, cleans up, and prints what it promises; how fast it was is nobody's business here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tidy.tree import ROOT

pytestmark = pytest.mark.process

TIMEOUT_S = 50
RECORDS, BYTES = 300, 1500


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The benchmark in a child process that works in `folder`, with small numbers."""
    command = [sys.executable, "-m", "bench.store", "--records", str(RECORDS), "--bytes", str(BYTES), "--repeat", "1"]
    environment = {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*command, *options], cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )


def last_line(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON that ends the output."""
    summary = json.loads(result.stdout.splitlines()[-1])
    assert isinstance(summary, dict)
    return summary


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one run with two repetitions printed last."""
    return last_line(run(tmp_path_factory.mktemp("bench"), "--json", "--repeat", "2"))


def test_the_last_line_is_json_of_the_promised_shape(summary: dict[str, Any]) -> None:
    """Every field is there and positive, and speed, seconds and bytes agree with each other."""
    assert list(summary) == ["commit", "restore", "bytes", "objects", "requests", "peak_rss_mb"]
    raw_mb = []
    for case in ("commit", "restore"):
        assert list(summary[case]) == ["seconds", "mb_per_s", "ratio_to_limit"]
        assert all(value > 0 for value in summary[case].values())
        raw_mb.append(summary[case]["seconds"] * summary[case]["mb_per_s"])
    assert raw_mb[0] == pytest.approx(RECORDS * BYTES / 1e6, rel=0.15)
    assert raw_mb[0] == pytest.approx(raw_mb[1], rel=0.05)
    assert 0 < summary["bytes"] / 1e6 < raw_mb[0]
    assert summary["peak_rss_mb"] > 10


def test_objects_and_requests_follow_participants_and_not_records(summary: dict[str, Any], tmp_path: Path) -> None:
    """A further participant costs its part, index and manifest; twice the records in one part cost nothing."""
    other = last_line(run(tmp_path, "--json", "--participants", "3", "--records", str(2 * RECORDS)))
    assert other["objects"] == summary["objects"] + 2 * 3
    assert other["requests"] > summary["requests"]


def test_nothing_is_left_behind_and_people_get_tables(tmp_path: Path) -> None:
    """The temporary folder is gone, and without --json the output ends in the table of peaks."""
    result = run(tmp_path, "--memory", "100", "200")
    assert list(tmp_path.iterdir()) == []
    assert "limit on paper: commit" in result.stdout
    assert "ratio to limit" in result.stdout
    assert [line.split()[0] for line in result.stdout.splitlines()[-2:]] == ["100", "200"]


def test_records_are_the_same_every_time(summary: dict[str, Any], tmp_path: Path) -> None:
    """Another run leaves as many bytes, but for what differs in names of hosts and processes."""
    assert last_line(run(tmp_path, "--json"))["bytes"] == pytest.approx(summary["bytes"], abs=64)
