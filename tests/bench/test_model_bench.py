"""The benchmarks of the model stage say what they promise, on small inputs."""

import json
from pathlib import Path

import pytest

from bench import flying, model


@pytest.mark.unit
@pytest.mark.parametrize("staging", [False, True])
def test_the_bench_of_generations_in_flight_cuts_and_ends_them_all(tmp_path: Path, staging: bool) -> None:
    """Every generation is in flight and cut at the status, and gets its whole reply after the resume."""
    flown = flying.measure(flying.Size(30, 8, 5, staging=staging), tmp_path)
    assert flown.flights == 30
    assert set(flown.seconds) == {"intake", "status", "prepare", "commit", "resume", "end"}
    assert flown.bytes_written > 0


@pytest.mark.process
def test_the_bench_of_the_model_stage_has_every_figure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its last line has exactly the promised keys; what a kill costs is what came after the checkpoint."""
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    monkeypatch.chdir(tmp_path)
    small = ["--tokens", "4", "--rounds", "1", "--calls", "1", "--rows", "64", "--killed", "4"]
    model.main(["--flights", "20", "40", *small, "--json"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    numbers = {"overhead_us_per_token", "overhead_ms_per_call", "ledger_rows_per_s"}
    assert set(found) == {"prepare_s", "tokens_continued", "tokens_regenerated"} | numbers
    assert set(found["prepare_s"]) == {"20", "40"}
    assert found["tokens_continued"] > 400 - 4 * 16
    assert found["tokens_regenerated"] <= 2 * 4 * 16
