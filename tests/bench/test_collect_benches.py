"""The benchmarks of the collection run say what they promise, on small inputs."""

import json

import pytest

from bench import collect, inflight

pytestmark = pytest.mark.process


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """The JSON object that a benchmark prints last."""
    document: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return document


def test_the_bench_of_episodes_in_flight_restores_all_that_it_has_committed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """Its last line has exactly the promised keys; taking up would hang if one episode were not restored."""
    monkeypatch.chdir(str(tmp_path))
    inflight.main(["--rollouts", "40", "--json"])
    found = last_line(capsys)
    stages = ("prepare", "commit", "restore")
    times = {f"{stage}{unit}" for stage in stages for unit in ("_s", "_cpu_s")}
    assert set(found) == {"rollouts", *times, "bytes", "peak_rss_mb"}
    assert found["rollouts"] == 40


def test_the_bench_of_the_collection_run_has_every_figure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """Its last line has exactly the promised keys, and every run delivered every row."""
    monkeypatch.chdir(str(tmp_path))
    collect.main(["--rollouts", "12", "--repeat", "1", "--kills", "1", "--kill-rollouts", "12", "--json"])
    found = last_line(capsys)
    rates = {"off", "on", "every_second"}
    assert set(found) == rates | {"overhead_percent", "hold_ms", "redone", "rows_only"}
    for name in rates:
        assert set(found[name]) == {"episodes_per_s"}  # type: ignore[call-overload]
    for name in ("redone", "rows_only"):
        assert set(found[name]) == {"tokens", "calls"}  # type: ignore[call-overload]
